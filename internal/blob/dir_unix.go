//go:build unix

package blob

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// tryLock takes an exclusive lock (flock) on f without waiting, and returns whether it got the
// lock. While f has the lock, no other open file of the same path can get it, even if this
// process has opened it. An error means that the file system has no locks.
func tryLock(f *os.File) (bool, error) {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, unix.EWOULDBLOCK):
			return false, nil
		case !errors.Is(err, unix.EINTR):
			return false, err
		}
	}
}

// readable returns an error if this process may not read files of the directory.
func readable(dir string) error { return unix.Access(dir, unix.R_OK|unix.X_OK) }

// SpaceOf returns what the file system of a directory has.
func SpaceOf(dir string) (DiskSpace, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return DiskSpace{}, err
	}
	size := int64(s.Bsize)                                                            //nolint:unconvert // their types differ between platforms
	return DiskSpace{Size: int64(s.Blocks) * size, Free: int64(s.Bavail) * size}, nil //nolint:unconvert,gosec // as above
}

// deviceOf returns the device of the file system of a directory or, if there is none, of the nearest one
// above it.
func deviceOf(dir string) (uint64, error) {
	var s unix.Stat_t
	for {
		err := unix.Stat(dir, &s)
		if err == nil {
			return uint64(s.Dev), nil //nolint:unconvert,gosec // its type differs between platforms
		}
		above := filepath.Dir(dir)
		if !isAbsent(err) || above == dir {
			return 0, err
		}
		dir = above
	}
}

// writable returns an error if this process may not create files in the directory.
func writable(dir string) error {
	return unix.Access(dir, unix.R_OK|unix.W_OK|unix.X_OK)
}

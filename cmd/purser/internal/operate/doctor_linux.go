package operate

import (
	"math"
	"os"
	"syscall"
)

// spaceOf returns the space of the file system of a directory. Of one that doesn't exist yet it
// returns nothing.
func spaceOf(path string) (space, error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(path, &s); err != nil {
		if os.IsNotExist(err) {
			return space{}, nil
		}
		return space{}, err
	}
	size := uint64(s.Bsize) //nolint:unconvert // its type differs between platforms
	return space{bytes: s.Blocks * size, free: s.Bavail * size, inodes: s.Files, freeInodes: s.Ffree}, nil
}

// descriptorLimit returns how many files this process may have open, 0 if that isn't known. Go has
// raised the soft limit as far as it may.
func descriptorLimit() int {
	var r syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r); err != nil {
		return 0
	}
	return int(min(r.Cur, math.MaxInt32))
}

//go:build unix

package command

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// lockFile waits until it has the lock of a file, which it creates if there is none. The kernel
// releases the lock when the process ends.
func lockFile(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX); err != unix.EINTR { //nolint:errorlint // it is an errno
			break
		}
	}
	if err != nil {
		_ = f.Close()
		return nil, &os.PathError{Op: "lock", Path: path, Err: err}
	}
	return func() { _ = f.Close() }, nil
}

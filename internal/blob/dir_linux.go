package blob

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/purser-registry/purser/internal/fileowner"
)

// syncData makes the bytes and the length of f durable, but not its timestamps.
func syncData(f *os.File) error {
	for {
		err := unix.Fdatasync(int(f.Fd()))
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("fdatasync", err)
		}
	}
}

// startWriteback asks the kernel to start writing a part of f to disk. It is only an
// optimization, so errors are ignored.
func startWriteback(f *os.File, off, n int64) {
	_ = unix.SyncFileRange(int(f.Fd()), off, n, unix.SYNC_FILE_RANGE_WRITE)
}

// Allocate makes a file that takes n bytes of its disk. It fails if the disk has fewer left.
func Allocate(path string, n int64) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(unix.Fallocate(int(f.Fd()), 0, 0, n), fileowner.Inherit(f), f.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

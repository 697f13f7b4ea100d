package blob

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
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

// preallocate takes n bytes of the disk for f.
func preallocate(f *os.File, n int64) error { return unix.Fallocate(int(f.Fd()), 0, 0, n) }

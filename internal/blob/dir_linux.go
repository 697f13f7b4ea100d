package blob

import (
	"os"

	"golang.org/x/sys/unix"
)

// syncData makes the bytes and the length of f durable, but not its times.
func syncData(f *os.File) error {
	for {
		err := unix.Fdatasync(int(f.Fd()))
		if err == nil {
			return nil
		}
		if err != unix.EINTR {
			return os.NewSyscallError("fdatasync", err)
		}
	}
}

// startWriteback has the kernel begin to write a part of f. Nothing depends on
// it, so a file system that can't is ignored.
func startWriteback(f *os.File, off, n int64) {
	_ = unix.SyncFileRange(int(f.Fd()), off, n, unix.SYNC_FILE_RANGE_WRITE)
}

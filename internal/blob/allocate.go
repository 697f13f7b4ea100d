package blob

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"os"
	"syscall"

	"github.com/purser-registry/purser/internal/fileowner"
)

// Allocate makes a file that takes n bytes of its disk. It fails if the disk has fewer left, and then
// leaves no file.
func Allocate(path string, n int64) error { return allocate(path, n, preallocate) }

// allocate is Allocate with the function that asks the file system for room. A file system that can't
// promise room, such as ZFS, is filled with bytes that it can't compress. The file has its name when it
// is complete, so that one of an interrupted call isn't taken for it.
func allocate(path string, n int64, preallocate func(*os.File, int64) error) error {
	part := path + ".new"
	f, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	if err = fileowner.Inherit(f); err == nil { // before anything is written in vain
		if err = preallocate(f, n); errors.Is(err, errors.ErrUnsupported) {
			err = fillRandom(f, n)
		}
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(part, path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("taking %d bytes of the disk: %w", n, err), os.Remove(part))
	}
	return nil
}

// fillRandom writes n random bytes and waits until the disk has them: some file systems tell only then that
// they are full.
func fillRandom(f *os.File, n int64) error {
	var seed [32]byte
	rand.Read(seed[:]) //nolint:errcheck // it never fails
	if _, err := io.CopyN(f, mathrand.NewChaCha8(seed), n); err != nil {
		return err
	}
	return f.Sync()
}

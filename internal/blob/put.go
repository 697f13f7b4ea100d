package blob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/purser-registry/purser/internal/fileowner"
)

// Putter is a store into which a restore or a move can put an object under the key that the
// object had in another store. Dir and s3.Store implement it.
type Putter interface {
	// Put stores the next `size` bytes of r as the object with this key. If r has fewer bytes
	// or fails, Put returns an error and stores no object. A reader that returns an error
	// instead of its last bytes therefore decides whether the object is stored. If Put returns nil, the
	// object is durable. If the object exists, Put replaces it. An object is visible only when
	// it is complete.
	//
	// The caller guarantees that no upload has this key, and that no other registry's object
	// has it: the database must name the key as that of a blob, and its store must have been
	// another one.
	Put(ctx context.Context, key string, size int64, r io.Reader) error
}

var _ Putter = (*Dir)(nil)

// Put implements Putter.
func (d *Dir) Put(ctx context.Context, key string, size int64, r io.Reader) error {
	path, err := d.file(key)
	if err == nil {
		err = d.mounted()
	}
	if err == nil {
		err = PutFile(ctx, path, size, r)
	}
	if err != nil {
		return fmt.Errorf("storing object %s: %w", key, err)
	}
	return nil
}

// partSuffix is appended to the name of a file that PutFile is writing.
const partSuffix = ".part"

// PutFile writes a file with the next `size` bytes of r, and makes it durable. It creates
// missing directories. It writes the file under another name, PATH.part, and then renames it,
// so that nobody finds an incomplete file. So only one PutFile for a path may run at a time.
func PutFile(ctx context.Context, path string, size int64, r io.Reader) error {
	if err := makeDurable(filepath.Dir(path)); err != nil {
		return err
	}
	// An interrupted PutFile may have left a file with this name, and somebody may have put a symbolic
	// link there. Neither is written to.
	if err := os.Remove(path + partSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(path+partSuffix, os.O_CREATE|os.O_EXCL|os.O_WRONLY, fileMode)
	if err != nil {
		return err
	}
	if err := fileowner.Inherit(f); err != nil {
		return errors.Join(err, f.Close(), os.Remove(f.Name()))
	}
	n, err := io.Copy(f, ContextReader{ctx, io.LimitReader(r, size)})
	if err == nil && n != size {
		err = fmt.Errorf("there are %d bytes instead of %d: %w", n, size, io.ErrUnexpectedEOF)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return syncDir(filepath.Dir(path))
}

// ContextReader is a reader that fails when its context has ended. Reading a file doesn't by itself.
type ContextReader struct {
	Context context.Context
	Reader  io.Reader
}

func (c ContextReader) Read(p []byte) (int, error) {
	if err := c.Context.Err(); err != nil {
		return 0, err
	}
	return c.Reader.Read(p)
}

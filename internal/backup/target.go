package backup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/purser-registry/purser/internal/blob"
)

// Target is where backups are: a directory or a prefix in a bucket. It has files with names
// such as "backups/ID/manifest.json".
type Target interface {
	// Put writes a file with the next `size` bytes of r, durably and as a whole: nobody sees
	// an incomplete file. It replaces a file of this name.
	Put(ctx context.Context, name string, size int64, r io.Reader) error
	// Open returns a reader of a file, or blob.ErrNotFound.
	Open(ctx context.Context, name string) (io.ReadCloser, error)
	// Files returns the names (as keys) and sizes of all files whose names begin with
	// `prefix`, sorted by the bytes of their names, as far as a bucket does that. If the
	// listing fails, the last element is the error.
	Files(ctx context.Context, prefix string) iter.Seq2[blob.Object, error]
	// Delete deletes files. A missing file is no error.
	Delete(ctx context.Context, names []string) error
	// Place describes where the target is, for messages.
	Place() string
}

// Bucket is an S3 store, as far as a target needs it. s3.Store implements it.
type Bucket interface {
	blob.Putter
	Open(ctx context.Context, key string, off, length int64) (io.ReadCloser, error)
	All(ctx context.Context, prefix string) iter.Seq2[blob.Object, error]
	Delete(ctx context.Context, keys []string) error
}

type bucketTarget struct {
	Bucket
	place string
}

// InBucket returns the target in a bucket, below the store's prefix.
func InBucket(b Bucket, place string) Target { return bucketTarget{b, place} }

func (b bucketTarget) Place() string { return b.place }

func (b bucketTarget) Open(ctx context.Context, name string) (io.ReadCloser, error) {
	return b.Bucket.Open(ctx, name, 0, -1)
}

func (b bucketTarget) Files(ctx context.Context, prefix string) iter.Seq2[blob.Object, error] {
	return b.All(ctx, prefix)
}

type dirTarget struct {
	path string
	room func() error // returns an error if nothing more may be written; nil: all may be
}

// InDirectory returns the target in a directory. The directory is created by the first Put.
func InDirectory(path string) (Target, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("resolving the directory of backups %s: %w", path, err)
	}
	return dirTarget{path: abs}, nil
}

// LeaveRoom returns the target so that Put ends once one of the registry's own disks has less left than its
// reserve, if the target is a directory on it. Without the reserve, PostgreSQL stops and can't start.
func LeaveRoom(t Target, own blob.Disks) Target {
	d, ok := t.(dirTarget)
	if !ok {
		return t
	}
	d.room = func() error { return own.On(d.path).Room() }
	return d
}

// hasRoom says what to do if there is no room for more.
func (d dirTarget) hasRoom() error {
	if d.room == nil {
		return nil
	}
	err := d.room()
	if err == nil {
		return nil
	}
	return fmt.Errorf("the backup's place %[1]s is on the registry's own disk: %[2]w; name another place, on another disk or machine (BACKUP_TARGET of the timer). "+
		"The next backup in %[1]s goes on with what is copied there; to have that room back, delete the directory once another place has a complete backup",
		d.path, err)
}

// limitedTarget is a target to which Put writes only while room returns no error.
type limitedTarget struct {
	Target
	room func() error
}

func (l limitedTarget) Put(ctx context.Context, name string, size int64, r io.Reader) error {
	if err := l.room(); err != nil {
		return err
	}
	return l.Target.Put(ctx, name, size, &blob.RoomReader{Reader: r, Room: l.room})
}

func (d dirTarget) Place() string { return d.path }

func (d dirTarget) file(name string) (string, error) {
	if !filepath.IsLocal(filepath.FromSlash(name)) {
		return "", fmt.Errorf("%q is not a path below the directory of backups", name)
	}
	return filepath.Join(d.path, filepath.FromSlash(name)), nil
}

func (d dirTarget) Put(ctx context.Context, name string, size int64, r io.Reader) error {
	path, err := d.file(name)
	if err == nil {
		err = d.hasRoom()
	}
	if err != nil {
		return err
	}
	if err := blob.PutFile(ctx, path, size, &blob.RoomReader{Reader: r, Room: d.hasRoom}); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}

func (d dirTarget) Open(ctx context.Context, name string) (io.ReadCloser, error) {
	if _, err := d.file(name); err != nil {
		return nil, err
	}
	f, err := blob.OpenBelow(d.path, name, os.O_RDONLY)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, blob.ErrNotFound
	case err != nil:
		return nil, fmt.Errorf("opening %s: %w", filepath.Join(d.path, filepath.FromSlash(name)), err)
	}
	return f, nil
}

func (d dirTarget) Files(ctx context.Context, prefix string) iter.Seq2[blob.Object, error] {
	return func(yield func(blob.Object, error) bool) {
		// Begin in the deepest directory that has all of the files.
		root := prefix[:strings.LastIndexByte(prefix, '/')+1]
		if _, err := d.walk(ctx, root, prefix, yield); err != nil {
			yield(blob.Object{}, fmt.Errorf("listing %s: %w", filepath.Join(d.path, filepath.FromSlash(root)), err))
		}
	}
}

// walk yields the files below a directory, whose name ends with a slash, if their names begin with the
// prefix. It sorts a directory as its files' names are sorted. It returns false to end the listing.
func (d dirTarget) walk(ctx context.Context, dir, prefix string, yield func(blob.Object, error) bool) (bool, error) {
	entries, err := blob.ReadDirBelow(d.path, dir)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil // deleted meanwhile, or there are no files yet
	}
	if err != nil {
		return false, errors.Join(err, ctx.Err())
	}
	name := func(e fs.DirEntry) string {
		if e.IsDir() {
			return dir + e.Name() + "/"
		}
		return dir + e.Name()
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(name(a), name(b)) })
	for _, e := range entries {
		n := name(e)
		if e.IsDir() {
			if !strings.HasPrefix(n, prefix) && !strings.HasPrefix(prefix, n) {
				continue
			}
			if more, err := d.walk(ctx, n, prefix, yield); err != nil || !more {
				return more, err
			}
			continue
		}
		if !strings.HasPrefix(n, prefix) || !e.Type().IsRegular() {
			continue
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return false, err
		}
		if !yield(blob.Object{Key: n, Size: info.Size(), Modified: info.ModTime()}, nil) {
			return false, nil
		}
	}
	return true, ctx.Err()
}

// Delete implements Target. It also removes directories that have become empty.
func (d dirTarget) Delete(_ context.Context, names []string) error {
	var errs []error
	for _, name := range names {
		path, err := d.file(name)
		if err != nil {
			return err
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
			continue
		}
		for dir := filepath.Dir(path); dir != d.path && os.Remove(dir) == nil; {
			dir = filepath.Dir(dir)
		}
	}
	return errors.Join(errs...)
}

// putBytes writes a file with these bytes.
func putBytes(ctx context.Context, t Target, name string, b []byte) error {
	return t.Put(ctx, name, int64(len(b)), bytes.NewReader(b))
}

// maxSmallFile limits what readAll reads.
const maxSmallFile = 64 << 20

// readAll returns the content of a small file, or blob.ErrNotFound.
func readAll(ctx context.Context, t Target, name string) ([]byte, error) {
	r, err := t.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(io.LimitReader(r, maxSmallFile))
}

package blob

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"path"
	"path/filepath"
	"unicode/utf8"
)

// Tree is a store in which the files of another registry can be found, to import them. Paths are
// relative to the store, with slashes; "" is the store itself. A file's path is its key for
// Store.Open and Store.Stat. Dir and s3.Store implement it.
type Tree interface {
	// Directories returns the names of the directories in the directory `dir`, sorted; none if
	// there is no such directory. A directory of an S3 store is a common prefix of keys. If there is
	// something else, or it may not be read, the error is Unreadable.
	Directories(ctx context.Context, dir string) ([]string, error)

	// Files returns all files below the directory `dir`, in no particular order; none if there is
	// no such directory. A file that is created or deleted meanwhile may be missing. If the
	// listing fails, the last element is the error.
	Files(ctx context.Context, dir string) iter.Seq2[Object, error]

	// Others returns the paths of what is in the directory `dir`, and with `deep` in all directories
	// below it that can be read, that is neither a directory nor a regular file, sorted: symbolic
	// links, which no listing follows, FIFOs and so on. What has a name that isn't UTF-8 is among them,
	// and in no other listing, since no key is such a name. An S3 store has none.
	Others(ctx context.Context, dir string, deep bool) ([]string, error)

	// Readable returns an error that is Unreadable if a file that Stat finds may not be read. Who may
	// look at an S3 store's object may read it.
	Readable(ctx context.Context, key string) error
}

var _ Tree = (*Dir)(nil)

// Directories implements Tree.
func (d *Dir) Directories(ctx context.Context, dir string) ([]string, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	name, err := d.inside(dir)
	if err != nil {
		return nil, err
	}
	entries, err := ReadDirBelow(d.path, name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("listing directories: %w", err)
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && utf8.ValidString(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// Files implements Tree.
func (d *Dir) Files(ctx context.Context, dir string) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		if err := d.walk(ctx, dir, yield); err != nil {
			yield(Object{}, fmt.Errorf("listing files: %w", err))
		}
	}
}

// walk yields the regular files below the directory `dir`.
func (d *Dir) walk(ctx context.Context, dir string, yield func(Object, error) bool) error {
	name, err := d.inside(dir)
	if err != nil {
		return err
	}
	root, err := openRoot(d.path)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // only read
	return fs.WalkDir(root.FS(), name, func(file string, e fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err == nil && !utf8.ValidString(file) {
			return passOver(e)
		}
		var info fs.FileInfo
		if err == nil {
			if !e.Type().IsRegular() {
				return nil
			}
			info, err = e.Info()
		}
		o := Object{Key: file}
		switch err = belowDir(d.path, file, err); {
		case errors.Is(err, fs.ErrNotExist):
			return nil // deleted meanwhile, or there is no directory
		case err == nil:
			o.Size, o.Modified = info.Size(), info.ModTime()
		case Unreadable(err):
			err = fmt.Errorf("listing files: %w", err)
		default:
			return err
		}
		if !yield(o, err) {
			return fs.SkipAll
		}
		return nil
	})
}

// passOver makes a walk go on behind an entry. An os.Root's file system can't open a directory whose
// name isn't UTF-8.
func passOver(e fs.DirEntry) error {
	if e.IsDir() {
		return fs.SkipDir
	}
	return nil
}

// Others implements Tree.
func (d *Dir) Others(ctx context.Context, dir string, deep bool) ([]string, error) {
	name, err := d.inside(dir)
	if err != nil {
		return nil, err
	}
	root, err := openRoot(d.path)
	if err != nil {
		return nil, fmt.Errorf("listing a directory: %w", err)
	}
	defer root.Close() //nolint:errcheck // only read
	var others []string
	err = fs.WalkDir(root.FS(), name, func(file string, e fs.DirEntry, err error) error {
		switch err = belowDir(d.path, file, err); {
		case errors.Is(err, fs.ErrNotExist):
			return nil // deleted meanwhile, or there is no directory
		case Unreadable(err) && file != name:
			return nil // Files names it
		case err != nil:
			return err
		case !utf8.ValidString(file):
			others = append(others, file)
			return passOver(e)
		case e.IsDir() && file != name && !deep:
			return fs.SkipDir
		case file != name && !e.IsDir() && !e.Type().IsRegular():
			others = append(others, file)
		}
		return ctx.Err()
	})
	if err != nil {
		return nil, fmt.Errorf("listing what is no file: %w", err)
	}
	return others, nil
}

// Readable implements Tree.
func (d *Dir) Readable(ctx context.Context, key string) error {
	r, err := d.Open(ctx, key, 0, 0)
	if err != nil {
		return err
	}
	return r.Close()
}

// inside returns the name of a directory below the store's, relative to it, with slashes.
func (d *Dir) inside(dir string) (string, error) {
	if dir != "" && !filepath.IsLocal(dir) {
		return "", fmt.Errorf("%q is not a path below the blob directory", dir)
	}
	return path.Clean("./" + dir), nil
}

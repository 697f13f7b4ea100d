package blob

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"slices"
	"strings"
)

// Stat implements Store.
func (d *Dir) Stat(ctx context.Context, key string) (Object, error) {
	if err := ctx.Err(); err != nil {
		return Object{}, err
	}
	dir, name, err := d.place(key)
	if err != nil {
		return Object{}, err
	}
	root, err := openRoot(dir)
	if err == nil {
		defer root.Close() //nolint:errcheck // only read
		return d.stat(root, name, key)
	}
	return Object{}, d.statError(key, err)
}

// stat returns what is known of an object, whose file has this name below `root`.
func (d *Dir) stat(root *os.Root, name, key string) (Object, error) {
	fi, err := statBelow(root, name)
	if err != nil {
		return Object{}, d.statError(key, err)
	}
	return Object{Key: key, Size: fi.Size(), Modified: fi.ModTime()}, nil
}

func (d *Dir) statError(key string, err error) error {
	if err, missing := d.missing(err); !missing {
		return fmt.Errorf("looking at object %s: %w", key, err)
	}
	return ErrNotFound
}

// List implements Store.
func (d *Dir) List(ctx context.Context, prefix string) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		for i := range 256 {
			dir := hex.EncodeToString([]byte{byte(i)})
			if !strings.HasPrefix(dir, prefix) && !strings.HasPrefix(prefix, dir) {
				continue
			}
			keys, err := d.list(ctx, dir, prefix)
			if err != nil {
				if !yield(Object{Key: dir}, fmt.Errorf("listing objects: %w", err)) || !Unreadable(err) {
					return
				}
				continue
			}
			if len(keys) > 0 && !d.listed(ctx, dir, keys, yield) {
				return
			}
		}
	}
}

// listed yields the objects with these keys, which are in the directory `dir`. It returns false to end
// the listing.
func (d *Dir) listed(ctx context.Context, dir string, keys []string, yield func(Object, error) bool) bool {
	root, err := openRoot(d.objects)
	if err != nil {
		yield(Object{}, fmt.Errorf("listing objects: %w", err))
		return false
	}
	defer root.Close() //nolint:errcheck // only read
	for _, key := range keys {
		o, err := d.stat(root, dir+"/"+key, key)
		if errors.Is(err, ErrNotFound) {
			continue // deleted meanwhile, or no object
		}
		if err == nil {
			err = ctx.Err()
		}
		if o.Key = key; !yield(o, err) || err != nil && !Unreadable(err) {
			return false
		}
	}
	return true
}

// list returns, sorted, the keys of the objects in the directory `dir`, one of the 256, that
// begin with `prefix`. It leaves out files that aren't objects.
func (d *Dir) list(ctx context.Context, dir, prefix string) ([]string, error) {
	f, err := openDirBelow(d.objects, dir)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			if wrong := d.mounted(); wrong != nil {
				return nil, errors.Join(wrong, err)
			}
			err = &notDirectory{dir, d.objects} // one that is gone isn't an empty one
		}
		return nil, err
	}
	defer f.Close()
	var keys []string
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		names, err := f.Readdirnames(1024)
		for _, name := range names {
			if _, ours := UploadOf(name); ours && strings.HasPrefix(name, prefix) && strings.HasPrefix(name, dir) {
				keys = append(keys, name)
			}
		}
		if errors.Is(err, io.EOF) {
			slices.Sort(keys)
			return keys, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// Unfinished implements Store. A directory has no multipart uploads.
func (d *Dir) Unfinished(context.Context, string) iter.Seq2[Unfinished, error] {
	return func(func(Unfinished, error) bool) {}
}

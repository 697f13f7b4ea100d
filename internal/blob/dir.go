package blob

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/purser-registry/purser/internal/fileowner"
)

// DirOptions configure a store in a local directory.
type DirOptions struct {
	// Path is the directory; it is created if it is missing. Several processes may use it at
	// once, on one machine or on several through a shared file system with locks.
	Path string

	// Existing makes OpenDir fail if the directory has no store, instead of creating one.
	Existing bool

	// Complete makes OpenDir create the directories that an existing store lacks, as after a
	// copy without empty directories. It has an effect only with Existing.
	Complete bool

	// LockWait is how long Resume waits if another request has locked the upload's object.
	// After that the Writer copies the acknowledged bytes to a new object instead. Default 2
	// s.
	LockWait time.Duration
}

// Dir is a Store in a local directory:
//
//	PATH/objects/1f/1f0c…e2-0     an object, in the directory named by its key's first two digits
//	PATH/objects/purser-store.json   the store's identity
//	PATH/docker/registry/…/data   an object of another registry that used PATH before:
//	                              a key with a slash is a path below PATH
//
// OpenDir creates 256 directories, 00 to ff, in advance. So a new object costs at most two
// fsyncs: one for its file, and one for its directory, which makes the file's name durable.
// With ten million objects, each directory has 40,000 names, so listings stay short. 65,536
// directories would have to be created on demand, so nearly every object would need a mkdir
// and another fsync.
//
// A writer that appends to the object of an earlier request locks this object (flock) before
// it claims the upload, and keeps the lock until Close. If it can't get the lock, because the
// earlier request is stalled or the file system has no locks, the writer copies the
// acknowledged bytes into a new object and continues there; DeleteUpload deletes the old
// object later. A writer that creates an object needs no lock: another request learns the
// object's name only from a saved state, and after Save the creating writer writes nothing
// more.
type Dir struct {
	path     string
	objects  string
	lockWait time.Duration
	usable   Question[struct{}]
}

var _ Store = (*Dir)(nil)

const (
	dirMode  = 0o750
	fileMode = 0o640
)

// OpenDir opens the store in o.Path, and creates missing directories.
func OpenDir(o DirOptions) (*Dir, error) {
	if o.Path == "" {
		return nil, errors.New("opening the blob directory: no path is given")
	}
	path, err := filepath.Abs(o.Path)
	if err != nil {
		return nil, fmt.Errorf("opening the blob directory %s: %w", o.Path, err)
	}
	o.LockWait = cmp.Or(o.LockWait, 2*time.Second)
	d := &Dir{path: path, objects: filepath.Join(path, "objects"), lockWait: o.LockWait}
	begun := !o.Existing
	if o.Existing && o.Complete {
		begun, err = d.begun()
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("opening the blob directory %s: %w", path, err)
	case !begun:
		return d, d.mounted()
	}
	if err := d.makeLayout(); err != nil {
		return nil, fmt.Errorf("opening the blob directory %s: %w", path, err)
	}
	return d, nil
}

// Path returns the store's directory.
func (d *Dir) Path() string { return d.path }

// makeLayout creates missing directories and makes their names durable. It syncs even if no
// directory is missing, since the process that created the directories may have been killed
// before it synced them.
func (d *Dir) makeLayout() error {
	if err := makeDurable(d.objects); err != nil {
		return err
	}
	there, err := os.ReadDir(d.objects)
	if err != nil {
		return err
	}
	directories := make(map[string]bool, len(there))
	for _, e := range there {
		directories[e.Name()] = e.IsDir()
	}
	for i := range 256 {
		name := hex.EncodeToString([]byte{byte(i)})
		if directories[name] {
			continue
		}
		if err := fileowner.Mkdir(filepath.Join(d.objects, name), dirMode); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return syncDir(d.objects)
}

// makeDurable creates the directory `path` and its missing parents, and syncs the parent of each
// directory that it creates.
func makeDurable(path string) error {
	switch fi, err := os.Stat(path); {
	case err == nil && !fi.IsDir():
		return fmt.Errorf("%s is not a directory", path)
	case err == nil || !isAbsent(err):
		return err
	}
	parent := filepath.Dir(path)
	if err := makeDurable(parent); err != nil {
		return err
	}
	if err := fileowner.Mkdir(path, dirMode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncDir(parent)
}

func syncDir(path string) error {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return fmt.Errorf("syncing directory: %w", err)
	}
	return nil
}

// file returns the path of the file that has the object with this key.
func (d *Dir) file(key string) (string, error) {
	dir, name, err := d.place(key)
	return filepath.Join(dir, filepath.FromSlash(name)), err
}

// place returns where the object with this key is: a directory of the store, and a name below it,
// with slashes.
func (d *Dir) place(key string) (dir, name string, err error) {
	if strings.Contains(key, "/") {
		if !filepath.IsLocal(key) || strings.ContainsRune(key, 0) {
			return "", "", fmt.Errorf("object key %q is not a path below the blob directory", key)
		}
		return d.path, key, nil
	}
	base, _, ok := strings.Cut(key, "-")
	if !ok || strings.ContainsRune(key, 0) {
		return "", "", fmt.Errorf("object key %q has no number", key)
	}
	if err := CheckBase(base); err != nil {
		return "", "", fmt.Errorf("object key %q: %w", key, err)
	}
	return d.objects, base[:2] + "/" + key, nil
}

// mounted returns ErrWrongStore if the store's directories are missing. Without this
// check, all objects on a volume that isn't mounted would seem to be missing, or
// deleted successfully. If nobody can say whether they are missing, since this process may not look
// for them for example, mounted returns that error, and not ErrWrongStore.
func (d *Dir) mounted() error {
	_, err := os.Stat(filepath.Join(d.objects, "ff"))
	switch {
	case err != nil && !isAbsent(err):
		return d.unreachable(err)
	case err != nil:
		return fmt.Errorf("%w: the directory %s has lost its layout (is its volume mounted? \"purser store adopt\" completes a copy that lacks empty directories; if the store is lost and there are backups, \"purser store restore TARGET\" fills it again): %w", ErrWrongStore, d.path, err)
	}
	return nil
}

// unreachable returns the error for a store that can't be read. err is the file system's.
func (d *Dir) unreachable(err error) error {
	remedy := ""
	if errors.Is(err, fs.ErrPermission) {
		remedy = " (it, what is in it, and the directories above it must be open to the user that runs Purser: see chown and chmod)"
	}
	return fmt.Errorf("the blob directory %s can't be read by this process%s: %w", d.path, remedy, err)
}

// isAbsent returns whether an error of the file system says that there is nothing under a path.
func isAbsent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// begun returns whether the directory has some of the store's directories.
func (d *Dir) begun() (bool, error) {
	entries, err := os.ReadDir(d.objects)
	if err != nil {
		if isAbsent(err) {
			err = nil
		}
		return false, err
	}
	return slices.ContainsFunc(entries, func(e fs.DirEntry) bool {
		two, err := hex.DecodeString(e.Name())
		return err == nil && len(two) == 1 && e.IsDir()
	}), nil
}

// missing interprets err, the error of opening or removing an object's file. It returns
// ErrNotFound and true if the file doesn't exist and the volume is mounted, and ErrWrongStore
// and false if the file doesn't exist because the volume isn't mounted. It returns any other
// error unchanged, and false.
func (d *Dir) missing(err error) (error, bool) {
	if !errors.Is(err, fs.ErrNotExist) {
		return err, false
	}
	if err := d.mounted(); err != nil {
		return err, false
	}
	return ErrNotFound, true
}

// Open implements Store.
func (d *Dir) Open(ctx context.Context, key string, off, length int64) (io.ReadCloser, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	f, err := d.openRange(key, off, &length)
	if err != nil {
		return nil, fmt.Errorf("opening object %s: %w", key, err)
	}
	return &dirObject{f: f, rest: io.LimitedReader{R: f, N: length}}, nil
}

func (d *Dir) openRange(key string, off int64, length *int64) (*os.File, error) {
	dir, name, err := d.place(key)
	if err != nil {
		return nil, err
	}
	f, err := OpenBelow(dir, name, os.O_RDONLY)
	if err != nil {
		err, _ = d.missing(err)
		return nil, err
	}
	if err := seekRange(f, off, length); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func seekRange(f *os.File, off int64, length *int64) error {
	if off < 0 || *length < -1 {
		return fmt.Errorf("invalid range: offset %d, length %d", off, *length)
	}
	if *length == -1 {
		fi, err := f.Stat()
		if err != nil {
			return err
		}
		if off > fi.Size() {
			return fmt.Errorf("offset %d is beyond the object's %d bytes: %w", off, fi.Size(), io.ErrUnexpectedEOF)
		}
		*length = fi.Size() - off
	}
	if off == 0 {
		return nil
	}
	_, err := f.Seek(off, io.SeekStart)
	return err
}

// dirObject reads a range of an object's file. Its WriteTo gives the destination an
// io.LimitedReader of an *os.File, because package net uses sendfile for this type.
type dirObject struct {
	f    *os.File
	rest io.LimitedReader
}

func (o *dirObject) Read(p []byte) (int, error) {
	n, err := o.rest.Read(p)
	if errors.Is(err, io.EOF) && o.rest.N > 0 {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

func (o *dirObject) WriteTo(w io.Writer) (int64, error) {
	n, err := io.Copy(w, &o.rest)
	if err == nil && o.rest.N > 0 {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

func (o *dirObject) Close() error { return o.f.Close() }

// Delete implements Store. It syncs the directories of missing objects too: the process
// that removed such an object may have been killed before the removal was durable.
func (d *Dir) Delete(ctx context.Context, keys []string) error {
	var errs []error
	failed := func(err error, keys ...string) {
		for _, key := range keys {
			errs = append(errs, &DeleteError{Key: key, Err: err})
		}
	}
	removed := make(map[string][]string) // keys by directory
	for _, key := range keys {
		dir, err := d.remove(ctx, key)
		switch {
		case err != nil:
			failed(err, key)
		case dir != "":
			removed[dir] = append(removed[dir], key)
		}
	}
	for dir, keys := range removed {
		if err := syncDir(dir); err != nil {
			failed(err, keys...)
		}
	}
	return errors.Join(errs...)
}

// remove removes the object's file, if it exists. It returns the file's directory, which must
// then be synced, or "" if the directory doesn't exist.
func (d *Dir) remove(ctx context.Context, key string) (dir string, err error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	at, name, err := d.place(key)
	if err != nil {
		return "", err
	}
	dir = filepath.Dir(filepath.Join(at, filepath.FromSlash(name)))
	if err := removeBelow(at, name); err != nil {
		if errors.Is(err, ErrNotFound) {
			return "", nil // the way to it leads out of the store: there is no object
		}
		if err, ok := d.missing(err); !ok {
			return "", err
		}
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			return "", nil // another registry's layout: its directory was removed with the object
		}
	}
	// Other registries have a directory for each object. Rmdir, unlike os.Remove, leaves a symbolic
	// link to a directory with other objects.
	if strings.Contains(key, "/") && syscall.Rmdir(dir) == nil {
		dir = filepath.Dir(dir)
	}
	return dir, nil
}

// DeleteUpload implements Store.
func (d *Dir) DeleteUpload(ctx context.Context, base, keep string) error {
	if err := CheckBase(base); err != nil {
		return fmt.Errorf("deleting an upload's objects: %w", err)
	}
	keys, err := d.list(ctx, base[:2], base+"-")
	if err != nil {
		return fmt.Errorf("listing objects of upload %s: %w", base, err)
	}
	dir := filepath.Join(d.objects, base[:2])
	var errs []error
	for _, key := range keys {
		if key == keep {
			continue
		}
		if err := os.Remove(filepath.Join(dir, key)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, &DeleteError{Key: key, Err: err})
		}
	}
	if err := syncDir(dir); err != nil {
		errs = append(errs, fmt.Errorf("deleting the objects of upload %s: %w", base, err))
	}
	return errors.Join(errs...)
}

// Presign implements Store. A directory has no URLs.
func (d *Dir) Presign(context.Context, string, PresignOptions) (string, error) { return "", nil }

// Check implements Store. It writes nothing, but returns ErrReadOnly if the kernel has remounted
// the file system read-only after a disk error, and ErrNoAnswer if the file system doesn't answer before
// the deadline of ctx.
func (d *Dir) Check(ctx context.Context) error {
	_, err := d.usable.Ask(ctx, func() (struct{}, error) { return struct{}{}, d.check() })
	if errors.Is(err, ErrNoAnswer) {
		return fmt.Errorf("the file system of the blob directory %s: %w", d.path, err)
	}
	return err
}

// check returns an error if the store can't be read or written.
func (d *Dir) check() error {
	if err := d.mounted(); err != nil {
		return err
	}
	if err := readable(filepath.Join(d.objects, "ff")); err != nil {
		return d.unreachable(err)
	}
	if err := writable(filepath.Join(d.objects, "ff")); err != nil {
		return fmt.Errorf("the blob directory %s can't be written by this process: %w: %w", d.path, ErrReadOnly, err)
	}
	return nil
}

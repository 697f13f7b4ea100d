package blob

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// irregular says that there is something under a name that isn't a regular file below the
// directory: a FIFO, a device, a directory, or a symbolic link that leads out of it. For readers
// there is no object then.
type irregular struct{ name string }

func (e *irregular) Error() string {
	return e.name + " isn't a regular file below the directory"
}

// Is makes the error an ErrNotFound.
func (e *irregular) Is(target error) bool { return target == ErrNotFound }

// Irregular says whether err means that an object or a file is missing because something else has its
// name.
func Irregular(err error) bool {
	_, is := errors.AsType[*irregular](err)
	return is
}

// OpenBelow opens a regular file below the directory `dir`. Its name is relative, with slashes. It
// never waits, as opening a FIFO would, and follows no symbolic link out of the directory: others may
// have written what is there, and may change it at any time. If there is something else under the
// name, the error is an [ErrNotFound] that says so; if there is nothing, it is fs.ErrNotExist.
//
// The directory is opened each time. A store that kept it open would go on reading a volume that
// was unmounted.
func OpenBelow(dir, name string, flag int) (*os.File, error) {
	root, err := openRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close() //nolint:errcheck // only read
	f, err := root.OpenFile(filepath.FromSlash(name), flag|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, below(name, err)
	}
	fi, err := f.Stat()
	if err == nil && !fi.Mode().IsRegular() {
		err = &irregular{name}
	}
	if err != nil {
		f.Close() //nolint:errcheck // only opened
		return nil, err
	}
	return f, nil
}

// openRoot opens the directory below which names are looked up.
func openRoot(dir string) (*os.Root, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, &rootError{err}
	}
	return root, nil
}

// rootError says that the directory can't be opened below which everything is. It has the text of the
// error that it wraps.
type rootError struct{ err error }

func (e *rootError) Error() string { return e.err.Error() }

func (e *rootError) Unwrap() error { return e.err }

// statBelow returns what is known of a regular file below `root`, as OpenBelow opens it.
func statBelow(root *os.Root, name string) (fs.FileInfo, error) {
	fi, err := root.Stat(filepath.FromSlash(name))
	if err != nil {
		return nil, below(name, err)
	}
	if !fi.Mode().IsRegular() {
		return nil, &irregular{name}
	}
	return fi, nil
}

// ReadDirBelow returns the entries of the directory `name` below the directory `dir`, sorted by name,
// under the rules of OpenBelow.
func ReadDirBelow(dir, name string) ([]fs.DirEntry, error) {
	f, err := openDirBelow(dir, name)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read
	entries, err := f.ReadDir(-1)
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, err
}

// notDirectory says that there is something under a name that isn't a directory below the store's.
type notDirectory struct{ name, dir string }

func (e *notDirectory) Error() string { return e.name + " isn't a directory below " + e.dir }

// Unreadable says whether err is about one file or directory, and not about the store: this process may
// not read it, the disk can't read it, or something else has a directory's name. It isn't an [ErrNotFound].
func Unreadable(err error) bool {
	if errors.Is(err, ErrNotFound) || errors.Is(err, ErrWrongStore) {
		return false
	}
	if _, ofAll := errors.AsType[*rootError](err); ofAll {
		return false
	}
	_, other := errors.AsType[*notDirectory](err)
	return other || errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EIO)
}

// openDirBelow opens the directory `name` below the directory `dir`, under the rules of OpenBelow.
// Something else under the name is no ErrNotFound: a listing must not be taken for complete.
func openDirBelow(dir, name string) (*os.File, error) {
	root, err := openRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close() //nolint:errcheck // only read
	f, err := root.OpenFile(filepath.FromSlash(path.Clean("./"+name)), os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
	if err == nil {
		return f, nil
	}
	return nil, belowDir(dir, name, err)
}

// removeBelow removes a file below the directory `dir`, or what else is there.
func removeBelow(dir, name string) error {
	root, err := openRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // only read
	if err := root.Remove(filepath.FromSlash(name)); err != nil {
		return below(name, err)
	}
	return nil
}

// below interprets the error of an operation of an os.Root: it returns an irregular error if there is
// something under the name, or on the way to it, that isn't what it must be.
func below(name string, err error) error {
	if failed, ok := errors.AsType[*fs.PathError](err); ok && failed.Err.Error() == "path escapes from parent" { // package os doesn't export it
		return &irregular{name}
	}
	for _, e := range []error{syscall.ELOOP, syscall.ENOTDIR, syscall.ENXIO, syscall.EISDIR} {
		if errors.Is(err, e) {
			return &irregular{name}
		}
	}
	return err
}

// belowDir interprets the error of reading the directory `name` below the directory `dir`.
func belowDir(dir, name string, err error) error {
	if err = below(name, err); Irregular(err) {
		err = &notDirectory{name, dir}
	}
	return err
}

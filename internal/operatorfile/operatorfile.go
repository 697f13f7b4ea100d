// Package operatorfile reads the files that an operator's settings name: certificates, keys,
// secrets, lists of accounts, the configuration itself.
//
// A server reads such files again while it runs, and whatever is at their paths must not stop
// it. So only regular files are read (a named pipe or a device could be read for ever), only up
// to a size, and the caller waits only for a time (a network file system may hang). Symbolic
// links are followed, since Kubernetes and certbot make them.
package operatorfile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"syscall"
	"time"
)

// MaxPEM is the size in bytes of the largest file of certificates or keys.
const MaxPEM = 1 << 20

// patience is how long a caller waits for a file.
const patience = 5 * time.Second

var (
	// ErrTooLarge says that a file has more bytes than it may have.
	ErrTooLarge = errors.New("it is too large")
	// ErrSlow says that a file couldn't be read in time.
	ErrSlow = errors.New("does its file system answer?")
)

// File is a file that was read.
type File struct {
	Text    []byte
	Changed time.Time   // when it was last changed
	Mode    fs.FileMode // with its permissions
}

// ForAll says whether each user of the machine may read the file.
func (f *File) ForAll() bool { return f.Mode.Perm()&0o004 != 0 }

// Read reads the regular file at `path`, which may have `most` bytes. It returns an error if it
// can't read it within 5 seconds, or before ctx ends. Each error is a *fs.PathError.
func Read(ctx context.Context, path string, most int64) (*File, error) {
	return std.read(ctx, path, most)
}

var std = reader{open: open, patience: patience}

// reader reads files. Tests change how it opens them.
type reader struct {
	open     func(path string) (*os.File, error)
	patience time.Duration
	turns    sync.Map // by path: a channel that has room for one
}

// read reads a file in a goroutine of its own, which goes on if the file doesn't answer. Only one
// goroutine at a time reads a path: however often a file is asked for that hangs, one goroutine
// (and one thread of the system) hangs with it.
func (r *reader) read(ctx context.Context, path string, most int64) (*File, error) {
	ctx, cancel := context.WithTimeout(ctx, r.patience)
	defer cancel()
	value, _ := r.turns.LoadOrStore(path, make(chan struct{}, 1))
	turn := value.(chan struct{})
	select {
	case turn <- struct{}{}:
	case <-ctx.Done():
		return nil, r.late(ctx, path)
	}
	type result struct {
		file *File
		err  error
	}
	done := make(chan result, 1)
	go func() {
		file, err := r.readNow(path, most)
		<-turn
		done <- result{file, err}
	}()
	select {
	case got := <-done:
		return got.file, got.err
	case <-ctx.Done():
		return nil, r.late(ctx, path)
	}
}

func (r *reader) late(ctx context.Context, path string) error {
	err := ctx.Err()
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("it can't be read within %s; %w", r.patience, ErrSlow)
	}
	return &fs.PathError{Op: "read", Path: path, Err: err}
}

func (r *reader) readNow(path string, most int64) (*File, error) {
	f, err := r.open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if err := regular(path, info.Mode()); err != nil {
		return nil, err
	}
	tooLarge := &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("%w: it has more than %s", ErrTooLarge, size(most))}
	if info.Size() > most {
		return nil, tooLarge
	}
	text, err := io.ReadAll(io.LimitReader(f, most+1)) // it may grow, and files of the kernel have no size
	if err != nil {
		return nil, err
	}
	if int64(len(text)) > most {
		return nil, tooLarge
	}
	return &File{Text: text, Changed: info.ModTime(), Mode: info.Mode()}, nil
}

// open opens a file. It looks at the file's kind first, since it may do something to a device
// that it is opened. Should the file become a named pipe after that, O_NONBLOCK keeps open from
// waiting for a writer.
func open(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if err := regular(path, info.Mode()); err != nil {
		return nil, err
	}
	return os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
}

// regular returns an error that says what kind of file it is, unless it is a regular one.
func regular(path string, mode fs.FileMode) error {
	kind := "a special file"
	switch {
	case mode.IsRegular():
		return nil
	case mode.IsDir():
		kind = "a directory"
	case mode&fs.ModeNamedPipe != 0:
		kind = "a pipe"
	case mode&fs.ModeSocket != 0:
		kind = "a socket"
	case mode&fs.ModeDevice != 0:
		kind = "a device"
	}
	return &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("it is %s, not a regular file", kind)}
}

func size(bytes int64) string {
	if bytes >= 1<<20 {
		return fmt.Sprintf("%d MiB", bytes>>20)
	}
	return fmt.Sprintf("%d KiB", bytes>>10)
}

package blob

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/purser-registry/purser/internal/fileowner"
	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/worker"
)

// dirState is the State of an upload in a Dir.
type dirState struct {
	Key  string `json:"key"`            // the object that holds the acknowledged bytes
	Next int64  `json:"next"`           // a higher next from the claim means that an unsaved attempt took numbers
	Left bool   `json:"left,omitempty"` // the upload may have other objects
}

type dirWriter struct {
	d       *Dir
	ctx     context.Context
	base    string
	given   State // as stored in the upload's row
	numbers Numbers

	state  dirState
	former string // state.Key before Save; "": nothing was saved
	size   int64  // acknowledged bytes

	f       *os.File // the object being written to; nil until the first byte
	key     string   // the key of f
	made    bool     // this writer created f
	newName bool     // the name of f may not be durable yet
	dirty   bool     // bytes or length of f may not be durable yet
	kept    bool     // Save or Finish succeeded, so f must not be undone
	old     *os.File // set if the lock wasn't available: the object to copy the acknowledged bytes from

	off, started int64 // bytes in f, and of these those for which writeback was started
	err          error // the first failure, or why nothing more may be written
}

// Resume implements Store.
func (d *Dir) Resume(ctx context.Context, base string, state State, size int64, claim Claim, numbers Numbers) (Writer, error) {
	w, err := d.newWriter(ctx, base, state, size, numbers)
	if err != nil {
		return nil, fmt.Errorf("resuming upload %s: %w", base, err)
	}
	if err := w.open(claim); err != nil {
		_ = w.Close()
		return nil, fmt.Errorf("resuming upload %s: %w", base, err)
	}
	return w, nil
}

func (d *Dir) newWriter(ctx context.Context, base string, state State, size int64, numbers Numbers) (*dirWriter, error) {
	if err := CheckBase(base); err != nil {
		return nil, err
	}
	w := &dirWriter{d: d, ctx: ctx, base: base, given: state, numbers: numbers, size: size}
	if len(state) == 0 {
		return w, nil
	}
	if err := json.Unmarshal(state, &w.state); err != nil {
		return nil, fmt.Errorf("reading the upload's state: %w", err)
	}
	return w, nil
}

// open locks the object that the state names, if that is possible, and claims the upload. The
// next Write then appends to the acknowledged bytes.
func (w *dirWriter) open(claim Claim) error {
	var f *os.File
	var openErr error
	locked := false
	if w.state.Key != "" {
		if f, openErr = w.openState(); openErr == nil {
			w.old = f // Close closes it in any case
			var err error
			if locked, err = lock(w.ctx, f, w.d.lockWait); err != nil {
				return err
			}
		}
	}
	next, err := claim(w.ctx)
	if err != nil {
		return err
	}
	if openErr != nil {
		return openErr // only now, since a failed claim, which says that the row has changed, is more important
	}
	if next < w.state.Next {
		return fmt.Errorf("the upload's counter is at %d, but numbers up to %d were used", next, w.state.Next-1)
	}
	if next > w.state.Next {
		w.state.Left = true // another attempt took numbers and never saved
		w.state.Next = next
	}
	if f == nil && w.size > 0 {
		return fmt.Errorf("%d bytes are acknowledged, but no state says where they are", w.size)
	}
	if f == nil {
		return nil
	}
	stored, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if stored < w.size {
		return fmt.Errorf("%w: object %s has %d of %d", ErrLost, w.state.Key, stored, w.size)
	}
	if !locked {
		return nil // create copies the old object when there are bytes to write
	}
	w.f, w.key, w.old = f, w.state.Key, nil
	return w.cut(stored)
}

// openState opens the object that the state names.
func (w *dirWriter) openState() (*os.File, error) {
	dir, name, err := w.d.place(w.state.Key)
	if err != nil {
		return nil, err
	}
	f, err := OpenBelow(dir, name, os.O_RDWR)
	if err != nil {
		if err, missing := w.d.missing(err); !missing && !errors.Is(err, ErrNotFound) {
			return nil, err
		}
		return nil, fmt.Errorf("%w: object %s is missing", ErrLost, w.state.Key)
	}
	return f, nil
}

// cut truncates the object, which has `stored` bytes, to the acknowledged bytes.
func (w *dirWriter) cut(stored int64) error {
	w.off, w.started = w.size, w.size
	if stored == w.size {
		return nil
	}
	w.dirty = true
	if err := w.f.Truncate(w.size); err != nil {
		return fmt.Errorf("dropping unacknowledged bytes: %w", err)
	}
	_, err := w.f.Seek(w.size, io.SeekStart)
	return err
}

// lock tries to take an exclusive lock on f for the time `wait`. It returns false if it can't,
// or if the file system has no locks, and ErrBusy if ctx ends before. It polls, because a
// blocking flock doesn't return when ctx ends.
func lock(ctx context.Context, f *os.File, wait time.Duration) (bool, error) {
	deadline := time.Now().Add(wait)
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		ok, err := tryLock(f)
		if err != nil {
			return false, nil // the file system has no locks
		}
		if ok || time.Now().After(deadline) {
			return ok, nil
		}
		if worker.Sleep(ctx, pause) != nil {
			return false, fmt.Errorf("%w: %w", ErrBusy, context.Cause(ctx))
		}
	}
}

// create makes a new object and copies the acknowledged bytes into it.
func (w *dirWriter) create(ctx context.Context) error {
	n, err := w.numbers(ctx, 1)
	if err != nil {
		return err
	}
	w.state.Next = max(w.state.Next, n+1)
	key := fmt.Sprintf("%s-%d", w.base, n)
	path, err := w.d.file(key)
	if err != nil {
		return err
	}
	// With O_EXCL, OpenFile fails if the file exists. So no object is overwritten even if a
	// number was given out twice by mistake.
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, fileMode)
	if err != nil {
		return err
	}
	w.f, w.key, w.made, w.newName, w.dirty = f, key, true, true, true
	if err := fileowner.Inherit(f); err != nil {
		return err
	}
	if w.old == nil {
		return nil
	}
	w.state.Left = true
	return w.copyOld(ctx)
}

// copyOld copies the acknowledged bytes from the old object into the new one. Another request
// may still write to the old object, but only after these bytes. The kernel makes the copy,
// and lets both files share disk blocks if the file system supports that. The copy is made in
// steps, so that it stops when ctx ends.
func (w *dirWriter) copyOld(ctx context.Context) error {
	const step = 64 << 20
	if _, err := w.old.Seek(0, io.SeekStart); err != nil {
		return err
	}
	for w.off < w.size {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := io.CopyN(w.f, w.old, min(step, w.size-w.off))
		w.off += n
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("%w: object %s has %d of %d", ErrLost, w.state.Key, w.off, w.size)
		}
		if err != nil {
			return fmt.Errorf("copying object %s: %w", w.state.Key, err)
		}
	}
	err := w.old.Close()
	w.old = nil
	return err
}

// fail records err as the writer's failure, unless the writer has failed before, and returns
// the first failure. `doing` says in the message what the writer was doing.
func (w *dirWriter) fail(doing string, err error) error {
	if w.err == nil {
		w.err = fmt.Errorf("%s upload %s: %w", doing, w.base, err)
	}
	return w.err
}

// Write implements Writer.
func (w *dirWriter) Write(p []byte) (int, error) {
	if w.err != nil || len(p) == 0 {
		return 0, w.err
	}
	if err := w.ctx.Err(); err != nil {
		return 0, w.fail("writing", err)
	}
	if w.f == nil {
		if err := w.create(w.ctx); err != nil {
			return 0, w.fail("writing", err)
		}
	}
	w.dirty = true
	n, err := w.f.Write(p)
	w.off += int64(n)
	if err != nil {
		return n, w.fail("writing", err)
	}
	// The kernel starts to write the new bytes to disk while the client is still sending, so
	// that the final fsync takes less time.
	if w.off-w.started >= writebackStep {
		startWriteback(w.f, w.started, w.off-w.started)
		w.started = w.off
	}
	return n, nil
}

const (
	writebackStep = 8 << 20
	copyBuffer    = 512 << 10
	// scarceBuffer is the size in bytes of ReadFrom's only buffer if the memory limit for
	// uploads doesn't allow two buffers of copyBuffer bytes.
	scarceBuffer = 16 << 10
)

var copyBuffers = sync.Pool{New: func() any { return new([copyBuffer]byte) }}

// ReadFrom implements Writer. If r has more bytes than one buffer holds, ReadFrom uses two
// buffers, and reads into one of them while it writes the other.
func (w *dirWriter) ReadFrom(r io.Reader) (total int64, err error) {
	mem := limit.LeaseOf(w.ctx)
	if !mem.TryStream(2 * copyBuffer) {
		return io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{r}, make([]byte, scarceBuffer))
	}
	defer mem.Give(2 * copyBuffer)
	buf := copyBuffers.Get().(*[copyBuffer]byte)
	n, readErr := fill(r, buf[:])
	if readErr == nil {
		return w.readOn(r, buf)
	}
	written, err := w.Write(buf[:n])
	copyBuffers.Put(buf)
	if err == nil && !errors.Is(readErr, io.EOF) {
		err = readErr
	}
	return int64(written), err
}

// readOn continues ReadFrom after the first full buffer: this goroutine reads from r, and
// another goroutine writes. readOn returns the buffers to the pool only if no write has
// failed; after a failed write r isn't read any further, and if r is a hashing reader, it may
// still use the last buffer.
func (w *dirWriter) readOn(r io.Reader, first *[copyBuffer]byte) (total int64, err error) {
	type piece struct {
		buf *[copyBuffer]byte
		n   int
	}
	free, full := make(chan *[copyBuffer]byte, 2), make(chan piece, 1)
	var failed atomic.Bool
	done := make(chan error, 1)
	go func() {
		var err error
		for p := range full {
			if err == nil {
				var n int
				n, err = w.Write(p.buf[:p.n])
				total += int64(n)
				failed.Store(err != nil)
			}
			free <- p.buf
		}
		done <- err
	}()
	full <- piece{first, len(first)}
	free <- copyBuffers.Get().(*[copyBuffer]byte)
	var readErr error
	for readErr == nil && !failed.Load() {
		buf := <-free
		var n int
		n, readErr = fill(r, buf[:])
		full <- piece{buf, n}
	}
	close(full)
	if err := <-done; err != nil {
		return total, err
	}
	copyBuffers.Put(<-free)
	copyBuffers.Put(<-free)
	if errors.Is(readErr, io.EOF) {
		readErr = nil
	}
	return total, readErr
}

// fill reads from r until p is full or r returns an error. Unlike io.ReadFull, it returns r's
// own error, also io.EOF.
func fill(r io.Reader, p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		var m int
		m, err = r.Read(p[n:])
		n += m
	}
	return n, err
}

// Save implements Writer.
func (w *dirWriter) Save(context.Context) (State, error) {
	if w.err != nil {
		return nil, w.err
	}
	if w.f == nil {
		_ = w.fail("writing to", errEnded)
		return w.given, nil
	}
	if err := w.sync(); err != nil {
		return nil, w.fail("saving", err)
	}
	former := w.state.Key
	w.state.Key = w.key
	state, err := json.Marshal(w.state)
	if err != nil {
		return nil, w.fail("saving", err)
	}
	w.kept, w.former = true, former
	_ = w.fail("writing to", errEnded)
	return state, nil
}

// Finish implements Writer.
func (w *dirWriter) Finish(ctx context.Context) (string, error) {
	if w.err != nil {
		return "", w.err
	}
	if w.f == nil {
		if err := w.create(ctx); err != nil {
			return "", w.fail("finishing", err)
		}
	}
	if err := w.sync(); err != nil {
		return "", w.fail("finishing", err)
	}
	w.kept = true
	_ = w.fail("writing to", errEnded)
	return w.key, nil
}

var errEnded = errors.New("it was saved or finished by this writer already")

// sync makes the object's bytes, length and file name durable.
func (w *dirWriter) sync() error {
	if w.dirty {
		if err := syncData(w.f); err != nil {
			return fmt.Errorf("syncing object %s: %w", w.key, err)
		}
		w.dirty = false
	}
	if w.newName {
		if err := syncDir(filepath.Dir(w.f.Name())); err != nil {
			return fmt.Errorf("syncing the name of object %s: %w", w.key, err)
		}
		w.newName = false
	}
	return nil
}

// Former implements Writer. A request that has lost the upload may still write to the old object.
// It can't save these bytes, and the file system frees them when it closes the file.
func (w *dirWriter) Former() []string {
	if w.former == "" || w.former == w.state.Key {
		return nil
	}
	return []string{w.former}
}

// Discard implements Writer.
func (w *dirWriter) Discard() { w.kept = false }

// Leftovers implements Writer.
func (w *dirWriter) Leftovers() bool { return w.state.Left }

// Close implements Writer. If neither Save nor Finish has succeeded, Close immediately removes
// the bytes that this writer wrote, so that a failed push on a full disk frees its space.
func (w *dirWriter) Close() error {
	var errs []error
	if w.f != nil {
		if !w.kept {
			errs = append(errs, w.undo())
		}
		errs = append(errs, w.f.Close())
		w.f = nil
	}
	if w.old != nil {
		errs = append(errs, w.old.Close())
		w.old = nil
	}
	_ = w.fail("writing to", os.ErrClosed)
	return errors.Join(errs...)
}

// undo removes the object that this writer has created. If the writer has appended to the
// object of an earlier request, undo cuts off these bytes. That is safe, since the writer has
// locked the object: no other request can have saved more than the first w.size bytes.
func (w *dirWriter) undo() error {
	if !w.made {
		if w.off == w.size {
			return nil
		}
		return w.f.Truncate(w.size)
	}
	if err := os.Remove(w.f.Name()); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

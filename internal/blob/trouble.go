package blob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"syscall"
)

// Trouble is a class of reasons why a store can't do its work.
type Trouble int

// TroubleAway is the default: the store doesn't answer, or answers that it can't work now.
const (
	TroubleAway      Trouble = iota + 1
	TroubleForbidden         // permissions or credentials are wrong
	TroubleMissing           // its directory, volume or bucket doesn't exist
	TroubleReadOnly
	TroubleFull
)

// StoreError says that the store itself has failed, with the class of the failure. Its text is
// the text of Err.
type StoreError struct {
	Trouble Trouble
	Err     error
}

func (e *StoreError) Error() string { return e.Err.Error() }

func (e *StoreError) Unwrap() error { return e.Err }

// TroubleOf classifies an error of the file system. Package s3 has a function of the same name
// for errors of S3.
func TroubleOf(err error) Trouble {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return TroubleFull
	case errors.Is(err, syscall.EROFS):
		return TroubleReadOnly
	case errors.Is(err, fs.ErrPermission):
		return TroubleForbidden
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ENODEV):
		return TroubleMissing
	}
	return TroubleAway
}

// Mark returns a store that wraps its errors in a *StoreError, so that callers can tell them
// from other errors. It doesn't wrap errors that come from the caller itself (from Claim or
// Numbers, or because a context has ended). It doesn't wrap errors of the reader that Open
// returns either, since this reader must keep its type for sendfile; see MarkRead. The
// function `of` returns the class of an error; nil means TroubleOf.
func Mark(s Store, of func(error) Trouble) Store {
	if of == nil {
		of = TroubleOf
	}
	return &marked{s, of}
}

type marked struct {
	Store
	of func(error) Trouble
}

// callersError is an error that the caller's Claim or Numbers returned; Mark must not wrap it.
type callersError struct{ error }

func (e *callersError) Unwrap() error { return e.error }

func (m *marked) mark(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil {
		return err
	}
	if _, foreign := errors.AsType[*callersError](err); foreign {
		return err
	}
	return &StoreError{m.of(err), err}
}

// Resume implements Store.
func (m *marked) Resume(ctx context.Context, base string, state State, size int64, claim Claim, numbers Numbers) (Writer, error) {
	w, err := m.Store.Resume(ctx, base, state, size, func(ctx context.Context) (int64, error) {
		next, err := claim(ctx)
		return next, callers(err)
	}, func(ctx context.Context, n int) (int64, error) {
		first, err := numbers(ctx, n)
		return first, callers(err)
	})
	if err != nil {
		return nil, m.mark(ctx, err)
	}
	return &markedWriter{w, m, ctx}, nil
}

func callers(err error) error {
	if err == nil {
		return nil
	}
	return &callersError{err}
}

// Open implements Store.
func (m *marked) Open(ctx context.Context, key string, off, length int64) (io.ReadCloser, error) {
	r, err := m.Store.Open(ctx, key, off, length)
	return r, m.mark(ctx, err)
}

// Delete implements Store.
func (m *marked) Delete(ctx context.Context, keys []string) error {
	return m.mark(ctx, m.Store.Delete(ctx, keys))
}

// Stat implements Store.
func (m *marked) Stat(ctx context.Context, key string) (Object, error) {
	o, err := m.Store.Stat(ctx, key)
	return o, m.mark(ctx, err)
}

// Presign implements Store.
func (m *marked) Presign(ctx context.Context, key string, o PresignOptions) (string, error) {
	url, err := m.Store.Presign(ctx, key, o)
	return url, m.mark(ctx, err)
}

// markedWriter is a Writer that wraps its errors. ctx is the context that was given to Resume.
type markedWriter struct {
	Writer
	m   *marked
	ctx context.Context
}

// Write implements Writer.
func (w *markedWriter) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	return n, w.m.mark(w.ctx, err)
}

// ReadFrom implements Writer. It wraps an error of the store, but returns an error of r
// unchanged.
func (w *markedWriter) ReadFrom(r io.Reader) (int64, error) {
	source := &markedReader{r: r}
	n, err := w.Writer.ReadFrom(source)
	if err == nil || source.err != nil && errors.Is(err, source.err) {
		return n, err
	}
	return n, w.m.mark(w.ctx, err)
}

type markedReader struct {
	r   io.Reader
	err error
}

func (r *markedReader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if err != nil && err != io.EOF { //nolint:errorlint // io.Reader returns EOF itself; an error that wraps it is a failure
		r.err = err
	}
	return n, err
}

// Save implements Writer.
func (w *markedWriter) Save(ctx context.Context) (State, error) {
	state, err := w.Writer.Save(ctx)
	return state, w.m.mark(ctx, err)
}

// Finish implements Writer.
func (w *markedWriter) Finish(ctx context.Context) (string, error) {
	key, err := w.Writer.Finish(ctx)
	return key, w.m.mark(ctx, err)
}

// MarkRead adds the object's key to err, an error of a reader that s.Open has returned. If
// Mark has made s, MarkRead also wraps the error in a *StoreError.
func MarkRead(ctx context.Context, s Store, key string, err error) error {
	if err == nil {
		return nil
	}
	err = fmt.Errorf("reading object %s: %w", key, err)
	if m, ok := s.(*marked); ok {
		return m.mark(ctx, err)
	}
	return err
}

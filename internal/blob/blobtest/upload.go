package blobtest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"

	"github.com/purser-registry/purser/internal/blob"
)

// Upload is a model of an upload's row in the database. It lets a newer request (attempt) take
// over the upload from an earlier one, gives out numbers, and has the upload's state and size.
// It also has the acknowledged bytes, so that tests can compare the store's object with them.
// It is safe for concurrent use.
type Upload struct {
	Base string

	mu      sync.Mutex
	version int // incremented by every claim and every save
	token   int // the version at the last claim
	next    int64
	state   blob.State
	acked   content
	key     string // set by the commit
}

// NewUpload returns the row of a new upload.
func NewUpload() *Upload { return &Upload{Base: blob.NewBase()} }

// content has bytes in pieces, which nobody changes. Models share the pieces, because the race
// detector makes it slow to copy megabytes for each request.
type content [][]byte

func (c content) size() (n int64) {
	for _, p := range c {
		n += int64(len(p))
	}
	return n
}

// Acked returns the acknowledged bytes in pieces, which the caller must not change, and the key
// of the upload's object, which is "" until the upload is committed.
func (u *Upload) Acked() (pieces [][]byte, key string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.acked), u.key
}

// State returns the state in the row.
func (u *Upload) State() blob.State {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.state)
}

// Attempt is one request that writes to an Upload.
type Attempt struct {
	blob.Writer
	Claims int // how often the store called claim

	u     *Upload
	s     blob.Store
	token int
	data  content // the acknowledged bytes, then those written
}

// Attempt reads the model's row and resumes the upload in the store, as a request does. If it
// returns an error, the Attempt has no Writer.
func (u *Upload) Attempt(ctx context.Context, s blob.Store) (*Attempt, error) {
	u.mu.Lock()
	a := &Attempt{u: u, s: s, data: slices.Clone(u.acked)}
	seen, state := u.version, slices.Clone(u.state)
	u.mu.Unlock()
	var err error
	a.Writer, err = s.Resume(ctx, u.Base, state, a.data.size(), func(context.Context) (int64, error) {
		a.Claims++
		return u.claim(a, seen)
	}, func(_ context.Context, n int) (int64, error) { return u.numbers(a.token, n) })
	return a, err
}

// claim makes `a` the upload's newest attempt and returns the next number. It returns
// ErrFenced if another attempt has claimed, saved or committed the upload since this attempt
// read the row.
func (u *Upload) claim(a *Attempt, seen int) (int64, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.key != "" || u.version != seen {
		return 0, blob.ErrFenced
	}
	u.version++
	u.token, a.token = u.version, u.version
	return u.next, nil
}

func (u *Upload) numbers(token, n int) (int64, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.key != "" || u.token != token {
		return 0, blob.ErrFenced
	}
	if n < 1 {
		return 0, fmt.Errorf("asked for %d numbers", n)
	}
	first := u.next
	u.next += int64(n)
	return first, nil
}

// Write writes p to the store, and adds the accepted bytes to the attempt's data in the model.
// The caller must not change p afterwards.
func (a *Attempt) Write(p []byte) (int, error) {
	n, err := a.Writer.Write(p)
	a.data = append(a.data, p[:n])
	return n, err
}

// Save calls the Writer's Save, stores the returned state and the new size in the model's row,
// and deletes the former objects. It returns ErrFenced, and discards what was stored, if a newer
// attempt has claimed the upload.
func (a *Attempt) Save(ctx context.Context) error {
	state, err := a.Writer.Save(ctx)
	if err != nil {
		return err
	}
	a.u.mu.Lock()
	if a.u.key != "" || a.u.token != a.token {
		a.u.mu.Unlock()
		a.Discard()
		return blob.ErrFenced
	}
	a.u.version++
	a.u.state, a.u.acked = state, a.data
	a.u.mu.Unlock()
	if former := a.Former(); len(former) > 0 {
		return a.s.Delete(ctx, former)
	}
	return nil
}

// Commit stores the key from Finish in the model's row. It returns ErrFenced, and discards what was
// stored, if a newer attempt has claimed the upload.
func (a *Attempt) Commit(key string) error {
	a.u.mu.Lock()
	defer a.u.mu.Unlock()
	if a.u.key != "" || a.u.token != a.token {
		a.Discard()
		return blob.ErrFenced
	}
	a.u.key, a.u.acked = key, a.data
	return nil
}

// Begin calls Attempt, which must succeed. It closes the Writer when the
// test ends.
func (u *Upload) Begin(t testing.TB, s blob.Store) *Attempt {
	t.Helper()
	a, err := u.Attempt(t.Context(), s)
	if err != nil {
		t.Fatalf("resuming: %v", err)
	}
	t.Cleanup(func() { a.Close() })
	if a.Claims != 1 {
		t.Fatalf("claim was called %d times", a.Claims)
	}
	return a
}

// Append makes a request that writes p, saves the upload and closes the Writer. The request
// must succeed.
func (u *Upload) Append(t testing.TB, s blob.Store, p []byte) {
	t.Helper()
	a := u.Begin(t, s)
	a.MustWrite(t, p)
	if err := a.Save(t.Context()); err != nil {
		t.Fatalf("saving: %v", err)
	}
	a.MustClose(t)
}

// Complete makes a request that writes p, finishes the upload, commits it and closes the
// Writer. If the store reports leftovers, Complete deletes them. It compares the finished
// object with the acknowledged bytes, and returns the object's key.
func (u *Upload) Complete(t testing.TB, s blob.Store, p []byte) string {
	t.Helper()
	a := u.Begin(t, s)
	a.MustWrite(t, p)
	return a.MustFinish(t, s)
}

// MustWrite writes p; an empty p isn't written at all.
func (a *Attempt) MustWrite(t testing.TB, p []byte) {
	t.Helper()
	if len(p) == 0 {
		return
	}
	if n, err := a.Write(p); err != nil || n != len(p) {
		t.Fatalf("writing %d bytes: %d, %v", len(p), n, err)
	}
}

// MustClose closes the Writer.
func (a *Attempt) MustClose(t testing.TB) {
	t.Helper()
	if err := a.Close(); err != nil {
		t.Fatalf("closing: %v", err)
	}
}

// MustFinish finishes and commits the upload and closes the Writer. It deletes leftovers if
// there are any, compares the object with the bytes in the model, and returns the object's
// key.
func (a *Attempt) MustFinish(t testing.TB, s blob.Store) string {
	t.Helper()
	key, err := a.Finish(t.Context())
	if err != nil {
		t.Fatalf("finishing: %v", err)
	}
	if err := a.Commit(key); err != nil {
		t.Fatalf("committing: %v", err)
	}
	left := a.Leftovers()
	a.MustClose(t)
	if left {
		if err := s.DeleteUpload(t.Context(), a.u.Base, key); err != nil {
			t.Fatalf("deleting leftovers: %v", err)
		}
	}
	Equal(t, s, key, a.data...)
	return key
}

// Equal fails the test unless the object with the given key has exactly the bytes of the pieces
// `want`, one after the other.
func Equal(t testing.TB, s blob.Store, key string, want ...[]byte) {
	t.Helper()
	r, err := s.Open(t.Context(), key, 0, -1)
	if err != nil {
		t.Fatalf("opening: %v", err)
	}
	defer r.Close()
	at, size := int64(0), content(want).size()
	buf := make([]byte, 64<<10)
	for _, piece := range want {
		for len(piece) > 0 {
			n, err := io.ReadFull(r, buf[:min(len(buf), len(piece))])
			if !bytes.Equal(buf[:n], piece[:n]) {
				t.Fatalf("object %s: it differs from the %d bytes wanted, within the %d bytes from byte %d", key, size, n, at)
			}
			if at += int64(n); err != nil {
				t.Fatalf("object %s: %d bytes, want %d: %v", key, at, size, err)
			}
			piece = piece[n:]
		}
	}
	if more, err := io.Copy(io.Discard, r); more > 0 || err != nil {
		t.Fatalf("object %s: %d bytes after the %d wanted: %v", key, more, size, err)
	}
}

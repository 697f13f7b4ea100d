// Package blobtest has the tests that every implementation of blob.Store must pass. It also
// has a model of an upload's row, and an S3 server for tests.
package blobtest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/purser-registry/purser/internal/blob"
)

// A Backend is an implementation for Run to test.
type Backend struct {
	// Open opens a store. All stores that it opens share their objects, as replicas do.
	Open func(t testing.TB) blob.Store

	// Keys lists the keys of the upload's objects, without using the store. A multipart upload
	// is listed as its object's key followed by "?".
	Keys func(t testing.TB, base string) []string

	// Part is the size in bytes above which the backend stores an upload in several parts.
	// Sizes are sizes of uploads for which the backend's code takes different paths.
	Part  int
	Sizes []int
}

// Run tests the backend. It first measures memory and then runs the other tests in parallel,
// so it must not be called from a parallel test.
func Run(t *testing.T, b Backend) {
	t.Run("LargeStream", func(t *testing.T) { largeStream(t, b) })
	for _, test := range []struct {
		name string
		run  func(*testing.T, Backend)
	}{
		{"OneRequest", oneRequest},
		{"SeveralRequests", severalRequests},
		{"FinishAfterSave", finishAfterSave},
		{"SmallChunks", smallChunks},
		{"ReadFrom", readFrom},
		{"Borrowed", borrowed},
		{"Dropped", dropped},
		{"SaveNothing", saveNothing},
		{"FinishTwice", finishTwice},
		{"FinishAgainWithOtherBytes", finishAgainWithOtherBytes},
		{"FailuresLeaveNothing", failuresLeaveNothing},
		{"ClaimFails", claimFails},
		{"Stalled", stalled},
		{"StalledFinish", stalledFinish},
		{"Ended", ended},
		{"ContextEnds", contextEnds},
		{"Ranges", ranges},
		{"NotFound", notFound},
		{"List", list},
		{"ListEnds", listEnds},
		{"Unfinished", unfinished},
		{"Delete", deletes},
		{"DeleteUpload", deleteUpload},
		{"BadArguments", badArguments},
		{"Presign", presign},
		{"Check", check},
		{"Identity", identity},
		{"Tree", tree},
		{"Race", race},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t, b)
		})
	}
}

// Bytes returns n incompressible bytes that depend on the seed. The caller must not change them.
func Bytes(seed uint64, n int) []byte {
	if n > len(random())/2 {
		return randomBytes(seed, n)
	}
	const mixed = 0x9e3779b97f4a7c15 // seeds are small numbers, and places far apart
	at := seed * mixed % uint64(len(random())-n)
	return random()[at:][:n:n]
}

// random returns the bytes of which Bytes returns parts. With the race detector it is slow to
// make and to use new memory.
var random = sync.OnceValue(func() []byte { return randomBytes(0, 24<<20) })

func randomBytes(seed uint64, n int) []byte {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	p := make([]byte, n)
	rand.NewChaCha8(key).Read(p)
	return p
}

// Read reads a range of an object.
func Read(t testing.TB, s blob.Store, key string, off, length int64) []byte {
	t.Helper()
	r, err := s.Open(t.Context(), key, off, length)
	if err != nil {
		t.Fatalf("opening: %v", err)
	}
	defer r.Close()
	p, err := io.ReadAll(r)
	if err != nil {
		t.Fatalf("reading object %s: %v", key, err)
	}
	return p
}

// The function `only` fails the test unless the upload with the key prefix `base` has exactly
// one object, whose key is `key`. If `key` is "", the upload must have no object.
func only(t testing.TB, b Backend, base, key string) {
	t.Helper()
	want := []string{}
	if key != "" {
		want = append(want, key)
	}
	if got := b.Keys(t, base); !slices.Equal(got, want) {
		t.Fatalf("objects of the upload: %q, want %q", got, want)
	}
}

// largeStream sends a stream that is larger than any buffer, first in one request and then in
// several. Meanwhile it checks that the process uses no more memory than allowed.
func largeStream(t *testing.T, b Backend) {
	const size, limit = 96 << 20, 64 << 20 // other tests use some meanwhile
	s := b.Open(t)
	u := NewUpload()
	a := u.Begin(t, s)
	w := a.Writer
	piece := slices.Clone(Bytes(1, 1<<20))
	runtime.GC()
	var start, now runtime.MemStats
	runtime.ReadMemStats(&start)
	for i := range size >> 20 {
		piece[0] = byte(i)
		if _, err := w.Write(piece); err != nil {
			t.Fatal(err)
		}
		used := func() int64 {
			runtime.ReadMemStats(&now)
			return int64(now.HeapAlloc) - int64(start.HeapAlloc)
		}
		if used() > limit {
			runtime.GC() // the heap of the tests themselves makes the collector wait
		}
		if n := used(); n > limit {
			t.Fatalf("%d MiB in use after %d MiB", n>>20, i+1)
		}
	}
	key, err := w.Finish(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Open(t.Context(), key, 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	got := make([]byte, len(piece))
	for i := range size >> 20 {
		piece[0] = byte(i)
		if _, err := io.ReadFull(r, got); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, piece) {
			t.Fatalf("MiB %d differs", i)
		}
	}
	if n, err := r.Read(got); n != 0 || err != io.EOF {
		t.Fatalf("after the end: %d, %v", n, err)
	}
}

// oneRequest pushes an upload of each size in one request.
func oneRequest(t *testing.T, b Backend) {
	s := b.Open(t)
	for _, size := range b.Sizes {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			t.Parallel()
			u := NewUpload()
			key := u.Complete(t, s, Bytes(uint64(size), size))
			only(t, b, u.Base, key)
		})
	}
}

// severalRequests pushes, for each size in b.Sizes, an upload in several requests, each
// through another replica. About half of the requests have this size, the others have other
// sizes.
func severalRequests(t *testing.T, b Backend) {
	for i, size := range b.Sizes {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			t.Parallel()
			u := NewUpload()
			for j := range 3 {
				other := b.Sizes[(i+j*5)%len(b.Sizes)]
				u.Append(t, b.Open(t), Bytes(uint64(j), size))
				u.Append(t, b.Open(t), Bytes(uint64(j+10), min(other, 1<<20)))
			}
			key := u.Complete(t, b.Open(t), Bytes(99, size))
			only(t, b, u.Base, key)
		})
	}
}

// finishAfterSave pushes as Docker does: one request sends all bytes, and a last request
// without bytes finishes the upload.
func finishAfterSave(t *testing.T, b Backend) {
	for _, size := range b.Sizes {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			t.Parallel()
			u := NewUpload()
			u.Append(t, b.Open(t), Bytes(uint64(size), size))
			key := u.Complete(t, b.Open(t), nil)
			only(t, b, u.Base, key)
		})
	}
}

// smallChunks pushes an upload in many requests, each with fewer bytes than a part.
func smallChunks(t *testing.T, b Backend) {
	s := b.Open(t)
	u := NewUpload()
	for i := range 40 {
		u.Append(t, s, Bytes(uint64(i), b.Part/17+i))
	}
	key := u.Complete(t, s, Bytes(1, 17))
	only(t, b, u.Base, key)
}

// failingReader returns its bytes, at most 70,001 by each Read, and then its error.
type failingReader struct {
	p   []byte
	err error
}

func (r *failingReader) Read(p []byte) (int, error) {
	if len(r.p) == 0 {
		return 0, r.err
	}
	n := copy(p[:min(len(p), 70_001)], r.p)
	r.p = r.p[n:]
	return n, nil
}

// readFrom lets the client's connection break while ReadFrom reads, and expects the store to
// keep the bytes that arrived before.
func readFrom(t *testing.T, b Backend) {
	s := b.Open(t)
	data := Bytes(1, 2*b.Part+5)
	for _, cause := range []error{io.ErrUnexpectedEOF, io.EOF, errors.New("connection reset")} {
		u := NewUpload()
		a := u.Begin(t, s)
		n, err := a.ReadFrom(&failingReader{p: data, err: cause})
		if want := cause; n != int64(len(data)) || !errors.Is(err, want) && !(want == io.EOF && err == nil) {
			t.Fatalf("ReadFrom: %d, %v; want %d, %v", n, err, len(data), want)
		}
		a.data = content{data}
		if err := a.Save(t.Context()); err != nil {
			t.Fatal(err)
		}
		a.MustClose(t)
		u.Complete(t, s, []byte("more"))
	}
}

// dropped lets a request write bytes and end without saving them, in uploads of all sizes in
// b.Sizes. None of these bytes may be in the finished object.
func dropped(t *testing.T, b Backend) {
	s := b.Open(t)
	for _, saved := range b.Sizes {
		for _, lost := range []int{1, 2*b.Part + 1000} {
			t.Run(fmt.Sprintf("%d+%d", saved, lost), func(t *testing.T) {
				t.Parallel()
				u := NewUpload()
				u.Append(t, s, Bytes(1, saved))
				a := u.Begin(t, s)
				a.MustWrite(t, Bytes(2, lost))
				a.MustClose(t)
				u.Append(t, s, Bytes(3, 1000))
				a = u.Begin(t, s)
				a.MustWrite(t, Bytes(4, lost))
				a.MustClose(t)
				key := u.Complete(t, s, Bytes(5, b.Part+1))
				only(t, b, u.Base, key)
			})
		}
	}
}

// saveNothing makes several requests that save without writing. The upload must not change.
func saveNothing(t *testing.T, b Backend) {
	s := b.Open(t)
	u := NewUpload()
	u.Append(t, s, nil)
	only(t, b, u.Base, "")
	u.Append(t, s, Bytes(1, b.Part+1000))
	u.Append(t, s, nil)
	u.Append(t, s, nil)
	u.Complete(t, s, []byte("end"))
}

// finishTwice lets a request finish an upload but not commit it, as if the database
// transaction had failed. Another request must then be able to finish the same bytes.
func finishTwice(t *testing.T, b Backend) {
	s := b.Open(t)
	for _, size := range b.Sizes {
		for _, last := range []int{0, 1, b.Part + 1000} {
			t.Run(fmt.Sprintf("%d+%d", size, last), func(t *testing.T) {
				t.Parallel()
				u := NewUpload()
				u.Append(t, s, Bytes(1, size))
				for range 2 {
					a := u.Begin(t, s)
					a.MustWrite(t, Bytes(2, last))
					if _, err := a.Finish(t.Context()); err != nil {
						t.Fatal(err)
					}
					a.MustClose(t)
				}
				key := u.Complete(t, b.Open(t), Bytes(2, last))
				only(t, b, u.Base, key)
			})
		}
	}
}

// finishAgainWithOtherBytes lets a request finish an upload but not commit it. Then the client
// sends the same number of other bytes and finishes again. The object with the returned key
// must have the second bytes, although the object with the first bytes has the same size.
func finishAgainWithOtherBytes(t *testing.T, b Backend) {
	s := b.Open(t)
	for _, size := range b.Sizes {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			t.Parallel()
			u := NewUpload()
			u.Append(t, s, Bytes(1, size))
			a := u.Begin(t, s)
			a.MustWrite(t, Bytes(2, b.Part+1000))
			if _, err := a.Finish(t.Context()); err != nil {
				t.Fatal(err)
			}
			a.MustClose(t)
			u.Append(t, s, Bytes(3, b.Part))
			key := u.Complete(t, s, Bytes(4, 1000))
			only(t, b, u.Base, key)
		})
	}
}

// failuresLeaveNothing continues an upload again and again, saves it, or fails before or after it has
// finished the upload. However often that happens, the store has no more objects than the upload needs:
// one for its parts, and one for the bytes behind them.
func failuresLeaveNothing(t *testing.T, b Backend) {
	s := b.Open(t)
	for _, size := range b.Sizes {
		for _, more := range []int{1, b.Part + 1000} {
			t.Run(fmt.Sprintf("%d+%d", size, more), func(t *testing.T) {
				t.Parallel()
				u := NewUpload()
				u.Append(t, s, Bytes(1, size))
				for i := range 3 {
					for name, end := range map[string]func(a *Attempt) error{
						"save":   func(a *Attempt) error { return a.Save(t.Context()) },
						"fail":   func(*Attempt) error { return nil },
						"finish": func(a *Attempt) error { _, err := a.Finish(t.Context()); a.Discard(); return err },
					} {
						a := u.Begin(t, s)
						a.MustWrite(t, Bytes(uint64(i), more))
						if err := end(a); err != nil {
							t.Fatalf("%s: %v", name, err)
						}
						a.MustClose(t)
						if keys := b.Keys(t, u.Base); len(keys) > 2 {
							t.Fatalf("after %s the upload has the objects %q", name, keys)
						}
					}
				}
				only(t, b, u.Base, u.Complete(t, s, []byte("end")))
			})
		}
	}
}

// claimFails calls Resume with a `claim` that returns an error, and expects that Resume has
// changed nothing in the store.
func claimFails(t *testing.T, b Backend) {
	s := b.Open(t)
	u := NewUpload()
	u.Append(t, s, Bytes(1, b.Part+1000))
	before := b.Keys(t, u.Base)
	refused := errors.New("refused")
	_, err := s.Resume(t.Context(), u.Base, u.State(), int64(b.Part+1000),
		func(context.Context) (int64, error) { return 0, refused },
		func(context.Context, int) (int64, error) { t.Error("a number was asked for"); return 0, refused })
	if !errors.Is(err, refused) {
		t.Fatalf("Resume: %v, want %v", err, refused)
	}
	if after := b.Keys(t, u.Base); !slices.Equal(before, after) {
		t.Fatalf("objects before: %q, after: %q", before, after)
	}
	u.Complete(t, s, []byte("end"))
}

// stalled tests a request that stalls: it continues to write after a newer request has saved
// the upload, and once more after the newer request has finished it. The finished object must
// not change.
func stalled(t *testing.T, b Backend) {
	for _, size := range b.Sizes {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			t.Parallel()
			s, replica := b.Open(t), b.Open(t)
			u := NewUpload()
			u.Append(t, s, Bytes(1, size))
			slow, slower := u.Begin(t, s), u.Begin(t, s)
			slower.Write(Bytes(2, b.Part+1))
			u.Append(t, replica, Bytes(3, b.Part+7))
			slow.Write(Bytes(4, 2*b.Part+1))
			if err := slow.Save(t.Context()); !errors.Is(err, blob.ErrFenced) {
				t.Fatalf("a fenced attempt saved: %v", err)
			}
			key := u.Complete(t, replica, Bytes(5, 1<<20))
			slower.Write(Bytes(6, 2*b.Part+1))
			if slowKey, err := slower.Finish(t.Context()); err == nil && slowKey == key {
				t.Fatalf("a fenced attempt finished the object of another: %s", key)
			}
			data, _ := u.Acked()
			Equal(t, replica, key, data...)
			slow.MustClose(t)
			slower.MustClose(t)
			if err := s.DeleteUpload(t.Context(), u.Base, key); err != nil {
				t.Fatal(err)
			}
			only(t, b, u.Base, key)
			Equal(t, replica, key, data...)
		})
	}
}

// stalledFinish lets a request finish an upload without sending further bytes, while an
// earlier request still writes to the same object. Bytes that the earlier request writes after
// that must not get into the finished object.
func stalledFinish(t *testing.T, b Backend) {
	s := b.Open(t)
	u := NewUpload()
	u.Append(t, s, Bytes(1, b.Part+1000))
	slow := u.Begin(t, s)
	slow.MustWrite(t, Bytes(2, 1000))
	key := u.Complete(t, s, nil)
	slow.Write(Bytes(3, 2*b.Part+1))
	slow.Finish(t.Context())
	data, _ := u.Acked()
	Equal(t, s, key, data...)
}

// ended expects a Writer to refuse further bytes after Save, Finish or Close.
func ended(t *testing.T, b Backend) {
	s := b.Open(t)
	for name, end := range map[string]func(blob.Writer) error{
		"Save":   func(w blob.Writer) error { _, err := w.Save(t.Context()); return err },
		"Finish": func(w blob.Writer) error { _, err := w.Finish(t.Context()); return err },
		"Close":  func(w blob.Writer) error { return w.Close() },
	} {
		a := NewUpload().Begin(t, s)
		a.MustWrite(t, []byte("some"))
		if err := end(a.Writer); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, err := a.Writer.Write([]byte("more")); err == nil {
			t.Errorf("Write after %s worked", name)
		}
		if _, err := a.Writer.Save(t.Context()); err == nil {
			t.Errorf("Save after %s worked", name)
		}
		if _, err := a.Writer.Finish(t.Context()); err == nil {
			t.Errorf("Finish after %s worked", name)
		}
		a.MustClose(t)
		a.MustClose(t)
	}
}

// contextEnds cancels a request's context while the request writes, and expects that another
// request can continue the upload.
func contextEnds(t *testing.T, b Backend) {
	s := b.Open(t)
	u := NewUpload()
	u.Append(t, s, Bytes(1, b.Part+1000))
	ctx, cancel := context.WithCancel(t.Context())
	a, err := u.Attempt(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	a.MustWrite(t, Bytes(2, 1<<20))
	cancel()
	if _, err := a.Write(Bytes(3, 3*b.Part)); !errors.Is(err, context.Canceled) {
		t.Fatalf("Write: %v", err)
	}
	if err := a.Save(t.Context()); !errors.Is(err, context.Canceled) {
		t.Fatalf("Save after a failed Write: %v", err)
	}
	a.MustClose(t)
	u.Complete(t, s, []byte("end"))
}

package blobtest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/blob"
)

// list expects that List returns all objects whose keys begin with the given prefix, in the
// order of their keys, and for each object the same size and time as Stat.
func list(t *testing.T, b Backend) {
	s := b.Open(t)
	want := make(map[string]int64) // sizes
	for i := range 20 {
		want[NewUpload().Complete(t, s, Bytes(uint64(i), 100*i))] = int64(100 * i)
	}
	var last string
	seen := 0
	for o, err := range s.List(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		if o.Key <= last {
			t.Fatalf("%s is listed after %s", o.Key, last)
		}
		last = o.Key
		size, mine := want[o.Key]
		if !mine { // another test's
			continue
		}
		seen++
		again, err := s.Stat(t.Context(), o.Key)
		if err != nil || again.Key != o.Key || again.Size != o.Size || !again.Modified.Truncate(time.Second).Equal(o.Modified.Truncate(time.Second)) {
			t.Errorf("listed as %+v, stat says %+v, %v", o, again, err)
		}
		if age := time.Since(o.Modified); o.Size != size || age < -time.Minute || age > time.Hour {
			t.Errorf("%s has %d bytes and is %v old, want %d bytes made just now", o.Key, o.Size, age, size)
		}
	}
	if seen != len(want) {
		t.Errorf("%d objects are listed, want %d", seen, len(want))
	}
	for key := range want {
		for _, prefix := range []string{key[:1], key[:2], key[:3], key[:32], key} {
			keys := keysOf(t, s, prefix)
			if !slices.Contains(keys, key) || slices.ContainsFunc(keys, func(k string) bool { return !strings.HasPrefix(k, prefix) }) {
				t.Errorf("under %q: %q, want %s and only those with the prefix", prefix, keys, key)
			}
		}
		if err := s.Delete(t.Context(), []string{key}); err != nil {
			t.Fatal(err)
		}
		if keys := keysOf(t, s, key[:32]); len(keys) != 0 {
			t.Errorf("listed after it was deleted: %q", keys)
		}
		if _, err := s.Stat(t.Context(), key); !errors.Is(err, blob.ErrNotFound) {
			t.Errorf("stat of what was deleted: %v", err)
		}
	}
}

func keysOf(t testing.TB, s blob.Store, prefix string) (keys []string) {
	t.Helper()
	for o, err := range s.List(t.Context(), prefix) {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, o.Key)
	}
	return keys
}

// listEnds expects that a listing ends without an error when the caller stops reading it, and
// that it returns an error when its context ends.
func listEnds(t *testing.T, b Backend) {
	s := b.Open(t)
	for range 2 {
		NewUpload().Complete(t, s, []byte("x"))
	}
	n := 0
	for range s.List(t.Context(), "") {
		n++
		break
	}
	if n != 1 {
		t.Errorf("%d objects after the reader had enough", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var failed error
	for _, err := range s.List(ctx, "") {
		failed = err
	}
	if !errors.Is(failed, context.Canceled) {
		t.Errorf("a list whose context ended looks like a whole one: %v", failed)
	}
}

// unfinished expects Unfinished to return exactly the multipart uploads that the backend has.
func unfinished(t *testing.T, b Backend) {
	s := b.Open(t)
	u := NewUpload()
	u.Append(t, s, Bytes(1, 2*b.Part+1000))
	has := slices.ContainsFunc(b.Keys(t, u.Base), func(k string) bool { return strings.HasSuffix(k, "?") })
	find := func(prefix string) (n int) {
		for m, err := range s.Unfinished(t.Context(), prefix) {
			switch age := time.Since(m.Began); {
			case err != nil:
				t.Fatal(err)
			case !strings.HasPrefix(m.Base, prefix):
				t.Errorf("upload %s is none of %q", m.Base, prefix)
			case m.Base == u.Base && (age < -time.Minute || age > time.Hour):
				t.Errorf("begun %v ago, want just now", age)
			}
			if m.Base == u.Base {
				n++
			}
		}
		return n
	}
	for _, prefix := range []string{"", u.Base[:2], u.Base} {
		if n := find(prefix); n > 1 || (n == 1) != has {
			t.Errorf("%d unfinished under %q; the backend has one: %v", n, prefix, has)
		}
	}
	u.Complete(t, s, nil)
	if n := find(u.Base); n != 0 {
		t.Errorf("%d unfinished once it is complete", n)
	}
}

package blobtest

import (
	"sync"
	"testing"

	"github.com/google/uuid"
)

// identity calls SetIdentity of a store from several goroutines at once. The store must keep
// the identity from one of these calls, and may change it later only if `replace` is true.
func identity(t *testing.T, b Backend) {
	s := b.Open(t)
	if id, err := s.Identity(t.Context()); id != "" || err != nil {
		t.Fatalf("a new store has the identity %q, %v", id, err)
	}
	if err := s.SetIdentity(t.Context(), "no UUID", false); err == nil {
		t.Error("an identity that is no UUID was taken")
	}
	ids := make([]string, 8)
	var wg sync.WaitGroup
	for i := range ids {
		ids[i] = uuid.NewString()
		wg.Go(func() {
			if err := b.Open(t).SetIdentity(t.Context(), ids[i], false); err != nil {
				t.Errorf("giving an identity: %v", err)
			}
		})
	}
	wg.Wait()
	first, err := s.Identity(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	known := false
	for _, id := range ids {
		known = known || id == first
	}
	if !known {
		t.Errorf("the identity is %q, none of those given", first)
	}
	for _, step := range []struct {
		id      string
		replace bool
		want    string
	}{{ids[0], false, first}, {ids[1], true, ids[1]}, {ids[2], true, ids[2]}, {ids[3], false, ids[2]}} {
		if err := s.SetIdentity(t.Context(), step.id, step.replace); err != nil {
			t.Fatal(err)
		}
		if id, err := b.Open(t).Identity(t.Context()); id != step.want || err != nil {
			t.Errorf("replace %v: the identity is %q, %v, want %q", step.replace, id, err, step.want)
		}
	}
	for _, prefix := range []string{"", "p", "purser-store"} {
		for o, err := range s.List(t.Context(), prefix) {
			if err != nil {
				t.Fatal(err)
			}
			if len(o.Key) > 0 && o.Key[0] == 'p' {
				t.Errorf("%s is listed", o.Key)
			}
		}
	}
}

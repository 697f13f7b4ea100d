package throttle

import (
	"fmt"
	"testing"
)

// TestTokensAreCountedApart: wrong passwords and wrong tokens come from an address that many
// share. Only robots of the namespace that the tokens name are refused there, except those that
// have logged in there before.
func TestTokensAreCountedApart(t *testing.T) {
	t.Parallel()
	r := newRig(t, slow)
	const shared = "192.0.2.1"
	try := func(robot, address string) *Attempt {
		t.Helper()
		a, wait, err := r.ReserveToken(t.Context(), robot, address)
		must(t, err)
		if (a == nil) != (wait > 0) {
			t.Fatalf("the attempt is %v, the wait %v", a, wait)
		}
		return a
	}
	must(t, try("storm+known", shared).Succeeded(t.Context()))
	for n := range 100 {
		r.try(t, fmt.Sprint("user", n), shared)
	}
	if r.try(t, "", shared) != nil {
		t.Fatal("the address has room left")
	}
	guesses := 0
	for n := range 100 {
		if try(fmt.Sprint("storm+robot", n), shared) != nil {
			guesses++
		}
	}
	if guesses != 50 {
		t.Errorf("%d tokens for a namespace passed, want 50", guesses)
	}
	guesses = 0
	for range 20 {
		if try("other+often", shared) != nil {
			guesses++
		}
	}
	if guesses != 10 {
		t.Errorf("%d tokens for a robot passed, want 10", guesses)
	}
	for _, robot := range []string{"calm+ci", "other+ci", "storm+known"} {
		a := try(robot, shared)
		if a == nil {
			t.Errorf("%s is refused", robot)
			continue
		}
		if a.Known() != (robot == "storm+known") {
			t.Errorf("%s: known %v", robot, a.Known())
		}
		must(t, a.Succeeded(t.Context()))
	}
	if try("storm+ci", "192.0.2.2") == nil {
		t.Error("the namespace is refused at another address")
	}
}

// TestLogToken: refusals of tokens are written to the audit log at a limited rate.
func TestLogToken(t *testing.T) {
	t.Parallel()
	r := newRig(t, slow)
	written := 0
	for range 100 {
		may, err := r.LogToken(t.Context(), "192.0.2.1")
		must(t, err)
		if may {
			written++
		}
	}
	if written != 50 {
		t.Errorf("%d are written, want 50", written)
	}
}

package password

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestHashAndVerify(t *testing.T) {
	t.Parallel()
	h := NewHasher(HasherOptions{})
	hash, err := h.Hash(t.Context(), "correct horse")
	must(t, err)
	again, err := h.Hash(t.Context(), "correct horse")
	must(t, err)
	if hash == again {
		t.Error("two hashes of a password are equal: the salt isn't random")
	}
	if !strings.HasPrefix(hash, "$argon2id$v=19$m=19456,t=2,p=1$") {
		t.Errorf("the hash is %s", hash)
	}
	long := strings.Repeat("x", MaxLength)
	longHash, err := h.Hash(t.Context(), long)
	must(t, err)
	emptyHash, err := h.Hash(t.Context(), "")
	must(t, err)
	for _, tt := range []struct {
		name, password, hash string
		want                 bool
	}{
		{"right", "correct horse", hash, true},
		{"right, other salt", "correct horse", again, true},
		{"wrong", "correct horsf", hash, false},
		{"empty", "", hash, false},
		{"empty and its hash", "", emptyHash, false},
		{"no hash", "correct horse", "", false},
		{"neither", "", "", false},
		{"longest", long, longHash, true},
		{"too long", long + "x", longHash, false},
		{"bcrypt", "U*U", openwallBcrypt, true},
	} {
		if ok, err := h.Verify(t.Context(), tt.password, tt.hash); err != nil || ok != tt.want {
			t.Errorf("%s: %v, %v, want %v", tt.name, ok, err, tt.want)
		}
	}
}

// A check without a hash must compute one with the parameters of Hash.
func TestVerifyWithoutHashCostsAHash(t *testing.T) {
	t.Parallel()
	if NeedsRehash(dummy) {
		t.Errorf("%s doesn't have the parameters of new hashes", dummy)
	}
	h := NewHasher(HasherOptions{})
	for n, password := range []string{"some password", "", strings.Repeat("x", MaxLength+1)} {
		if ok, err := h.Verify(t.Context(), password, ""); ok || err != nil {
			t.Errorf("%v, %v, want false", ok, err)
		}
		if got := observations(t, h, "argon2id"); got != uint64(n+1) {
			t.Errorf("%d hashes were computed, want %d", got, n+1)
		}
	}
	if took := seconds(t, h, "argon2id"); took < 3*0.002 {
		t.Errorf("three checks took %v s: they can't have computed a hash of 19 MiB each", took)
	}
}

func observations(t *testing.T, h *Hasher, algorithm string) uint64 {
	t.Helper()
	n, _ := histogram(t, h, algorithm)
	return n
}

func seconds(t *testing.T, h *Hasher, algorithm string) float64 {
	t.Helper()
	_, sum := histogram(t, h, algorithm)
	return sum
}

func histogram(t *testing.T, h *Hasher, algorithm string) (uint64, float64) {
	t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(h.took)
	families, err := reg.Gather()
	must(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if m.GetLabel()[0].GetValue() == algorithm {
				return m.GetHistogram().GetSampleCount(), m.GetHistogram().GetSampleSum()
			}
		}
	}
	return 0, 0
}

// TestQueue fills the workers and the queue with checks that block.
func TestQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := NewHasher(HasherOptions{Workers: 2, Queue: 3})
		gate := make(chan struct{})
		results := make(chan error, 10)
		order := make(chan int, 10)
		enter := func(ctx context.Context, n int) {
			go func() {
				results <- h.run(ctx, "test", func() { order <- n; <-gate })
			}()
			synctest.Wait()
		}
		ctx, cancel := context.WithCancel(t.Context())
		enter(t.Context(), 1)
		enter(t.Context(), 2)
		enter(t.Context(), 3)
		enter(ctx, 4)
		enter(t.Context(), 5)
		if n := testutil.ToFloat64(h.length); n != 3 || len(order) != 2 {
			t.Fatalf("%v wait and %d run, want 3 and 2", n, len(order))
		}
		if err := h.run(t.Context(), "test", func() { t.Error("ran although the queue is full") }); !errors.Is(err, ErrBusy) {
			t.Errorf("a full queue: %v, want ErrBusy", err)
		}
		if n := testutil.ToFloat64(h.refused); n != 1 {
			t.Errorf("%v refusals are counted, want 1", n)
		}

		// A caller whose context ends leaves the queue, and makes room for another.
		cancel()
		if err := <-results; !errors.Is(err, context.Canceled) {
			t.Errorf("a caller that gave up: %v", err)
		}
		enter(t.Context(), 6)
		if n := testutil.ToFloat64(h.length); n != 3 {
			t.Errorf("%v wait, want 3", n)
		}
		if err := h.run(ctx, "test", func() { t.Error("ran although its context had ended") }); !errors.Is(err, context.Canceled) {
			t.Errorf("a caller whose context has ended: %v", err)
		}

		for range 5 {
			gate <- struct{}{}
			synctest.Wait()
		}
		for range 5 {
			must(t, <-results)
		}
		close(order)
		var got []int
		for n := range order {
			got = append(got, n)
		}
		for i, want := range []int{1, 2, 3, 5, 6} {
			if got[i] != want {
				t.Errorf("the order was %v: first come, first served", got)
				break
			}
		}
		if n := testutil.ToFloat64(h.length); n != 0 || !h.queue.Idle(2) {
			t.Errorf("at the end %v wait, and turns or places are taken", n)
		}
	})
}

func TestPanicFreesItsTurn(t *testing.T) {
	t.Parallel()
	h := NewHasher(HasherOptions{Workers: 1})
	func() {
		defer func() { _ = recover() }()
		_ = h.run(t.Context(), "test", func() { panic("test") })
	}()
	if !h.queue.Idle(1) {
		t.Error("the turn of a hash that panicked is lost")
	}
}

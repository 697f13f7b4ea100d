package login_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/auth/password"
	"github.com/purser-registry/purser/internal/auth/throttle"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// TestStormOfLogIns: wrong passwords of many names come from one address, many at once, and no password
// is checked meanwhile. An account that has logged in from there before still gets a place among those
// that wait, since the others have only their address's share.
func TestStormOfLogIns(t *testing.T) {
	t.Parallel()
	const storm, queue, share = 40, 8, 2
	var shut atomic.Bool
	gate, metrics := make(chan struct{}), prometheus.NewRegistry()
	hasher := password.NewHasher(password.HasherOptions{Workers: 1, Queue: queue, Metrics: metrics, Computes: func(string) {
		if shut.Load() {
			<-gate
		}
	}})
	r := whole(t, &auth.Options{Passwords: hasher, Verified: unremembered()}, func(o *throttle.FailuresOptions) {
		o.AccountBurst, o.AddressBurst = 1000, 1000
	})
	person(t, r, "ann", false)
	logIn := func(name, pass string) int {
		return r.Do(t, "GET", "/auth/session", "", servertest.Basic(name, pass)...).StatusCode
	}
	if code := logIn("ann", "secret"); code != 200 {
		t.Fatalf("the first log-in: %d", code)
	}
	shut.Store(true)
	open := sync.OnceFunc(func() { shut.Store(false); close(gate) })
	defer open()
	answers, ann := make(chan int, storm), make(chan int, 1)
	for n := range storm {
		go func() { answers <- logIn(fmt.Sprint("nobody", n), "wrong") }()
	}
	refused := func() int { return int(metric(t, metrics, "purser_password_refused_total")) }
	servertest.Eventually(t, "the storm fills what it may", func() bool { return refused() >= storm-1-queue })
	go func() { ann <- logIn("ann", "secret") }()
	servertest.Eventually(t, "the known account waits", func() bool {
		return len(ann) > 0 || refused() == storm-1-share && waiting(t, metrics) == share+1
	})
	open()
	if code := <-ann; code != 200 {
		t.Errorf("the known account: %d", code)
	}
	for range storm {
		if code := <-answers; code != 401 && code != 429 {
			t.Errorf("a wrong password: %d", code)
		}
	}
}

// waiting returns how many log-ins wait until a hash can be computed.
func waiting(t *testing.T, from prometheus.Gatherer) (n int) {
	t.Helper()
	families, err := from.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "purser_password_queue_length" {
			n = int(f.GetMetric()[0].GetGauge().GetValue())
		}
	}
	return n
}

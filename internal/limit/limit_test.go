package limit_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/purser-registry/purser/internal/limit"
)

func TestClient(t *testing.T) {
	t.Parallel()
	for remote, want := range map[string]string{
		"192.0.2.1:5":            "192.0.2.1",
		"[::ffff:192.0.2.1]:5":   "192.0.2.1",
		"[2001:db8:1:2:3::1]:80": "2001:db8:1:2::/64",
		"[fe80::1%eth0]:80":      "fe80::/64",
		"@":                      "@",
	} {
		if got := limit.Client(remote); got != want {
			t.Errorf("%s is %s, want %s", remote, got, want)
		}
	}
}

func TestCounter(t *testing.T) {
	t.Parallel()
	c := limit.NewCounter(3, 2)
	for i, want := range []limit.Full{limit.NotFull, limit.NotFull, limit.ClientFull} {
		if got := c.Add("a"); got != want {
			t.Errorf("the client's %d: %d, want %d", i, got, want)
		}
	}
	if a, b := c.Add("b"), c.Add("c"); a != limit.NotFull || b != limit.AllFull {
		t.Errorf("others: %d %d", a, b)
	}
	c.Done("a")
	if got := c.Add("c"); got != limit.NotFull {
		t.Errorf("after one is done: %d", got)
	}
}

func take(t *testing.T, l *limit.Lease, n int64) error {
	t.Helper()
	taken, err := l.Take(t.Context(), n)
	if err == nil && taken != n {
		t.Errorf("%d of %d were taken", taken, n)
	}
	return err
}

// Two clients take as much memory from a budget as each may have. The test expects that asking
// for more fails with an error that says whether the client's limit or the limit for all
// clients was reached, and that a third client still gets a part of the rest.
func TestBudgetIsShared(t *testing.T) {
	t.Parallel()
	b := limit.NewBudget(limit.BudgetOptions{Total: 1000})
	one, two, three := b.Lease("a"), b.Lease("a"), b.Lease("b")
	if err := errors.Join(take(t, one, 300), take(t, two, 200), take(t, three, 250)); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		l      *limit.Lease
		n      int64
		client bool
	}{"the client's": {two, 1, true}, "the other's": {three, 1, true}, "all": {b.Lease("c"), 300, false}} {
		err := take(t, c.l, c.n)
		full, ok := errors.AsType[*limit.FullError](err)
		if !ok || full.Client != c.client {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := take(t, b.Lease("c"), 125); err != nil {
		t.Errorf("a third client: %v", err)
	}
	one.Close()
	if err := take(t, two, 1); err != nil {
		t.Errorf("after something was given back: %v", err)
	}
}

// An account takes as much memory as one client may have, from two addresses. The test expects
// that it gets no more from a third address, and that other accounts and clients without an
// account get their shares, also at the same addresses.
func TestBudgetOfAccounts(t *testing.T) {
	t.Parallel()
	b := limit.NewBudget(limit.BudgetOptions{Total: 1000})
	lease := func(client, account string) *limit.Lease {
		l := b.Lease(client)
		l.Account(account)
		return l
	}
	one, two, three := lease("a", "ann"), lease("b", "ann"), lease("c", "ann")
	if err := errors.Join(take(t, one, 300), take(t, two, 200)); err != nil {
		t.Fatal(err)
	}
	full, ok := errors.AsType[*limit.FullError](take(t, three, 1))
	if !ok || !full.Client || three.TryStream(1) {
		t.Errorf("beyond the account's share: %v", full)
	}
	if err := errors.Join(take(t, lease("c", "bob"), 200), take(t, lease("d", ""), 100), take(t, lease("e", ""), 50)); err != nil {
		t.Errorf("others: %v", err)
	}
	one.Close()
	if err := take(t, three, 1); err != nil {
		t.Errorf("after something was given back: %v", err)
	}
}

// Requests wait for memory. The test expects that they get it in the order of their arrival,
// and that no memory is lost if a request stops waiting at the moment when it is granted
// memory.
func TestBudgetWaits(t *testing.T) {
	t.Parallel()
	b := limit.NewBudget(limit.BudgetOptions{Total: 100, Share: 100, Wait: time.Minute})
	first, second := b.Lease("a"), b.Lease("b")
	if err := take(t, first, 100); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := second.Take(context.Background(), 60)
		done <- err
	}()
	first.Give(50) // not enough
	select {
	case err := <-done:
		t.Fatalf("60 were given of 50: %v", err)
	default:
	}
	first.Give(50)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := first.Take(ctx, 60); !errors.Is(err, context.Canceled) {
		t.Errorf("a request whose client is gone: %v", err)
	}
	second.Close()
	if err := take(t, first, 100); err != nil {
		t.Errorf("all is free: %v", err)
	}
}

// A client takes memory for streams and for other bodies. The test expects that streams leave
// a quarter of the memory to other bodies, and that Take takes the largest amount that one
// client may have if the test asks for more.
func TestBudgetOfStreams(t *testing.T) {
	t.Parallel()
	b := limit.NewBudget(limit.BudgetOptions{Total: 800})
	l := b.Lease("a")
	if !l.TryStream(300) || l.TryStream(1) {
		t.Error("a client's streams have three quarters of half of all")
	}
	if err := take(t, l, 100); err != nil {
		t.Errorf("a body beside streams: %v", err)
	}
	l.Close()
	if n, err := l.Take(t.Context(), 5000); n != 400 || err != nil {
		t.Errorf("more than there is: %d, %v", n, err)
	}
	var none *limit.Lease
	if n, err := none.Take(t.Context(), 5); n != 5 || err != nil || !none.TryStream(7) {
		t.Error("without a budget there is no limit")
	}
	none.Give(5)
	none.Close()
}

// failing is a listener whose first calls of Accept fail.
type failing struct {
	net.Listener
	errs int
}

func (f *failing) Accept() (net.Conn, error) {
	if f.errs > 0 {
		f.errs--
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: syscall.EMFILE}
	}
	return f.Listener.Accept()
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() }) //nolint:errcheck // it may be closed already
	return l
}

func dial(t *testing.T, l net.Listener) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() }) //nolint:errcheck // it may be closed already
	return c
}

// The process has no free file descriptors for three connections. The test expects one line in
// the log, three counted errors, and that a later connection is accepted.
func TestListenerOutOfDescriptors(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	reg := prometheus.NewRegistry()
	m := limit.NewMetrics(reg)
	l := limit.Listen(&failing{listen(t), 3}, limit.ListenerOptions{Log: slog.New(slog.NewTextHandler(&log, nil)), Metrics: m})
	for range 3 {
		if c, err := l.Accept(); !errors.Is(err, syscall.EMFILE) {
			t.Fatalf("%v, %v", c, err)
		}
	}
	dial(t, l)
	c, err := l.Accept()
	if err != nil {
		t.Fatalf("afterwards: %v", err)
	}
	c.Close() //nolint:errcheck
	if n := strings.Count(log.String(), "out of file descriptors"); n != 1 {
		t.Errorf("it was logged %d times: %s", n, log.String())
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var counted float64
	for _, f := range families {
		if f.GetName() == "purser_http_accept_errors_total" {
			for _, metric := range f.GetMetric() {
				counted += metric.GetCounter().GetValue()
			}
		}
	}
	if counted != 3 {
		t.Errorf("%v errors were counted", counted)
	}
}

// A client opens more connections than its limit. The test expects that the surplus connection
// is refused with an answer that says why. The listener must accept a new connection if it can
// close an idle one of the same client, or if another connection has ended.
func TestListenerLimits(t *testing.T) {
	t.Parallel()
	l := limit.Listen(listen(t), limit.ListenerOptions{MostOfClient: 2, Plain: true, Log: slog.New(slog.DiscardHandler)})
	accepted := make(chan net.Conn, 8)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				close(accepted)
				return
			}
			accepted <- c
		}
	}()
	dial(t, l)
	dial(t, l)
	first, second := <-accepted, <-accepted
	third := dial(t, l)
	text, err := io.ReadAll(third)
	if err != nil || !strings.HasPrefix(string(text), "HTTP/1.1 503 ") || !strings.Contains(string(text), "Retry-After") {
		t.Errorf("a refused connection reads %q, %v", text, err)
	}
	l.ConnState(first, http.StateIdle)
	dial(t, l)
	fourth := <-accepted
	if _, err := first.Write([]byte("x")); err == nil {
		t.Error("the idle connection is still open")
	}
	l.ConnState(first, http.StateClosed)
	second.Close() //nolint:errcheck
	dial(t, l)
	fifth := <-accepted
	for _, c := range []net.Conn{fourth, fifth} {
		c.Close() //nolint:errcheck
		c.Close() //nolint:errcheck // twice counts once
	}
	l.Close() //nolint:errcheck
	<-accepted
}

// Robots of one namespace take memory from different addresses. The test expects that they get
// together what one account gets, and that robots of another namespace and a person whose name
// begins like theirs get their own shares.
func TestBudgetOfRobots(t *testing.T) {
	t.Parallel()
	b := limit.NewBudget(limit.BudgetOptions{Total: 1000})
	lease := func(client, account string) *limit.Lease {
		l := b.Lease(client)
		l.Account(account)
		return l
	}
	one, two, three := lease("a", "acme+ci"), lease("b", "acme+cd"), lease("c", "acme+scan")
	if err := errors.Join(take(t, one, 300), take(t, two, 200)); err != nil {
		t.Fatal(err)
	}
	full, ok := errors.AsType[*limit.FullError](take(t, three, 1))
	if !ok || !full.Client || three.TryStream(1) {
		t.Errorf("beyond the robots' share: %v", full)
	}
	if err := errors.Join(take(t, lease("c", "acme"), 200), take(t, lease("d", "acmeplus+ci"), 100)); err != nil {
		t.Errorf("others: %v", err)
	}
	one.Close()
	two.Close()
	if err := take(t, three, 1); err != nil {
		t.Errorf("after all was given back: %v", err)
	}
}

// TestShareOwner checks the words for the owners of shares.
func TestShareOwner(t *testing.T) {
	t.Parallel()
	for account, want := range map[string]string{"ann": "the account ann", "acme+ci": "the robots of acme"} {
		if got := limit.ShareOwner(limit.Share(account)); got != want {
			t.Errorf("%s: %q, want %q", account, got, want)
		}
	}
}

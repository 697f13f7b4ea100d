package limit_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/purser-registry/purser/internal/limit"
)

const (
	halfHeader    = "GET / HTTP/1.1\r\n"
	halfHandshake = "\x16\x03\x01\x02\x00\x01"
	// halfHTTP2 is the beginning of an HTTP/2 connection: an empty SETTINGS frame, and a HEADERS
	// frame that says that CONTINUATION frames follow.
	halfHTTP2 = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" +
		"\x00\x00\x00\x04\x00\x00\x00\x00\x00" + "\x00\x00\x01\x01\x00\x00\x00\x00\x01\x82"
	halfBody = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"
)

// crowd is a server behind a Listener with low limits, and attackers that open as many
// connections to it as they can. Linux lets them dial from any address in 127.0.0.0/8.
type crowd struct {
	addr    string
	useTLS  bool
	states  chan http.ConnState // of all connections
	began   chan struct{}       // gets a value when a request for /wait or with a body begins
	release chan struct{}       // requests for /wait are answered when it is closed
	stop    context.Context     // ends when the attackers must stop
	attack  sync.WaitGroup
}

func startCrowd(t *testing.T, useTLS bool, o limit.ListenerOptions) *crowd {
	t.Helper()
	o.Plain, o.Log = !useTLS, slog.New(slog.DiscardHandler)
	l := limit.Listen(listen(t), o)
	stop, cancel := context.WithCancel(context.Background())
	s := &crowd{addr: l.Addr().String(), useTLS: useTLS, stop: stop, states: make(chan http.ConnState, 10_000),
		began: make(chan struct{}, 10_000), release: make(chan struct{})}
	srv := httptest.NewUnstartedServer(s)
	srv.Config.ConnContext, srv.Config.ErrorLog = l.ConnContext, slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	srv.Config.ConnState = func(c net.Conn, state http.ConnState) {
		l.ConnState(c, state)
		select {
		case s.states <- state:
		default: // no test reads later ones
		}
	}
	srv.Listener.Close() //nolint:errcheck // ours takes its place
	srv.Listener, srv.EnableHTTP2 = l, useTLS
	if useTLS {
		srv.StartTLS()
	} else {
		srv.Start()
	}
	t.Cleanup(func() {
		cancel()
		s.attack.Wait()
		srv.Close()
	})
	return s
}

// ServeHTTP reads the request's body as the registry does, and answers.
func (s *crowd) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	progress := limit.ProgressOf(r.Context())
	progress.Begin()
	defer progress.End()
	if r.ContentLength > 0 || r.URL.Path == "/wait" {
		select {
		case s.began <- struct{}{}:
		default: // no test reads later ones
		}
	}
	if r.URL.Path == "/wait" {
		<-s.release
	}
	for buf := make([]byte, 100); r.ContentLength > 0; {
		progress.Wait(time.Now())
		n, err := r.Body.Read(buf)
		progress.Got(n, time.Now())
		switch {
		case errors.Is(err, io.EOF):
			return
		case err != nil:
			panic(http.ErrAbortHandler)
		}
	}
}

// dial opens a connection from the address `source`. It is closed when the attackers stop.
func (s *crowd) dial(source string) (net.Conn, error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}}
	c, err := d.DialContext(s.stop, "tcp", s.addr)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(s.stop, func() { c.Close() }) //nolint:errcheck // it is the test's end
	return c, nil
}

// hold holds n connections from the address `source` until the test ends. On each it sends
// `begin`, and nothing else. If `again` is true, hold opens each connection that the server
// closes again.
func (s *crowd) hold(source string, n int, begin string, again bool) {
	for range n {
		s.attack.Go(func() {
			for first := true; s.stop.Err() == nil && (first || again); first = false {
				c, err := s.dial(source)
				if err != nil {
					continue
				}
				if begin == halfHTTP2 {
					c = tls.Client(c, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
				}
				io.WriteString(c, begin) //nolint:errcheck // the server has closed it
				io.Copy(io.Discard, c)   //nolint:errcheck // likewise
				c.Close()                //nolint:errcheck // likewise
			}
		})
	}
}

// full waits until the server has accepted n connections.
func (s *crowd) full(n int) {
	for n > 0 {
		if <-s.states == http.StateNew {
			n--
		}
	}
}

// ask sends a request on a new connection from the address `source`, and returns an error
// unless the answer has the status 200.
func (s *crowd) ask(source, path string) error {
	c, err := s.dial(source)
	if err != nil {
		return err
	}
	defer c.Close()                            //nolint:errcheck // it was read
	c.SetDeadline(time.Now().Add(time.Minute)) //nolint:errcheck // the read says it
	if s.useTLS {
		c = tls.Client(c, &tls.Config{InsecureSkipVerify: true})
	}
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path); err != nil {
		return err
	}
	return answered(c)
}

func answered(c net.Conn) error {
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return err
	}
	defer res.Body.Close() //nolint:errcheck // it was read
	if res.StatusCode != 200 {
		return fmt.Errorf("the answer is %s", res.Status)
	}
	return nil
}

// wantServed sends requests of two clients, each on a new connection, and expects answers
// within ten seconds on average. A request is sent again, as clients do, if the server closes
// its connection before it has read the header: on a busy machine a header may be late.
func (s *crowd) wantServed(t *testing.T) {
	t.Helper()
	const requests = 20
	began := time.Now()
	var both sync.WaitGroup
	for _, source := range []string{"127.1.0.1", "127.1.0.2"} {
		both.Go(func() {
			for i := range requests {
				err := s.ask(source, "/")
				for again := 0; again < 2 && err != nil; again++ {
					err = s.ask(source, "/")
				}
				if err != nil {
					t.Errorf("request %d of %s: %v", i, source, err)
				}
			}
		})
	}
	both.Wait()
	if took := time.Since(began) / requests; took > 10*time.Second {
		t.Errorf("an answer takes %s", took)
	}
}

// Two clients begin a header, a TLS handshake or an HTTP/2 request on as many connections as
// they can, and open each connection again when the server closes it. The test expects that
// other clients are served.
func TestHalfHeaders(t *testing.T) {
	t.Parallel()
	for _, begin := range []string{halfHeader, halfHandshake, halfHTTP2} {
		s := startCrowd(t, begin != halfHeader, limit.ListenerOptions{Most: 60, MostOfClient: 30})
		s.hold("127.0.0.2", 40, begin, true)
		s.hold("127.0.0.3", 40, begin, true)
		s.full(60)
		s.wantServed(t)
	}
}

// A client begins headers on many connections, through a proxy that names it in headers of the
// PROXY protocol. The test expects that other clients are served.
func TestHalfHeadersThroughProxy(t *testing.T) {
	t.Parallel()
	s := startCrowd(t, false, limit.ListenerOptions{
		Most: 60, MostOfClient: 50, ProxyProtocol: true,
		Proxies: limit.NewProxies([]netip.Prefix{netip.MustParsePrefix("127.0.9.0/24")}, limit.AnyForwarded),
	})
	for i := range 2 {
		s.hold("127.0.9.1", 40, fmt.Sprintf("PROXY TCP4 198.51.100.%d 203.0.113.1 4000 443\r\n", i)+halfHeader, true)
	}
	s.full(60)
	s.wantServed(t)
}

// Clients at 100 addresses, each with few connections, send the beginning of a header. The test
// expects that others are served.
func TestHalfHeadersOfMany(t *testing.T) {
	t.Parallel()
	s := startCrowd(t, false, limit.ListenerOptions{Most: 200, MostOfClient: 100})
	for i := range 100 {
		s.hold(fmt.Sprintf("127.0.2.%d", i+1), 3, halfHeader, true)
	}
	s.full(200)
	s.wantServed(t)
}

// Two clients send the beginning of a header on all connections that each of them may have. The
// test expects that other users of the same addresses are served.
func TestHalfHeadersOfNeighbours(t *testing.T) {
	t.Parallel()
	s := startCrowd(t, false, limit.ListenerOptions{MostOfClient: 30})
	s.hold("127.1.0.1", 30, halfHeader, false)
	s.hold("127.1.0.2", 30, halfHeader, false)
	s.full(60)
	s.wantServed(t)
}

// Two clients send bodies that never end. The test expects that others are served, and that a
// request whose handler doesn't wait for the client is answered.
func TestSlowBodiesMakeRoom(t *testing.T) {
	t.Parallel()
	s := startCrowd(t, false, limit.ListenerOptions{Most: 60, MostOfClient: 40, MinBodyRate: 512, SlowBodyTime: time.Nanosecond})
	served := make(chan error, 5)
	for range cap(served) {
		go func() { served <- s.ask("127.1.0.3", "/wait") }()
	}
	for range cap(served) {
		<-s.began
	}
	s.hold("127.0.0.2", 40, halfBody, true)
	s.hold("127.0.0.3", 40, halfBody, true)
	for range 55 {
		<-s.began
	}
	s.wantServed(t)
	close(s.release)
	for range cap(served) {
		if err := <-served; err != nil {
			t.Errorf("a request that was in progress: %v", err)
		}
	}
}

// An HTTP/2 connection carries two requests with bodies. The test expects that the connection
// gives its place to another one only while both requests wait for their bodies, and only if the
// bodies came slowly.
func TestSlowBodiesOfOneConnection(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	l := limit.Listen(listen(t), limit.ListenerOptions{Most: 1, Plain: true, Log: slog.New(slog.DiscardHandler),
		MinBodyRate: 512, SlowBodyTime: time.Second, Metrics: limit.NewMetrics(reg)})
	accepted := make(chan net.Conn, 8)
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			accepted <- c
		}
	})
	dial(t, l)
	first := <-accepted
	l.ConnState(first, http.StateNew)
	l.ConnState(first, http.StateActive)
	p := limit.ProgressOf(l.ConnContext(t.Context(), first))
	refused := func(why string) {
		t.Helper()
		if text, err := io.ReadAll(dial(t, l)); err != nil || !strings.HasPrefix(string(text), "HTTP/1.1 503 ") {
			t.Errorf("%s: a new connection reads %q, %v", why, text, err)
		}
	}
	// ago is a time before which the bodies brought nothing for longer than SlowBodyTime.
	ago := time.Now().Add(-time.Minute)
	p.Begin()
	p.Begin()
	p.Wait(ago)
	refused("one request doesn't wait")
	p.Wait(ago)
	p.Got(1<<20, time.Now())
	p.Wait(time.Now())
	refused("a mebibyte in a minute")
	p.Got(1, time.Now().Add(time.Minute))
	p.Wait(time.Now())
	dial(t, l)
	second := <-accepted
	if _, err := first.Read(make([]byte, 1)); err == nil {
		t.Error("the connection can still be read")
	}
	p.Got(0, time.Now())
	p.End()
	p.End()
	for _, c := range []net.Conn{first, second} {
		c.Close() //nolint:errcheck
	}
	if n := counted(t, reg, limit.BodyRate); n != 1 {
		t.Errorf("%v slow bodies were counted", n)
	}
	l.Close() //nolint:errcheck
	accepting.Wait()
}

// A client reaches its limit and the limit for all while it has idle connections. The test
// expects that these are closed, and counted by the limit.
func TestShedConnectionsAreCounted(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct{ most, mostOfClient int }{
		limit.ShedConnections: {1, 0}, limit.ShedClientConnections: {0, 1},
	} {
		reg := prometheus.NewRegistry()
		l := limit.Listen(listen(t), limit.ListenerOptions{Most: c.most, MostOfClient: c.mostOfClient, Plain: true,
			Log: slog.New(slog.DiscardHandler), Metrics: limit.NewMetrics(reg)})
		for range 4 {
			dial(t, l)
			c, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() }) //nolint:errcheck // it may be closed already
			l.ConnState(c, http.StateNew)
		}
		if n := counted(t, reg, what); n != 3 {
			t.Errorf("%v were counted as %s", n, what)
		}
	}
}

// counted returns how many requests and connections were refused or closed because of `what`.
func counted(t *testing.T, reg *prometheus.Registry, what string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "purser_limit_refused_total" && m.GetLabel()[0].GetValue() == what {
				return m.GetCounter().GetValue()
			}
		}
	}
	t.Fatalf("there is no metric of %s", what)
	return 0
}

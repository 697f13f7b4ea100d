package serve

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/purser-registry/purser/cmd/purser/internal/servetest"
	"github.com/purser-registry/purser/internal/testscale"
)

// smallListeners starts the listeners besides the registry's, and returns their addresses:
// "debug" has metrics, health and profiles, "profiles" the profiles alone, and "challenges" the
// answers for a certificate authority.
func smallListeners(t *testing.T) map[string]string {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	cfg := servetest.Config(t, "PURSER_HTTP_PROFILE_ADDR=localhost:0")
	socks, err := listen(t.Context(), cfg.HTTP, nil, quiet)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(socks.close)
	raw, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	issued := &issued{challenges: raw}
	socks.cert = issued
	limits, err := newLimits(cfg, prometheus.NewRegistry(), quiet)
	if err != nil {
		t.Fatal(err)
	}
	limits.bound(socks)
	ready := newReadiness()
	ready.started()
	cfg.HTTP.ProfileAddr = cfg.HTTP.DebugAddr // profiles at both
	_, stop := serveOperators(socks, cfg.HTTP, prometheus.NewRegistry(), ready, quiet)
	t.Cleanup(stop)
	answers := http.NewServeMux()
	answers.HandleFunc("/.well-known/acme-challenge/{token}", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "key\n") }) //nolint:errcheck // the client is gone
	t.Cleanup(serveSmall(issued.challenges, answers, isChallenge, cfg.HTTP, quiet))
	return map[string]string{"debug": socks.debug.Addr().String(), "profiles": socks.profiles.Addr().String(), "challenges": raw.Addr().String()}
}

// unfinished opens `n` connections, each of which sends the beginning of a request. It returns
// a function that waits until the server has ended all of them, and closes them.
func unfinished(t *testing.T, addr string, n int, request string) (ended func(within time.Duration) error) {
	t.Helper()
	conns := make([]net.Conn, n)
	for i := range conns {
		c, err := new(net.Dialer).DialContext(t.Context(), "tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() }) //nolint:errcheck // the server may have closed it
		io.WriteString(c, request)      //nolint:errcheck // the server may have refused it
		conns[i] = c
	}
	return func(within time.Duration) error {
		errs := make([]error, n)
		var wg sync.WaitGroup
		for i, c := range conns {
			wg.Go(func() {
				c.SetReadDeadline(time.Now().Add(within)) //nolint:errcheck // the read below says it
				if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
					errs[i] = fmt.Errorf("connection %d stays open", i)
				}
			})
		}
		wg.Wait()
		return errors.Join(errs...)
	}
}

// patience is how long the server may take to end 700 connections: without limits of its own it would
// never do so. With the race detector on a busy machine, 700 profiles take a minute.
const patience = 3 * time.Minute

// answered sends a request without a body on a new connection, and returns the answer's status.
func answered(t *testing.T, addr, path string) string {
	t.Helper()
	c, err := new(net.Dialer).DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()                                 //nolint:errcheck // read to its end
	c.SetDeadline(time.Now().Add(20 * time.Second)) //nolint:errcheck // the read says it
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path)
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(line)
}

// TestUnfinishedRequests: a client opens more connections than a listener takes, each with the
// beginning of a request, and sends nothing more. Probes and challenges are answered all the
// same, and the server ends these connections by itself, unless only the header is unfinished:
// such a connection gives its place to the next. The test isn't parallel, since it would take
// the time that other tests measure.
func TestUnfinishedRequests(t *testing.T) {
	probes := []string{"/healthz", "/readyz"}
	const body = "Host: localhost\r\nContent-Length: 1000000\r\n\r\nabc"
	for _, c := range []struct {
		name, listener, request string
		always                  []string
		within                  time.Duration // 0: they don't end
	}{
		{"bodies of GET", "debug", "GET /metrics HTTP/1.1\r\n" + body, probes, patience},
		{"bodies of probes", "debug", "GET /healthz HTTP/1.1\r\n" + body, probes, patience},
		{"bodies of POST", "debug", "POST /readyz HTTP/1.1\r\n" + body, probes, patience},
		{"chunked bodies", "debug", "POST /nothing HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", probes, patience},
		{"bodies of symbols", "debug", "POST /debug/pprof/symbol HTTP/1.1\r\n" + body, probes, patience},
		{"profiles", "debug", "GET /debug/pprof/trace?seconds=60 HTTP/1.1\r\nHost: localhost\r\n\r\n", probes, 0},
		{"headers", "debug", "GET /metrics HTTP/1.1\r\nHost: loc", probes, 0},
		{"bodies at profiles", "profiles", "GET /debug/pprof/heap HTTP/1.1\r\n" + body, nil, patience},
		{"bodies at challenges", "challenges", "POST /.well-known/acme-challenge/x HTTP/1.1\r\n" + body, []string{"/.well-known/acme-challenge/x"}, patience},
		{"headers at challenges", "challenges", "POST /.well-known/acme-challenge/x HTTP/1.1\r\nHost", []string{"/.well-known/acme-challenge/x"}, 0},
	} {
		if !testscale.All && (c.name == "bodies of probes" || c.name == "bodies of symbols") {
			continue // the same handler reads them as those of GET
		}
		t.Run(c.name, func(t *testing.T) {
			addr := smallListeners(t)[c.listener]
			ended := unfinished(t, addr, 700, c.request)
			for range 3 {
				for _, path := range c.always {
					if got := answered(t, addr, path); got != "HTTP/1.1 200 OK" {
						t.Errorf("%s gets %q", path, got)
					}
				}
			}
			if c.within > 0 {
				if err := ended(c.within); err != nil {
					t.Errorf("%.300s", err)
				}
			}
		})
	}
}

// TestProfileOutlastsOtherAnswers: a profile takes as long as its request says, beyond the time
// of other answers.
func TestProfileOutlastsOtherAnswers(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]time.Duration{
		"": smallAnswerTime + 30*time.Second, "?seconds=120": smallAnswerTime + 2*time.Minute, "?seconds=0.5": smallAnswerTime + 500*time.Millisecond,
		"?seconds=1e30": smallAnswerTime + time.Hour, "?seconds=-1": smallAnswerTime + 30*time.Second, "?seconds=NaN": smallAnswerTime + 30*time.Second,
	} {
		r, err := http.NewRequestWithContext(t.Context(), "GET", "/debug/pprof/profile"+query, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := answerTime(r); got != want {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
	}
}

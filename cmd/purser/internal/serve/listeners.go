package serve

import (
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/server/management"
)

// All listeners of the process get their limits here: the registry's, those for metrics, health
// and profiles, and the one that answers ACME's challenges. They differ in how many connections
// they take, and in what a body is good for.

const (
	idleTimeout    = 2 * time.Minute
	maxHeaderBytes = 64 << 10
	// smallConnections limits the connections to each of the listeners besides the registry's,
	// and challengesOfClient those of one client to the listener that answers challenges.
	smallConnections   = 512
	challengesOfClient = 32
	// spareConnections is how many connections these listeners take beyond their limits, for
	// requests that must be answered always.
	spareConnections = 64
	// smallBodyTime is how long a request's body may take, where bodies are short.
	smallBodyTime = 5 * time.Second
	// smallAnswerTime is how long an answer may take there, with the time of being made.
	smallAnswerTime = 30 * time.Second
	// longestProfile is the longest profile or trace of which the answer is waited for.
	longestProfile = time.Hour
	smallBody      = 1 << 20
)

// bound wraps the listeners in ones that enforce the limits on connections.
func (l *limits) bound(s *sockets) {
	s.bounded = limit.Listen(s.registry, limit.ListenerOptions{
		Most: l.connections, MostOfClient: l.ofClient, Plain: s.cert == nil, Log: l.log, Metrics: l.metrics,
		Proxies: proxies(l.cfg.HTTP), ProxyProtocol: l.cfg.HTTP.ProxyProtocol,
		ErrorBody: management.ErrorBody, MinBodyRate: l.cfg.HTTP.MinBodyRate,
	})
	s.registry = s.bounded
	small := limit.ListenerOptions{Most: smallConnections, Spare: spareConnections, Plain: true, Log: l.log}
	for _, p := range []*net.Listener{&s.debug, &s.profiles} {
		if *p != nil {
			*p = limit.Listen(*p, small)
		}
	}
	if c, ok := s.cert.(*issued); ok && c.challenges != nil {
		small.MostOfClient, small.Proxies, small.ProxyProtocol = challengesOfClient, proxies(l.cfg.HTTP), l.cfg.HTTP.ProxyProtocol
		c.challenges = limit.Listen(c.challenges, small)
	}
}

// newServer makes the HTTP server of a listener that bound has wrapped. It has no read timeout
// for a whole request, since the upload of a large blob takes long, and since net/http cancels
// a handler at that time. Instead, the handlers limit the time of bodies.
func newServer(l net.Listener, handler http.Handler, h config.HTTP, log *slog.Logger) *http.Server {
	srv := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: h.HeaderTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		HTTP2:    &http.HTTP2Config{WriteByteTimeout: h.AnswerIdleTimeout},
	}
	if bounded, ok := l.(*limit.Listener); ok {
		srv.ConnState, srv.ConnContext = bounded.ConnState, bounded.ConnContext
	}
	return srv
}

// serveSmall serves `handler`, which is no part of the registry's APIs, on the listener `l`.
// `always` tells the requests that are answered even if all places for connections are taken.
// The returned `stop` ends the server and waits until it has ended.
func serveSmall(l net.Listener, handler http.Handler, always func(*http.Request) bool, h config.HTTP, log *slog.Logger) (stop func()) {
	srv := newServer(l, smallRequests(handler, always), h, log)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Error("an address is no longer served", "address", l.Addr().String(), "error", err)
		}
	}()
	return func() {
		srv.Close() //nolint:errcheck // its connections end with the process
		<-done
	}
}

// smallRequests limits the time of requests without which a client could keep its connection's
// place: of the body, which few requests need, and of the answer. On a connection in a spare
// place it answers only the requests that `always` tells.
func smallRequests(next http.Handler, always func(*http.Request) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		control, now := http.NewResponseController(w), time.Now()
		control.SetWriteDeadline(now.Add(answerTime(r))) //nolint:errcheck // without deadlines it waits
		if err := limit.Begin(r); err != nil {
			w.Header().Set("Connection", "close")
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		bodyTime := time.Duration(0) // net/http waits for the rest of a body before it answers
		if takesBody(r) {
			bodyTime = smallBodyTime
			r.Body = http.MaxBytesReader(w, r.Body, smallBody)
		}
		if r.ContentLength != 0 {
			w.Header().Set("Connection", "close")
			control.SetReadDeadline(now.Add(bodyTime)) //nolint:errcheck // without deadlines it waits
		}
		if limit.IsSpare(r) {
			w.Header().Set("Connection", "close")
			if r.ContentLength != 0 || !always(r) {
				http.Error(w, "there are too many connections", http.StatusServiceUnavailable)
				control.Flush()             //nolint:errcheck // the client is gone
				panic(http.ErrAbortHandler) // the place is free at once; net/http would wait for the client
			}
		}
		next.ServeHTTP(w, r)
	})
}

// takesBody says whether a request's body is read: pprof takes addresses of symbols there.
func takesBody(r *http.Request) bool {
	return r.Method == http.MethodPost && strings.HasPrefix(r.URL.Path, "/debug/pprof/")
}

// answerTime returns how long the answer to a request may take. A profile takes as many seconds
// as the request says.
func answerTime(r *http.Request) time.Duration {
	if !strings.HasPrefix(r.URL.Path, "/debug/pprof/") {
		return smallAnswerTime
	}
	seconds, err := strconv.ParseFloat(r.URL.Query().Get("seconds"), 64)
	if err != nil || !(seconds >= 0) { // NaN too
		seconds = 30 // the default of a profile
	}
	return time.Duration(min(seconds, longestProfile.Seconds())*float64(time.Second)) + smallAnswerTime
}

// isProbe tells the requests of those who watch whether the process lives and serves.
func isProbe(r *http.Request) bool { return r.URL.Path == "/healthz" || r.URL.Path == "/readyz" }

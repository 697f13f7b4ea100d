package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/server"
	"github.com/purser-registry/purser/internal/server/management"
)

// sockets are the listeners of a server.
type sockets struct {
	registry net.Listener
	debug    net.Listener    // for metrics and health; nil: none
	profiles net.Listener    // for profiles, if apart from debug; nil: none
	cert     certificates    // of the registry; nil: no TLS
	bounded  *limit.Listener // wraps registry with its limits

	// The registry's listener is either opened, by this process, or passed by the service manager.
	// The other one is nil.
	opened *net.TCPListener
	passed *passedListener
}

// listen opens all listeners, or takes those that the service manager has opened. Run calls it
// before anything else, so that a port that is in use is reported at once.
func listen(ctx context.Context, h config.HTTP, host *manager, log *slog.Logger) (*sockets, error) {
	s := &sockets{}
	acme := &issued{}
	var err error
	switch {
	case h.TLS.Cert != "":
		s.cert, err = loadCertificate(ctx, h.TLS, log)
	case h.TLS.Enabled():
		acme, err = newIssued(ctx, h.TLS)
		s.cert = acme
	}
	if err != nil {
		return nil, err
	}
	for _, a := range []struct {
		to              *net.Listener
		addr, flag, key string
	}{
		{&s.registry, h.Addr, "--addr", "http.addr"},
		{&s.debug, h.DebugAddr, "--debug-addr", "http.debug_addr"},
		{&s.profiles, h.ProfileAddr, "--profile-addr", "http.profile_addr"},
		{&acme.challenges, h.TLS.ACME.HTTPAddr, "", "http.tls.acme.http_addr"},
	} {
		if a.addr == "" || a.to == &s.profiles && a.addr == h.DebugAddr {
			continue
		}
		if l := host.socket(a.key); l != nil {
			*a.to = l
			if tcp, ok := l.(*net.TCPListener); ok && a.to == &s.registry {
				s.passed = newPassedListener(tcp)
				s.registry = s.passed
			}
			continue
		}
		l, err := open(ctx, a.addr, a.flag, a.key)
		if err != nil {
			s.close()
			return nil, err
		}
		*a.to = l
		if tcp, ok := l.(*net.TCPListener); ok && a.to == &s.registry {
			s.opened = tcp
		}
	}
	return s, nil
}

// hosts returns the host names that requests to the listener `l` may have; nil allows every
// name. `addr` is the configured address of the listener. If other machines can reach the
// listener, every name is allowed unless http.allowed_hosts is set. A listener on loopback
// allows only local and configured names, since otherwise any web page in a local browser
// could reach it by DNS rebinding.
func hosts(l net.Listener, addr string, h config.HTTP) *server.Hosts {
	if !isLoopback(l) && len(h.AllowedHosts) == 0 {
		return nil
	}
	return server.NewHosts(h.Hosts(addr)...)
}

// isLoopback says whether the listener can be reached from this machine only.
func isLoopback(l net.Listener) bool {
	a, ok := l.Addr().(*net.TCPAddr)
	return ok && a.IP.IsLoopback()
}

// open listens on the address, which the setting `key` has. `flag` is the setting's flag, or ""
// if it has none.
func open(ctx context.Context, addr, flag, key string) (net.Listener, error) {
	way := flag + " HOST:PORT (" + key + ")"
	if flag == "" {
		way = key
	}
	var plain net.ListenConfig
	plain.SetMultipathTCP(false) // Linux allows it no filter, see acceptLast
	l, err := plain.Listen(ctx, "tcp", addr)
	switch {
	case err == nil:
		return l, nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%s is in use by another process, maybe another Purser: stop it, or choose another address with %s", addr, way)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("listening on %s isn't allowed to this user: choose a port above 1023 with %s", addr, way)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("%s is no address of this machine: choose another with %s", addr, way)
	}
	return nil, fmt.Errorf("%s: %w", key, err)
}

// close closes all listeners. A listener that an HTTP server used has been closed by that
// server already.
func (s *sockets) close() {
	list := []net.Listener{s.registry, s.debug, s.profiles}
	if c, ok := s.cert.(*issued); ok {
		list = append(list, c.challenges)
	}
	for _, l := range list {
		if l != nil {
			l.Close() //nolint:errcheck // it may be closed already
		}
	}
}

// url returns the URL at which clients on this machine reach the registry.
func (s *sockets) url() string {
	if s.cert != nil {
		return "https://" + reachable(s.registry)
	}
	return "http://" + reachable(s.registry)
}

// reachable returns an address at which clients on this machine reach the listener. The
// address can be part of an image's name, such as localhost:5000/alpine.
func reachable(l net.Listener) string {
	a, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		return l.Addr().String()
	}
	host := a.IP.String()
	switch {
	case a.IP.IsUnspecified():
		host = "127.0.0.1"
	case a.IP.IsLoopback() && a.IP.To4() == nil:
		host = "localhost" // image names can't contain an IPv6 address
	}
	return net.JoinHostPort(host, strconv.Itoa(a.Port))
}

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

package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/worker"
)

const (
	// startPatience is how long after the beginning of the start requests wait for its end. Most starts
	// are quicker, so that clients don't notice them. Once the start has met something that isn't
	// available, requests are refused at once.
	startPatience = 20 * time.Second
	// startTold is how often a server that is still starting logs what it waits for.
	startTold = 10 * time.Second
	// notStarted is the answer while the server starts.
	notStarted = `{"errors":[{"code":"UNAVAILABLE","message":"the registry is starting: try again in a moment"}]}` + "\n"
)

// entrance serves the registry's address from the beginning of the start, so that no client waits
// without an answer for what the server waits for: the database, another replica's migration, the blob
// store. With certificates by ACME, which are in the database, it can't answer without these. Then TLS
// handshakes wait or fail as requests do.
type entrance struct {
	srv     *http.Server
	silent  *silentConns
	socks   *sockets
	handler http.Handler // the registry; set before `opened` is closed
	opened  chan struct{}
	until   time.Time // until then, requests wait for `opened`, unless `late` is closed before
	late    chan struct{}
	isLate  sync.Once
	refused atomic.Int64  // requests, or handshakes
	ended   chan struct{} // closed when Serve has returned
	err     error         // what it has returned
}

func newEntrance(socks *sockets, h config.HTTP, log *slog.Logger) *entrance {
	e := &entrance{socks: socks, opened: make(chan struct{}), late: make(chan struct{}), until: time.Now().Add(startPatience), ended: make(chan struct{})}
	e.srv = newServer(socks.registry, e, h, log)
	e.silent = watchSilent(e.srv)
	if socks.cert != nil {
		e.srv.TLSConfig = e.tls()
	}
	go func() {
		defer close(e.ended)
		e.err = listenAndServe(e.srv, e.socks)
	}()
	return e
}

// tls returns the configuration of TLS. With certificates by ACME, handshakes wait for the end of the
// start as long as requests would.
func (e *entrance) tls() *tls.Config {
	cfg := e.socks.cert.config()
	if _, later := e.socks.cert.(*issued); later {
		certificate := cfg.GetCertificate
		cfg.GetCertificate = func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			if !e.await(hello.Context()) {
				e.refused.Add(1)
				return nil, errNoCertificates
			}
			return certificate(hello)
		}
	}
	return cfg
}

// refuse refuses requests at once until the registry is open: nobody knows how long the start takes.
func (e *entrance) refuse() { e.isLate.Do(func() { close(e.late) }) }

// open lets requests reach the registry.
func (e *entrance) open(registry http.Handler) {
	e.handler = registry
	close(e.opened)
}

// close ends a server whose start has failed.
func (e *entrance) close() {
	e.srv.Close() //nolint:errcheck // its connections end with the process
	<-e.ended
}

// wait waits until the server has ended, and returns why, or nil if it was shut down.
func (e *entrance) wait() error {
	<-e.ended
	if errors.Is(e.err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serving the registry: %w", e.err)
}

// await waits until the registry is open, and says whether it is. It gives up when the start takes too
// long or has met something that isn't available, or when ctx ends.
func (e *entrance) await(ctx context.Context) bool {
	select {
	case <-e.opened:
		return true
	default:
	}
	wait := time.NewTimer(time.Until(e.until))
	defer wait.Stop()
	select {
	case <-e.opened:
		return true
	case <-ctx.Done():
	case <-e.late:
	case <-wait.C:
	}
	return false
}

// ServeHTTP implements http.Handler.
func (e *entrance) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if e.await(r.Context()) {
		e.handler.ServeHTTP(w, r)
		return
	}
	e.refused.Add(1)
	if err := limit.Begin(r); err != nil { // without this call the listener takes the answer for net/http's own
		w.Header().Set("Connection", "close")
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	sayNotStarted(w, r)
}

// sayNotStarted answers that the server is still starting.
func sayNotStarted(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("Retry-After", "5")
	h.Set("Connection", "close") // the body of a push isn't read
	w.WriteHeader(http.StatusServiceUnavailable)
	if r.Method != http.MethodHead {
		w.Write([]byte(notStarted)) //nolint:errcheck // the client is gone
	}
}

// tell logs what the server waits for, again and again until the registry is open or ctx ends. It warns
// when something is away; a machine may just be slow.
func (e *entrance) tell(ctx context.Context, ready *readiness, log *slog.Logger) {
	began, level := time.Now(), slog.LevelInfo
	for worker.Sleep(ctx, startTold) == nil {
		select {
		case <-e.late:
			level = slog.LevelWarn
		default:
		}
		select {
		case <-e.opened:
			return
		default:
			log.Log(ctx, level, "the server isn't ready yet", "waits_for", ready.waitsFor(), "seconds", int(time.Since(began).Seconds()), "refused_requests", e.refused.Load())
		}
	}
}

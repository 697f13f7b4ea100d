package serve

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/purser-registry/purser/internal/worker"
)

const (
	// acceptTime limits how long the server waits for requests on the last connections. Some
	// clients connect ahead and send nothing; and if http.max_connections is reached, the server
	// accepts no more connections.
	acceptTime = 500 * time.Millisecond
	settleTime = 10 * time.Millisecond
)

// drain stops accepting connections and waits until the running requests end. After the
// timeout it closes the connections of the requests that are left.
func drain(srv *http.Server, socks *sockets, silent *silentConns, timeout time.Duration, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	switch {
	case socks.opened != nil:
		acceptLast(ctx, socks.opened, silent)
	case socks.passed != nil:
		socks.passed.stop(ctx)
		silent.wait(ctx, func() uint32 { return 0 })
	}
	if err := srv.Shutdown(ctx); err != nil {
		log.Warn("requests did not end in time and are cut off", "drain_timeout", timeout)
		srv.Close() //nolint:errcheck // nothing is left to do about it
	}
}

// silentConns are the connections of a server on which no request has begun yet. After Shutdown
// has been called, http.Server closes such a connection without an answer as soon as its request
// arrives.
type silentConns struct {
	mu    sync.Mutex
	conns map[net.Conn]struct{}
}

// watchSilent counts the silent connections of a server that isn't serving yet.
func watchSilent(srv *http.Server) *silentConns {
	s, next := &silentConns{conns: map[net.Conn]struct{}{}}, srv.ConnState
	srv.ConnState = func(c net.Conn, state http.ConnState) {
		s.mu.Lock()
		if state == http.StateNew {
			s.conns[c] = struct{}{}
		} else {
			delete(s.conns, c)
		}
		s.mu.Unlock()
		if next != nil {
			next(c, state)
		}
	}
	return s
}

func (s *silentConns) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// wait waits until no connection is in the listener's queue, whose length `queued` returns, and none
// is silent. It gives up after acceptTime, or when ctx ends.
func (s *silentConns) wait(ctx context.Context, queued func() uint32) {
	var err error
	for end := time.Now().Add(acceptTime); err == nil && time.Now().Before(end); {
		if queued() == 0 && s.count() == 0 {
			// The server may have accepted a connection that it hasn't counted yet, or read a
			// request that it hasn't begun to serve.
			if err = worker.Sleep(ctx, settleTime); s.count() == 0 {
				return
			}
		}
		err = errors.Join(err, worker.Sleep(ctx, time.Millisecond))
	}
}

// passedListener is a socket of the service manager, which keeps it open. So connections that this
// process doesn't accept wait for the next one.
type passedListener struct {
	*net.TCPListener
	once    sync.Once
	closed  chan struct{}
	stopped chan struct{} // closed when Accept returns no more connections
	noticed sync.Once
}

func newPassedListener(l *net.TCPListener) *passedListener {
	return &passedListener{TCPListener: l, closed: make(chan struct{}), stopped: make(chan struct{})}
}

// stop makes Accept return no more connections, and waits until that is so: http.Server has then
// counted those before. It gives up after acceptTime, since nobody calls Accept while
// http.max_connections is reached, or when ctx ends.
func (l *passedListener) stop(ctx context.Context) {
	l.SetDeadline(time.Unix(1, 0)) //nolint:errcheck // it fails only if the listener is closed
	limited, cancel := context.WithTimeout(ctx, acceptTime)
	defer cancel()
	select {
	case <-l.stopped:
	case <-limited.Done():
	}
}

// Accept implements net.Listener. After stop it waits until Close is called, since http.Server takes
// any error before Shutdown for a failure.
func (l *passedListener) Accept() (net.Conn, error) {
	c, err := l.TCPListener.Accept()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		l.noticed.Do(func() { close(l.stopped) })
		<-l.closed
		return nil, net.ErrClosed
	}
	return c, err
}

// Close implements net.Listener.
func (l *passedListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.TCPListener.Close()
}

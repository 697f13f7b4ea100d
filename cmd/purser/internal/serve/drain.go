package serve

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// drain stops accepting connections and waits until the running requests end. After the
// timeout it closes the connections of the requests that are left.
func drain(srv *http.Server, socks *sockets, silent *silentConns, timeout time.Duration, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if socks.opened != nil {
		acceptLast(ctx, socks.opened, silent)
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

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"syscall"

	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/server"
)

// sockets are what Purser listens on.
type sockets struct {
	registry net.Listener
	debug    net.Listener    // of metrics and health, nil: none
	profiles net.Listener    // of profiles alone, nil: none
	cert     *certificate    // of the registry; nil: it serves no TLS
	bounded  *limit.Listener // the registry's, with its limits
}

// listen opens the sockets, first of all that a start does, so that a port that
// is taken is told at once.
func listen(ctx context.Context, h config.HTTP, log *slog.Logger) (*sockets, error) {
	s := &sockets{}
	if h.TLS.Cert != "" {
		var err error
		if s.cert, err = loadCertificate(h.TLS, log); err != nil {
			return nil, err
		}
	}
	for _, a := range []struct {
		to              *net.Listener
		addr, flag, key string
	}{
		{&s.registry, h.Addr, "--addr", "http.addr"},
		{&s.debug, h.DebugAddr, "--debug-addr", "http.debug_addr"},
		{&s.profiles, h.ProfileAddr, "--profile-addr", "http.profile_addr"},
	} {
		if a.addr == "" || a.to == &s.profiles && a.addr == h.DebugAddr {
			continue
		}
		l, err := open(ctx, a.addr, a.flag, a.key)
		if err != nil {
			s.close()
			return nil, err
		}
		*a.to = l
	}
	return s, nil
}

// hosts are the names under which a listener answers that was opened at addr.
// Every name counts for those that other machines reach, until somebody says
// which; a web page reaches the others through its reader's browser.
func hosts(l net.Listener, addr string, h config.HTTP) *server.Hosts {
	if !isLoopback(l) && len(h.AllowedHosts) == 0 {
		return nil
	}
	return server.NewHosts(h.Hosts(addr)...)
}

// isLoopback tells whether only this machine reaches the listener.
func isLoopback(l net.Listener) bool {
	a, ok := l.Addr().(*net.TCPAddr)
	return ok && a.IP.IsLoopback()
}

func open(ctx context.Context, addr, flag, key string) (net.Listener, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	switch {
	case err == nil:
		return l, nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%s is in use by another process, maybe another Purser: stop it, or choose another address with %s HOST:PORT (%s)", addr, flag, key)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("listening on %s isn't allowed to this user: choose a port above 1023 with %s HOST:PORT (%s)", addr, flag, key)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("%s is no address of this machine: choose another with %s HOST:PORT (%s)", addr, flag, key)
	}
	return nil, fmt.Errorf("%s: %w", key, err)
}

// close closes what still listens. The servers have closed what they served.
func (s *sockets) close() {
	for _, l := range []net.Listener{s.registry, s.debug, s.profiles} {
		if l != nil {
			l.Close() //nolint:errcheck // it may be closed already
		}
	}
}

// reachable is an address under which this machine reaches the listener, in a
// form that clients take for the name of a registry.
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
		host = "localhost" // an IPv6 address can't stand in the name of an image
	}
	return net.JoinHostPort(host, strconv.Itoa(a.Port))
}

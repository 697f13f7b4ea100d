package serve

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

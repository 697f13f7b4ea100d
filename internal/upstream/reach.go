package upstream

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/purser-registry/purser/internal/netguard"
)

// reach decides which addresses may be connected to. The registry itself was named by somebody who
// may, so it may be anywhere. Other hosts are named by the registry, which could so send this
// machine, with its credentials, to servers that only this machine reaches. So they may be at
// public addresses; at private ones if the registry is at a private one or on this machine; and
// on this machine if the registry is.
//
// The address is checked when it is dialled, so a name that resolves differently from one moment
// to the next doesn't help. Where the registry is, is the farthest place where it ever was: it
// can't come nearer by a change of its own name.
type reach struct {
	dialer net.Dialer
	kindOf func(netip.Addr) netguard.Kind

	mu    sync.Mutex
	known bool
	there netguard.Kind // of the source's addresses, the one of the widest reach
}

func newReach(resolver *net.Resolver) *reach {
	return &reach{
		dialer: net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second, Resolver: resolver},
		kindOf: netguard.KindOf,
	}
}

// dialSource connects to the registry, and remembers where it is.
func (r *reach) dialSource(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := r.dialer.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	if at, err := netip.ParseAddrPort(conn.RemoteAddr().String()); err == nil {
		r.found(r.kindOf(at.Addr()))
	}
	return conn, nil
}

// dialOther connects to another host, if its address allows that.
func (r *reach) dialOther(ctx context.Context, network, addr string) (net.Conn, error) {
	d := r.dialer
	d.ControlContext = func(_ context.Context, _, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil {
			return fmt.Errorf("the address that would be dialled can't be read: %w", err)
		}
		host, _, _ := net.SplitHostPort(addr) //nolint:errcheck // only for the error's text
		return r.check(host, at.Addr())
	}
	return d.DialContext(ctx, network, addr)
}

// dialFree connects to a proxy, or to a trusted host.
func (r *reach) dialFree(ctx context.Context, network, addr string) (net.Conn, error) {
	return r.dialer.DialContext(ctx, network, addr)
}

func (r *reach) found(k netguard.Kind) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.known || k < r.there {
		r.known, r.there = true, k
	}
}

// check returns an error if another host may not be at this address.
func (r *reach) check(host string, at netip.Addr) error {
	r.mu.Lock()
	source := netguard.Public
	if r.known {
		source = r.there
	}
	r.mu.Unlock()
	switch k := r.kindOf(at); {
	case k == netguard.Public, k == netguard.Private && source == netguard.Private,
		k <= netguard.Loopback && source == netguard.Loopback:
		return nil
	}
	return fmt.Errorf("the registry leads to %s, whose address %s isn't public and not of the registry's own network; if that is right, name it as a trusted host (--trust-host)", Printable(host), at)
}

// lookupSource finds out where the registry is if a proxy connects to it.
func (r *reach) lookupSource(ctx context.Context, host string) {
	r.mu.Lock()
	known := r.known
	r.mu.Unlock()
	if known {
		return
	}
	addrs, err := r.lookup(ctx, host)
	if err != nil || len(addrs) == 0 {
		r.found(netguard.Public) // only the proxy knows the name
	}
	for _, a := range addrs {
		r.found(r.kindOf(a))
	}
}

// lookupOther checks the addresses of another host if a proxy connects to it. A name that only the
// proxy knows is left to it.
func (r *reach) lookupOther(ctx context.Context, host string) error {
	addrs, err := r.lookup(ctx, host)
	if err != nil {
		return ctx.Err()
	}
	for _, a := range addrs {
		if err := r.check(host, a); err != nil {
			return err
		}
	}
	return nil
}

func (r *reach) lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a}, nil
	}
	resolver := r.dialer.Resolver
	if resolver == nil {
		resolver = net.DefaultResolver
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return resolver.LookupNetIP(ctx, "ip", host)
}

// Package netguard keeps requests that users can cause away from servers that only Purser can
// reach.
//
// Users name URLs that Purser requests: of webhooks, and of the issuers of pipelines' tokens. A
// [Guard] refuses all addresses that aren't public. The dialler of an HTTP client asks the guard
// about the IP address that it is about to dial, after the host's name was resolved. So the
// check doesn't depend on how the URL writes the address, nor on what the name resolved to
// before. It holds only for requests that the client sends itself: the client must not use a
// proxy, which would dial instead.
package netguard

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
)

// special are the networks that contain no public server, from IANA's registries of
// special-purpose addresses and of multicast addresses, and one address of a cloud. If several
// networks contain an address, the first of them gives the reason for refusing the address.
var special = []struct {
	prefix netip.Prefix
	why    string
}{
	{netip.MustParsePrefix("0.0.0.0/8"), "unspecified"},
	{netip.MustParsePrefix("10.0.0.0/8"), "private"},
	{netip.MustParsePrefix("100.64.0.0/10"), "of a carrier's NAT"},
	{netip.MustParsePrefix("127.0.0.0/8"), "loopback"},
	// Azure gives each machine this address of its host, which tells secrets of the machine.
	{netip.MustParsePrefix("168.63.129.16/32"), "of Azure's host"},
	{netip.MustParsePrefix("169.254.0.0/16"), "link-local"},
	{netip.MustParsePrefix("172.16.0.0/12"), "private"},
	{netip.MustParsePrefix("192.0.0.0/24"), "reserved"},
	{netip.MustParsePrefix("192.0.2.0/24"), "for documentation"},
	{netip.MustParsePrefix("192.88.99.0/24"), "a 6to4 relay"},
	{netip.MustParsePrefix("192.168.0.0/16"), "private"},
	{netip.MustParsePrefix("198.18.0.0/15"), "for benchmarks"},
	{netip.MustParsePrefix("198.51.100.0/24"), "for documentation"},
	{netip.MustParsePrefix("203.0.113.0/24"), "for documentation"},
	{netip.MustParsePrefix("224.0.0.0/4"), "multicast"},
	{netip.MustParsePrefix("240.0.0.0/4"), "reserved"},

	{netip.MustParsePrefix("::/128"), "unspecified"},
	{netip.MustParsePrefix("::1/128"), "loopback"},
	{netip.MustParsePrefix("fc00::/7"), "private (unique local)"},
	{netip.MustParsePrefix("fe80::/10"), "link-local"},
	{netip.MustParsePrefix("fec0::/10"), "private (site-local)"},
	{netip.MustParsePrefix("ff00::/8"), "multicast"},
	// This network contains Teredo, benchmarks, ORCHID and other protocols. Teredo and 6to4
	// addresses contain IPv4 addresses, which may be private. Both protocols are out of
	// use, so all their addresses are refused.
	{netip.MustParsePrefix("2001::/23"), "of Teredo or another protocol"},
	{netip.MustParsePrefix("2001:db8::/32"), "for documentation"},
	{netip.MustParsePrefix("2002::/16"), "of 6to4"},
	{netip.MustParsePrefix("3fff::/20"), "for documentation"},
}

var (
	global = netip.MustParsePrefix("2000::/3") // all of IPv6 that is assigned
	nat64  = netip.MustParsePrefix("64:ff9b::/96")
)

// Kind says who can reach an address.
type Kind int

// The kinds of addresses, from the widest reach to the narrowest.
const (
	Public   Kind = iota
	Private       // of an organisation's own networks
	Loopback      // of this machine
	Other         // everything else that isn't public, such as link-local and multicast
)

// KindOf returns the kind of an address.
func KindOf(addr netip.Addr) Kind {
	switch why := reason(addr); {
	case why == "":
		return Public
	case why == "loopback":
		return Loopback
	case strings.HasPrefix(why, "private"), why == "of a carrier's NAT":
		return Private
	}
	return Other
}

// Guard refuses addresses that aren't public.
type Guard struct {
	// Hint ends the errors about refused addresses: how to allow the address. Empty: nothing.
	Hint string
}

// Check returns an error that names addr and the reason if addr isn't public.
func (g Guard) Check(addr netip.Addr) error {
	if why := reason(addr); why != "" {
		return g.refused(addr, why)
	}
	return nil
}

// reason returns why an address isn't public, "" if it is.
func reason(addr netip.Addr) string {
	ip := addr.WithZone("").Unmap() // ::ffff:10.0.0.1 is 10.0.0.1
	if nat64.Contains(ip) {
		// NAT64: with DNS64, a public IPv4 server has such an address.
		b := ip.As16()
		ip = netip.AddrFrom4([4]byte(b[12:]))
	}
	for _, s := range special {
		if s.prefix.Contains(ip) {
			return s.why
		}
	}
	if ip.Is6() && !global.Contains(ip) || !ip.IsValid() {
		return "reserved"
	}
	return ""
}

func (g Guard) refused(addr netip.Addr, why string) error {
	text := fmt.Sprintf("the address %s is %s, not public", addr, why)
	if g.Hint != "" {
		text += "; " + g.Hint
	}
	return &RefusedError{text}
}

// RefusedError says that an address isn't public.
type RefusedError struct{ text string }

func (e *RefusedError) Error() string { return e.text }

// Control refuses addresses that aren't public, and networks other than TCP. It is a
// ControlContext of a net.Dialer, which calls it with each IP address that it is about to dial.
func (g Guard) Control(_ context.Context, network, address string, _ syscall.RawConn) error {
	if !strings.HasPrefix(network, "tcp") {
		return fmt.Errorf("the network %s isn't TCP", network)
	}
	a, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("the address that would be dialled can't be read: %w", err)
	}
	return g.Check(a.Addr())
}

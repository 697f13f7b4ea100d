package webhook

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
)

// special are the networks that contain no public server, from IANA's registries of
// special-purpose addresses and of multicast addresses. If several networks contain an
// address, the first of them gives the reason for refusing the address.
var special = []struct {
	prefix netip.Prefix
	why    string
}{
	{netip.MustParsePrefix("0.0.0.0/8"), "unspecified"},
	{netip.MustParsePrefix("10.0.0.0/8"), "private"},
	{netip.MustParsePrefix("100.64.0.0/10"), "of a carrier's NAT"},
	{netip.MustParsePrefix("127.0.0.0/8"), "loopback"},
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

// check refuses an address that isn't public. The error names it.
func check(addr netip.Addr) error {
	ip := addr.WithZone("").Unmap() // ::ffff:10.0.0.1 is 10.0.0.1
	if nat64.Contains(ip) {
		// NAT64: with DNS64, a public IPv4 server has such an address.
		b := ip.As16()
		ip = netip.AddrFrom4([4]byte(b[12:]))
	}
	for _, s := range special {
		if s.prefix.Contains(ip) {
			return refused(addr, s.why)
		}
	}
	if ip.Is6() && !global.Contains(ip) || !ip.IsValid() {
		return refused(addr, "reserved")
	}
	return nil
}

func refused(addr netip.Addr, why string) error {
	return fmt.Errorf("the address %s is %s, not public; name another host, or, if the receiver is meant to be there, set allow_private (autoprune.webhook.allow_private, or webhooks.allow_private for webhooks of namespaces and callbacks)", addr, why)
}

// control refuses addresses that aren't public. The dialler calls it with each IP address
// that it is about to dial, after the host's name was resolved.
func control(_ context.Context, network, address string, _ syscall.RawConn) error {
	if !strings.HasPrefix(network, "tcp") {
		return fmt.Errorf("the network %s isn't TCP", network)
	}
	a, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("the address that would be dialled can't be read: %w", err)
	}
	return check(a.Addr())
}

// literal parses the host of a URL as an IP address and returns it. ok is false if the host
// is a name.
func literal(host string) (netip.Addr, bool) {
	addr, err := netip.ParseAddr(host)
	return addr, err == nil
}

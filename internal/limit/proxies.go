package limit

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// ForwardedHeader says in which header the trusted proxies name the client.
type ForwardedHeader uint8

// AnyForwarded accepts the headers X-Forwarded-For and Forwarded. But a proxy that writes one
// of them passes the other on as its client sent it. So if a request has both headers and they
// name different clients, neither header is trusted.
const (
	AnyForwarded ForwardedHeader = iota
	XForwardedFor
	Forwarded // RFC 7239
)

// Proxies are the trusted proxies, from which a header that names the client is accepted. A
// nil *Proxies trusts no address.
type Proxies struct {
	networks []netip.Prefix
	header   ForwardedHeader
}

// NewProxies returns Proxies that trust the addresses in `networks`, or nil if there are none.
func NewProxies(networks []netip.Prefix, header ForwardedHeader) *Proxies {
	if len(networks) == 0 {
		return nil
	}
	return &Proxies{networks: networks, header: header}
}

// Trust returns whether addr is the address of a trusted proxy.
func (p *Proxies) Trust(addr netip.Addr) bool {
	if p == nil {
		return false
	}
	addr = plain(addr)
	for _, n := range p.networks {
		if n.Contains(addr) {
			return true
		}
	}
	return false
}

// plain normalizes an address for comparisons: it converts an IPv4 address mapped to IPv6 to
// IPv4, and removes the zone.
func plain(addr netip.Addr) netip.Addr { return addr.Unmap().WithZone("") }

// Client returns the address and port of a request's client. If the connection's peer isn't
// a trusted proxy, the peer is the client. Otherwise a header names the client:
// X-Forwarded-For or Forwarded. Each proxy appends the address of its own peer to this
// header, so the client is the rightmost address in it that isn't a trusted proxy's; if all
// addresses are trusted proxies', it is the leftmost one. The port is 0 if the header
// doesn't give one. An entry that isn't an address makes the entries to its left
// untrustworthy; then the proxy that wrote it counts as the client. `disagree` is true if
// X-Forwarded-For and Forwarded are both accepted, the request has both, and they name
// different clients; then `client` is the connection's peer.
func (p *Proxies) Client(r *http.Request) (client netip.AddrPort, disagree bool) {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.AddrPort{}, false
	}
	peer = netip.AddrPortFrom(plain(peer.Addr()), peer.Port())
	if !p.Trust(peer.Addr()) {
		return peer, false
	}
	x, xs := peer, r.Header["X-Forwarded-For"]
	f, fs := peer, r.Header["Forwarded"]
	if p.header != Forwarded {
		x = p.walk(peer, xs, splitXForwardedFor)
	}
	if p.header != XForwardedFor {
		f = p.walk(peer, fs, func(line string) ([]string, bool) { return splitForwarded(line, "for") })
	}
	switch {
	case p.header == XForwardedFor, p.header == AnyForwarded && len(fs) == 0:
		return x, false
	case p.header == Forwarded, len(xs) == 0:
		return f, false
	case x.Addr() != f.Addr():
		return peer, true
	case x.Port() == 0:
		return f, false
	}
	return x, false
}

// walk returns the client that the `lines` of a header name. It reads their entries from the
// last to the first and stops at the first address that isn't a trusted proxy's. If there is
// no valid entry, it returns `peer`. The function `split` splits a line into its entries.
func (p *Proxies) walk(peer netip.AddrPort, lines []string, split func(line string) ([]string, bool)) netip.AddrPort {
	at := peer
	for i := len(lines) - 1; i >= 0; i-- {
		nodes, ok := split(lines[i])
		if !ok {
			return at
		}
		for j := len(nodes) - 1; j >= 0; j-- {
			next, ok := parseNode(nodes[j])
			if !ok {
				return at
			}
			if at = next; !p.Trust(at.Addr()) {
				return at
			}
		}
	}
	return at
}

// parseNode parses an entry of a header: an IPv4 address or an IPv6 address with or without
// brackets, each with or without a port or a zone. The port is 0 if there is none or if it is
// obfuscated (RFC 7239, section 6.3).
func parseNode(text string) (netip.AddrPort, bool) {
	if addr, err := netip.ParseAddr(text); err == nil {
		return netip.AddrPortFrom(plain(addr), 0), true
	}
	if inner, isBracketed := strings.CutPrefix(text, "["); isBracketed && strings.HasSuffix(inner, "]") {
		addr, err := netip.ParseAddr(strings.TrimSuffix(inner, "]"))
		return netip.AddrPortFrom(plain(addr), 0), err == nil && addr.Is6()
	}
	if i := strings.LastIndex(text, ":_"); i >= 0 {
		text = text[:i] + ":0"
	}
	if strings.HasPrefix(text, "[") && strings.Count(text, "[") != 1 {
		return netip.AddrPort{}, false
	}
	node, err := netip.ParseAddrPort(text)
	return netip.AddrPortFrom(plain(node.Addr()), node.Port()), err == nil
}

// splitXForwardedFor splits a line of X-Forwarded-For into its entries, and removes the quotes
// that some proxies write around an entry.
func splitXForwardedFor(line string) ([]string, bool) {
	nodes := strings.Split(line, ",")
	for i, node := range nodes {
		node = strings.Trim(node, " \t")
		if inner, ok := strings.CutPrefix(node, `"`); ok && strings.HasSuffix(inner, `"`) {
			node = strings.TrimSuffix(inner, `"`)
		}
		nodes[i] = node
	}
	return nodes, true
}

// splitForwarded returns the value of a parameter, such as "for", of each element in a line of
// Forwarded (RFC 7239, section 4), "" for an element without one. If any part of the line is
// malformed, it returns false, since then it isn't certain where elements begin.
func splitForwarded(line, parameter string) (nodes []string, ok bool) {
	node, seen := "", false
	for rest := strings.Trim(line, " \t"); ; rest = strings.TrimLeft(rest, " \t") {
		if rest != "" && rest[0] != ',' && rest[0] != ';' {
			var name, value string
			if name, value, rest, ok = cutPair(rest); !ok {
				return nil, false
			}
			if strings.EqualFold(name, parameter) {
				if seen {
					return nil, false
				}
				node, seen = value, true
			}
		}
		if rest == "" {
			return append(nodes, node), true
		}
		if rest[0] == ',' {
			nodes = append(nodes, node)
			node, seen = "", false
		}
		rest = rest[1:]
	}
}

// cutPair cuts a name and its value, which may be quoted, from the beginning of a line of
// Forwarded. The rest is empty or begins with a comma or semicolon.
func cutPair(line string) (name, value, rest string, ok bool) {
	name, rest, ok = strings.Cut(line, "=")
	if !ok || name == "" || strings.ContainsAny(name, " \t\",;") {
		return "", "", "", false
	}
	if !strings.HasPrefix(rest, `"`) {
		end := strings.IndexAny(rest, ",;")
		if end < 0 {
			end = len(rest)
		}
		value = strings.TrimRight(rest[:end], " \t")
		return name, value, rest[end:], value != "" && !strings.ContainsAny(value, " \t\"")
	}
	text := make([]byte, 0, 48)
	for i := 1; i < len(rest); i++ {
		switch c := rest[i]; {
		case c == '\\' && i+1 < len(rest):
			i++
			text = append(text, rest[i])
		case c == '"':
			rest = strings.TrimLeft(rest[i+1:], " \t")
			return name, string(text), rest, rest == "" || rest[0] == ',' || rest[0] == ';'
		default:
			text = append(text, c)
		}
	}
	return "", "", "", false
}

// trusts returns whether HOST:PORT is the address of a trusted proxy.
func (p *Proxies) trusts(address string) bool {
	at, err := netip.ParseAddrPort(address)
	return err == nil && p.Trust(at.Addr())
}

// trustedPeer returns whether a connection comes from a trusted proxy.
func (p *Proxies) trustedPeer(c net.Conn) bool {
	a, ok := c.RemoteAddr().(*net.TCPAddr)
	return ok && p.Trust(a.AddrPort().Addr())
}

package limit

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// ForwardedHeader is the header in which proxies name the client.
type ForwardedHeader uint8

// AnyForwarded accepts whichever of the two headers a request has. A proxy that writes
// one of them passes on the other as its client sent it. So if they name different
// clients, neither is trusted.
const (
	AnyForwarded ForwardedHeader = iota
	XForwardedFor
	Forwarded // RFC 7239
)

// Proxies are the trusted proxies, whose headers name the client of a request. A nil
// Proxies contains none.
type Proxies struct {
	networks []netip.Prefix
	header   ForwardedHeader
}

// NewProxies returns the proxies in these networks, or nil if there are none.
func NewProxies(networks []netip.Prefix, header ForwardedHeader) *Proxies {
	if len(networks) == 0 {
		return nil
	}
	return &Proxies{networks: networks, header: header}
}

// Trust says whether addr is a trusted proxy's.
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

// plain normalizes an address for comparison: IPv4 not mapped to IPv6, and without a
// zone.
func plain(addr netip.Addr) netip.Addr { return addr.Unmap().WithZone("") }

// Client returns the address and port of a request's client. Each proxy appends the address
// of its peer to the header, so the client is the rightmost address that isn't a trusted
// proxy's, or the leftmost if all are. The port is 0 if no proxy names it. If an entry
// isn't an address, the entries to its left can't be trusted, and the proxy that wrote it
// counts as the client. disagree says that the request has both X-Forwarded-For and
// Forwarded, that either is accepted, and that they name different clients; client is then
// the peer.
// neither can be trusted.
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
		f = p.walk(peer, fs, splitForwarded)
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

// walk reads the entries of a header from right to left, starting at the peer, and returns
// the client. split splits a line of the header into its entries.
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

// parseNode parses an address from a header: IPv6 with or without brackets, all with or
// without a port or a zone. An obfuscated port (RFC 7239, section 6.3) counts as no
// port.
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

// splitXForwardedFor splits a line of X-Forwarded-For. It removes the quotes that some
// proxies write around entries.
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

// splitForwarded returns the "for" parameter of each element in a line of Forwarded, ""
// for elements without one (RFC 7239, section 4). ok is false if any part of the line
// is malformed, since then it isn't certain where elements begin.
func splitForwarded(line string) (nodes []string, ok bool) {
	node, seen := "", false
	for rest := strings.Trim(line, " \t"); ; rest = strings.TrimLeft(rest, " \t") {
		if rest != "" && rest[0] != ',' && rest[0] != ';' {
			var name, value string
			if name, value, rest, ok = cutPair(rest); !ok {
				return nil, false
			}
			if strings.EqualFold(name, "for") {
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

// cutPair cuts a name with its value, which may be quoted, from the beginning of a line
// of Forwarded. The rest is empty or begins with a comma or semicolon.
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

// trustedPeer says whether a connection comes from a trusted proxy.
func (p *Proxies) trustedPeer(c net.Conn) bool {
	a, ok := c.RemoteAddr().(*net.TCPAddr)
	return ok && p.Trust(a.AddrPort().Addr())
}

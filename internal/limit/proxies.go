package limit

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// ForwardedHeader says in which header a proxy names the client.
type ForwardedHeader uint8

// AnyForwarded believes whichever of the two a request has. A proxy that writes one
// passes on the other as its client wrote it, so where they name different clients
// neither is believed.
const (
	AnyForwarded ForwardedHeader = iota
	XForwardedFor
	Forwarded // RFC 7239
)

// Proxies are those whose word is believed when they say whom a request is from. A nil
// one holds none.
type Proxies struct {
	networks []netip.Prefix
	header   ForwardedHeader
}

// NewProxies returns the proxies in these networks, nil without any.
func NewProxies(networks []netip.Prefix, header ForwardedHeader) *Proxies {
	if len(networks) == 0 {
		return nil
	}
	return &Proxies{networks: networks, header: header}
}

// Trust says whether a proxy is at this address.
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

// plain is an address as addresses are compared: IPv4 as such, and without a zone.
func plain(addr netip.Addr) netip.Addr { return addr.Unmap().WithZone("") }

// Client returns the address and port of the client of a request: the rightmost address
// that is no proxy's, of those that proxies have written behind one another, or the
// leftmost if all are. The port is 0 where no proxy says it. Where an entry is no
// address, what is left of it can't be believed, and the client is the proxy that wrote
// it. disagree says that there are two headers of which neither can be believed.
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

// walk goes through the entries of a header from right to left, from the peer on.
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

// parseNode reads an address as headers have it: IPv6 with brackets or without, with a
// port or without, with a zone or without. A port may be obfuscated (RFC 7239, section
// 6.3), which is none.
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

// splitXForwardedFor splits a line of X-Forwarded-For. Some proxies quote its entries.
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

// splitForwarded returns the "for" of each element of a line of Forwarded, "" where an
// element has none (RFC 7239, section 4). It is not ok if a part of the line has another
// form: then no element is sure to be where it seems to begin.
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

// cutPair cuts a name with its value, which may be quoted, off the beginning of a line of
// Forwarded. The rest begins with a comma, with a semicolon, or is empty.
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

// trustedPeer says whether a connection comes from a proxy.
func (p *Proxies) trustedPeer(c net.Conn) bool {
	a, ok := c.RemoteAddr().(*net.TCPAddr)
	return ok && p.Trust(a.AddrPort().Addr())
}

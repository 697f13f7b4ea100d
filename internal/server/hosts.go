package server

import (
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/purser-registry/purser/internal/oci"
)

// Hosts is the set of names under which a listener answers. A browser sends the
// name that its page was loaded from, and a page's owner can let that name point
// to 127.0.0.1 (DNS rebinding): the page then counts as the registry's own, may
// do everything that the browser's user may, and reads the answers. The name is
// all that tells such a request from others, so a listener on loopback refuses
// names that don't stand for loopback, unless they were allowed.
type Hosts struct {
	any   bool
	names map[string]bool
	below []string // ".example.com" for "*.example.com"
}

// NewHosts returns the set that always holds localhost, the names below it, and
// loopback addresses, and besides the names that are allowed: "registry.example.com",
// an IP address, "*.example.com" for every name below example.com, and "*" for
// every name there is. Ports don't count: tunnels and containers map them.
func NewHosts(allowed ...string) *Hosts {
	h := &Hosts{names: map[string]bool{"localhost": true}, below: []string{".localhost"}}
	for _, name := range allowed {
		name = canonicalHost(name)
		switch below, isPattern := strings.CutPrefix(name, "*"); {
		case name == "*":
			h.any = true
		case isPattern:
			h.below = append(h.below, below)
		default:
			h.names[name] = true
		}
	}
	return h
}

// Check returns the error that answers a request under a name outside of the
// set, 421 (RFC 9110, 15.5.20). A nil set holds every name. A request without a
// name passes: HTTP/1.0 allows it, health checks of proxies send it, and no
// browser does. So does the address that the connection was made to, which no
// DNS can redirect.
func (h *Hosts) Check(r *http.Request) error {
	if h == nil || h.any || r.Host == "" {
		return nil
	}
	name, ok := hostName(r.Host)
	if ok && (h.holds(name) || isLocalAddress(r, name)) {
		return nil
	}
	return oci.Errorf(oci.Denied, "this registry isn't served under the name %.100q, which a web page may have made up; "+
		"use localhost or 127.0.0.1, or allow the name with the setting http.allowed_hosts", r.Host).
		WithStatus(http.StatusMisdirectedRequest)
}

func (h *Hosts) holds(name string) bool {
	if h.names[name] {
		return true
	}
	if ip, err := netip.ParseAddr(name); err == nil && ip.Unmap().IsLoopback() {
		return true
	}
	for _, suffix := range h.below {
		if len(name) > len(suffix) && strings.HasSuffix(name, suffix) {
			return true
		}
	}
	return false
}

// isLocalAddress tells whether name is the address at which the request arrived.
func isLocalAddress(r *http.Request, name string) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	if !ok {
		return false
	}
	ip, err := netip.ParseAddr(name)
	return err == nil && ip.Unmap().WithZone("") == local.AddrPort().Addr().Unmap().WithZone("")
}

// hostName is the name or address in a Host header, in its canonical form. It is
// not ok where the header has another form than name, name:port, [address] or
// [address]:port.
func hostName(header string) (name string, ok bool) {
	name, port := header, ""
	if i := strings.LastIndexByte(header, ':'); i > strings.LastIndexByte(header, ']') {
		name, port = header[:i], header[i+1:]
	}
	if strings.Trim(port, "0123456789") != "" {
		return "", false
	}
	if inner, isBracketed := strings.CutPrefix(name, "["); isBracketed {
		name, ok = strings.CutSuffix(inner, "]")
		if ip, err := netip.ParseAddr(name); !ok || err != nil || !ip.Is6() {
			return "", false
		}
	} else if strings.Trim(lowerASCII(name), "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" || strings.Contains(name, ":") {
		return "", false
	}
	return canonicalHost(name), true
}

// canonicalHost writes a name as it is compared: in lower case and without the
// dot that ends an absolute name, an address as [netip.Addr] does.
func canonicalHost(name string) string {
	name = strings.TrimSuffix(lowerASCII(name), ".")
	if ip, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(name, "["), "]")); err == nil {
		return ip.Unmap().String()
	}
	return name
}

// lowerASCII leaves what isn't ASCII as it is: Unicode has other letters whose
// lower case is in "localhost".
func lowerASCII(s string) string {
	return strings.Map(func(c rune) rune {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		return c
	}, s)
}

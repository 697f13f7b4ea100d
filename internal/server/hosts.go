package server

import (
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/purser-registry/purser/internal/oci"
)

// Hosts is the set of host names under which a listener answers. It protects against DNS
// rebinding, which works as follows. The owner of a web page lets the page's host name point to
// 127.0.0.1. A browser on the registry's machine then takes the registry for the page's own
// server, and lets the page send requests to the registry and read the answers. Only the Host
// header shows that such a request wasn't meant for the registry. Therefore a listener on a
// loopback address refuses a request unless its host name is a name of loopback or is allowed
// explicitly.
type Hosts struct {
	any   bool
	names map[string]bool
	below []string // ".example.com" for "*.example.com"
}

// NewHosts returns a set that contains localhost, names below it such as app.localhost, all
// loopback addresses, and the names `allowed`. An allowed name is a host name such as
// "registry.example.com", an IP address, "*.example.com" for every name below example.com, or
// "*" for every name. The set ignores ports, since tunnels and containers change them.
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

// Check returns an error with status 421 (RFC 9110, 15.5.20) if the request's host name is not
// in the set. A nil set contains every name. A request without a Host header always passes:
// HTTP/1.0 clients and health checks of proxies send such requests, but browsers don't. A
// request whose host is the IP address to which the connection was made passes too, because DNS
// rebinding works only with names.
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

// isLocalName says whether a Host header is localhost or a name below it. Browsers would apply what
// they are told about it to all other servers of their machine.
func isLocalName(header string) bool {
	name, ok := hostName(header)
	return ok && (name == "localhost" || strings.HasSuffix(name, ".localhost"))
}

// isLocalAddress says whether `name` is the local IP address of the connection on which the
// request arrived.
func isLocalAddress(r *http.Request, name string) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	if !ok {
		return false
	}
	ip, err := netip.ParseAddr(name)
	return err == nil && ip.Unmap().WithZone("") == local.AddrPort().Addr().Unmap().WithZone("")
}

// hostName returns the host name or IP address in a Host header, in canonical form. It returns
// false if the header has none of the forms name, name:port, [address] and [address]:port.
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

// canonicalHost converts a host name to the form in which host names are compared: lower case,
// without the final dot that an absolute name has. It converts an IP address to the format of
// [netip.Addr].
func canonicalHost(name string) string {
	name = strings.TrimSuffix(lowerASCII(name), ".")
	if ip, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(name, "["), "]")); err == nil {
		return ip.Unmap().String()
	}
	return name
}

// lowerASCII converts ASCII letters to lower case. It leaves other letters as they are: the
// lower case of some of them, such as the Kelvin sign, is an ASCII letter, so converting them
// could turn a name that isn't allowed into an allowed one.
func lowerASCII(s string) string {
	return strings.Map(func(c rune) rune {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		return c
	}, s)
}

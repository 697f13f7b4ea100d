package server

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/purser-registry/purser/internal/oci"
)

// passedOn has the headers, besides those that begin with X-Forwarded-, that only proxies and
// the like add to requests that they pass on.
var passedOn = []string{
	"Forwarded", "Via", "X-Real-Ip", "X-Client-Ip", "X-Cluster-Client-Ip", "X-Original-Forwarded-For", "X-Original-Host",
	"True-Client-Ip", "Cf-Connecting-Ip", "Fastly-Client-Ip", "X-Envoy-External-Address", "Front-End-Https",
}

// PassedOn returns how a request shows that it doesn't come from this machine itself, although
// it arrived on loopback: the header that a proxy has added, or the address from which another
// machine connects. It returns "" if nothing shows that.
func PassedOn(r *http.Request) string {
	found := ""
	for name := range r.Header {
		if (strings.HasPrefix(name, "X-Forwarded-") || slices.Contains(passedOn, name)) && (found == "" || name < found) {
			found = name
		}
	}
	if found != "" {
		return "header " + found
	}
	if at, err := netip.ParseAddrPort(r.RemoteAddr); err == nil && !at.Addr().Unmap().IsLoopback() {
		return "address " + at.Addr().String()
	}
	return ""
}

// checkLocal refuses requests that were passed on, if nobody needs to log in for the only reason
// that just this machine reaches the registry.
func (s *Server) checkLocal(r *http.Request) error {
	if !s.opt.LocalOnly {
		return nil
	}
	sign := PassedOn(r)
	if sign == "" {
		return nil
	}
	s.passedOn.Do(func() {
		s.log.WarnContext(r.Context(), "requests that come through a proxy are refused, since nobody needs to log in here: "+
			"set http.external_url and http.trusted_proxies, so that clients log in, or auth.enabled: false, so that everybody may do everything",
			"by", sign, "remote", r.RemoteAddr, "path", Bounded(r.URL.Path))
	})
	return oci.Errorf(oci.Denied, "the request came through a proxy (%s), and nobody needs to log in at this registry, as long as only its own machine reaches it; "+
		"its operator should set http.external_url and http.trusted_proxies, so that clients log in, or auth.enabled: false, so that everybody may do everything", sign)
}

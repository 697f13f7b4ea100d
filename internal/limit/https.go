package limit

import (
	"net/http"
	"strings"
)

// HTTPSHeader returns the name of a header by which a proxy says that the client sent the
// request over https, "" if none says so. It doesn't ask who wrote the header; Encrypted does.
// If proxies on the way say different things, one that says https is enough: what depends on it
// (where the client sends its password) must not be weaker than the client's own connection.
func HTTPSHeader(r *http.Request) string {
	for _, name := range []string{"X-Forwarded-Proto", "X-Forwarded-Scheme", "X-Forwarded-Ssl"} {
		for _, line := range r.Header[name] {
			for value := range strings.SplitSeq(line, ",") {
				value = strings.Trim(value, " \t\"")
				if strings.EqualFold(value, "https") || name == "X-Forwarded-Ssl" && strings.EqualFold(value, "on") {
					return name
				}
			}
		}
	}
	for _, line := range r.Header["Forwarded"] {
		values, _ := splitForwarded(line, "proto")
		for _, value := range values {
			if strings.EqualFold(value, "https") {
				return "Forwarded"
			}
		}
	}
	return ""
}

// Encrypted says whether the client has sent the request over https: to this process, or to a
// trusted proxy that says so, by a header or, before TLS, by its PROXY protocol header.
func (p *Proxies) Encrypted(r *http.Request) bool {
	if r.TLS != nil {
		return true
	}
	if c, ok := r.Context().Value(connKey{}).(*conn); ok && c.proxy != nil && c.proxy.encrypted {
		return true
	}
	return p.trusts(r.RemoteAddr) && HTTPSHeader(r) != ""
}

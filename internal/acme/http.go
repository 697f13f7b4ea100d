package acme

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

const challengePath = "/.well-known/acme-challenge/"

// Handler returns the handler for port 80 of the hosts. It answers http-01 challenges (RFC 8555,
// section 8.3), and redirects other GET and HEAD requests for the hosts to https. `external` is
// the registry's URL, "" if it isn't known: a request for the host of `external` is redirected
// to its port.
func (m *Manager) Handler(external string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if token, ok := strings.CutPrefix(r.URL.Path, challengePath); ok {
			m.serveChallenge(w, r, token)
			return
		}
		host := strings.ToLower(hostOf(r.Host))
		base := "https://" + host
		authority, ok := strings.CutPrefix(external, "https://")
		ok = ok && strings.EqualFold(hostOf(authority), host)
		switch {
		case ok:
			base = external
		case !m.isHost(host):
			http.Error(w, "this registry has no certificate for the host of the request: use a name in http.tls.acme.hosts", http.StatusMisdirectedRequest)
			return
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			http.Error(w, "use https", http.StatusForbidden)
			return
		}
		http.Redirect(w, r, base+r.URL.RequestURI(), http.StatusFound)
	})
}

func (m *Manager) serveChallenge(w http.ResponseWriter, r *http.Request, token string) {
	if len(token) > maxToken || !isToken(token) {
		http.NotFound(w, r)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), challengeTimeout)
	defer cancel()
	text, err := m.challenge(ctx, http01, token)
	switch {
	case err != nil:
		m.o.Log.ErrorContext(ctx, "a challenge of type http-01 can't be answered", "error", err)
		http.Error(w, "the answer can't be read now", http.StatusServiceUnavailable)
	case text == "":
		http.NotFound(w, r)
	default:
		w.Header().Set("Content-Type", "application/octet-stream")
		io.WriteString(w, text) //nolint:errcheck // the client is gone
	}
}

// isToken says whether the text may be a challenge's token: characters of base64url only.
func isToken(text string) bool {
	for i := range len(text) {
		switch c := text[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_':
		default:
			return false
		}
	}
	return text != ""
}

// hostOf returns the host in a Host header or in a URL, without the port and without the final
// dot.
func hostOf(header string) string {
	host, _, err := net.SplitHostPort(header)
	if err != nil {
		host = header
	}
	if ip, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return ip.String()
	}
	return strings.TrimSuffix(host, ".")
}

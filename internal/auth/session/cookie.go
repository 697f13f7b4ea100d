package session

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/purser-registry/purser/internal/oci"
)

// Names of the cookie. Browsers accept a cookie whose name begins with __Host- only if it comes
// over https with the attributes Secure and Path=/ and without Domain. So neither a server of a
// sibling domain nor somebody in the network between can set it.
const (
	secureCookie   = "__Host-purser_session"
	loopbackCookie = "purser_session"
)

type encryptedKey struct{}

// Encrypted returns a context for a request that the browser has sent over https to a proxy,
// which passed it on without.
func Encrypted(ctx context.Context) context.Context {
	return context.WithValue(ctx, encryptedKey{}, true)
}

// Secure says whether the browser has sent the request over https, so that a cookie can have the
// attribute Secure. Over plain http, a browser gets a cookie only if it is on the registry's
// machine (its URL has the host localhost or a loopback address); for other requests Secure
// returns the error DENIED. On loopback, the cookie is also sent to servers on other ports of
// the machine.
func (s *Sessions) Secure(r *http.Request) (bool, error) {
	switch {
	case s.https || r.TLS != nil || r.Context().Value(encryptedKey{}) != nil:
		return true, nil
	case isLoopback(r.Host):
		return false, nil
	}
	return false, oci.Errorf(oci.Denied, "browsers can log in only over https, since everybody on the way could use the log-in: "+
		"open the registry under https://, or, if a proxy receives https for it, set http.external_url to the https:// URL, or let the proxy say so (http.trusted_proxies)")
}

// isLoopback says whether the host of a URL is the browser's own machine.
func isLoopback(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || strings.HasSuffix(host, ".localhost") || err == nil && ip.Unmap().IsLoopback()
}

// SetCookie adds the cookie with a session's secret to an answer. It returns an error and adds no
// cookie if Secure returns an error: call Secure before creating a session.
func (s *Sessions) SetCookie(w http.ResponseWriter, r *http.Request, secret string) error {
	secure, err := s.Secure(r)
	if err != nil {
		return err
	}
	http.SetCookie(w, cookie(secure, secret, int(s.opt.MaxAge/time.Second)))
	return nil
}

// ClearCookie makes the browser delete the cookie.
func (s *Sessions) ClearCookie(w http.ResponseWriter, r *http.Request) {
	if secure, err := s.Secure(r); err == nil {
		http.SetCookie(w, cookie(secure, "", -1))
	}
}

func cookie(secure bool, value string, maxAge int) *http.Cookie {
	name := loopbackCookie
	if secure {
		name = secureCookie
	}
	return &http.Cookie{
		Name: name, Value: value, Path: "/", MaxAge: maxAge,
		Secure: secure, HttpOnly: true, SameSite: http.SameSiteLaxMode,
	}
}

// Secret returns the secret in a request's cookie, or "" if there is none. It ignores a cookie
// that came over plain http from beyond loopback, and over https a cookie without the prefix
// __Host-, which another server may have set.
func (s *Sessions) Secret(r *http.Request) string {
	secure, err := s.Secure(r)
	if err != nil {
		return ""
	}
	c, err := r.Cookie(cookie(secure, "", 0).Name)
	if err != nil {
		return ""
	}
	return c.Value
}

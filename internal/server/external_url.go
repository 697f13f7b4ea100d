package server

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

// external is the URL under which clients reach the registry, scheme and host alone.
type external struct {
	url  string // without a trailing slash
	host string // as in a Host header: lower case, without the scheme's default port
}

// parseExternal parses Options.ExternalURL. It returns nil for "".
func parseExternal(text string) (*external, error) {
	if text == "" {
		return nil, nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Path != "" {
		return nil, fmt.Errorf("server: the external URL %q isn't scheme and host", text)
	}
	return &external{url: text, host: plainHost(u.Scheme, u.Host)}, nil
}

// plainHost returns the host in lower case, without the port if it is the scheme's
// default.
func plainHost(scheme, host string) string {
	host = lowerASCII(host)
	switch scheme {
	case "https":
		host = strings.TrimSuffix(host, ":443")
	case "http":
		host = strings.TrimSuffix(host, ":80")
	}
	return host
}

// base returns the prefix of the URLs in an answer. It is the external URL if the
// request came under the external URL's host, or through a trusted proxy that replaced
// the Host header by Purser's own address. It is "" if the client used another name,
// for example on this machine or inside a cluster: a client resolves a relative URL
// against the one that it used, and so keeps using that name.
func (e *external) base(r *http.Request, proxied bool) string {
	if e == nil {
		return ""
	}
	scheme, _, _ := strings.Cut(e.url, "://")
	if plainHost(scheme, r.Host) == e.host {
		return e.url
	}
	if name, ok := hostName(r.Host); ok && proxied && isLocalAddress(r, name) {
		return e.url
	}
	return ""
}

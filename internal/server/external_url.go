package server

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

// external is the URL under which clients reach the registry. The URL has a scheme and a host,
// and no path.
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

// plainHost returns the host in lower case. If the host has a port, and the port is the
// scheme's default port, plainHost removes it.
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

// base returns the prefix of the URLs in an answer. It is the external URL if the request's
// Host header names the external URL's host, or if the request came through a trusted proxy
// (`proxied`) that has replaced the Host header by Purser's own address. Otherwise base is "",
// so that the answer has relative URLs: a client that used another name, for example inside a
// cluster, keeps using that name.
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

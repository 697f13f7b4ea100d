package server

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

// external is the URL under which clients reach the registry, scheme and host alone.
type external struct {
	url  string // without a slash at its end
	host string // as a client's Host has it: in lower case, without the scheme's own port
}

// parseExternal reads Options.ExternalURL; "" is nil.
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

// plainHost is a host, with its port where that isn't the scheme's own.
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

// base is what the URLs in an answer begin with: the external URL where the request came
// under its name, or through a trusted proxy that has put Purser's own address in its
// place. It is "" for whoever uses another name, on this machine or in a cluster: a
// client resolves a path against the URL that it has used, and so stays where it is.
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

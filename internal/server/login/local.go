package login

import (
	"net/url"
	"strings"
)

// maxPath is how long the path may be to which a browser goes after a log-in, in bytes.
const maxPath = 2048

// localPath returns `next` if it is a path of this registry, with or without a query, else
// `otherwise`. A browser must never be sent to another site by a link to this one. Browsers take
// \ for /, drop tabs and line breaks, and take // for the beginning of a host name; some proxies
// decode a path before they pass it on. Therefore none of these is allowed, encoded or not.
func localPath(next, otherwise string) string {
	if !strings.HasPrefix(next, "/") || len(next) > maxPath || strings.ContainsFunc(next, func(c rune) bool { return c <= ' ' || c >= 0x7f || c == '\\' }) {
		return otherwise
	}
	u, err := url.Parse(next)
	if err != nil || u.Scheme != "" || u.Host != "" || u.User != nil || u.Opaque != "" || u.Fragment != "" {
		return otherwise
	}
	// The path may be encoded several times.
	for path := u.Path; ; {
		if strings.Contains(path, "//") || strings.ContainsFunc(path, func(c rune) bool { return c <= ' ' || c == 0x7f || c == '\\' }) {
			return otherwise
		}
		decoded, err := url.PathUnescape(path)
		if err != nil || decoded == path {
			return next
		}
		path = decoded
	}
}

package config

import (
	"fmt"
	"io"
	"net/url"
	"strings"
)

const (
	hidden = "(hidden)"
	spaces = " \t\r\n\v\f" // separate the pairs in a DSN
)

// Secret is a text that must not be printed. Each way to format or encode it gives
// "(hidden)"; only the conversion string(s) returns the text itself.
type Secret string

// String returns "(hidden)", or "" if the value is empty.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return hidden
}

// Format hides the value, whichever verb of package fmt is used, even a wrong one.
func (s Secret) Format(f fmt.State, _ rune) { writeState(f, s.String()) }

// MarshalText hides the value from encoders.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// DSN is the address of a PostgreSQL server, as a URL or as key=value pairs. Each way to
// format or encode it hides the passwords; only the conversion string(d) returns the whole
// text.
type DSN string

// String returns the DSN with its passwords hidden. If the DSN can't be parsed, all of it
// is hidden.
func (d DSN) String() string {
	if d == "" {
		return ""
	}
	if scheme, rest, ok := strings.Cut(string(d), "://"); ok && !strings.ContainsAny(scheme, "= '") {
		return maskURL(scheme, rest)
	}
	return maskPairs(string(d))
}

// Format hides the passwords, whichever verb of package fmt is used, even a wrong one.
func (d DSN) Format(f fmt.State, _ rune) { writeState(f, d.String()) }

// MarshalText hides the passwords from encoders.
func (d DSN) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

func writeState(f fmt.State, text string) {
	// Writing to a fmt.State can't fail.
	_, _ = io.WriteString(f, text)
}

// maskURL returns the URL `scheme`://`rest` with its passwords hidden. It searches the text
// instead of using net/url: if a password has unescaped characters, net/url may take
// another part of the URL for the password, or fail to parse the URL.
func maskURL(scheme, rest string) string {
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	at := strings.LastIndexByte(rest[:end], '@')
	path, query, hasQuery := strings.Cut(rest[end:], "?")
	if strings.Contains(rest[end:], "@") {
		return scheme + "://" + hidden // probably an unescaped password
	}
	user, host := "", rest[:end]
	if at >= 0 {
		name, _, hasPassword := strings.Cut(rest[:at], ":")
		user, host = name+"@", rest[at+1:end]
		if hasPassword {
			user = name + ":" + hidden + "@"
		}
	} else if _, port, ok := strings.Cut(host, ":"); ok && strings.Trim(port, "0123456789.,:[]") != "" {
		return scheme + "://" + hidden // user:password without a host
	}
	masked := scheme + "://" + user + host + path
	if hasQuery {
		masked += "?" + maskQuery(query)
	}
	return masked
}

// maskQuery returns the query of a URL with those values hidden that may be passwords.
func maskQuery(query string) string {
	pairs := strings.Split(query, "&")
	for i, pair := range pairs {
		key, value, _ := strings.Cut(pair, "=")
		name, err := url.QueryUnescape(key)
		// A second "=" in the pair means that an unknown separator joins two parameters,
		// so the value may contain a password.
		if err != nil || isSecretKey(name) || strings.Contains(value, "=") {
			pairs[i] = key + "=" + hidden
		}
	}
	return strings.Join(pairs, "&")
}

// isSecretKey says whether the value of the connection parameter `name` must be hidden, as
// for password or sslpassword. The value of passfile is only a path and isn't hidden.
func isSecretKey(name string) bool {
	name = strings.ToLower(name)
	return name != "passfile" && (strings.Contains(name, "pass") || strings.Contains(name, "secret") || strings.Contains(name, "token"))
}

// maskPairs returns a DSN of the form "key=value key='quoted value'" with its passwords
// hidden. It returns "(hidden)" if the text doesn't have that form.
func maskPairs(text string) string {
	var out []string
	for rest := strings.TrimSpace(text); rest != ""; rest = strings.TrimSpace(rest) {
		key, after, found := strings.Cut(rest, "=")
		key = strings.TrimSpace(key)
		if !found || key == "" || strings.ContainsAny(key, spaces+"'\"\\@:/") {
			return hidden
		}
		after = strings.TrimLeft(after, spaces)
		end, ok := pairEnd(after)
		if !ok {
			return hidden
		}
		value := after[:end]
		// PostgreSQL's parser reads past the space after an empty value, and takes the next
		// pair as the value: in "host= password=x" the host is "password=x".
		if isSecretKey(key) || strings.Contains(value, "=") {
			value = hidden
		}
		out = append(out, key+"="+value)
		rest = after[end:]
	}
	return strings.Join(out, " ")
}

// pairEnd returns the index in `s` after the value with which s begins. It returns false if
// that value begins with a quote that isn't closed.
func pairEnd(s string) (int, bool) {
	quoted := strings.HasPrefix(s, "'")
	start := 0
	if quoted {
		start = 1
	}
	for i := start; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\\':
			i++
		case quoted && c == '\'':
			return i + 1, true
		case !quoted && strings.IndexByte(spaces, c) >= 0:
			return i, true
		}
	}
	return len(s), !quoted
}

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

// Secret is a value that is never printed: all ways of formatting it print "(hidden)".
// string(s) is the value itself.
type Secret string

// String returns "(hidden)", or "" if the value is empty.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return hidden
}

// Format hides the value for all verbs of package fmt, wrong ones included.
func (s Secret) Format(f fmt.State, _ rune) { writeState(f, s.String()) }

// MarshalText hides the value from encoders.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// DSN is the address of a PostgreSQL server, as a URL or as key=value pairs. All ways
// of formatting it hide its passwords. string(d) is the value itself.
type DSN string

// String returns the DSN with its passwords hidden. A DSN that can't be parsed is
// hidden completely.
func (d DSN) String() string {
	if d == "" {
		return ""
	}
	if scheme, rest, ok := strings.Cut(string(d), "://"); ok && !strings.ContainsAny(scheme, "= '") {
		return maskURL(scheme, rest)
	}
	return maskPairs(string(d))
}

// Format hides the passwords for all verbs of package fmt, wrong ones included.
func (d DSN) Format(f fmt.State, _ rune) { writeState(f, d.String()) }

// MarshalText hides the passwords from encoders.
func (d DSN) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

func writeState(f fmt.State, text string) {
	// Writing to a fmt.State can't fail.
	_, _ = io.WriteString(f, text)
}

// maskURL hides the passwords in scheme://rest. It works on the text rather than with
// net/url, because an unescaped password can make net/url parse the URL differently, or
// not at all.
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

// maskQuery hides the values of a URL's query that may be passwords.
func maskQuery(query string) string {
	pairs := strings.Split(query, "&")
	for i, pair := range pairs {
		key, value, _ := strings.Cut(pair, "=")
		name, err := url.QueryUnescape(key)
		// A second "=" means that a parameter follows an unknown separator, so the
		// value may contain a password.
		if err != nil || isSecretKey(name) || strings.Contains(value, "=") {
			pairs[i] = key + "=" + hidden
		}
	}
	return strings.Join(pairs, "&")
}

// isSecretKey says whether the value of a connection parameter must be hidden:
// password, sslpassword and similar names. passfile is only a path.
func isSecretKey(name string) bool {
	name = strings.ToLower(name)
	return name != "passfile" && (strings.Contains(name, "pass") || strings.Contains(name, "secret") || strings.Contains(name, "token"))
}

// maskPairs hides the passwords in "key=value key='quoted value'".
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
		// An empty value swallows the next pair: "host= password=x".
		if isSecretKey(key) || strings.Contains(value, "=") {
			value = hidden
		}
		out = append(out, key+"="+value)
		rest = after[end:]
	}
	return strings.Join(out, " ")
}

// pairEnd returns where the value at the start of s ends. It returns false if the
// value's quote isn't closed.
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

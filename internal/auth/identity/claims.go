package identity

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"unicode"
)

// maxAnswer is the size up to which answers of providers and issuers are read, in bytes.
const maxAnswer = 1 << 20

// decode reads a JSON object. Numbers keep the text that the issuer wrote.
func decode(data []byte) (map[string]any, error) {
	var claims map[string]any
	d := json.NewDecoder(strings.NewReader(string(data)))
	d.UseNumber()
	if err := d.Decode(&claims); err != nil {
		return nil, err
	}
	return claims, nil
}

// lookup finds a claim. A name "a.b" is the claim "a.b" if there is one, else the member "b" of
// the object in claim "a"; names of claims and of members may contain dots. A claim that is null
// counts as missing.
func lookup(claims map[string]any, name string) (value any, ok bool) {
	if value := claims[name]; value != nil {
		return value, true
	}
	for i, c := range name {
		if c != '.' {
			continue
		}
		if object, isObject := claims[name[:i]].(map[string]any); isObject {
			if value, ok := lookup(object, name[i+1:]); ok {
				return value, true
			}
		}
	}
	return nil, false
}

// text returns a string, number or boolean as text. ok is false for lists, objects and null.
func text(value any) (s string, ok bool) {
	switch v := value.(type) {
	case string:
		return v, true
	case json.Number:
		return v.String(), true
	case bool:
		return strconv.FormatBool(v), true
	}
	return "", false
}

// texts returns the elements of a list as text, or the one text that value is.
func texts(value any) ([]string, error) {
	list, isList := value.([]any)
	if !isList {
		list = []any{value}
	}
	all := make([]string, 0, len(list))
	for _, element := range list {
		s, ok := text(element)
		if !ok {
			return nil, errors.New("it is neither a text nor a list of texts")
		}
		all = append(all, s)
	}
	return all, nil
}

// excerpt returns a text of a client or of a provider such that an error may contain it: its
// first 200 bytes or less, quoted.
func excerpt(s string) string {
	const most = 200
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return strconv.Quote(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s))
}

// brief returns an error with the text of err, shortened, for errors that repeat a provider's
// answer.
func brief(err error) error { return &briefError{err} }

type briefError struct{ err error }

func (b *briefError) Error() string { return excerpt(b.err.Error()) }
func (b *briefError) Unwrap() error { return b.err }

// boundedTransport makes the reading of an answer fail after maxAnswer bytes.
type boundedTransport struct{ base http.RoundTripper }

func (b boundedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.base.RoundTrip(r)
	if err == nil {
		resp.Body = &boundedBody{resp.Body, maxAnswer}
	}
	return resp, err
}

type boundedBody struct {
	io.ReadCloser
	left int64
}

func (b *boundedBody) Read(p []byte) (int, error) {
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.ReadCloser.Read(p)
	b.left -= int64(n)
	if b.left < 0 {
		return 0, fmt.Errorf("the answer has more than %d bytes", maxAnswer)
	}
	return n, err
}

// refuseRedirects is a CheckRedirect. A redirect could lead requests, with the secrets in them,
// to a server that nobody named.
func refuseRedirects(r *http.Request, _ []*http.Request) error {
	return fmt.Errorf("it redirects to %s, and redirects aren't followed", r.URL.Host)
}

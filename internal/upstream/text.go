package upstream

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// maxText is how many bytes of what a registry says are shown.
const maxText = 500

// Printable returns what a registry says, bounded, and without characters that would do something
// to a terminal or a log instead of being shown: control characters, line ends, and those that
// change the direction of text.
func Printable(text string) string {
	cut := len(text) > maxText
	if cut {
		end := maxText
		for end > 0 && !utf8.RuneStart(text[end]) {
			end--
		}
		text = text[:end]
	}
	text = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || unicode.In(r, unicode.C, unicode.Zl, unicode.Zp) {
			return '�'
		}
		return r
	}, text)
	if cut {
		text += "…"
	}
	return text
}

// Error says what went wrong with a registry. Its text is printable.
type Error struct {
	Status int    // of the registry's answer; 0: there was none
	Code   string // the first of the answer's error codes, such as NAME_UNKNOWN, as the registry wrote it
	text   string
	err    error
}

func (e *Error) Error() string { return e.text }

func (e *Error) Unwrap() error { return e.err }

// Missing says whether err means that the registry doesn't have what was asked for.
func Missing(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Status == http.StatusNotFound
}

// NameUnknown says whether err means that the registry doesn't know the repository. Distribution
// answers so for a repository without tags too, which its catalog may list.
func NameUnknown(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Status == http.StatusNotFound && e.Code == "NAME_UNKNOWN"
}

// failed returns an Error about what was done.
func failed(doing string, err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return &Error{Status: e.Status, Code: e.Code, text: doing + ": " + e.text, err: err}
	}
	e := &Error{err: err}
	said := err.Error()
	if answered, ok := errors.AsType[*transport.Error](err); ok {
		e.Status = answered.StatusCode
	} else if sent, ok := errors.AsType[*url.Error](err); ok && said == sent.Error() {
		// Its text has the URL, which may have been signed for one request.
		said = sent.Err.Error()
		if u, parseErr := url.Parse(sent.URL); parseErr == nil {
			said = shortURL(u) + ": " + said
		}
	}
	e.text = doing + ": " + Printable(said)
	return e
}

// refused returns the Error for an answer with a wrong status. It closes the answer.
func refused(doing string, res *http.Response) *Error {
	defer res.Body.Close()          //nolint:errcheck // only read
	text, _ := io.ReadAll(res.Body) //nolint:errcheck // what has come says enough
	var answer struct {
		Errors []struct{ Code, Message string }
	}
	said, code := strings.TrimSpace(string(text)), ""
	if json.Unmarshal(text, &answer) == nil && len(answer.Errors) > 0 {
		code = answer.Errors[0].Code
		said = strings.TrimSpace(code + " " + answer.Errors[0].Message)
	}
	status := fmt.Sprintf("%d %s", res.StatusCode, http.StatusText(res.StatusCode))
	if said = Printable(said); said != "" {
		status += ": " + said
	}
	return &Error{Status: res.StatusCode, Code: code, text: doing + ": " + status}
}

// shortURL returns a URL without what may be secret in it, printable.
func shortURL(u *url.URL) string {
	return Printable((&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String())
}

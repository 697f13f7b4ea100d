package webhook

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/purser-registry/purser/internal/netguard"
)

const (
	maxAnswer  = 64 << 10 // bytes of an answer that are read
	maxExcerpt = 300      // bytes of an answer that are kept
	maxError   = 1 << 10  // bytes of last_error
)

// target is a receiver to which notices are sent. Its methods may be called concurrently.
type target struct {
	url    *url.URL
	sign   func(id string, at time.Time, body string) string // nil: notices aren't signed
	scrub  func(string) string                               // removes the secret parts of the URL from a text
	client *http.Client
	// discreet says that whoever set the URL may not learn about the registry's network. The
	// text that they see is then the same for a name that doesn't exist as for one whose
	// address isn't public. The log has the reason.
	discreet bool
}

// newTarget checks a URL and a secret, and returns a target with them. Its errors repeat
// neither the URL nor the secret.
func newTarget(address, secret string, allowPrivate bool) (r target, err error) {
	var problems []error
	if address != "" {
		u, err := parseURL(address, allowPrivate)
		if err != nil {
			problems = append(problems, fmt.Errorf("webhook: the URL: %w", err))
		} else {
			r.url, r.scrub = u, scrubber(u)
		}
	}
	sign, err := signer(secret)
	if err != nil {
		problems = append(problems, fmt.Errorf("webhook: the secret: %w", err))
	}
	r.sign = sign
	return r, errors.Join(problems...)
}

// newClient makes an HTTP client. It keeps up to Options.Parallel idle connections to each
// receiver. Unless allowPrivate is set, it refuses to connect to addresses that aren't
// public.
func newClient(o Options, allowPrivate bool) *http.Client {
	dialer := &net.Dialer{Timeout: o.Timeout}
	if !allowPrivate {
		dialer.ControlContext = guard.Control
	}
	return &http.Client{
		Transport: &http.Transport{
			Proxy:                  nil, // a proxy would dial instead of this process
			DialContext:            dialer.DialContext,
			ForceAttemptHTTP2:      true,
			TLSHandshakeTimeout:    o.Timeout,
			ResponseHeaderTimeout:  o.Timeout,
			MaxResponseHeaderBytes: maxAnswer,
			DisableCompression:     true,
			MaxIdleConnsPerHost:    o.Parallel,
			IdleConnTimeout:        30 * time.Second,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// failure says why an attempt failed.
type failure struct {
	text    string        // for the log
	told    string        // for whoever set the URL; "": text
	excerpt string        // of the answer's body
	gone    bool          // 410: the receiver wants no more notices
	after   time.Duration // the least pause, from Retry-After
}

func (f *failure) Error() string { return f.text }

// detail returns a description of the failure, which is stored as the notice's last_error.
func (f *failure) detail() string {
	text := cmp.Or(f.told, f.text)
	if f.excerpt != "" {
		text += ": " + f.excerpt
	}
	return cut(text, maxError)
}

// attempt sends a notice once, within timeout. It returns nil if the receiver answered
// with a status 2xx, else a description of the failure.
func (r *target) attempt(ctx context.Context, d delivery, timeout time.Duration) *failure {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := r.request(ctx, d, time.Now())
	if err != nil {
		return r.failed(err, timeout)
	}
	resp, err := r.client.Do(req)
	if err != nil {
		return r.failed(err, timeout)
	}
	defer resp.Body.Close()
	// The status of the answer alone decides the outcome, so an error while reading its
	// body is ignored.
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if resp.StatusCode/100 == 2 {
		return nil
	}
	f := &failure{
		text:    "the receiver answered " + answer(resp.StatusCode),
		excerpt: cut(clean(r.scrub(string(body))), maxExcerpt),
		gone:    resp.StatusCode == http.StatusGone,
		after:   retryAfter(resp.Header.Get("Retry-After"), time.Now()),
	}
	if resp.StatusCode/100 == 3 {
		f.text += "; redirects aren't followed, set the URL to where it points"
	}
	return f
}

// answer describes the status of a receiver's answer, with Go's standard text and not with
// the text that the receiver sent.
func answer(status int) string {
	return strings.TrimSpace(strconv.Itoa(status) + " " + http.StatusText(status))
}

func (r *target) request(ctx context.Context, d delivery, now time.Time) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url.String(), strings.NewReader(d.Body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "purser-webhook")
	req.Header.Set(headerID, d.ID.String())
	req.Header.Set(headerTimestamp, strconv.FormatInt(now.Unix(), 10))
	if r.sign != nil {
		req.Header.Set(headerSignature, r.sign(d.ID.String(), now, d.Body))
	}
	return req, nil
}

// failed returns the failure for an error of the HTTP client, without the URL that a
// url.Error contains.
func (r *target) failed(err error, timeout time.Duration) *failure {
	if e, ok := errors.AsType[*url.Error](err); ok {
		if err = e.Err; e.Timeout() {
			err = fmt.Errorf("it took longer than %v: %w", timeout, err)
		}
	}
	f := &failure{text: cut(clean(r.scrub(err.Error())), maxError)}
	_, unknown := errors.AsType[*net.DNSError](err)
	_, refused := errors.AsType[*netguard.RefusedError](err)
	if r.discreet && (unknown || refused) {
		f.told = "the URL's host has no address, or its address is not public; " + guard.Hint
	}
	return f
}

// retryAfter returns the pause that the value of a Retry-After header asks for, in seconds
// or as a date; 0 if the value is neither.
func retryAfter(value string, now time.Time) time.Duration {
	if n, err := strconv.ParseUint(value, 10, 32); err == nil {
		return min(time.Duration(n)*time.Second, maxRetry)
	}
	if at, err := http.ParseTime(value); err == nil {
		return min(max(at.Sub(now), 0), maxRetry)
	}
	return 0
}

// scrubber returns a function that hides, in a text, those parts of the URL u that may be
// secret. It is needed because receivers often repeat the URL in their answers, which are
// stored and logged. Not only the query but also the path may contain a password.
func scrubber(u *url.URL) func(string) string {
	parts := []string{u.String(), u.RequestURI(), u.RawQuery, u.EscapedPath(), u.Path}
	for key, values := range u.Query() {
		for _, v := range values {
			parts = append(parts, v, url.QueryEscape(v))
		}
		parts = append(parts, key)
	}
	parts = append(parts, strings.Split(u.EscapedPath(), "/")...)
	parts = append(parts, strings.Split(u.Path, "/")...)
	var pairs []string
	for _, p := range parts {
		// Parts of less than 6 bytes are no secrets, and replacing them would hide much of
		// any text.
		if len(p) >= 6 {
			pairs = append(pairs, p, "(hidden)")
		}
	}
	return strings.NewReplacer(pairs...).Replace
}

// clean returns the text as one line, without characters that PostgreSQL refuses or that
// can't be printed.
func clean(text string) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(text, " "))
	return strings.Join(strings.Fields(text), " ")
}

// cut shortens text to at most n bytes, without dividing a character.
func cut(text string, n int) string {
	if len(text) <= n {
		return text
	}
	n -= len("…")
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n] + "…"
}

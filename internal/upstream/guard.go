package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
)

const (
	maxURL        = 16 << 10  // bytes of a URL that is requested
	maxHeaders    = 256 << 10 // bytes of an answer's headers
	maxAnswer     = 1 << 20   // bytes of an answer without a limit of its own, such as a token
	maxFailure    = 64 << 10  // bytes of an answer that says what is wrong
	maxChallenge  = 4 << 10   // bytes of an answer's challenges (WWW-Authenticate)
	maxChallenges = 8         // different ones with a scope that one log-in may meet
)

// errNotPlain refuses a request to the registry.
var errNotPlain = errors.New("plain http is spoken to it only with --source-plain-http")

// guard is the transport under all requests to a registry, those of its log-in included. It
// decides who may be connected to and who gets credentials, bounds answers, and tries again what
// fails for a moment.
type guard struct {
	limit   Limits
	source  name.Registry
	plain   bool // the source may be spoken to by plain http
	trusted []string
	tell    func(host string)
	proxy   func(*http.Request) (*url.URL, error)
	reach   *reach
	pauses  []time.Duration // before another try

	own, others, free *http.Transport // to the source, to other hosts, to trusted hosts and by a proxy

	mu   sync.Mutex
	told map[string]bool // hosts of which tell was told
}

func newGuard(o Options, limit Limits, source name.Registry) *guard {
	g := &guard{
		limit: limit, source: source, plain: o.PlainHTTP, trusted: o.Trusted, tell: o.CredentialsTo, proxy: o.Proxy,
		reach:  newReach(o.Resolver),
		pauses: []time.Duration{time.Second, 3 * time.Second},
		told:   make(map[string]bool),
	}
	transport := func(dial func(ctx context.Context, network, addr string) (net.Conn, error)) *http.Transport {
		return &http.Transport{
			DialContext: dial, TLSClientConfig: o.TLS, ForceAttemptHTTP2: true,
			TLSHandshakeTimeout: min(10*time.Second, limit.Silence), ResponseHeaderTimeout: limit.Silence,
			MaxResponseHeaderBytes: maxHeaders, MaxIdleConns: 100, MaxIdleConnsPerHost: 50, IdleConnTimeout: 90 * time.Second,
			DisableCompression: true, // it would decompress without a limit
		}
	}
	g.own, g.others, g.free = transport(g.reach.dialSource), transport(g.reach.dialOther), transport(g.reach.dialFree)
	g.free.Proxy = o.Proxy
	return g
}

func (g *guard) close() {
	for _, t := range []*http.Transport{g.own, g.others, g.free} {
		t.CloseIdleConnections()
	}
}

// RoundTrip implements http.RoundTripper.
func (g *guard) RoundTrip(req *http.Request) (*http.Response, error) {
	by, err := g.route(req)
	if err != nil {
		if req.Body != nil {
			req.Body.Close() //nolint:errcheck // it isn't sent
		}
		return nil, err
	}
	for try := 0; ; try++ {
		res, err := g.send(by, req)
		if try == len(g.pauses) || !again(req, res, err) {
			return res, err
		}
		pause := g.pauses[try] + rand.N(g.pauses[try]/10+1)
		if res != nil {
			res.Body.Close() //nolint:errcheck // of no interest
		}
		select {
		case <-time.After(pause):
		case <-req.Context().Done():
			return nil, context.Cause(req.Context())
		}
	}
}

// route returns the transport for a request, or an error if it may not be sent.
func (g *guard) route(req *http.Request) (http.RoundTripper, error) {
	u := req.URL
	if u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("%s isn't an address of http or https", shortURL(u))
	}
	if len(u.String()) > maxURL {
		return nil, fmt.Errorf("the address %s has more than %d bytes", shortURL(u), maxURL)
	}
	proxied := false
	if g.proxy != nil {
		p, err := g.proxy(req)
		if err != nil {
			return nil, err
		}
		proxied = p != nil
	}
	trusted := g.isTrusted(u)
	if g.isHost(u) {
		if !g.isSource(u) {
			return nil, errNotPlain
		}
		if proxied {
			g.reach.lookupSource(req.Context(), u.Hostname())
			return g.free, nil
		}
		return g.own, nil
	}
	if req.Header.Get("Authorization") != "" || req.Method == http.MethodPost {
		if u.Scheme != "https" && !trusted {
			return nil, fmt.Errorf("%s wants its credentials sent to %s, which isn't encrypted%s", g.source.Name(), shortURL(u), hint(u))
		}
		g.credentialsTo(u.Host)
	}
	switch {
	case trusted:
		return g.free, nil
	case proxied:
		return g.free, g.reach.lookupOther(req.Context(), u.Hostname())
	}
	return g.others, nil
}

// hint ends errors about a host that isn't trusted.
func hint(u *url.URL) string {
	return fmt.Sprintf("; if that is right, name %s as a trusted host (--trust-host)", Printable(u.Host))
}

// isSource says whether a URL is of the registry itself, with a scheme by which it may be spoken to.
func (g *guard) isSource(u *url.URL) bool { return (u.Scheme == "https" || g.plain) && g.isHost(u) }

func (g *guard) isHost(u *url.URL) bool {
	return hostPort(u.Host, u.Scheme) == hostPort(g.source.RegistryStr(), u.Scheme)
}

func (g *guard) isTrusted(u *url.URL) bool {
	return slices.ContainsFunc(g.trusted, func(t string) bool {
		return strings.EqualFold(t, u.Hostname()) || strings.EqualFold(t, u.Host) || strings.EqualFold(t, hostPort(u.Host, u.Scheme))
	})
}

// hostPort adds the scheme's port to a host without one.
func hostPort(host, scheme string) string {
	u := url.URL{Host: host}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[scheme]
	}
	return net.JoinHostPort(strings.ToLower(u.Hostname()), port)
}

// credentialsTo tells of a host that gets credentials, once.
func (g *guard) credentialsTo(host string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.told[host] && g.tell != nil {
		g.tell(Printable(host))
	}
	g.told[host] = true
}

// send sends a request once, and bounds its answer.
func (g *guard) send(by http.RoundTripper, req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	sent := req.Clone(ctx)
	sent.Header.Set("Accept-Encoding", "identity")
	res, err := by.RoundTrip(sent)
	if err != nil {
		cancel(nil)
		switch {
		case strings.Contains(err.Error(), "timeout awaiting response headers"):
			err = fmt.Errorf("nothing came from %s for %s", shortURL(req.URL), g.limit.Silence)
		case !g.plain && g.isSource(req.URL) && withoutTLS(err):
			err = fmt.Errorf("%w; with --source-plain-http, plain http is spoken to the source", err)
		}
		return nil, err
	}
	if n := len(strings.Join(res.Header.Values("WWW-Authenticate"), "")); n > maxChallenge {
		cancel(nil)
		res.Body.Close() //nolint:errcheck // of no interest
		return nil, fmt.Errorf("%s asks for a log-in with %d bytes, and at most %d are taken", shortURL(req.URL), n, maxChallenge)
	}
	limit := answerOf(ctx)
	if res.StatusCode >= 300 && limit.bytes > maxFailure {
		limit = answer{what: "the answer", bytes: maxFailure}
	}
	res.Body = newBody(ctx, cancel, res.Body, limit, g.limit)
	return res, nil
}

// withoutTLS says whether a request by https failed as it does at a host that speaks plain http alone.
func withoutTLS(err error) bool {
	_, other := errors.AsType[tls.RecordHeaderError](err)
	return other || errors.Is(err, syscall.ECONNREFUSED)
}

// challenges is the transport of one log-in. go-containerregistry adds each new scope of a challenge to
// those that it asks for, for as long as the log-in is used, so a registry may name only a few.
type challenges struct {
	inner http.RoundTripper

	mu   sync.Mutex
	seen map[string]bool // headers that may have a scope
}

// RoundTrip implements http.RoundTripper.
func (c *challenges) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := c.inner.RoundTrip(req)
	if err == nil && res.StatusCode == http.StatusUnauthorized && !c.take(res.Header.Values("WWW-Authenticate")) {
		res.Body.Close() //nolint:errcheck // of no interest
		return nil, fmt.Errorf("%s asks for another log-in again and again", shortURL(req.URL))
	}
	return res, err
}

// take remembers challenges. It returns false if there are too many different ones.
func (c *challenges) take(headers []string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range headers {
		if c.seen[h] || !strings.Contains(strings.ToLower(h), "scope") {
			continue
		}
		if len(c.seen) == maxChallenges {
			return false
		}
		c.seen[h] = true
	}
	return true
}

// again says whether a request that had this result is to be sent again.
func again(req *http.Request, res *http.Response, err error) bool {
	if req.Method != http.MethodGet && req.Method != http.MethodHead || req.Context().Err() != nil {
		return false
	}
	if err != nil {
		return slices.ContainsFunc([]error{io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE, net.ErrClosed},
			func(of error) bool { return errors.Is(err, of) })
	}
	switch res.StatusCode {
	case http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusBadGateway,
		http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

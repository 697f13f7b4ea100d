// Package server has the parts that all HTTP interfaces of the registry share: the mux, request
// ids, access log, metrics, traces, errors, limits of requests, and the permissions that routes
// need. The interfaces are packages in subdirectories: distribution is the OCI API under /v2/,
// and management is the API for operators under /api/v1/.
//
// Rules of the package:
//
//   - A handler returns an error instead of writing it. The server sends an oci.Error to the
//     client as it is. It logs any other error, and tells the client only the kind of failure.
//   - A web page can't misuse its visitor's browser: before routing, the server refuses
//     requests whose host name isn't the registry's, and requests that change something and
//     come from pages of other sites.
//   - A registry without log-ins that only its own machine reaches refuses requests that were
//     passed on from elsewhere.
//   - Each route names the access that a client needs. The server denies requests to a route
//     that names no access.
//   - The memory for the bodies and answers of all requests counts in one budget. Each request
//     counts in the limits of its client and, if the client is logged in, of its account.
package server

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/boundedcache"
	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/oci"
)

// Options configure a Server.
type Options struct {
	Log *slog.Logger // default slog.Default()
	// AccessLog logs each request at level info.
	AccessLog bool
	Metrics   prometheus.Registerer // nil: none
	// BodyIdleTimeout is the time after which a request ends if its client sends nothing more
	// of the body. Default 60 s.
	BodyIdleTimeout time.Duration
	// MaxRequest limits the duration of any request. Default 2 h.
	MaxRequest time.Duration
	// Proxies are the trusted proxies. For a request that comes from one of them, a header that
	// the proxy wrote names the client. Nil: no proxy is trusted.
	Proxies *limit.Proxies
	// Limits bound the resources that clients may use.
	Limits Limits
	// Tracing makes a span for each request.
	Tracing bool
	// Hosts are the host names under which the server answers requests. Nil: it answers under
	// all names.
	Hosts *Hosts
	// Origins are sites, such as "https://registry.example.com". A browser's request that
	// changes something is accepted if it comes from a web page of one of these sites, or from
	// a page of the host to which it is sent. Other sites' pages may not send such requests.
	Origins []string
	// ExternalURL is the scheme and host under which clients reach the registry. URLs in the
	// answer to a request begin with ExternalURL if the request was sent to that host, or came
	// through a trusted proxy that has replaced the Host header by Purser's own address.
	// Otherwise, or if ExternalURL is "", URLs in answers are relative.
	ExternalURL string
	// Auth is the access control. Nil: everybody may do everything.
	Auth *auth.Control
	// LocalOnly says that there is no access control because only this machine reaches the
	// registry. Requests that were passed on from elsewhere are refused then (PassedOn).
	LocalOnly bool
	// Authorize decides about accesses instead of Auth, for tests. Its error is sent to the
	// client.
	Authorize func(ctx context.Context, a auth.Access, resource auth.Resource) error
}

// Mount is one of the interfaces that a Server serves.
type Mount struct {
	Prefix  string // of its paths, such as "/api/"
	Exact   bool   // Prefix is its only path
	Handler http.Handler
	// MarshalError encodes an error for a client of this interface.
	MarshalError func(*oci.Error) []byte
	// Header has header fields that every answer of this interface gets, error answers
	// included.
	Header http.Header
	// ReadsAreLogged says that GET and HEAD requests to this interface may write to the audit
	// log. Therefore the context of these requests must contain the audit source: the client
	// that audit entries name.
	ReadsAreLogged bool
	// Browsers says that browsers open this interface, or that clients log in by it. Its answers
	// over https then say that the host is to be reached over https only (strictTransport).
	Browsers bool
	// Tokens says that clients may send registry tokens to this interface.
	Tokens bool
	// Compress says that text is compressed for clients that accept it.
	Compress bool
	// Challenge returns the WWW-Authenticate header of answers with status 401. Nil: none.
	Challenge func(Challenge) string
}

// knownAddresses is how many addresses a server remembers from which accounts have logged in.
const knownAddresses = 65_536

// Server is the registry's http.Handler.
type Server struct {
	opt     Options
	log     *slog.Logger
	mounts  []Mount
	metrics *metrics
	// budget is the memory for the bodies and answers of all requests. requests counts the
	// requests that are being answered, in total and for each client; admit compares these
	// numbers with the limits. accounts counts the same requests for each account that is
	// logged in, and for the robots of each namespace; admitAccount compares these numbers with
	// the limit per client.
	budget   *limit.Budget
	requests *limit.Counter
	accounts *limit.Counter
	// addresses are those from which accounts have logged in lately.
	addresses *boundedcache.Cache[string, struct{}]
	origin    *http.CrossOriginProtection
	compress  *compressor
	handler   http.Handler
	external  *external
	ambiguous sync.Once // for the warning that two proxy headers name different clients
	passedOn  sync.Once // for the warning of checkLocal
	plain     sync.Once // for warnOfPlainRealm
}

// New makes a server, on which nothing is mounted yet.
func New(o Options) (*Server, error) {
	o.Log = cmp.Or(o.Log, slog.Default())
	o.BodyIdleTimeout = cmp.Or(o.BodyIdleTimeout, time.Minute)
	o.MaxRequest = cmp.Or(o.MaxRequest, 2*time.Hour)
	m := newMetrics(o.Metrics)
	external, err := parseExternal(o.ExternalURL)
	if err != nil {
		return nil, err
	}
	s := &Server{opt: o, log: o.Log, metrics: m, external: external, origin: http.NewCrossOriginProtection(),
		compress: newCompressor()}
	o.Limits.Memory.Metrics = o.Limits.Metrics
	s.budget = limit.NewBudget(o.Limits.Memory)
	s.requests = limit.NewCounter(o.Limits.Requests, o.Limits.ClientRequests)
	s.accounts = limit.NewCounter(0, o.Limits.ClientRequests)
	s.addresses = boundedcache.New(boundedcache.Options[string, struct{}]{Entries: knownAddresses})
	for _, origin := range o.Origins {
		if err := s.origin.AddTrustedOrigin(origin); err != nil {
			return nil, fmt.Errorf("server: %w", err)
		}
	}
	s.handler = s.observe(http.HandlerFunc(s.dispatch))
	return s, nil
}

// Mount adds an interface. Mount all interfaces before the first request.
func (s *Server) Mount(m Mount) {
	if m.Compress {
		m.Handler = s.compress.handler(m.Handler)
	}
	s.mounts = append(s.mounts, m)
}

// nothing answers requests for which no interface is mounted.
var nothing = Mount{MarshalError: func(e *oci.Error) []byte { return oci.MarshalErrors(e) }}

// mounted returns the interface that answers the request: the one whose only path this is, or,
// of the interfaces whose prefix the request's path begins with, the one with the longest prefix.
func (s *Server) mounted(r *http.Request) *Mount {
	found := &nothing
	for i := range s.mounts {
		m := &s.mounts[i]
		switch {
		case m.Exact && r.URL.Path == m.Prefix:
			return m
		case !m.Exact && strings.HasPrefix(r.URL.Path, m.Prefix) && len(m.Prefix) > len(found.Prefix):
			found = m
		}
	}
	return found
}

// MaxRequest returns the longest time that a request may take.
func (s *Server) MaxRequest() time.Duration { return s.opt.MaxRequest }

// ExternalURL returns Options.ExternalURL: the URL under which clients reach the registry, or
// "" if it isn't configured.
func (s *Server) ExternalURL() string { return s.opt.ExternalURL }

// dispatch passes a request to the interface that answers it. It refuses the request with an
// error if its headers are malformed (limit.Begin), the client has too many requests (admit), a
// page of another site sent it (checkSite), or the account that is logged in has too many
// requests (admitAccount).
func (s *Server) dispatch(w http.ResponseWriter, r *http.Request) {
	mounted := s.mounted(r)
	maps.Copy(w.Header(), mounted.Header)
	if mounted.Browsers && Observed(r.Context()).encrypted && !isLocalName(r.Host) {
		w.Header()["Strict-Transport-Security"] = strictTransport
	}
	progress := limit.ProgressOf(r.Context())
	progress.Begin()
	defer progress.End()
	if err := limit.Begin(r); err != nil {
		w.Header().Set("Connection", "close")
		s.Fail(w, r, oci.Errorf(oci.Unsupported, "%v", err).WithStatus(http.StatusBadRequest))
		return
	}
	if limit.IsLast(r) {
		w.Header().Set("Connection", "close")
	}
	o := Observed(r.Context())
	if err := s.admit(o.Client); err != nil {
		s.Fail(w, r, err)
		return
	}
	defer s.requests.Done(o.Client)
	switch err := s.checkSite(r); {
	case err != nil:
		s.Fail(w, r, err)
	case mounted.Handler == nil:
		s.Fail(w, r, NothingAt(r))
	default:
		o.mounted, o.absoluteBase = mounted, s.absolute(r, o)
		r = s.authenticate(r)
		done, err := s.admitAccount(o)
		if err != nil {
			s.Fail(w, r, err)
			return
		}
		defer done()
		mounted.Handler.ServeHTTP(w, r)
	}
}

// checkSite returns an error for requests from elsewhere than where the registry's clients are:
// those that were passed on, where only this machine may send requests (checkLocal), and two
// kinds of requests that a web page of another site can make a browser send: any request whose host name isn't the registry's, and a request that changes
// something and comes from a page of another origin. Clients other than browsers always pass
// the check of the origin, since they send neither Origin nor Sec-Fetch-Site.
func (s *Server) checkSite(r *http.Request) error {
	if err := s.checkLocal(r); err != nil {
		return err
	}
	if err := s.opt.Hosts.Check(r); err != nil {
		return err
	}
	if err := s.origin.Check(r); err != nil {
		return oci.Errorf(oci.Denied, "the request comes from a page of another site").WithCause(err)
	}
	return nil
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

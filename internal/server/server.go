// Package server has what all of the registry's HTTP interfaces share: the mux, request
// identifiers, access log, metrics and traces, errors, limits of requests, and the
// permissions that routes need. The interfaces themselves are packages below this one's
// directory: distribution is the OCI API under /v2/, management the API for operators
// under /api/v1/.
//
// Rules of the package:
//
//   - A handler returns an error and never writes one. An oci.Error is sent to the
//     client; any other error is logged and answered as unknown or unavailable.
//   - A web page can't misuse its visitor's browser: requests with a foreign host name,
//     and changes that come from pages of other sites, are refused before routing.
//   - Each route names the access that it needs. A route without one is denied.
//   - The memory that a request's body and answer take counts against one budget, and
//     each request against the limits of its client.
package server

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/oci"
)

// Options configure a Server.
type Options struct {
	Log *slog.Logger // default slog.Default()
	// AccessLog logs each request at level info.
	AccessLog bool
	Metrics   prometheus.Registerer // nil: none
	// BodyIdleTimeout ends a request if its client sends nothing of the body for so
	// long. Default 60 s.
	BodyIdleTimeout time.Duration
	// MaxRequest limits the duration of any request. Default 2 h.
	MaxRequest time.Duration
	// Proxies are the trusted proxies, whose headers name the client. Nil: none.
	Proxies *limit.Proxies
	// Limits bound the resources that clients may use.
	Limits Limits
	// Tracing makes a span for each request.
	Tracing bool
	// Hosts are the host names under which requests are answered. Nil: every name.
	Hosts *Hosts
	// Origins are additional sites whose pages may send changes, such as
	// "https://registry.example.com". Pages of the request's own host always may.
	Origins []string
	// ExternalURL is the scheme and host under which clients reach the registry. URLs
	// in answers to these clients begin with it. "": answers have paths only.
	ExternalURL string
	// Authorize decides whether a request has an access to a repository. Its error,
	// UNAUTHORIZED or DENIED, is the answer. Nil: everything is allowed.
	Authorize func(r *http.Request, a Access, repository string) error
}

// Mount is one of the interfaces that a Server serves.
type Mount struct {
	Prefix  string // of its paths, such as "/api/"
	Handler http.Handler
	// MarshalError encodes an error for a client of this interface.
	MarshalError func(*oci.Error) []byte
	// Header has the fields of all answers, errors included.
	Header http.Header
	// ReadsAreLogged says that GET and HEAD may write to the audit log as well.
	ReadsAreLogged bool
}

// Server is the registry's http.Handler.
type Server struct {
	opt     Options
	log     *slog.Logger
	mounts  []Mount
	metrics *metrics
	// budget is the memory for bodies, and requests counts requests that are being
	// answered.
	budget    *limit.Budget
	requests  *limit.Counter
	origin    *http.CrossOriginProtection
	handler   http.Handler
	external  *external
	ambiguous sync.Once // for the warning that two proxy headers name different clients
}

// New makes a server, on which nothing is mounted yet.
func New(o Options) (*Server, error) {
	o.Log = cmp.Or(o.Log, slog.Default())
	o.BodyIdleTimeout = cmp.Or(o.BodyIdleTimeout, time.Minute)
	o.MaxRequest = cmp.Or(o.MaxRequest, 2*time.Hour)
	if o.Authorize == nil {
		o.Authorize = func(*http.Request, Access, string) error { return nil }
	}
	m, err := newMetrics(o.Metrics)
	if err != nil {
		return nil, err
	}
	external, err := parseExternal(o.ExternalURL)
	if err != nil {
		return nil, err
	}
	s := &Server{opt: o, log: o.Log, metrics: m, external: external, origin: http.NewCrossOriginProtection()}
	o.Limits.Memory.Metrics = o.Limits.Metrics
	s.budget = limit.NewBudget(o.Limits.Memory)
	s.requests = limit.NewCounter(o.Limits.Requests, o.Limits.ClientRequests)
	for _, origin := range o.Origins {
		if err := s.origin.AddTrustedOrigin(origin); err != nil {
			return nil, fmt.Errorf("server: %w", err)
		}
	}
	s.handler = s.observe(http.HandlerFunc(s.dispatch))
	return s, nil
}

// Mount adds an interface. Mount all interfaces before the first request.
func (s *Server) Mount(m Mount) { s.mounts = append(s.mounts, m) }

// nothing answers requests for which no interface is mounted.
var nothing = Mount{MarshalError: func(e *oci.Error) []byte { return oci.MarshalErrors(e) }}

// mounted returns the interface that a request is for: the one with the longest prefix.
func (s *Server) mounted(r *http.Request) *Mount {
	found := &nothing
	for i := range s.mounts {
		if m := &s.mounts[i]; strings.HasPrefix(r.URL.Path, m.Prefix) && len(m.Prefix) > len(found.Prefix) {
			found = m
		}
	}
	return found
}

// MaxRequest returns the longest time that a request may take.
func (s *Server) MaxRequest() time.Duration { return s.opt.MaxRequest }

// ExternalURL returns the URL under which clients reach the registry, "" if it isn't
// configured.
func (s *Server) ExternalURL() string { return s.opt.ExternalURL }

// dispatch passes a request to the interface that it is for.
func (s *Server) dispatch(w http.ResponseWriter, r *http.Request) {
	mounted := s.mounted(r)
	maps.Copy(w.Header(), mounted.Header)
	if err := limit.Begin(r); err != nil {
		w.Header().Set("Connection", "close")
		s.Fail(w, r, oci.Errorf(oci.Unsupported, "%v", err).WithStatus(http.StatusBadRequest))
		return
	}
	client := Observed(r.Context()).Client
	if err := s.admit(client); err != nil {
		s.Fail(w, r, err)
		return
	}
	defer s.requests.Done(client)
	switch err := s.checkSite(r); {
	case err != nil:
		s.Fail(w, r, err)
	case mounted.Handler == nil:
		s.Fail(w, r, NothingAt(r))
	default:
		mounted.Handler.ServeHTTP(w, r)
	}
}

// checkSite refuses requests that a web page of another site makes a browser send: any
// request with a host name that isn't the registry's, and changes from a page of
// another origin. Clients other than browsers send neither Origin nor Sec-Fetch-Site.
func (s *Server) checkSite(r *http.Request) error {
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

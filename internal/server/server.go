// Package server implements the registry's HTTP interface: the OCI Distribution API
// under /v2/, with errors in the specification's format; the management API under
// /api/v1/, described by an OpenAPI document, with paths and errors like Quay's; and
// request identifiers, access log, metrics and traces.
//
// Rules of the package:
//
//   - A handler returns an error and never writes one. An oci.Error is sent to the
//     client; any other error is logged and answered as unknown or unavailable.
//   - A web page can't misuse its visitor's browser: requests with a foreign host name,
//     and changes that come from pages of other sites, are refused before routing.
//   - Each route names the access that it needs. A route without one is denied.
//   - The bytes of blobs stream through small buffers and are hashed once, on the way.
package server

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/maypok86/otter/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/gc"
	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/pullstats"
	"github.com/purser-registry/purser/internal/webhook"
)

// Options configure a Server.
type Options struct {
	Catalog *catalog.Catalog // required
	Store   blob.Store       // required
	// StoreTrouble classifies an error of Store. Default blob.TroubleOf.
	StoreTrouble func(error) blob.Trouble
	Log          *slog.Logger // default slog.Default()
	// WrongStore says that Store isn't the one that belongs to the database; requests
	// about blobs are refused then. Nil: Store is always the right one.
	WrongStore func() bool
	// AccessLog logs each request at level info.
	AccessLog bool
	Metrics   prometheus.Registerer // nil: none
	// Redirect answers GET of a blob with a redirect to a presigned URL, if the store
	// supports that. The URL is valid for RedirectTTL (default 20 min).
	Redirect    bool
	RedirectTTL time.Duration
	// BodyIdleTimeout ends a request if its client sends nothing of the body for so
	// long. Default 60 s.
	BodyIdleTimeout time.Duration
	// MaxRequest limits the duration of any request. Default 2 h.
	MaxRequest time.Duration
	// UploadMaxAge is how long an upload may stay untouched before the reaper may
	// delete it. Default 24 h.
	UploadMaxAge time.Duration
	// Proxies are the trusted proxies, whose headers name the client. Nil: none.
	Proxies *limit.Proxies
	// Limits bound the resources that clients may use.
	Limits Limits
	// GC configures garbage collection runs that operators start through the API. Its Store
	// and Log are replaced by those above. Its Collector also answers how collection stands;
	// without it, such operations fail.
	GC gc.CollectOptions
	// Tracing makes a span for each request.
	Tracing bool
	// Audit is the audit log. The server writes operators' actions to it, and reads it
	// for clients. Changes of the catalog are written by the catalog itself. Nil: no
	// audit log.
	Audit *audit.Log
	// Recorder records each pull of a manifest. Nil: pulls aren't recorded.
	Recorder *pullstats.Recorder
	// Autoprune manages policies and auto-pruning. Nil: the API has no such operations.
	Autoprune *autoprune.Pruner
	// Webhooks manages the webhooks of namespaces. Nil: the API has no such operations.
	Webhooks *webhook.Sender
	// Pulls reads pull statistics. Nil: answers have none.
	Pulls *pullstats.Reader
	// PullStats counts recorded pulls. Nil: pulls aren't counted.
	PullStats *pullstats.SyncWorker
	// RedisPulls adds the pulls that Redis has counted. Nil: there is no Redis.
	RedisPulls *pullstats.FlushWorker
	// LooseKeys gives access to the loose foreign keys. Nil: the API has no operations
	// on them.
	LooseKeys *LooseKeys
	System    System
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

// Server is the registry's http.Handler.
type Server struct {
	opt     Options
	log     *slog.Logger
	catalog *catalog.Catalog
	store   blob.Store
	metrics *metrics
	uploads *uploads
	// budget is the memory for bodies, requests counts requests that are being
	// answered, and unfinished counts open uploads.
	budget     *limit.Budget
	requests   *limit.Counter
	unfinished *openUploads
	heavyTurns chan struct{} // has one element for each large manifest that is being handled
	api        *api
	origin     *http.CrossOriginProtection
	started    time.Time
	handler    http.Handler
	external   *external
	ambiguous  sync.Once // for the warning that two proxy headers name different clients
	// redirected maps keys of objects to the time at which the store was last seen to
	// have them. Entries are checked for their age when read: an expiring cache would
	// wake the process every second.
	redirected *otter.Cache[string, time.Time]
}

const (
	// redirectedMax limits how many keys are remembered. redirectedAge limits how long:
	// for so long clients may be redirected to an object that the store has lost.
	redirectedMax = 50_000
	redirectedAge = 5 * time.Minute
)

// New makes a server.
func New(o Options) (*Server, error) {
	if o.Catalog == nil || o.Store == nil {
		return nil, errors.New("server: a catalog and a store are required")
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.RedirectTTL <= 0 {
		o.RedirectTTL = 20 * time.Minute
	}
	if o.BodyIdleTimeout <= 0 {
		o.BodyIdleTimeout = time.Minute
	}
	if o.MaxRequest <= 0 {
		o.MaxRequest = 2 * time.Hour
	}
	if o.UploadMaxAge <= 0 {
		o.UploadMaxAge = 24 * time.Hour
	}
	if o.WrongStore == nil {
		o.WrongStore = func() bool { return false }
	}
	if o.Authorize == nil {
		o.Authorize = func(*http.Request, Access, string) error { return nil }
	}
	o.Store = blob.Mark(o.Store, o.StoreTrouble)
	m, err := newMetrics(o.Metrics)
	if err != nil {
		return nil, err
	}
	external, err := parseExternal(o.ExternalURL)
	if err != nil {
		return nil, err
	}
	s := &Server{opt: o, log: o.Log, catalog: o.Catalog, store: o.Store, metrics: m, external: external,
		uploads: newUploads(o.Catalog, o.UploadMaxAge), origin: http.NewCrossOriginProtection(), started: time.Now(),
		redirected: otter.Must(&otter.Options[string, time.Time]{MaximumSize: redirectedMax})}
	o.Limits.Memory.Metrics = o.Limits.Metrics
	s.budget = limit.NewBudget(o.Limits.Memory)
	s.requests = limit.NewCounter(o.Limits.Requests, o.Limits.ClientRequests)
	s.unfinished = newOpenUploads(o.Catalog, o.Limits)
	s.heavyTurns = make(chan struct{}, maxHeavy)
	for _, origin := range o.Origins {
		if err := s.origin.AddTrustedOrigin(origin); err != nil {
			return nil, fmt.Errorf("server: %w", err)
		}
	}
	s.opt.GC.Store, s.opt.GC.Log = o.Store, o.Log
	s.api = newAPI(s)
	s.handler = s.observe(http.HandlerFunc(s.dispatch))
	return s, nil
}

// dispatch passes a request to the OCI API or the management API.
func (s *Server) dispatch(w http.ResponseWriter, r *http.Request) {
	management := isManagement(r)
	if !management {
		w.Header()["Docker-Distribution-Api-Version"] = apiVersion
	}
	if err := limit.Begin(r); err != nil {
		w.Header().Set("Connection", "close")
		s.fail(w, r, oci.Errorf(oci.Unsupported, "%v", err).WithStatus(http.StatusBadRequest))
		return
	}
	client := observed(r.Context()).client
	if err := s.admit(client); err != nil {
		s.fail(w, r, err)
		return
	}
	defer s.requests.Done(client)
	switch err := s.checkSite(r); {
	case err != nil:
		s.fail(w, r, err)
	case management:
		s.api.ServeHTTP(w, r)
	default:
		s.route(w, r)
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

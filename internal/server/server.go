// Package server is the registry's HTTP face: the OCI Distribution API under
// /v2/, one table of routes, errors in the specification's form; the management
// API under /api/v1/, described by an OpenAPI document, with paths and errors
// like Quay's; and what makes requests visible: identifiers, an access log,
// metrics and traces.
//
// What holds inside: a handler returns an error and never writes one; what is
// sent to a client is an oci.Error, anything else is logged and answered as
// unknown or unavailable; a browser can't be made to act for the one before it:
// requests under foreign names and from foreign pages are refused before any
// route is looked for; a route names the access that it needs, and a route
// that names none is denied; bytes of blobs stream through small buffers and
// are hashed once, on their way.
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

// Options says what to serve and how.
type Options struct {
	Catalog *catalog.Catalog // required
	Store   blob.Store       // required
	// StoreTrouble tells from an error of Store what is the matter with it. Default
	// blob.TroubleOf.
	StoreTrouble func(error) blob.Trouble
	Log          *slog.Logger // default slog.Default()
	// WrongStore says that Store isn't the one that belongs to the database: nothing
	// is said of blobs then. Nil: it always is.
	WrongStore func() bool
	// AccessLog logs each request at level info.
	AccessLog bool
	Metrics   prometheus.Registerer // nil: none
	// Redirect answers GET of a blob with a presigned URL where the store can,
	// valid for RedirectTTL (default 20 min).
	Redirect    bool
	RedirectTTL time.Duration
	// BodyIdleTimeout ends a request whose body stops coming. Default 60 s.
	BodyIdleTimeout time.Duration
	// MaxRequest ends a request, whatever it does. Default 2 h.
	MaxRequest time.Duration
	// UploadMaxAge is how long a client has to go on with an upload before it may be
	// given up. Default 24 h.
	UploadMaxAge time.Duration
	// Proxies are those that say from whom a request is. Nil: none.
	Proxies *limit.Proxies
	// Limits bound what clients may hold.
	Limits Limits
	// GC bounds the garbage collection that operators start by request. Its
	// Catalog, Store and Log are those above.
	GC gc.CollectOptions
	// Tracing makes a span of each request.
	Tracing bool
	// Audit is the audit log: for what operators do and for who reads it. What
	// changes the catalog, the catalog logs. Nil: none.
	Audit *audit.Log
	// Recorder takes note of each manifest that is pulled. Nil: nobody does.
	Recorder *pullstats.Recorder
	// Autoprune keeps policies and prunes by them. Nil: no such operations.
	Autoprune *autoprune.Pruner
	// Webhooks keeps the webhooks of namespaces. Nil: no such operations.
	Webhooks *webhook.Sender
	// Pulls reads the statistics of pulls. Nil: nothing is told of them.
	Pulls *pullstats.Reader
	// PullStats counts them. Nil: nobody does.
	PullStats *pullstats.SyncWorker
	// RedisPulls adds those that Redis has counted. Nil: there is no Redis.
	RedisPulls *pullstats.FlushWorker
	// LooseKeys are the loose foreign keys. Nil: operators can't look after them.
	LooseKeys *LooseKeys
	System    System
	// Hosts are the names under which requests are answered. Nil: every name.
	Hosts *Hosts
	// Origins are the sites, "https://registry.example.com", whose pages may change
	// something, besides those of the request's own host.
	Origins []string
	// ExternalURL is the scheme and host under which clients reach the registry. The URLs
	// in answers to such clients begin with it. "": they are paths.
	ExternalURL string
	// Authorize says whether a request may have an access; nil: everybody may.
	// Its error is the answer, UNAUTHORIZED or DENIED.
	Authorize func(r *http.Request, a Access, repository string) error
}

// Server answers requests.
type Server struct {
	opt     Options
	log     *slog.Logger
	catalog *catalog.Catalog
	store   blob.Store
	metrics *metrics
	uploads *uploads
	// budget is the memory for bodies, requests counts those under way, and unfinished the
	// uploads that are.
	budget     *limit.Budget
	requests   *limit.Counter
	unfinished *openUploads
	heavyTurns chan struct{} // one element for each large manifest that is worked on
	api        *api
	origin     *http.CrossOriginProtection
	started    time.Time
	handler    http.Handler
	external   *external
	ambiguous  sync.Once // tells that two headers name different clients
	// redirected says when objects were seen in the store, by their keys. A cache that
	// expires would wake the process every second.
	redirected *otter.Cache[string, time.Time]
}

const (
	// redirectedMax bounds the keys that are remembered, redirectedAge how long each
	// is: so long clients may be sent to an object that the store has lost.
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
	s.opt.GC.Catalog, s.opt.GC.Store, s.opt.GC.Log = o.Catalog, o.Store, o.Log
	s.api = newAPI(s)
	s.handler = s.observe(http.HandlerFunc(s.dispatch))
	return s, nil
}

// dispatch hands a request to the API that it is for.
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

// checkSite refuses what a web page of another site has a browser send: any
// request under a name that isn't the registry's, and requests that may change
// something from a page that was loaded elsewhere. Clients other than browsers
// send neither Origin nor Sec-Fetch-Site.
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

// Package distribution implements the OCI Distribution API under /v2/: pulling, pushing
// and listing of manifests, blobs, tags and referrers, with errors in the
// specification's format.
//
// Rules of the package:
//
//   - All routes are in one table (routes.go), which also names the access that each needs.
//   - The bytes of a blob stream through small buffers, and are hashed once on the way.
//   - A request acknowledges only bytes of an upload that are saved. After another request
//     has taken over the upload, it saves nothing any more.
package distribution

import (
	"cmp"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/maypok86/otter/v2"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/pullstats"
	"github.com/purser-registry/purser/internal/server"
)

// Options configure an API.
type Options struct {
	Server  *server.Server   // required
	Catalog *catalog.Catalog // required
	// Store keeps the blobs' content. Its errors must be marked as errors of the store
	// (blob.Mark), so that clients are told that the store failed, and not the database.
	// Required.
	Store blob.Store
	// WrongStore returns true while Store isn't the store that belongs to the database; the
	// API then refuses requests about blobs with 503. Nil: Store is always the right one.
	WrongStore func() bool
	Log        *slog.Logger // default slog.Default()
	// If Redirect is set and the store supports presigned URLs, GET of a blob is answered
	// with a redirect to such a URL. It is valid for RedirectTTL, by default 20 min.
	Redirect    bool
	RedirectTTL time.Duration
	// UploadMaxAge is how long an upload without new bytes is kept before the reaper may
	// delete it. Default 24 h.
	UploadMaxAge time.Duration
	// Uploads limits how many uploads may be open at once, which means begun and neither
	// finished nor cancelled, and ClientUploads how many of one client. 0: no limit.
	Uploads, ClientUploads int
	LimitMetrics           *limit.Metrics // counts refusals. Nil: none
	// Recorder records each pull of a manifest. Nil: pulls aren't recorded.
	Recorder *pullstats.Recorder
}

// API is the OCI Distribution API.
type API struct {
	opt     Options
	server  *server.Server
	catalog *catalog.Catalog
	store   blob.Store
	log     *slog.Logger
	uploads *uploads
	// unfinished counts open uploads.
	unfinished *openUploads
	heavyTurns chan struct{} // has one element for each large manifest that is being handled
	// redirected maps storage keys of objects to the time at which redirect last saw that
	// the store has the object. redirect itself ignores old entries: an expiring cache
	// would wake the process every second.
	redirected *otter.Cache[string, time.Time]
}

const (
	// redirectedMax limits the number of storage keys in API.redirected. redirectedAge is
	// how long the answer of one check is used: for that long clients may be redirected to
	// an object that the store has lost meanwhile.
	redirectedMax = 50_000
	redirectedAge = 5 * time.Minute
)

// New makes the API.
func New(o Options) (*API, error) {
	if o.Server == nil || o.Catalog == nil || o.Store == nil {
		return nil, errors.New("distribution: a server, a catalog and a store are required")
	}
	o.Log = cmp.Or(o.Log, slog.Default())
	o.RedirectTTL = cmp.Or(o.RedirectTTL, 20*time.Minute)
	o.UploadMaxAge = cmp.Or(o.UploadMaxAge, 24*time.Hour)
	if o.WrongStore == nil {
		o.WrongStore = func() bool { return false }
	}
	return &API{
		opt: o, server: o.Server, catalog: o.Catalog, store: o.Store, log: o.Log,
		uploads: newUploads(o.Catalog, o.UploadMaxAge), unfinished: newOpenUploads(o),
		heavyTurns: make(chan struct{}, maxHeavy),
		redirected: otter.Must(&otter.Options[string, time.Time]{MaximumSize: redirectedMax}),
	}, nil
}

// Mount returns how a server mounts the API. The prefix "/" makes the API also answer, with
// 404, all paths that no other interface serves.
func (a *API) Mount() server.Mount {
	return server.Mount{
		Prefix: "/", Handler: a, MarshalError: MarshalError,
		Header: http.Header{"Docker-Distribution-Api-Version": {"registry/2.0"}},
	}
}

// MarshalError encodes an error in the specification's format ("Error Codes").
func MarshalError(e *oci.Error) []byte { return oci.MarshalErrors(e) }

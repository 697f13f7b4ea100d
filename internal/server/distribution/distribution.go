// Package distribution implements the OCI Distribution API under /v2/: clients pull, push and
// list manifests, blobs, tags and referrers. Errors have the format of the OCI Distribution
// Specification.
//
// Rules of the package:
//
//   - All routes are in one table (routes.go). For each method of a route, the table names the
//     access that a client needs.
//   - The bytes of a blob pass through small buffers, and are hashed once on the way.
//   - The answer to a request acknowledges only bytes of an upload that are saved. When a newer
//     request has taken over the upload, an older one can't save anything any more.
//
// # A push
//
// POST gives the client an upload whose row was inserted before the request: up to sixteen such
// rows are inserted in one commit, so the request itself needs none, only a look at the repository
// (uploads). The row names no repository until the first bytes are saved. The upload's URL is valid
// in one repository only nevertheless, since it is encrypted for this repository (uploadNames). An
// upload may begin before there is a repository; then it belongs to the one that is made, until
// that is deleted.
//
// The bytes of an upload of up to 64 KiB stay in its row until the upload is complete. Those of a
// larger one go to the store as they arrive. When the request ends, or the client hangs up, the
// state of the store's writer, the state of the hash and the size are saved in the row, so that any
// replica can continue the upload. The process keeps a copy of the row in memory, which the first
// statement of the next request compares with the database (session).
//
// A request that writes to the store, or continues stored bytes, first claims the upload's row.
// After that, an older request that was stalled can't save anything any more. Names of objects and
// parts contain a number that a request takes from the row, each number only once. A small upload
// needs no claim (session.open).
//
// The last PUT of an upload checks the digest and makes the object durable. Then one statement
// deletes the upload's row and inserts the rows of the blob and of its link to the repository. A
// manifest is one round trip with several statements (catalog/put_manifest.sql). So the push of an
// image with three small layers and a configuration costs nine commits (four uploads saved, four
// uploads committed, one manifest), and two syncs of the disk for each blob.
//
// # A pull
//
// A manifest or the row of a blob is read from the cache, or by one query. Then a blob's file is
// sent to the socket with sendfile. If blobs are in S3, the answer of S3 to a ranged GET is
// forwarded, or the client is redirected to S3.
package distribution

import (
	"cmp"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/boundedcache"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/catalog/browse"
	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/pullstats"
	"github.com/purser-registry/purser/internal/quota"
	"github.com/purser-registry/purser/internal/server"
)

// Options configure an API.
type Options struct {
	Server  *server.Server   // required
	Catalog *catalog.Catalog // required
	Browser *browse.Browser  // of the catalog; required
	Quotas  *quota.Keeper    // those of the catalog; required
	// Store keeps the blobs' content. The caller must have wrapped it with blob.Mark, which
	// marks its errors as errors of the store, so that clients are told that the store failed,
	// and not the database. Required.
	Store blob.Store
	// WrongStore returns true as long as the configured Store isn't the one that belongs to the
	// database. The API then refuses all requests about blobs, and pushes of manifests, with
	// 503. Nil: Store is always the right one.
	WrongStore func() bool
	// Room returns an error if there is no room for pushes, which are then refused with it; whatever
	// deletes isn't. Nil: there is always room.
	Room func() error
	Log  *slog.Logger // default slog.Default()
	// If Redirect is set and the store supports presigned URLs, the API answers GET of a blob
	// with a redirect to such a URL. The URL is valid for RedirectTTL, by default 20 min.
	Redirect    bool
	RedirectTTL time.Duration
	// UploadMaxAge is how long an upload that gets no new bytes is kept; the reaper may delete
	// it after that. Default 24 h.
	UploadMaxAge time.Duration
	// Uploads limits how many uploads may be open at once at all processes on the database
	// together. ClientUploads limits how many of them one client may have, and all robots of a
	// namespace together; AccountUploads limits how many one account may have. An upload is open
	// from its start until it is finished or cancelled. 0: no limit.
	Uploads, ClientUploads, AccountUploads int
	LimitMetrics                           *limit.Metrics // counts refusals. Nil: none
	// Recorder records each pull of a manifest. Nil: pulls aren't recorded.
	Recorder *pullstats.Recorder
}

// API is the OCI Distribution API.
type API struct {
	opt     Options
	server  *server.Server
	catalog *catalog.Catalog
	browser *browse.Browser
	quotas  *quota.Keeper
	store   blob.Store
	log     *slog.Logger
	uploads *uploads
	// promises are those of requests that store uploads now.
	promises promises
	heavy    *limit.Queue // of large manifests that are to be parsed and stored
	// redirected maps storage keys to the time at which the method redirect last saw that the
	// store has the object with this key. redirect itself ignores entries older than
	// redirectedAge. A cache that expires its entries isn't used, because it would wake the
	// process every second.
	redirected *boundedcache.Cache[string, time.Time]
}

const (
	// redirectedMax limits the number of storage keys in API.redirected. redirectedAge is how
	// long redirect relies on one check that an object exists. For that long, clients may be
	// redirected to an object that the store has lost after the check.
	redirectedMax = 50_000
	redirectedAge = 5 * time.Minute
)

// New makes the API.
func New(o Options) (*API, error) {
	if o.Server == nil || o.Catalog == nil || o.Browser == nil || o.Quotas == nil || o.Store == nil {
		return nil, errors.New("distribution: a server, a catalog with its browser and quotas, and a store are required")
	}
	o.Log = cmp.Or(o.Log, slog.Default())
	o.RedirectTTL = cmp.Or(o.RedirectTTL, 20*time.Minute)
	o.UploadMaxAge = cmp.Or(o.UploadMaxAge, 24*time.Hour)
	if o.WrongStore == nil {
		o.WrongStore = func() bool { return false }
	}
	return &API{
		opt: o, server: o.Server, catalog: o.Catalog, browser: o.Browser, quotas: o.Quotas, store: o.Store, log: o.Log,
		uploads: newUploads(o), heavy: limit.NewQueue(maxHeavy, maxHeavyWaiting),
		redirected: boundedcache.New(boundedcache.Options[string, time.Time]{Entries: redirectedMax}),
	}, nil
}

// Mount returns the prefix, handler and error format by which a server serves this API. The
// prefix is "/", so that the API also answers requests for paths that belong to no interface,
// with 404.
func (a *API) Mount() server.Mount {
	return server.Mount{
		Prefix: "/", Handler: a, MarshalError: MarshalError, Tokens: true, Challenge: server.Challenge.Bearer,
		Header: http.Header{"Docker-Distribution-Api-Version": {"registry/2.0"}},
	}
}

// MarshalError encodes an error in the specification's format ("Error Codes").
func MarshalError(e *oci.Error) []byte { return oci.MarshalErrors(e) }

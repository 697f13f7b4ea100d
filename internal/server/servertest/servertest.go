// Package servertest gives tests a complete registry that listens on a port. The registry
// consists of the server with its APIs, a database, a blob store and an audit log.
package servertest

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/auth/password"
	"github.com/purser-registry/purser/internal/autoprune/forecast"
	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/builtinpg/pgtest"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/catalog/browse"
	"github.com/purser-registry/purser/internal/catalog/trash"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/gc"
	"github.com/purser-registry/purser/internal/hold"
	"github.com/purser-registry/purser/internal/protection"
	"github.com/purser-registry/purser/internal/pullstats"
	"github.com/purser-registry/purser/internal/quota"
	"github.com/purser-registry/purser/internal/server"
	"github.com/purser-registry/purser/internal/server/distribution"
	"github.com/purser-registry/purser/internal/server/login"
	"github.com/purser-registry/purser/internal/server/management"
	"github.com/purser-registry/purser/internal/server/ui"
)

// Registry is a complete registry for a test.
type Registry struct {
	*httptest.Server
	Handler      *server.Server
	Distribution *distribution.API
	Management   func() *management.API // made when it is first used
	UI           *ui.UI
	Catalog      *catalog.Catalog
	Quotas       *quota.Keeper // those of the catalog
	Trash        *trash.Can
	DB           *db.DB
	DSN          string
	Dir          string        // of the blobs
	Auth         *auth.Control // nil: no access control
	Log          *LogBuffer
	Metrics      *Metrics

	credentials []string // headers of requests without an Authorization header
}

// Options are the options of all parts of a registry. Catalog, Store, Log and Recorder are
// shared: NewReplica copies them into the options of the server and its APIs, so a test changes
// them only here.
type Options struct {
	Catalog      *catalog.Catalog
	Store        blob.Store
	StoreTrouble func(error) blob.Trouble // nil: blob.TroubleOf
	// NewCatalog makes a catalog with other options, for a test that sets Catalog.
	NewCatalog func(change func(*catalog.Options)) *catalog.Catalog
	TrashKeep  time.Duration // how long what is deleted stays in the trash. 0: there is no trash
	Log        *slog.Logger
	Recorder   *pullstats.Recorder

	// Access turns access control on. Its required members that are nil are made with their
	// defaults.
	Access *auth.Options

	Server       server.Options
	Distribution distribution.Options
	Management   management.Options
	Login        login.Options
	UI           ui.Options
	// Operations wraps the management API that the UI runs, nil: it runs the API itself.
	Operations func(api.Runner) api.Runner
}

// Configure adds a setting to the configuration that the system's state shows.
func (o *Options) Configure(name, value, source string) {
	o.Management.System.Configuration = append(o.Management.System.Configuration, api.Setting{Name: name, Value: value, Source: source})
}

// Setup starts a registry with its own database and store, and waits until the registry uses
// its caches.
func Setup(t testing.TB, change ...func(*Options)) *Registry {
	t.Helper()
	r := NewReplica(t, dbtest.DSN(t), pgtest.TempDir(t), change...)
	r.Listen(t)
	return r
}

// NewReplica starts a registry on the database `dsn` and the store in the directory `dir`.
// Other registries may use the same database and store. The new registry uses no caches until
// the test calls Listen.
func NewReplica(t testing.TB, dsn, dir string, change ...func(*Options)) *Registry {
	t.Helper()
	id := uuid.New()
	quiet := slog.New(slog.DiscardHandler)
	d, err := db.Open(t.Context(), db.Options{DSN: dsn, Replica: id.String(), Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	store, err := blob.OpenDir(blob.DirOptions{Path: dir, LockWait: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	r := &Registry{DB: d, DSN: dsn, Dir: dir, Log: new(LogBuffer), Metrics: &Metrics{Registry: prometheus.NewRegistry()}}
	r.Quotas = quota.New(quota.Options{DB: d, Log: quiet})
	newCatalog := func(change func(*catalog.Options)) *catalog.Catalog {
		o := catalog.Options{DB: d, Replica: id, Quotas: r.Quotas, Log: quiet, Store: store,
			Look: func(ctx context.Context, key string, size int64) (string, error) {
				return blob.Look(ctx, store, key, size)
			}}
		change(&o)
		return catalog.New(o)
	}
	r.Catalog = newCatalog(func(*catalog.Options) {})
	o := Options{
		Catalog: r.Catalog, NewCatalog: newCatalog, Store: store, Log: slog.New(slog.NewJSONHandler(r.Log, nil)),
		Server: server.Options{AccessLog: true, Metrics: r.Metrics},
		Management: management.Options{
			Audit: audit.New(d), GC: gc.CollectOptions{Collector: gc.New(gc.Options{Catalog: r.Catalog, DB: d, Log: quiet})},
		},
	}
	for _, f := range change {
		f(&o)
	}
	r.Catalog = o.Catalog
	r.open(t, &o)
	r.Server = httptest.NewUnstartedServer(r.Handler)
	r.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	r.Start()
	t.Cleanup(r.Close)
	return r
}

// open makes the server with its APIs.
func (r *Registry) open(t testing.TB, o *Options) {
	t.Helper()
	var err error
	o.Server.Log = o.Log
	if o.Access != nil {
		o.Server.Auth = r.control(t, *o.Access)
	}
	if r.Handler, err = server.New(o.Server); err != nil {
		t.Fatal(err)
	}
	store := blob.Mark(o.Store, o.StoreTrouble)
	o.Distribution.Server, o.Distribution.Catalog, o.Distribution.Store = r.Handler, o.Catalog, store
	o.Distribution.Browser, o.Management.Browser = browse.New(o.Catalog), browse.New(o.Catalog)
	r.Trash = trash.New(trash.Options{Catalog: o.Catalog, Keep: o.TrashKeep})
	o.Distribution.Quotas, o.Management.Quotas, o.Management.Trash = r.Quotas, r.Quotas, r.Trash
	o.Distribution.Log, o.Distribution.Recorder, o.Distribution.LimitMetrics = o.Log, o.Recorder, o.Server.Limits.Metrics
	if r.Distribution, err = distribution.New(o.Distribution); err != nil {
		t.Fatal(err)
	}
	o.Management.Server, o.Management.Catalog, o.Management.Store = r.Handler, o.Catalog, store
	o.Management.Log, o.Management.Recorder = o.Log, o.Recorder
	if p := o.Management.Autoprune; p != nil {
		o.Management.Forecasts = forecast.New(p.Repositories, p.Policies)
	}
	if o.Management.Protection == nil {
		o.Management.Protection = protection.New(protection.Options{DB: r.DB})
	}
	if o.Management.Holds == nil {
		if o.Management.Holds, err = hold.New(hold.Options{DB: r.DB, Log: o.Log}); err != nil {
			t.Fatal(err)
		}
	}
	if o.Access == nil {
		o.Management.Accounts, o.Management.Passwords = auth.NewStore(r.DB, auth.Most{}), password.NewHasher(password.HasherOptions{})
	}
	if o.Management.System.Database == nil {
		o.Management.System.Database = r.DB
	}
	r.Handler.Mount(r.Distribution.Mount())
	r.Handler.Mount(r.manage(t, o.Management))
	o.UI.Server, o.UI.Operations, o.UI.Log = r.Handler, operations{r}, o.Log
	if o.Operations != nil {
		o.UI.Operations = o.Operations(o.UI.Operations)
	}
	if r.UI, err = ui.New(o.UI); err != nil {
		t.Fatal(err)
	}
	for _, m := range r.UI.Mounts() {
		r.Handler.Mount(m)
	}
	if o.Access == nil {
		return
	}
	o.Login.Server, o.Login.Log = r.Handler, o.Log
	logins, err := login.New(o.Login)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range logins.Mounts() {
		r.Handler.Mount(m)
	}
}

// manage sets r.Management and returns its mount. Making the interface takes a tenth of a second with the
// race detector, for the schemas of all its operations, and most tests of other packages don't use it.
func (r *Registry) manage(t testing.TB, o management.Options) server.Mount {
	r.Management = sync.OnceValue(func() *management.API {
		a, err := management.New(o)
		if err != nil {
			t.Error(err)
		}
		return a
	})
	m := new(management.API).Mount()
	m.Handler = http.HandlerFunc(func(w http.ResponseWriter, r2 *http.Request) { r.Management().ServeHTTP(w, r2) })
	return m
}

// operations runs operations of r.Management, which is made when the first is run.
type operations struct{ r *Registry }

func (o operations) Run(ctx context.Context, id string, in any) (any, error) {
	return o.r.Management().Run(ctx, id, in)
}

// Listen lets the registry receive notifications of changes that other processes make, until
// the test ends, and waits until the registry uses its caches. Without these notifications the
// registry reads everything from the database.
func (r *Registry) Listen(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- r.Catalog.Listen(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("listening: %v", err)
		}
	})
	Eventually(t, "caches in use", r.Catalog.Caching)
}

// LeaveOneConnection takes all connections of the registry's pool but one, until the test ends.
func (r *Registry) LeaveOneConnection(t testing.TB) {
	t.Helper()
	for range r.DB.Pool.Config().MaxConns - 1 {
		taken, err := r.DB.Pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(taken.Release)
	}
}

// Eventually calls `ok` again and again until it returns true. If `ok` hasn't returned true
// after 2 min, Eventually fails the test with a message that contains `what`.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// LogBuffer keeps the log's output.
type LogBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *LogBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// Contains says whether the log contains the text.
func (l *LogBuffer) Contains(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Contains(l.b.Bytes(), []byte(text))
}

// Records returns the log records with the given message, decoded from JSON.
func (l *LogBuffer) Records(t testing.TB, message string) []map[string]any {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []map[string]any
	for line := range bytes.Lines(l.b.Bytes()) {
		var r map[string]any
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatalf("log line %q: %v", line, err)
		}
		if r["msg"] == message {
			list = append(list, r)
		}
	}
	return list
}

// Background runs fn in a goroutine until the test ends.
func Background(t testing.TB, fn func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- fn(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

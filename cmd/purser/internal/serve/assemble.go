package serve

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/purser-registry/purser/cmd/purser/internal/backend"
	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/auth/password"
	"github.com/purser-registry/purser/internal/autoprune/forecast"
	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/catalog/browse"
	"github.com/purser-registry/purser/internal/catalog/trash"
	"github.com/purser-registry/purser/internal/clock"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/gc"
	"github.com/purser-registry/purser/internal/protection"
	"github.com/purser-registry/purser/internal/pullstats"
	"github.com/purser-registry/purser/internal/quota"
	"github.com/purser-registry/purser/internal/server"
	"github.com/purser-registry/purser/internal/server/distribution"
	"github.com/purser-registry/purser/internal/server/login"
	"github.com/purser-registry/purser/internal/server/management"
	"github.com/purser-registry/purser/internal/server/ui"
	"github.com/purser-registry/purser/internal/storeid"
	"github.com/purser-registry/purser/internal/usage"
	"github.com/purser-registry/purser/internal/worker"
)

// dependencies are the components from which assemble makes the registry.
type dependencies struct {
	db      *db.DB
	reviews *db.DB
	prunes  *db.DB
	checks  *db.DB
	keys    *backend.LooseKeys
	store   *storeid.Store
	pulls   pullParts
	loops   *worker.Metrics
	replica uuid.UUID
	metrics *prometheus.Registry
	log     *slog.Logger
	tracing bool
	hosts   *server.Hosts // host names of the registry
	limits  *limits
	disks   blob.Disks   // on which pushes leave room
	clocks  *clock.Guard // tells whether what is old may be deleted
}

// open makes the guard of the clocks, and the recorders and workers that log and count pulls.
func (p *dependencies) open(cfg *config.Config) (err error) {
	p.clocks, err = backend.NewClock(cfg, clock.Options{DB: p.db, Statistics: p.stats(), Log: p.log, Metrics: p.metrics, Worker: p.loops})
	if err != nil {
		return err
	}
	p.pulls, err = openPulls(cfg, *p, p.loops)
	return err
}

// newCatalog makes the catalog according to the settings.
func newCatalog(cfg *config.Config, quotas *quota.Keeper, p dependencies) *catalog.Catalog {
	return catalog.New(catalog.Options{
		DB: p.db, Background: p.reviews, Replica: p.replica, Quotas: quotas, Log: p.log, MaxRequest: cfg.HTTP.MaxRequestTime,
		SparseIndexes: cfg.Manifests.SparseIndexes,
		CheckTime:     p.clocks.CheckTime,
		Look: func(ctx context.Context, key string, size int64) (string, error) {
			return blob.Look(ctx, p.store, key, size)
		},
		Store: p.store,
		// The settings allow 0 as the size of a cache, but catalog.Options takes 0 for the
		// default. Therefore 0 becomes 1, the smallest size.
		CacheOff:           !cfg.Cache.Enabled,
		ManifestCacheBytes: int(max(1, cfg.Cache.ManifestBytes)),
		CacheEntries:       max(1, cfg.Cache.Entries),
	})
}

// assemble makes the registry's HTTP handler and its background workers.
func assemble(ctx context.Context, cfg *config.Config, p dependencies) (*site, []func(context.Context) error, error) {
	quotas := quota.New(quota.Options{DB: p.db, TrashKeep: cfg.Trash.Keep, Log: p.log})
	c := newCatalog(cfg, quotas, p)
	can := trash.New(trash.Options{Catalog: c, Background: p.reviews, Keep: cfg.Trash.Keep, CheckTime: p.clocks.CheckTime})
	garbage := backend.NewCollector(cfg, c, p.db, p.reviews, p.clocks, p.log)
	err := backend.Patiently(ctx, cfg, p.log, func() error { return garbage.SetReviewDelays(ctx, cfg.GC.ReviewAfter, cfg.GC.Delays()) })
	if err != nil {
		return nil, nil, err
	}
	if err := p.metrics.Register(poolCollector{p.db.Pool}); err != nil {
		return nil, nil, fmt.Errorf("registering the metrics of the pool: %w", err)
	}
	keys, err := p.keys.Worker(cfg.LooseForeignKeys, p.metrics, p.log)
	if err != nil {
		return nil, nil, err
	}
	statistics, err := pullstats.NewReader(pullstats.Options{DB: p.stats(), Redis: p.pulls.redis, Retention: cfg.PullStatistics.HistoryRetention})
	if err != nil {
		return nil, nil, err
	}
	notices, err := openWebhooks(cfg, p, p.loops)
	if err != nil {
		return nil, nil, err
	}
	pruner, err := openPruning(cfg, c, notices, p, p.loops)
	if err != nil {
		return nil, nil, err
	}
	holds, err := openHolds(cfg, notices, p)
	if err != nil {
		return nil, nil, err
	}
	hasher := openHasher(p)
	access, err := openAccess(ctx, cfg, c, p, hasher)
	if err != nil {
		return nil, nil, err
	}
	front, err := p.front(cfg, access)
	if err != nil {
		return nil, nil, err
	}
	handler, err := p.mount(cfg, front, access, management.Options{
		Catalog: c, Browser: browse.New(c), Quotas: quotas, Trash: can,
		Protection: protection.New(protection.Options{DB: p.db, Most: cfg.Limits.ProtectionRules}),
		Checks:     p.checks, Autoprune: pruner, Forecasts: forecast.New(pruner.Repositories, pruner.Policies), Holds: holds, Webhooks: notices, Pulls: statistics, Accounts: auth.NewStore(p.db, mostOf(cfg)), Passwords: hasher,
		LooseKeys: &management.LooseKeys{Database: &p.keys.Databases[0], Worker: keys},
		GC:        gc.CollectOptions{Collector: garbage}, Clocks: p.clocks,
	})
	if err != nil {
		return nil, nil, err
	}
	workers, err := gcWorkers(c, garbage, cfg, p, p.loops)
	if err != nil {
		return nil, nil, err
	}
	if p.pulls.sync != nil {
		sweeper, err := pullstats.NewSweeper(pullstats.SweeperOptions{
			Stats: p.stats(), Tags: c.PresentTags, Manifests: c.PresentManifests, MayDelete: p.clocks.Check, Logger: p.log, Worker: p.loops,
		})
		if err != nil {
			return nil, nil, err
		}
		workers = append(workers, sweeper.Run)
	}
	if cfg.LooseForeignKeys.Enabled {
		workers = append(workers, keys.Run)
	}
	if cfg.Autoprune.Enabled {
		workers = append(workers, pruner.Run)
	}
	meter, err := usage.New(usage.Options{DB: p.db, CheckTime: p.clocks.CheckTime, Logger: p.log, Worker: p.loops})
	if err != nil {
		return nil, nil, err
	}
	workers = append(workers, meter.Run, quotaWorker(quotas, notices, p, p.loops), purger(can, p, p.loops), backupWorker(p, p.loops), diskWorker(p), p.clocks.Run)
	return handler, append(slices.Concat(workers, access.workers, p.pulls.workers, plannerWorkers(p)), notices.Run, holds.Run, c.Listen, p.limits.clientRate.Run, p.limits.accountRate.Run), nil
}

// mount makes the OCI API and the management API, and mounts them on `front`. The caller
// sets the fields of `o` that hold the catalog and the workers; mount sets the other
// fields.
func (p dependencies) mount(cfg *config.Config, front *server.Server, access access, o management.Options) (*site, error) {
	o.Server, o.Log, o.Audit, o.System = front, p.log, audit.New(p.db), p.system(cfg)
	o.Store = blob.Mark(p.store, backend.StorageOf(cfg.Storage).TroubleOf)
	o.Recorder, o.PullStats, o.RedisPulls = p.pulls.recorder, p.pulls.sync, p.pulls.flush
	o.GC.TransactionTimeout, o.GC.StorageTimeout = cfg.GC.TransactionTimeout, cfg.Storage.DeleteTimeout
	o.GC.MaxFailures, o.GC.UploadAge = cfg.GC.SetAsideAfter, backend.UploadAge(cfg)
	oci, err := distribution.New(distribution.Options{
		Server: front, Catalog: o.Catalog, Browser: o.Browser, Quotas: o.Quotas, Store: o.Store, WrongStore: p.store.Wrong, Log: p.log,
		Redirect: cfg.Storage.S3.Redirect, RedirectTTL: cfg.Storage.S3.RedirectTTL,
		UploadMaxAge: cfg.Uploads.MaxAge, Uploads: cfg.Uploads.MaxOpen, ClientUploads: cfg.Uploads.MaxClientOpen,
		AccountUploads: cfg.Uploads.MaxAccountOpen,
		LimitMetrics:   p.limits.metrics, Recorder: p.pulls.recorder, Room: p.disks.Room,
	})
	if err != nil {
		return nil, err
	}
	operators, err := management.New(o)
	if err != nil {
		return nil, err
	}
	front.Mount(oci.Mount())
	front.Mount(operators.Mount())
	pages, err := ui.New(ui.Options{Server: front, Operations: operators, Version: o.System.Version, Log: p.log})
	if err != nil {
		return nil, err
	}
	for _, m := range pages.Mounts() {
		front.Mount(m)
	}
	if access.control != nil {
		logins, err := login.New(login.Options{Server: front, OIDC: access.oidc, Home: "/ui/", RefreshAge: cfg.Auth.RefreshAge, Log: p.log})
		if err != nil {
			return nil, err
		}
		for _, m := range logins.Mounts() {
			front.Mount(m)
		}
	}
	return &site{front, oci, operators, access, o.Passwords}, nil
}

// site is the registry's HTTP server with the OCI API and the management API.
type site struct {
	*server.Server
	oci        *distribution.API
	management *management.API
	access     access
	hasher     *password.Hasher
}

// close cancels the garbage collections, checks and runs of loose foreign keys that
// operators have started over the management API, and deletes the uploads that were made in
// advance. It takes at most two seconds, and ends the processes that hash passwords.
func (s *site) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	s.management.Close(ctx)
	defer s.hasher.Close()
	return s.oci.Close(ctx)
}

// front makes the server on which the APIs are mounted.
func (p dependencies) front(cfg *config.Config, access access) (*server.Server, error) {
	return server.New(server.Options{
		Log: p.log, AccessLog: cfg.Log.Access, Metrics: p.metrics, Tracing: p.tracing,
		Limits: p.limits.server(), BodyIdleTimeout: cfg.HTTP.BodyIdleTimeout, MaxRequest: cfg.HTTP.MaxRequestTime,
		Proxies: proxies(cfg.HTTP), Hosts: p.hosts, Origins: origins(cfg.HTTP), ExternalURL: cfg.HTTP.ExternalURL,
		Auth: access.control, LocalOnly: cfg.Auth.LocalOnly,
	})
}

// Package serve implements the command serve, which runs the registry. serve.go makes the
// server from its parts. Each other file makes one part, such as the listeners, the
// database pools or the pull statistics.
package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/cmd/purser/internal/backend"
	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/auth/password"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/clock"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/gc"
	"github.com/purser-registry/purser/internal/memory"
	"github.com/purser-registry/purser/internal/pullstats"
	"github.com/purser-registry/purser/internal/server"
	"github.com/purser-registry/purser/internal/server/distribution"
	"github.com/purser-registry/purser/internal/server/login"
	"github.com/purser-registry/purser/internal/server/management"
	"github.com/purser-registry/purser/internal/server/ui"
	"github.com/purser-registry/purser/internal/storeid"
	"github.com/purser-registry/purser/internal/worker"
)

func Command(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the registry",
		Long: "Run the registry. Without further settings it keeps its metadata in a PostgreSQL of its own\n" +
			"and its blobs in the data directory. An interrupt lets requests end, then stops it; a second\n" +
			"one stops it at once. SIGHUP reads the certificate and log.level again. systemd can pass it\n" +
			"the socket to listen on, and is told when it is ready.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			host, err := newManager(src.Environ)
			if err != nil {
				return err
			}
			host.replace(src)
			cfg, err := src.Load(cmd)
			if err := backend.CheckSettings(cmd.Context(), cfg, err); err != nil {
				return err
			}
			log, level, err := command.NewLeveledLogger(cmd.ErrOrStderr(), cfg.Log)
			if err != nil {
				return err
			}
			log.Info("starting", "version", command.ReadBuild().Version, "configuration", src.Used(cmd))
			memory.HoldHeap()
			memory.SetLimit(cfg.Database.Main == "")
			load := func() (*config.Config, error) { return src.Load(cmd) }
			host.log = log
			reload := &reloader{load: load, running: cfg, level: level, log: log}
			err = run(cmd.Context(), cfg, log, reload, host, announcer(cmd.OutOrStdout(), cfg))
			if cmd.Context().Err() != nil && errors.Is(err, context.Canceled) {
				return nil // interrupted before the server was ready
			}
			return err
		},
	}
	command.AddServeFlags(cmd.Flags())
	return cmd
}

// Run starts the server's parts one after another, announces on `out` that the server is
// ready, serves until ctx ends, and stops the parts in reverse order. If `reload` is nil,
// SIGHUP keeps its default effect: it ends the process.
func Run(ctx context.Context, cfg *config.Config, out io.Writer, log *slog.Logger, reload *reloader) error {
	return run(ctx, cfg, log, reload, nil, announcer(out, cfg))
}

// RunFor is like Run, for a program that uses the registry itself: instead of announcing that
// the server is ready, it calls `ready` with the registry's URL. `ready` must return at once.
func RunFor(ctx context.Context, cfg *config.Config, log *slog.Logger, ready func(url string)) error {
	return run(ctx, cfg, log, nil, nil, func(s *sockets, _ access) error {
		ready(s.url())
		return nil
	})
}

// run is Run with `announce`, which announces that the server is ready, and `host`, the service
// manager; nil: there is none.
func run(ctx context.Context, cfg *config.Config, log *slog.Logger, reload *reloader, host *manager, announce func(*sockets, access) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	socks, err := listen(ctx, cfg.HTTP, host, log)
	if err != nil {
		return err
	}
	defer socks.close()
	waitForHangups := reload.handle(ctx, socks.cert, stop)
	defer func() { stop(); waitForHangups() }()
	tracing, stopTracing, err := startTracing(ctx, log)
	if err != nil {
		return err
	}
	defer stopTracing()
	reg, ready := newRegistry(), newReadiness()
	reg.MustRegister(ready)
	limits, err := newLimits(cfg, reg, log)
	if err != nil {
		return err
	}
	limits.bound(socks)
	useControl, stopDebug := serveOperators(socks, cfg.HTTP, reg, ready, log)
	defer stopDebug()
	door := newEntrance(socks, cfg.HTTP, log)
	defer door.close()
	go door.tell(ctx, ready, log)
	ctx = backend.TellWaits(ctx, func(what string) {
		ready.waits(what)
		door.refuse()
	})

	var background []func(context.Context) error
	dsn := string(cfg.Database.Main)
	if dsn == "" {
		ready.waits("the built-in PostgreSQL")
		pg, err := backend.StartPostgres(ctx, cfg, false, log)
		if err != nil {
			return err
		}
		defer pg.Stop()
		dsn, background = pg.DSN, append(background, pg.Supervise, pg.KeepRoom)
	}
	replica := uuid.New()
	ready.waits("the database and its migrations")
	pools, err := openPools(ctx, cfg, dsn, replica, log)
	if err != nil {
		return err
	}
	defer pools.close()
	ready.waits("the blob store")
	store, disks, err := openStore(ctx, cfg, pools.metadata, reg, log)
	if err != nil {
		return err
	}
	ready.waits("the database")
	loops := worker.NewMetrics(reg)
	limits.shareRates(pools.metadata, loops)
	record, err := backend.RecordServer(ctx, cfg, pools.metadata, replica, log, loops)
	if err != nil {
		return err
	}
	// Once more: before this server was on record, a move of the blobs to another store may have ended.
	if err := store.Establish(ctx); err != nil {
		return err
	}
	p := dependencies{pools.metadata, pools.reviews, pools.prunes, pools.keys, store, pullParts{}, loops, replica, reg, log, tracing, hosts(socks.registry, cfg.HTTP.Addr, cfg.HTTP), limits, disks, nil}
	if err := p.open(cfg); err != nil {
		return err
	}
	defer p.pulls.close()
	handler, workers, err := assemble(ctx, cfg, p)
	if err != nil {
		return err
	}
	useControl(handler.access.control)
	certificates, err := socks.openCertificates(cfg, p)
	if err != nil {
		return err
	}
	background = append(slices.Concat(background, workers, certificates), store.Run, pools.stats.Run, record.Run, host.watch)

	ready.started(readinessCheck{name: "database", run: pools.metadata.Ping}, storageCheck(store.Check), pushesCheck(store.Check, disks.Room),
		readinessCheck{name: "statistics", run: statisticsCheck(pools.stats, p), spare: true})
	warnPlain(cfg, socks, log)
	if err := p.pulls.open(ctx); err != nil {
		// The registry starts without its statistics too. Their workers try again, and the first
		// pulls wait for that for some seconds.
		log.WarnContext(ctx, "others can't be told yet whether this process takes note of pulls", "error", err)
	}
	if err := announce(socks, handler.access); err != nil {
		return err
	}
	defer record.Stopped()
	return serve(ctx, cfg, handler, door, background, ready, host, log)
}

// dependencies are the components from which assemble makes the registry.
type dependencies struct {
	db      *db.DB
	reviews *db.DB
	prunes  *db.DB
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
func newCatalog(cfg *config.Config, p dependencies) *catalog.Catalog {
	return catalog.New(catalog.Options{
		DB: p.db, Background: p.reviews, Replica: p.replica, Log: p.log, MaxRequest: cfg.HTTP.MaxRequestTime,
		SparseIndexes: cfg.Manifests.SparseIndexes, TrashKeep: cfg.Trash.Keep, MostProtectionRules: cfg.Limits.ProtectionRules,
		CheckTime: p.clocks.CheckTime,
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
	c := newCatalog(cfg, p)
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
		Catalog: c, Autoprune: pruner, Holds: holds, Webhooks: notices, Pulls: statistics, Accounts: auth.NewStore(p.db, mostOf(cfg)), Passwords: hasher,
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
	workers = append(workers, quotaWorker(c, notices, p, p.loops), purger(c, p, p.loops), backupWorker(p, p.loops), diskWorker(p), p.clocks.Run)
	return handler, append(slices.Concat(workers, access.workers, p.pulls.workers, plannerWorkers(p)), notices.Run, holds.Run, c.Listen, p.limits.clientRate.Run, p.limits.accountRate.Run), nil
}

// mount makes the OCI API and the management API, and mounts them on `front`. The caller
// sets the fields of `o` that hold the catalog and the workers; mount sets the other
// fields.
func (p dependencies) mount(cfg *config.Config, front *server.Server, access access, o management.Options) (*site, error) {
	o.Server, o.Log, o.Audit, o.System = front, p.log, audit.New(p.db), p.system(cfg)
	o.Store = blob.Mark(p.store, backend.StoreTrouble(cfg.Storage))
	o.Recorder, o.PullStats, o.RedisPulls = p.pulls.recorder, p.pulls.sync, p.pulls.flush
	o.GC.Batch, o.GC.TransactionTimeout, o.GC.StorageTimeout = cfg.GC.Batch, cfg.GC.TransactionTimeout, cfg.Storage.DeleteTimeout
	o.GC.MaxFailures, o.GC.UploadAge = cfg.GC.SetAsideAfter, backend.UploadAge(cfg)
	oci, err := distribution.New(distribution.Options{
		Server: front, Catalog: o.Catalog, Store: o.Store, WrongStore: p.store.Wrong, Log: p.log,
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

// gcWorkers makes the workers of garbage collection, and those that manage the audit log's
// partitions and expire tags. Of garbage collection's workers,
// each wakes the worker that continues its work: manifest reviewers wake blob reviewers,
// and blob reviewers and the reaper wake the sweeper.
func gcWorkers(c *catalog.Catalog, garbage *gc.Collector, cfg *config.Config, p dependencies, loops *worker.Metrics) ([]func(context.Context) error, error) {
	metrics := gc.NewMetrics(p.metrics)
	gauges, err := gc.NewGauges(gc.GaugesOptions{Collector: garbage, Log: p.log})
	if err != nil {
		return nil, err
	}
	if err := p.metrics.Register(gauges); err != nil {
		return nil, fmt.Errorf("registering the gauges of garbage collection: %w", err)
	}
	sweeper, err := gc.NewSweeper(gc.SweeperOptions{
		Collector: garbage, Store: p.store, Timeout: cfg.Storage.DeleteTimeout, Log: p.log, Metrics: metrics, Worker: loops,
	})
	if err != nil {
		return nil, err
	}
	reaper, err := gc.NewReaper(gc.ReaperOptions{
		Catalog: c, Store: p.store, Age: backend.UploadAge(cfg), Reaped: sweeper.Wake, MayDelete: p.clocks.Check, Log: p.log, Metrics: metrics, Worker: loops,
	})
	if err != nil {
		return nil, err
	}
	expirer, err := autoprune.NewExpirer(autoprune.ExpirerOptions{Catalog: c, MayDelete: p.clocks.Check, Log: p.log, Worker: loops})
	if err != nil {
		return nil, err
	}
	list := append(auditWorkers(cfg.Audit, p, loops), sweeper.Run, reaper.Run, expirer.Run)
	next := sweeper.Wake
	for _, k := range []struct {
		kind gc.ReviewKind
		on   bool
	}{{gc.ReviewOfBlobs, cfg.GC.ReviewBlobs}, {gc.ReviewOfManifests, cfg.GC.ReviewManifests}} {
		var wakes []func()
		for range cfg.GC.Workers {
			if !k.on {
				break
			}
			r, err := gc.NewReviewer(gc.ReviewerOptions{
				Collector: garbage, Kind: k.kind, Batch: cfg.GC.Batch, Timeout: cfg.GC.TransactionTimeout,
				MaxFailures: cfg.GC.SetAsideAfter, Idle: idle(cfg.GC), Deleted: next,
				Log: p.log, Metrics: metrics, Worker: loops,
			})
			if err != nil {
				return nil, err
			}
			list, wakes = append(list, r.Run), append(wakes, r.Wake)
		}
		next = func() {
			for _, wake := range wakes {
				wake()
			}
		}
	}
	return list, nil
}

// idle returns how long a reviewer that has found no due review sleeps at most before it
// looks again: the shortest review delay, but at least a second and at most worker.MaxIdle
// (one minute).
func idle(cfg config.GC) time.Duration {
	shortest := worker.MaxIdle
	for _, d := range cfg.Delays() {
		shortest = min(shortest, d)
	}
	return max(shortest, time.Second)
}

// serve serves requests and runs the background functions until ctx ends, or until the HTTP
// server or one of these functions fails. Then it lets requests finish, within
// http.drain_timeout. It stops the background functions only after that, because requests
// depend on them.
func serve(ctx context.Context, cfg *config.Config, handler *site, door *entrance,
	background []func(context.Context) error, ready *readiness, host *manager, log *slog.Logger,
) error {
	work, stopWork := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWork()
	group, groupCtx := errgroup.WithContext(work)
	for _, fn := range background {
		group.Go(func() error { return fn(groupCtx) })
	}
	door.open(handler)
	group.Go(door.wait)
	host.ready(door.socks.url())
	group.Go(func() error {
		defer stopWork()
		select {
		case <-ctx.Done():
			log.Info("stopping: requests may end", "drain_timeout", cfg.HTTP.DrainTimeout)
		case <-groupCtx.Done():
		}
		ready.stopping()
		host.stopping()
		drain(door.srv, door.socks, door.silent, cfg.HTTP.DrainTimeout, log)
		if err := handler.close(); err != nil {
			log.Warn("deleting the uploads that were made ahead failed; the reaper deletes them later", "error", err)
		}
		return nil
	})
	err := group.Wait()
	if err == nil {
		log.Info("stopped serving")
	}
	return err
}

func listenAndServe(srv *http.Server, socks *sockets) error {
	if socks.cert != nil {
		return srv.ServeTLS(socks.registry, "", "")
	}
	return srv.Serve(socks.registry)
}

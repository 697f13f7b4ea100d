package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/purser-registry/purser/cmd/purser/internal/backend"
	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/snapshot"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/pgsession"
	"github.com/purser-registry/purser/internal/pullstats"
	"github.com/purser-registry/purser/internal/pullstats/redispulls"
	"github.com/purser-registry/purser/internal/pullstats/statsdb"
	"github.com/purser-registry/purser/internal/worker"
)

// statistics prepares the schema of the pull statistics. Their database may be on a server
// of its own, and the registry works without it. If that server can't be reached when the
// registry starts, Run applies the migrations as soon as the server answers; from then on,
// pulls are counted from the audit log.
type statistics struct {
	prepare func(ctx context.Context) error
	log     *slog.Logger

	mu      sync.Mutex
	missing error // why the schema isn't ready; nil: it is
}

// openStatistics applies the migrations of the pull statistics or, without
// database.migrate, checks that all are applied. If the statistics' database is on a server
// of its own that can't be reached, openStatistics logs that and returns no error.
func openStatistics(ctx context.Context, cfg *config.Config, dsn string, log *slog.Logger) (*statistics, error) {
	s := &statistics{log: log, prepare: func(ctx context.Context) error {
		if cfg.Database.Migrate {
			_, err := db.MigrateStats(ctx, backend.StatsDSN(cfg, dsn), backend.MigrateOptions(ctx, cfg))
			return err
		}
		list, err := db.StatusStats(ctx, backend.StatsDSN(cfg, dsn))
		return errors.Join(err, backend.SchemaComplete(list))
	}}
	var err error
	if backend.StatsDSN(cfg, dsn) == dsn {
		err = backend.Patiently(ctx, cfg, log, func() error { return s.prepare(ctx) })
	} else {
		err = backend.ExplainDatabase(cfg, s.prepare(ctx))
	}
	switch {
	case err == nil:
		return s, nil
	case ctx.Err() != nil || backend.StatsDSN(cfg, dsn) == dsn || !db.Unavailable(err) || pgsession.Misconfigured(err):
		return nil, fmt.Errorf("the statistics' database: %w", err)
	}
	log.ErrorContext(ctx, "the statistics' database can't be reached: starting without pull statistics. Pulls are counted from the audit log once it can be reached; until then no last_pulled policy runs", "error", err)
	s.missing = err
	return s, nil
}

// Run retries the migration until it succeeds. It returns nil when ctx ends.
func (s *statistics) Run(ctx context.Context) error {
	for attempt := 1; s.Check(ctx) != nil; attempt++ {
		_ = worker.Sleep(ctx, worker.Backoff(attempt, 250*time.Millisecond, 15*time.Second))
		if ctx.Err() != nil {
			return nil
		}
		err := s.prepare(ctx)
		if err != nil && !db.Unavailable(err) && ctx.Err() == nil {
			s.log.ErrorContext(ctx, "preparing the statistics' database failed", "error", err)
		}
		s.mu.Lock()
		s.missing = err
		s.mu.Unlock()
		if err == nil {
			s.log.InfoContext(ctx, "the statistics' database can be reached now, and its schema is up to date")
		}
	}
	<-ctx.Done()
	return nil
}

// Check returns the last error of preparing the schema, or nil if the schema is ready. It
// makes no query.
func (s *statistics) Check(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.missing
}

// statisticsCheck returns a readiness check that fails if the schema of the statistics
// isn't ready, their database can't be reached or written, or its role lacks a right there.
func statisticsCheck(s *statistics, p dependencies) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := s.Check(ctx); err != nil {
			return err
		}
		return statisticsRights(ctx, p.stats())
	}
}

// lastPulls limits each step by which a shutdown saves recorded pulls, such as sending them
// to Redis or writing them to the audit log.
const lastPulls = 10 * time.Second

// pullParts are the recorders and workers that log and count pulls.
type pullParts struct {
	log      *audit.Recorder             // nil: pulls aren't logged
	recorder *pullstats.Recorder         // nil: pulls aren't recorded
	redis    *redispulls.Client          // nil: there is no Redis
	lastUsed *pullstats.LastUsedRecorder // writes last-used times; nil: pulls aren't counted
	sync     *pullstats.SyncWorker       // nil: pulls aren't counted
	flush    *redispulls.FlushWorker     // nil: there is no Redis
	// open tells other processes that this one records uses, or that it doesn't. It is called
	// before the first request is answered. If it fails, the workers do the same later.
	open    func(context.Context) error
	workers []func(context.Context) error
	logger  *slog.Logger
}

// openPulls makes the recorders and workers that log and count pulls. If counting is
// switched off, pulls can still be logged, and be counted later from the audit log.
func openPulls(cfg *config.Config, p dependencies, loops *worker.Metrics) (out pullParts, err error) {
	out.logger, out.open = p.log, func(context.Context) error { return nil }
	if out.log, err = openPullLog(cfg.Audit, p.db, p.metrics, p.log); err != nil {
		return out, err
	}
	if out.log != nil {
		out.workers = append(out.workers, out.log.Run)
	}
	if cfg.Redis.URL != "" {
		if out.redis, err = backend.NewRedis(cfg, p.stats()); err != nil {
			return out, err
		}
	}
	o := pullstats.RecorderOptions{Log: out.log, Stats: p.stats(), Logger: p.log, Worker: loops}
	if cfg.PullStatistics.Counts() {
		if err := out.count(cfg, p, loops, &o); err != nil {
			return out, err
		}
	} else {
		out.open = uncounted(cfg.Audit.Pulls, p)
		out.workers = append(out.workers, worker.New(worker.Options{
			Name: "uncounted pulls", Log: p.log, Metrics: loops, Batch: func(ctx context.Context) (bool, error) { return false, out.open(ctx) },
		}).Run)
	}
	if o.Count || o.Log != nil {
		out.recorder = pullstats.NewRecorder(o)
		out.sync.Hastens(out.recorder)
		out.workers = append(out.workers, out.recorder.Run)
		if o.Count {
			out.open = out.recorder.Open
		}
	}
	return out, nil
}

// count adds to `out` the recorders and workers that count pulls, and sets the options of
// `o` that concern counting.
func (out *pullParts) count(cfg *config.Config, p dependencies, loops *worker.Metrics, o *pullstats.RecorderOptions) error {
	metrics, ofRedis := pullstats.NewMetrics(p.metrics), redispulls.NewMetrics(p.metrics)
	places := statsdb.Databases{Log: p.db, Stats: p.stats(), Alive: catalog.LivingNamespaces}
	lastUsed, err := pullstats.NewLastUsedRecorder(pullstats.LastUsedOptions{Databases: places, ClocksFit: p.clocks.Check, Log: p.log, Worker: loops})
	if err != nil {
		return err
	}
	out.lastUsed = lastUsed
	c := cfg.PullStatistics
	o.Count, o.LastUsed, o.Metrics = true, lastUsed, metrics
	if o.Join = c.JoinWithin; !c.Join {
		o.Join = -1
	}
	o.Ignore = pullstats.Ignore{UserAgents: c.IgnoreUserAgents, Accounts: c.IgnoreAccounts}
	if c.Redis {
		o.Redis = out.redis
	}
	out.sync, err = pullstats.NewSyncWorker(pullstats.SyncOptions{
		Databases: places, Redis: out.redis, Interval: c.Interval, Join: c.JoinWithin, Retention: cfg.Audit.Retention,
		ClocksFit: p.clocks.Check, Logger: p.log, Metrics: metrics, Worker: loops,
	})
	if err != nil {
		return err
	}
	out.workers = append(out.workers, out.sync.Run, lastUsed.Run)
	if c.HistoryRetention > 0 {
		retention, err := pullstats.NewRetentionWorker(pullstats.RetentionOptions{Stats: p.stats(), Retention: c.HistoryRetention, MayDelete: p.clocks.CheckTime, Logger: p.log, Worker: loops})
		if err != nil {
			return err
		}
		out.workers = append(out.workers, retention.Run)
	}
	if out.redis == nil {
		return nil
	}
	out.flush, err = redispulls.NewFlushWorker(redispulls.FlushOptions{
		Databases: places, Redis: out.redis, Interval: c.RedisInterval,
		Logger: p.log, Metrics: ofRedis, Worker: loops,
	})
	if err != nil {
		return err
	}
	out.workers = append(out.workers, out.flush.Run)
	return nil
}

// close saves the recorded pulls that aren't written yet; it is called after requests have
// ended. Pulls that Redis doesn't accept go to the audit log. Of pulls that can't be
// written to the audit log either, only the last-used times of their tags and manifests are
// saved. Each step has a time limit of its own, lastPulls.
func (p pullParts) close() {
	within := func(fn func(ctx context.Context)) {
		ctx, cancel := context.WithTimeout(context.Background(), lastPulls)
		defer cancel()
		fn(ctx)
	}
	lost := false
	within(p.recorder.Close)
	within(func(ctx context.Context) {
		if err := p.log.Close(ctx); err != nil {
			p.logger.Error("stopping without all pulls in the audit log", "error", err)
			lost = true
		}
	})
	if p.lastUsed != nil {
		within(func(ctx context.Context) {
			if err := p.lastUsed.Close(ctx); err != nil {
				p.logger.Error("stopping the statistics of pulls failed", "error", err)
				lost = true
			}
		})
	}
	within(func(ctx context.Context) {
		if err := p.recorder.Leave(ctx, lost); err != nil {
			p.logger.Error("stopping the statistics of pulls failed", "error", err)
		}
	})
	if p.redis != nil {
		p.redis.Close() //nolint:errcheck // nothing is left to send
	}
}

// unrecordedFor is how long the pull statistics count as incomplete after the function that
// `uncounted` returns has marked them so. It must be longer than a worker sleeps, so that
// the mark doesn't expire before the worker renews it.
const unrecordedFor = 2 * worker.MaxIdle

// uncounted returns a function for a process that doesn't count pulls; it must be called
// regularly. It marks the pull statistics as incomplete: this process's HEAD requests are missing
// there and, unless its pulls are at least written to the audit log (`logged`), so are its pulls. The
// recorder tells of those that couldn't be written there.
func uncounted(logged bool, p dependencies) func(context.Context) error {
	return func(ctx context.Context) error {
		if logged {
			return statsdb.Unchecked(ctx, p.stats(), unrecordedFor)
		}
		return statsdb.Unrecorded(ctx, p.stats(), unrecordedFor)
	}
}

// unreliable describes pull statistics that lag behind by a year. No last_pulled policy
// trusts such statistics, so none deletes any tag.
var unreliable = judge.PullRecord{Since: time.Unix(0, 0), Behind: 365 * 24 * time.Hour}

// PruneByPulls gives auto-pruning, by its options `o`, access to the pull statistics. It
// does nothing if `sync` is nil. `flush` is nil if there is no Redis.
func PruneByPulls(o *autoprune.Options, sync *pullstats.SyncWorker, flush *redispulls.FlushWorker) {
	if sync == nil {
		return
	}
	// If this function returned the error, policies that need no statistics would stop too.
	// Therefore it logs the error, and reports statistics that no policy trusts.
	o.Pulls = func(ctx context.Context) (judge.PullRecord, error) {
		record, err := pullRecord(ctx, sync, flush)
		if err != nil {
			o.Log.WarnContext(ctx, "pruning without pull statistics", "error", err)
			return unreliable, ctx.Err()
		}
		return record, nil
	}
	o.Settle = sync.Settle
	o.Used = func(ctx context.Context, repository int64, tags []*judge.Tag) error {
		err := fillUses(ctx, cmp.Or(o.Background, o.DB), sync, repository, tags)
		if err != nil {
			// A tag whose pulls can't be read counts as pulled now, so that no policy
			// deletes it; and policies that count tags don't count it.
			o.Log.WarnContext(ctx, "pruning without pull statistics", "repository_id", repository, "error", err)
			for _, t := range tags {
				t.Pulled, t.UseUnknown = time.Now(), true
			}
		}
		return ctx.Err()
	}
}

// pullRecord returns how far the pull statistics can be trusted: since when they are
// complete, and by how much they lag behind the audit log and Redis.
func pullRecord(ctx context.Context, sync *pullstats.SyncWorker, flush *redispulls.FlushWorker) (r judge.PullRecord, err error) {
	s, err := sync.Status(ctx)
	if err == nil && s.Foreign {
		err = pullstats.ErrForeignLog
	}
	if err != nil {
		return r, err
	}
	r = judge.PullRecord{Since: s.Since, Behind: s.Behind}
	if s.Checks.After(r.Since) {
		r.Since = s.Checks
	}
	if s.Unseen {
		r.Unknown = pullstats.ErrUnseen.Error()
	}
	if flush == nil {
		return r, nil
	}
	behind, err := flush.Behind(ctx)
	r.Behind = max(r.Behind, behind)
	return r, err
}

// fillUses sets in each tag when the tag was last pulled by name, and when its manifest, or
// a manifest below it (one that an index lists), was last pulled by digest.
func fillUses(ctx context.Context, pool *db.DB, w *pullstats.SyncWorker, repository int64, tags []*judge.Tag) error {
	manifests, names := make([]int64, len(tags)), make([]string, len(tags))
	for i, t := range tags {
		manifests[i], names[i] = t.Manifest, t.Name
	}
	below, err := snapshot.DigestsBelow(ctx, pool, repository, manifests)
	if err != nil {
		return err
	}
	var digests []string
	for _, list := range below {
		for _, d := range list {
			digests = append(digests, d.String())
		}
	}
	uses, err := w.Uses(ctx, repository, names, digests)
	if err != nil {
		return err
	}
	for _, t := range tags {
		t.Pulled, t.ManifestPulled, t.UseUnknown = uses.Tags[t.Name], time.Time{}, false
		for _, d := range below[t.Manifest] {
			if at := uses.Manifests[d.String()]; at.After(t.ManifestPulled) {
				t.ManifestPulled = at
			}
		}
	}
	return nil
}

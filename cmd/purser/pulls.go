package main

import (
	"context"
	"time"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/pullstats"
	"github.com/purser-registry/purser/internal/worker"
)

// openPullStats makes what counts pulls, nil when they aren't to be counted, and what
// of it runs in the background.
func openPullStats(cfg *config.Config, p parts, loops *worker.Metrics) (*pullstats.SyncWorker, []func(context.Context) error, error) {
	if !cfg.PullStatistics.Enabled {
		if cfg.Audit.Pulls {
			return nil, nil, nil // they can be counted later
		}
		return nil, []func(context.Context) error{unrecorded(p.stats(), p, loops)}, nil
	}
	metrics, err := pullstats.NewMetrics(p.metrics)
	if err != nil {
		return nil, nil, err
	}
	w, err := pullstats.NewSyncWorker(pullstats.SyncOptions{
		Log: p.db, Stats: p.stats(), Alive: catalog.AliveRepositories,
		Interval: cfg.PullStatistics.Interval, Batch: cfg.PullStatistics.Batch, Retention: cfg.Audit.Retention,
		Logger: p.log, Metrics: metrics, Worker: loops,
	})
	if err != nil {
		return nil, nil, err
	}
	return w, []func(context.Context) error{w.Run}, nil
}

// unrecordedFor is longer than a loop sleeps.
const unrecordedFor = 2 * worker.MaxIdle

// unrecorded tells the statistics, again and again, that pulls of this process are
// missing in them.
func unrecorded(stats *db.DB, p parts, loops *worker.Metrics) func(context.Context) error {
	return worker.New(worker.Options{
		Name: "unrecorded pulls", Log: p.log, Metrics: loops,
		Batch: func(ctx context.Context) (bool, error) {
			return false, pullstats.Unrecorded(ctx, stats, unrecordedFor)
		},
	}).Run
}

// unreliable are pull statistics that nothing may be deleted by.
var unreliable = autoprune.PullRecord{Since: time.Unix(0, 0), Behind: 365 * 24 * time.Hour}

// lacking keeps last_pulled policies from selecting anything: a tag that is in use
// could look unused.
const lacking = "HEAD requests, which are all that a node sends that has an image"

// pruneByPulls lets auto-pruning read the statistics of pulls.
func pruneByPulls(o *autoprune.Options, w *pullstats.SyncWorker) {
	if w == nil {
		return
	}
	// Policies that need no statistics are to run without them.
	o.Pulls = func(ctx context.Context) (autoprune.PullRecord, error) {
		s, err := w.Status(ctx)
		if err == nil && s.Foreign {
			err = pullstats.ErrForeignLog
		}
		if err != nil {
			o.Log.WarnContext(ctx, "pruning without pull statistics", "error", err)
			return unreliable, ctx.Err()
		}
		return autoprune.PullRecord{Since: s.Since, Lacking: lacking, Behind: s.Behind}, nil
	}
	o.Used = func(ctx context.Context, repository int64, tags []*autoprune.Tag) error {
		err := fillUses(ctx, o.Catalog, w, repository, tags)
		if err != nil {
			// What can't be told counts as used now.
			o.Log.WarnContext(ctx, "pruning without pull statistics", "repository_id", repository, "error", err)
			for _, t := range tags {
				t.Pulled = time.Now()
			}
		}
		return ctx.Err()
	}
}

// fillUses finds when tags, and the manifests at and below them, were last pulled.
func fillUses(ctx context.Context, c *catalog.Catalog, w *pullstats.SyncWorker, repository int64, tags []*autoprune.Tag) error {
	manifests, names := make([]int64, len(tags)), make([]string, len(tags))
	for i, t := range tags {
		manifests[i], names[i] = t.Manifest, t.Name
	}
	below, err := c.DigestsBelow(ctx, repository, manifests)
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
		t.Pulled, t.ManifestPulled = uses.Tags[t.Name], time.Time{}
		for _, d := range below[t.Manifest] {
			if at := uses.Manifests[d.String()]; at.After(t.ManifestPulled) {
				t.ManifestPulled = at
			}
		}
	}
	return nil
}

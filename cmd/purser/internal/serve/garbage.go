package serve

import (
	"context"
	"fmt"
	"time"

	"github.com/purser-registry/purser/cmd/purser/internal/backend"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/catalog/trash"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/gc"
	"github.com/purser-registry/purser/internal/worker"
)

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
				Collector: garbage, Kind: k.kind, Timeout: cfg.GC.TransactionTimeout,
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

// purgeLook is how often the purger looks for what is to be purged.
const purgeLook = time.Minute

// purger makes the worker that deletes for good what was in the trash for as long as it was to be
// kept. It runs whatever trash.keep is, since the trash may have something from before the setting
// was changed. Any number of processes may run it.
func purger(can *trash.Can, p dependencies, loops *worker.Metrics) func(context.Context) error {
	return worker.New(worker.Options{
		Name: "trash", Log: p.log, Metrics: loops, Idle: purgeLook, May: p.clocks.Check, Batch: can.PurgeExpired,
	}).Run
}

package serve

import (
	"context"
	"time"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/worker"
)

// purgeLook is how often the purger looks for what is to be purged.
const purgeLook = time.Minute

// purger makes the worker that deletes for good what was in the trash for as long as it was to be
// kept. It runs whatever trash.keep is, since the trash may have something from before the setting
// was changed. Any number of processes may run it.
func purger(c *catalog.Catalog, p dependencies, loops *worker.Metrics) func(context.Context) error {
	return worker.New(worker.Options{
		Name: "trash", Log: p.log, Metrics: loops, Idle: purgeLook, May: p.clocks.Check, Batch: c.PurgeExpired,
	}).Run
}

// Package gc deletes from the blob store what the registry no longer needs: the
// objects that the catalog has doomed (Sweeper), after giving up the uploads
// that nobody continues (Reaper).
//
// Why no object in use is ever deleted, whatever stalls or dies, and why none
// is forgotten:
//
//   - An object is doomed in the transaction that takes away the row which
//     owned it, and an object's name is never used again. So when a doomed
//     object is deleted, however late, its name means nothing else.
//   - Deleting twice is harmless for the same reason. So a doomed object is
//     forgotten only after the store has said that it is gone. A sweeper that
//     dies in between leaves it to the next one, once its claim (the hold) is
//     over; two that hold the same one do no harm.
//   - A request that lost its upload may still write an object of it. So the
//     objects of an upload are swept once more when the longest request that
//     may have begun before is over.
//   - No storage call is made in a database transaction: a store that hangs
//     holds no lock and no connection.
package gc

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts what was deleted.
type Metrics struct {
	sweptObjects  prometheus.Counter
	sweptBytes    prometheus.Counter
	sweepFailures prometheus.Counter
	reapedUploads prometheus.Counter
}

// NewMetrics makes the metrics and registers them with reg; nil: nowhere.
func NewMetrics(reg prometheus.Registerer) (*Metrics, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &Metrics{
		sweptObjects: counter("purser_gc_swept_objects_total",
			"Doomed objects deleted from the store; all objects of an upload count as one each time they are swept."),
		sweptBytes: counter("purser_gc_swept_bytes_total",
			"Size of the doomed objects deleted from the store."),
		sweepFailures: counter("purser_gc_sweep_failures_total",
			"Doomed objects that the store failed to delete; each is tried again."),
		reapedUploads: counter("purser_gc_reaped_uploads_total",
			"Abandoned uploads given up."),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.sweptObjects, m.sweptBytes, m.sweepFailures, m.reapedUploads} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("registering the metrics of garbage collection: %w", err)
		}
	}
	return m, nil
}

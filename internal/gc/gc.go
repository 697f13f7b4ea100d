// Package gc deletes what the registry no longer needs. Reviewers take the manifests and
// blobs that database triggers have put into the review queues, and delete those without a
// reference. The Reaper deletes the rows of abandoned uploads. Both record the freed objects
// in gc_doomed_objects, the table of objects waiting for deletion ("doomed" objects); the
// Sweeper deletes these from the blob store. Collect does all three until nothing is due.
//
// The comment of review.go in package catalog explains why a review never deletes what is in
// use; package model explores that protocol step by step.
//
// The following rules guarantee that no object in use is ever deleted, whatever stalls or
// dies, and that no object to be deleted is forgotten:
//
//   - An object is recorded for deletion in the same transaction that removes the row which
//     owned it, and storage keys are never reused. So the deletion may come arbitrarily
//     late: its key can't mean another object.
//   - Deleting an object twice is harmless for the same reason. The row in gc_doomed_objects
//     is removed only after the store has confirmed the deletion. If a sweeper dies in
//     between, another sweeper takes the object when the first one's claim expires
//     (SweeperOptions.Hold); two sweepers that hold the same object do no harm.
//   - A request that lost its upload may still write an object of that upload. So the
//     objects of an upload are swept a second time, after the longest time that a request
//     which began earlier can run.
//   - The object of a deleted blob is claimed no earlier than gc.keep_doomed after its row
//     was deleted. If the database is restored to a state from before, within that time, it
//     finds the object under the key in the restored row; the row that scheduled the
//     deletion belongs to the newer state and is gone.
//   - Nothing is swept, reaped or repaired while the store carries another database's
//     identity: objects missing there would count as deleted, and its objects belong to
//     another registry.
//   - No storage call is made inside a database transaction: a store that hangs holds no
//     lock and no connection.
package gc

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts what was reviewed and deleted.
type Metrics struct {
	reviews       *prometheus.CounterVec
	reviewSeconds *prometheus.HistogramVec
	reviewErrors  *prometheus.CounterVec
	setAside      *prometheus.CounterVec
	links         prometheus.Counter
	sweptObjects  prometheus.Counter
	sweptBytes    prometheus.Counter
	sweepFailures prometheus.Counter
	reapedUploads prometheus.Counter
}

// NewMetrics makes the metrics and registers them with reg, if reg isn't nil.
func NewMetrics(reg prometheus.Registerer) (*Metrics, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m := &Metrics{
		reviews: counters("purser_gc_reviews_total",
			"Reviews of blobs and manifests, by result: deleted, kept (in use), gone (deleted before), postponed (held by somebody else).",
			"kind", "result"),
		reviewSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "purser_gc_review_duration_seconds", Help: "Time that a batch of reviews took.",
			Buckets: []float64{.002, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10},
		}, []string{"kind"}),
		reviewErrors: counters("purser_gc_review_errors_total",
			"Reviews that failed; each is tried again.", "kind"),
		setAside: counters("purser_gc_set_aside_total",
			"Reviews that failed too often and wait for an operator.", "kind"),
		links: counter("purser_gc_unlinked_blobs_total",
			"Links of repositories to blobs that they no longer use, removed."),
		sweptObjects: counter("purser_gc_swept_objects_total",
			"Doomed objects deleted from the store; all objects of an upload count as one each time they are swept."),
		sweptBytes: counter("purser_gc_swept_bytes_total",
			"Size of the doomed objects deleted from the store."),
		sweepFailures: counter("purser_gc_sweep_failures_total",
			"Doomed objects that the store failed to delete; each is tried again."),
		reapedUploads: counter("purser_gc_reaped_uploads_total",
			"Abandoned uploads given up."),
	}
	for _, kind := range []string{"manifest", "blob"} { // makes each label combination visible from the start
		for _, result := range []string{"deleted", "kept", "gone", "postponed"} {
			m.reviews.WithLabelValues(kind, result)
		}
		m.reviewErrors.WithLabelValues(kind)
		m.setAside.WithLabelValues(kind)
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.reviews, m.reviewSeconds, m.reviewErrors, m.setAside, m.links,
		m.sweptObjects, m.sweptBytes, m.sweepFailures, m.reapedUploads} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("registering the metrics of garbage collection: %w", err)
		}
	}
	return m, nil
}

// reviewed counts a batch of reviews.
func (m *Metrics) reviewed(kind ReviewKind, out Review, took time.Duration) {
	for result, n := range map[string]int{
		"deleted": out.Deleted, "kept": out.Kept, "gone": out.Gone, "postponed": out.Locked,
	} {
		m.reviews.WithLabelValues(string(kind), result).Add(float64(n))
	}
	m.links.Add(float64(out.Links))
	m.reviewSeconds.WithLabelValues(string(kind)).Observe(took.Seconds())
}

func (m *Metrics) failedReview(kind ReviewKind) {
	m.reviewErrors.WithLabelValues(string(kind)).Inc()
}

func (m *Metrics) setAsideReview(kind ReviewKind) {
	m.setAside.WithLabelValues(string(kind)).Inc()
}

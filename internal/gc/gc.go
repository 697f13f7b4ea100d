// Package gc deletes what the registry no longer needs. Reviewers take the manifests and
// blobs that database triggers have put into the review queues, and delete those without a
// reference. The Reaper deletes the rows of abandoned uploads. Both record the freed objects
// as pending deletions, rows of gc_doomed_objects; the Sweeper deletes these objects from the
// blob store. Collect does all three until nothing is due.
//
// # A review
//
// A review takes a batch of due rows from one queue, in one transaction of a few set-based
// statements (Collector.Review, then manifests.go or blobs.go):
//
//   - claim: it locks the due rows of the queue, and skips those that others have locked;
//   - look: it finds out which objects are referenced;
//   - lock: it locks the objects that seem unreferenced, and skips those that others have
//     locked;
//   - look again, in a new statement;
//   - delete the objects that are still unreferenced; of a blob, the object in the store is
//     recorded for deletion;
//   - settle: it drops the queue's rows of objects that are referenced, deleted or missing,
//     and postpones the rows of objects that other transactions have locked. For manifests
//     it drops the rows before it deletes, since triggers make new rows for objects that a
//     deletion frees.
//
// This never deletes an object in use, and never forgets an unused one, because:
//
//   - The review locks the queue's row first. A transaction that removes a reference writes
//     this row too, so it waits from then on, and what it did before is visible to the
//     statements that follow. So the review may drop the row when it finds the object in
//     use: whoever removes that reference later makes a new row.
//   - The review locks an object that seems unused FOR UPDATE, and then looks again in a new
//     statement. Making a reference takes KEY SHARE on its target, so no reference can be
//     made after the lock, and those made before are seen. A single statement that locks and
//     looks would look with a snapshot from before the lock.
//   - A review skips and postpones objects that another transaction has locked: it doesn't
//     wait for clients, so clients never wait for a reviewer that waits for a client. Where
//     it has to wait (for the queue rows of what its deletions free), its connection's lock
//     timeout is shorter than deadlock_timeout, so that the review fails and not the client.
//   - A promise of existence ("it exists", told to a client) is a queue row that isn't due
//     yet. A due row holds no promise, since no event makes a row due earlier; and it stays
//     due until the commit, since whoever wants to promise waits for the row's lock.
//
// Manifests that reference each other in a cycle are in cycles.go, referrers of a subject
// in referrers.go, the links of repositories to blobs in links.go. The race tests prove each
// statement of a review (see race_rule_test.go); "make model" explores the whole protocol.
//
// # Objects
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
//     (SweeperOptions.ClaimTime); two sweepers that claim the same object do no harm.
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
	forGood       *prometheus.CounterVec
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
			"Reviews of blobs and manifests, by result: deleted, kept (in use), gone (deleted before), postponed (locked by another transaction).",
			"kind", "result"),
		reviewSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "purser_gc_review_duration_seconds", Help: "Time that a batch of reviews took.",
			Buckets: []float64{.002, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10},
		}, []string{"kind"}),
		reviewErrors: counters("purser_gc_review_errors_total",
			"Reviews that failed; each is tried again.", "kind"),
		forGood: counters("purser_gc_set_aside_total",
			"Reviews that failed too often and are not tried again until an operator asks for it.", "kind"),
		links: counter("purser_gc_unlinked_blobs_total",
			"Removed links of repositories to blobs that they no longer use."),
		sweptObjects: counter("purser_gc_swept_objects_total",
			"Objects deleted from the store. All objects of an upload count as one, each time they are deleted."),
		sweptBytes: counter("purser_gc_swept_bytes_total",
			"Size of the objects deleted from the store."),
		sweepFailures: counter("purser_gc_sweep_failures_total",
			"Objects that the store failed to delete; each is tried again."),
		reapedUploads: counter("purser_gc_reaped_uploads_total",
			"Abandoned uploads that were ended."),
	}
	for _, kind := range []string{"manifest", "blob"} { // makes each label combination visible from the start
		for _, result := range []string{"deleted", "kept", "gone", "postponed"} {
			m.reviews.WithLabelValues(kind, result)
		}
		m.reviewErrors.WithLabelValues(kind)
		m.forGood.WithLabelValues(kind)
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.reviews, m.reviewSeconds, m.reviewErrors, m.forGood, m.links,
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
		"deleted": out.Deleted, "kept": out.Kept, "gone": out.Gone, "postponed": out.Postponed,
	} {
		m.reviews.WithLabelValues(string(kind), result).Add(float64(n))
	}
	m.links.Add(float64(out.Links))
	m.reviewSeconds.WithLabelValues(string(kind)).Observe(took.Seconds())
}

func (m *Metrics) failedReview(kind ReviewKind) {
	m.reviewErrors.WithLabelValues(string(kind)).Inc()
}

func (m *Metrics) failedForGood(kind ReviewKind) {
	m.forGood.WithLabelValues(string(kind)).Inc()
}

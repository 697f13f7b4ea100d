package gc

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
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
func NewMetrics(reg prometheus.Registerer) *Metrics {
	factory := promauto.With(reg)
	counter := func(name, help string) prometheus.Counter {
		return factory.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return factory.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m := &Metrics{
		reviews: counters("purser_gc_reviews_total",
			"Reviews of blobs and manifests, by result: deleted, kept (in use), gone (deleted before), postponed (locked by another transaction).",
			"kind", "result"),
		reviewSeconds: factory.NewHistogramVec(prometheus.HistogramOpts{
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
	return m
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

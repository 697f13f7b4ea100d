package loosefk

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are a worker's, labelled by the parent table and its database, but for
// deletions and updates, which name the child table and its database.
type metrics struct {
	processed, incremented, rescheduled *prometheus.CounterVec
	deletions, updates                  *prometheus.CounterVec
	pending, oldest                     *prometheus.GaugeVec
	duration                            *prometheus.HistogramVec
	failures                            *prometheus.CounterVec
}

func newMetrics() *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{"table", "database"})
	}
	return &metrics{
		processed:   counter("loose_foreign_key_processed_deleted_records", "Deleted records whose children are cleaned up.", "table", "database"),
		incremented: counter("loose_foreign_key_incremented_deleted_records", "Deleted records that a run did not finish.", "table", "database"),
		rescheduled: counter("loose_foreign_key_rescheduled_deleted_records", "Deleted records put off after several unfinished runs.", "table", "database"),
		deletions:   counter("loose_foreign_key_deletions", "Children deleted.", "table", "database"),
		updates:     counter("loose_foreign_key_updates", "Children updated or nullified.", "table", "database"),
		pending:     gauge("loose_foreign_key_pending_deleted_records", "Deleted records that are not processed yet, as of the last run."),
		oldest:      gauge("loose_foreign_key_oldest_pending_seconds", "Age of the oldest pending deleted record, as of the last run."),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "loose_foreign_key_run_duration_seconds", Help: "Duration of the runs of the worker.",
			Buckets: []float64{.01, .1, .5, 1, 5, 10, 30, 60}}, []string{"database"}),
		failures: counter("loose_foreign_key_run_failures", "Runs that failed for at least one table.", "database"),
	}
}

func (m *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.processed, m.incremented, m.rescheduled, m.deletions, m.updates,
		m.pending, m.oldest, m.duration, m.failures}
}

func (m *metrics) changed(r reference, rows int) {
	c := m.updates
	if r.OnDelete == AsyncDelete {
		c = m.deletions
	}
	c.WithLabelValues(r.child.String(), r.childDB.Name).Add(float64(rows))
}

func (m *metrics) ran(database string, took time.Duration, err error) {
	m.duration.WithLabelValues(database).Observe(took.Seconds())
	if err != nil {
		m.failures.WithLabelValues(database).Inc()
	}
}

// register registers the metrics, or returns those that another worker has registered.
func (m *metrics) register(reg prometheus.Registerer) (*metrics, error) {
	err := reg.Register(m)
	if before, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if shared, ok := before.ExistingCollector.(*metrics); ok {
			return shared, nil
		}
	}
	return m, err
}

// Describe is prometheus.Collector's.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.all() {
		c.Describe(ch)
	}
}

// Collect is prometheus.Collector's.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.all() {
		c.Collect(ch)
	}
}

// Describe is prometheus.Collector's: register the worker to export its metrics.
// Where several workers of one process share a registerer, name it in
// Options.Registerer instead.
func (w *Worker) Describe(ch chan<- *prometheus.Desc) { w.metrics.Describe(ch) }

// Collect is prometheus.Collector's.
func (w *Worker) Collect(ch chan<- prometheus.Metric) { w.metrics.Collect(ch) }

// gauge sets what is pending in a database.
func (w *Worker) gauge(ctx context.Context, db *Database) error {
	list, err := db.Pending(ctx)
	if err != nil {
		return err
	}
	count, oldest := map[string]int64{}, map[string]time.Duration{}
	for _, p := range list {
		count[p.Table] += p.Count
		oldest[p.Table] = max(oldest[p.Table], p.OldestAge)
	}
	w.metrics.pending.DeletePartialMatch(prometheus.Labels{"database": db.Name})
	w.metrics.oldest.DeletePartialMatch(prometheus.Labels{"database": db.Name})
	for table, n := range count {
		w.metrics.pending.WithLabelValues(table, db.Name).Set(float64(n))
		w.metrics.oldest.WithLabelValues(table, db.Name).Set(oldest[table].Seconds())
	}
	return nil
}

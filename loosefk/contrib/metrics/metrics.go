// Package metrics exports the results of workers of package loosefk as Prometheus metrics.
//
//	m, err := metrics.New(prometheus.DefaultRegisterer)
//	…
//	worker, err := loosefk.New(loosefk.Options{Observer: m, …})
package metrics

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/purser-registry/purser/loosefk"
)

// Metrics implements loosefk.Observer. The labels of its metrics are the parent table and
// its database; the metrics of deletions and updates have the child table and its database.
type Metrics struct {
	processed, incremented, rescheduled *prometheus.CounterVec
	deletions, updates                  *prometheus.CounterVec
	pending, oldest                     *prometheus.GaugeVec
	duration                            *prometheus.HistogramVec
	failures                            *prometheus.CounterVec
}

var _ loosefk.Observer = (*Metrics)(nil)

// New makes Metrics and registers them with reg. If an earlier call of New has registered
// Metrics with reg already, New returns the Metrics of the earlier call, so that several
// workers of one process can share them.
func New(reg prometheus.Registerer) (*Metrics, error) {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{"table", "database"})
	}
	m := &Metrics{
		processed:   counter("loose_foreign_key_processed_deleted_records_total", "Deleted records whose children are cleaned up.", "table", "database"),
		incremented: counter("loose_foreign_key_incremented_deleted_records_total", "Deleted records that a run did not finish.", "table", "database"),
		rescheduled: counter("loose_foreign_key_rescheduled_deleted_records_total", "Deleted records postponed after several unfinished runs.", "table", "database"),
		deletions:   counter("loose_foreign_key_deletions_total", "Children deleted.", "table", "database"),
		updates:     counter("loose_foreign_key_updates_total", "Children updated or nullified.", "table", "database"),
		pending:     gauge("loose_foreign_key_pending_deleted_records", "Deleted records that are not processed yet, as of the last run."),
		oldest:      gauge("loose_foreign_key_oldest_pending_seconds", "Age of the oldest pending deleted record, as of the last run."),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "loose_foreign_key_run_duration_seconds", Help: "Duration of the runs of the worker.",
			Buckets: []float64{.01, .1, .5, 1, 5, 10, 30, 60}}, []string{"database"}),
		failures: counter("loose_foreign_key_run_failures_total", "Runs that failed for at least one table.", "database"),
	}
	err := reg.Register(m)
	if before, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if shared, ok := before.ExistingCollector.(*Metrics); ok {
			return shared, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("registering the metrics of loose foreign keys: %w", err)
	}
	return m, nil
}

// Records implements loosefk.Observer.
func (m *Metrics) Records(database, table string, processed, incremented, rescheduled int) {
	m.processed.WithLabelValues(table, database).Add(float64(processed))
	m.incremented.WithLabelValues(table, database).Add(float64(incremented))
	m.rescheduled.WithLabelValues(table, database).Add(float64(rescheduled))
}

// Rows implements loosefk.Observer.
func (m *Metrics) Rows(database, table string, deleted, updated int) {
	if deleted > 0 {
		m.deletions.WithLabelValues(table, database).Add(float64(deleted))
	}
	if updated > 0 {
		m.updates.WithLabelValues(table, database).Add(float64(updated))
	}
}

// Ran implements loosefk.Observer.
func (m *Metrics) Ran(database string, took time.Duration, err error) {
	m.duration.WithLabelValues(database).Observe(took.Seconds())
	if err != nil {
		m.failures.WithLabelValues(database).Inc()
	}
}

// Pending implements loosefk.Observer.
func (m *Metrics) Pending(database string, list []loosefk.Pending) {
	count, oldest := map[string]int64{}, map[string]time.Duration{}
	for _, p := range list {
		count[p.Table] += p.Count
		oldest[p.Table] = max(oldest[p.Table], p.OldestAge)
	}
	m.Uncounted(database)
	for table, n := range count {
		m.pending.WithLabelValues(table, database).Set(float64(n))
		m.oldest.WithLabelValues(table, database).Set(oldest[table].Seconds())
	}
}

// Uncounted implements loosefk.Observer: rather no numbers than old ones.
func (m *Metrics) Uncounted(database string) {
	m.pending.DeletePartialMatch(prometheus.Labels{"database": database})
	m.oldest.DeletePartialMatch(prometheus.Labels{"database": database})
}

func (m *Metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.processed, m.incremented, m.rescheduled, m.deletions, m.updates,
		m.pending, m.oldest, m.duration, m.failures}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.all() {
		c.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.all() {
		c.Collect(ch)
	}
}

package audit

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// These are the reasons for which an entry of a pull was dropped.
const (
	droppedFull   = "full"   // the buffer was full
	droppedUnfit  = "unfit"  // PostgreSQL doesn't take it
	droppedClosed = "closed" // it came after Close, or Close ran out of time
)

// Metrics counts the pulls that recorders write and drop.
type Metrics struct {
	written prometheus.Counter
	entries prometheus.Counter
	dropped *prometheus.CounterVec
}

// NewMetrics registers the metrics of recorders.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	factory := promauto.With(reg)
	m := &Metrics{
		written: factory.NewCounter(prometheus.CounterOpts{
			Name: "purser_audit_pulls_written_total", Help: "Pulls written to the audit log.",
		}),
		entries: factory.NewCounter(prometheus.CounterOpts{
			Name: "purser_audit_pull_entries_total", Help: "Entries of the audit log that these pulls are: pulls of one thing by one client within a second are one.",
		}),
		dropped: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "purser_audit_pulls_dropped_total",
			Help: "Pulls that are missing in the audit log: full (the buffer was), unfit (PostgreSQL refused them) or closed (the process stopped).",
		}, []string{"reason"}),
	}
	for _, reason := range []string{droppedFull, droppedUnfit, droppedClosed} {
		m.dropped.WithLabelValues(reason) // so that the series begins with 0
	}
	return m
}

func (m *Metrics) wrote(pulls, entries int) {
	if m != nil {
		m.written.Add(float64(pulls))
		m.entries.Add(float64(entries))
	}
}

func (m *Metrics) drop(reason string, n int) {
	if m != nil && n > 0 {
		m.dropped.WithLabelValues(reason).Add(float64(n))
	}
}

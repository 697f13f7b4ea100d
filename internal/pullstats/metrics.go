package pullstats

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are those of the workers that count.
type Metrics struct {
	entries  *prometheus.CounterVec
	failures prometheus.Counter
	lag      prometheus.Gauge
}

// What becomes of an entry that is read.
const (
	entryCounted   = "counted"
	entryElsewhere = "elsewhere"
	entryGone      = "gone"
)

// NewMetrics registers the metrics of pull statistics.
func NewMetrics(reg prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		entries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "purser_pull_statistics_entries_total",
			Help: "Pulls read in the audit log: counted, elsewhere (they are counted in Redis) or gone (their repository is).",
		}, []string{"result"}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "purser_pull_statistics_failures_total", Help: "Batches of pulls that could not be counted; they are tried again.",
		}),
		lag: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "purser_pull_statistics_lag_seconds",
			Help: "Age of the oldest pull in the audit log that is not counted yet, when this process last counted.",
		}),
	}
	for _, result := range []string{entryCounted, entryElsewhere, entryGone} {
		m.entries.WithLabelValues(result) // so that there is a zero to compare with
	}
	for _, c := range []prometheus.Collector{m.entries, m.failures, m.lag} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("registering the metrics of pull statistics: %w", err)
		}
	}
	return m, nil
}

func (m *Metrics) read(t tally) {
	if m != nil {
		m.entries.WithLabelValues(entryCounted).Add(float64(t.counted))
		m.entries.WithLabelValues(entryElsewhere).Add(float64(t.elsewhere))
		m.entries.WithLabelValues(entryGone).Add(float64(t.gone))
	}
}

func (m *Metrics) failed() {
	if m != nil {
		m.failures.Inc()
	}
}

func (m *Metrics) lagging(d time.Duration) {
	if m != nil {
		m.lag.Set(d.Seconds())
	}
}

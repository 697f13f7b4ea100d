package redispulls

import (
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/purser-registry/purser/internal/pullstats/statsdb"
)

// Metrics are the metrics of Redis and of flushing it.
type Metrics struct {
	keys     *prometheus.CounterVec
	flush    prometheus.Histogram
	upsert   prometheus.Histogram
	failures prometheus.Counter
	live     prometheus.Gauge
	memory   prometheus.Gauge
	lag      prometheus.Gauge
	growing  statsdb.GrowingLag // of lag
	up       prometheus.Gauge
}

// Values of the label `result` of purser_redis_flush_keys_total: they say what became of a
// Redis key that was to be flushed.
const (
	keyFlushed = "flushed"
	keyGone    = "gone"
	keyKept    = "kept"
	keyInvalid = "invalid"
)

// NewMetrics registers the metrics of flushing Redis.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	factory := promauto.With(reg)
	m := &Metrics{
		keys: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "purser_redis_flush_keys_total",
			Help: "Keys with pulls that were flushed, whose repository is gone, that were kept for another time, or that are no counters of pulls.",
		}, []string{"result"}),
		flush: factory.NewHistogram(prometheus.HistogramOpts{
			Name: "purser_redis_flush_batch_duration_seconds", Help: "Time that it took to flush a batch of keys.",
			Buckets: []float64{.005, .01, .02, .05, .1, .2, .5, 1, 5, 30},
		}),
		upsert: factory.NewHistogram(prometheus.HistogramOpts{
			Name: "purser_redis_flush_upsert_duration_seconds", Help: "Time of the transaction that adds a batch to the statistics.",
			Buckets: []float64{.005, .01, .02, .05, .1, .2, .5, 1, 5, 30},
		}),
		failures: factory.NewCounter(prometheus.CounterOpts{
			Name: "purser_redis_flush_failures_total", Help: "Runs that failed; what they didn't flush is flushed later.",
		}),
		live: factory.NewGauge(prometheus.GaugeOpts{
			Name: "purser_redis_pull_keys", Help: "Keys of pulls in Redis, when this process last flushed them.",
		}),
		memory: factory.NewGauge(prometheus.GaugeOpts{
			Name: "purser_redis_memory_bytes", Help: "Memory that Redis uses, when this process last looked.",
		}),
		lag: factory.NewGauge(prometheus.GaugeOpts{
			Name: "purser_redis_flush_lag_seconds", Help: "How long ago the last complete flush began, when this process last looked.",
		}),
		up: factory.NewGauge(prometheus.GaugeOpts{
			Name: "purser_redis_up", Help: "Whether Redis answered when this process last looked.",
		}),
	}
	for _, result := range []string{keyFlushed, keyGone, keyKept, keyInvalid} {
		m.keys.WithLabelValues(result)
	}
	return m
}

func (m *Metrics) flushedKeys(result string, n int) {
	if m != nil {
		m.keys.WithLabelValues(result).Add(float64(n))
	}
}

func (m *Metrics) flushed(took time.Duration) {
	if m != nil {
		m.flush.Observe(took.Seconds())
	}
}

func (m *Metrics) upserted(took time.Duration) {
	if m != nil {
		m.upsert.Observe(took.Seconds())
	}
}

func (m *Metrics) flushFailed() {
	if m != nil {
		m.failures.Inc()
	}
}

// keysLeft tells how many keys a flush has found, NaN if it didn't see all.
func (m *Metrics) keysLeft(n float64) {
	if m != nil {
		m.live.Set(n)
	}
}

// looked sets the metrics about Redis from its status.
func (m *Metrics) looked(s Status) {
	if m == nil {
		return
	}
	m.up.Set(0)
	m.memory.Set(math.NaN()) // nobody knows
	if s.Reachable {
		m.up.Set(1)
		m.memory.Set(float64(s.Memory))
		return
	}
	m.live.Set(math.NaN()) // the last flush's keys may be gone
}

func (m *Metrics) flushLag(r statsdb.LagReading) {
	if m != nil {
		m.lag.Set(m.growing.Seconds(r, time.Now()))
	}
}

package pullstats

import (
	"math"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics are the metrics of the workers that count pulls.
type Metrics struct {
	entries  *prometheus.CounterVec
	failures prometheus.Counter
	lag      prometheus.Gauge
	silent   prometheus.Gauge
	lost     prometheus.Counter
	pulls    namespaceMetric

	events  *prometheus.CounterVec
	buffer  prometheus.Gauge
	redis   redisMetrics
	growing growingLag // of lag
}

// Values of the label `result` of purser_redis_pull_events_total: they say what became of a
// pull that Redis was to count.
const (
	eventRecorded   = "recorded"
	eventLogged     = "logged"
	eventDropped    = "dropped"
	eventUnanswered = "unanswered"
)

// redisMetrics are the metrics of flushing Redis.
type redisMetrics struct {
	keys     *prometheus.CounterVec
	flush    prometheus.Histogram
	upsert   prometheus.Histogram
	failures prometheus.Counter
	live     prometheus.Gauge
	memory   prometheus.Gauge
	lag      prometheus.Gauge
	growing  growingLag // of lag
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

// Values of the label `result` of purser_pull_statistics_entries_total: they say what
// became of the pulls that a SyncWorker read in the audit log.
const (
	entryCounted   = "counted"
	entryElsewhere = "elsewhere"
	entryGone      = "gone"
)

// NewMetrics registers the metrics of pull statistics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	factory := promauto.With(reg)
	m := &Metrics{
		entries: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "purser_pull_statistics_entries_total",
			Help: "Pulls read in the audit log: counted, elsewhere (they are counted in Redis) or gone (their repository is).",
		}, []string{"result"}),
		failures: factory.NewCounter(prometheus.CounterOpts{
			Name: "purser_pull_statistics_failures_total", Help: "Batches of pulls that could not be counted; they are tried again.",
		}),
		lag: factory.NewGauge(prometheus.GaugeOpts{
			Name: "purser_pull_statistics_lag_seconds",
			Help: "Age of the oldest pull in the audit log that is not counted yet, when this process last counted.",
		}),
	}
	m.silent = factory.NewGauge(prometheus.GaugeOpts{
		Name: "purser_pull_statistics_unwritten_processes",
		Help: "Processes that had not written which images they served when this process last waited for them; nothing is deleted by last use meanwhile.",
	})
	m.lost = factory.NewCounter(prometheus.CounterOpts{
		Name: "purser_pull_statistics_killed_processes_total",
		Help: "Processes found killed with uses of images that they had not written.",
	})
	m.pulls.names, m.pulls.counter = map[string]bool{}, factory.NewCounterVec(prometheus.CounterOpts{
		Name: "purser_pulls_total",
		Help: "Pulls that this process has answered and that count, by namespace. Only the first 100 namespaces have a series of their own; the others share the one without a name.",
	}, []string{"namespace"})
	m.redisMetrics(factory)
	for _, result := range []string{entryCounted, entryElsewhere, entryGone} {
		m.entries.WithLabelValues(result) // so that the series begins with 0
	}
	for _, result := range []string{eventRecorded, eventLogged, eventDropped, eventUnanswered} {
		m.events.WithLabelValues(result)
	}
	for _, result := range []string{keyFlushed, keyGone, keyKept, keyInvalid} {
		m.redis.keys.WithLabelValues(result)
	}
	return m
}

func (m *Metrics) redisMetrics(factory promauto.Factory) {
	m.events = factory.NewCounterVec(prometheus.CounterOpts{
		Name: "purser_redis_pull_events_total",
		Help: "Pulls for Redis: recorded; logged (Redis didn't take them, so they are counted from the audit log); " +
			"dropped (there was no room) or unanswered (they may be counted or not).",
	}, []string{"result"})
	m.buffer = factory.NewGauge(prometheus.GaugeOpts{
		Name: "purser_redis_pull_events_waiting", Help: "Pulls in memory that wait for Redis.",
	})
	m.redis = redisMetrics{
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
}

// maxNamespaces bounds the series of the metric of pulls by namespace.
const maxNamespaces = 100

// namespaceMetric counts pulls by namespace. The first maxNamespaces that are pulled from have a
// series of their own; the others share the series with an empty name, which no namespace has.
type namespaceMetric struct {
	counter *prometheus.CounterVec
	mu      sync.Mutex
	names   map[string]bool
}

// pulled counts a pull of a repository.
func (m *Metrics) pulled(repository string) {
	if m == nil {
		return
	}
	name, _, _ := strings.Cut(repository, "/")
	m.pulls.mu.Lock()
	if !m.pulls.names[name] {
		if len(m.pulls.names) < maxNamespaces {
			m.pulls.names[strings.Clone(name)] = true
		} else {
			name = ""
		}
	}
	m.pulls.mu.Unlock()
	m.pulls.counter.WithLabelValues(name).Inc()
}

func (m *Metrics) event(result string, n int) {
	if m != nil {
		m.events.WithLabelValues(result).Add(float64(n))
	}
}

func (m *Metrics) waiting(n int) {
	if m != nil {
		m.buffer.Set(float64(n))
	}
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

func (m *Metrics) lagging(r lagReading) {
	if m != nil {
		m.lag.Set(m.growing.seconds(r, time.Now()))
	}
}

// waitingFor tells how many processes Settle waits for, NaN if that can't be known.
func (m *Metrics) waitingFor(n float64) {
	if m != nil {
		m.silent.Set(n)
	}
}

// killed counts processes that were found killed with unwritten uses.
func (m *Metrics) killed(n int) {
	if m != nil {
		m.lost.Add(float64(n))
	}
}

func (m *Metrics) flushedKeys(result string, n int) {
	if m != nil {
		m.redis.keys.WithLabelValues(result).Add(float64(n))
	}
}

func (m *Metrics) flushed(took time.Duration) {
	if m != nil {
		m.redis.flush.Observe(took.Seconds())
	}
}

func (m *Metrics) upserted(took time.Duration) {
	if m != nil {
		m.redis.upsert.Observe(took.Seconds())
	}
}

func (m *Metrics) flushFailed() {
	if m != nil {
		m.redis.failures.Inc()
	}
}

// keysLeft tells how many keys a flush has found, NaN if it didn't see all.
func (m *Metrics) keysLeft(n float64) {
	if m != nil {
		m.redis.live.Set(n)
	}
}

// looked sets the metrics about Redis from its status.
func (m *Metrics) looked(s RedisStatus) {
	if m == nil {
		return
	}
	m.redis.up.Set(0)
	m.redis.memory.Set(math.NaN()) // nobody knows
	if s.Reachable {
		m.redis.up.Set(1)
		m.redis.memory.Set(float64(s.Memory))
		return
	}
	m.redis.live.Set(math.NaN()) // the last flush's keys may be gone
}

// lagReading is what a worker has learned of how far it is behind. Without `known` the lag is
// unknown, and as long as it is, the metric grows with the time.
type lagReading struct {
	behind time.Duration
	known  bool
}

func lagKnown(behind time.Duration) lagReading { return lagReading{behind, true} }
func lagUnknown() lagReading                   { return lagReading{} }

// growingLag is a gauge of a lag. It counts from the last reading on, and at first from the start,
// so that a worker that can't look doesn't seem to be as far as it was.
type growingLag struct {
	mu    sync.Mutex
	since time.Time // what was made before this time is counted, as far as is known
}

func (l *growingLag) seconds(r lagReading, now time.Time) float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case r.known:
		l.since = now.Add(-r.behind)
	case l.since.IsZero():
		l.since = now
	}
	return now.Sub(l.since).Seconds()
}

func (m *Metrics) flushLag(r lagReading) {
	if m != nil {
		m.redis.lag.Set(m.redis.growing.seconds(r, time.Now()))
	}
}

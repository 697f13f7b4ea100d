package pullstats

import (
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/purser-registry/purser/internal/pullstats/statsdb"
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
	growing statsdb.GrowingLag // of lag
}

// Values of the label `result` of purser_redis_pull_events_total: they say what became of a
// pull that Redis was to count.
const (
	eventRecorded   = "recorded"
	eventLogged     = "logged"
	eventDropped    = "dropped"
	eventUnanswered = "unanswered"
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
	m.eventMetrics(factory)
	for _, result := range []string{entryCounted, entryElsewhere, entryGone} {
		m.entries.WithLabelValues(result) // so that the series begins with 0
	}
	for _, result := range []string{eventRecorded, eventLogged, eventDropped, eventUnanswered} {
		m.events.WithLabelValues(result)
	}
	return m
}

// eventMetrics registers the metrics of pulls for Redis.
func (m *Metrics) eventMetrics(factory promauto.Factory) {
	m.events = factory.NewCounterVec(prometheus.CounterOpts{
		Name: "purser_redis_pull_events_total",
		Help: "Pulls for Redis: recorded; logged (Redis didn't take them, so they are counted from the audit log); " +
			"dropped (there was no room) or unanswered (they may be counted or not).",
	}, []string{"result"})
	m.buffer = factory.NewGauge(prometheus.GaugeOpts{
		Name: "purser_redis_pull_events_waiting", Help: "Pulls in memory that wait for Redis.",
	})
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

func (m *Metrics) lagging(r statsdb.LagReading) {
	if m != nil {
		m.lag.Set(m.growing.Seconds(r, time.Now()))
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

package gc

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	gaugesTimeout = 5 * time.Second
	// While queries of the database fail, Gauges exports the values of the last successful
	// query. When these values are older than gaugesExpiry and older than 2 ×
	// GaugesOptions.Every, it exports none, so that nobody takes old values for current ones.
	gaugesExpiry = 2 * time.Minute
)

// GaugesOptions names the collector whose backlog is exported, and says how often to query
// it.
type GaugesOptions struct {
	Collector *Collector // required
	// Every is the shortest time between two queries of the database, however often Prometheus
	// scrapes. Default 15 s.
	Every time.Duration
	Log   *slog.Logger // default slog.Default()
}

// Gauges exports the backlog of garbage collection as Prometheus gauges. All processes on
// one database export the same numbers. A number above 10,000 rows is an estimate.
type Gauges struct {
	opt GaugesOptions

	mu     sync.Mutex
	asked  time.Time // when the database was last queried
	taken  time.Time // when it last answered
	values GCBacklog
}

// NewGauges makes the Prometheus collector. It queries the database only when it is scraped.
func NewGauges(o GaugesOptions) (*Gauges, error) {
	if o.Collector == nil {
		return nil, errors.New("gc: the gauges need a collector")
	}
	o.Every = cmp.Or(o.Every, 15*time.Second)
	o.Log = cmp.Or(o.Log, slog.Default())
	return &Gauges{opt: o}, nil
}

var (
	takenDesc = prometheus.NewDesc("purser_gc_backlog_timestamp_seconds",
		"When this process last read the backlog of garbage collection from the database. The other gauges of garbage collection show that backlog; they are left out when it is older than two minutes.", nil, nil)
	queueRowsDesc = prometheus.NewDesc("purser_gc_queue_rows",
		"Rows of the review queues by state: due, waiting for their delay, or set_aside (not tried again after too many failures).",
		[]string{"queue", "state"}, nil)
	oldestOverdueDesc = prometheus.NewDesc("purser_gc_oldest_overdue_seconds",
		"For how long the oldest due row of a review queue has been due; 0 when none is.", []string{"queue"}, nil)
	doomedObjectsDesc = prometheus.NewDesc("purser_gc_doomed_objects",
		"Objects that wait to be deleted from the store.", nil, nil)
	secondSweepsDesc = prometheus.NewDesc("purser_gc_second_sweeps",
		"Objects that were deleted from the store and will be deleted once more, when the longest possible request is over; purser_gc_doomed_objects leaves them out.", nil, nil)
	doomedBytesDesc = prometheus.NewDesc("purser_gc_doomed_bytes",
		"Size of the objects that wait to be deleted from the store.", nil, nil)
	keptObjectsDesc = prometheus.NewDesc("purser_gc_kept_objects",
		"Objects of purser_gc_doomed_objects that are kept for gc.keep_doomed or for a day after a repair.", nil, nil)
	keptBytesDesc = prometheus.NewDesc("purser_gc_kept_bytes",
		"Bytes of purser_gc_doomed_bytes that are kept for gc.keep_doomed or for a day after a repair.", nil, nil)
	lostBlobsDesc = prometheus.NewDesc("purser_lost_blobs",
		"Blobs whose objects the store has lost, and that were not pushed again since.", nil, nil)
)

// Describe implements prometheus.Collector.
func (g *Gauges) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{takenDesc, secondSweepsDesc, queueRowsDesc, oldestOverdueDesc, doomedObjectsDesc, doomedBytesDesc,
		keptObjectsDesc, keptBytesDesc, lostBlobsDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (g *Gauges) Collect(ch chan<- prometheus.Metric) {
	values, taken, ok := g.latest()
	if !taken.IsZero() {
		ch <- prometheus.MustNewConstMetric(takenDesc, prometheus.GaugeValue, float64(taken.UnixMilli())/1000)
	}
	if !ok {
		return
	}
	gauge := func(d *prometheus.Desc, v int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	for _, q := range []struct {
		name string
		QueueStatus
	}{{"manifests", values.Manifests}, {"blobs", values.Blobs}} {
		gauge(queueRowsDesc, q.Due.Rows, q.name, "due")
		gauge(queueRowsDesc, q.Waiting.Rows, q.name, "waiting")
		gauge(queueRowsDesc, q.Failed.Rows, q.name, "set_aside")
		gauge(oldestOverdueDesc, q.OldestOverdueSeconds, q.name)
	}
	gauge(doomedObjectsDesc, values.Doomed.Objects.Rows)
	gauge(secondSweepsDesc, values.Doomed.SecondSweeps.Rows)
	gauge(doomedBytesDesc, values.Doomed.Bytes)
	gauge(keptObjectsDesc, values.Doomed.Kept.Rows)
	gauge(keptBytesDesc, values.Doomed.KeptBytes)
	gauge(lostBlobsDesc, values.Lost.Rows)
}

// latest returns the last values, the time when they were read from the database, and
// whether they are recent enough to be exported. If the last query began at least
// GaugesOptions.Every ago, latest first queries the database again. Concurrent scrapes wait
// for that query and share its result.
func (g *Gauges) latest() (GCBacklog, time.Time, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now := time.Now(); g.asked.IsZero() || now.Sub(g.asked) >= g.opt.Every {
		g.asked = now
		ctx, cancel := context.WithTimeout(context.Background(), gaugesTimeout)
		defer cancel()
		if values, err := g.opt.Collector.GCBacklog(ctx); err != nil {
			g.opt.Log.WarnContext(ctx, "the metrics of garbage collection could not be renewed", "error", err)
		} else {
			g.values, g.taken = values, time.Now()
		}
	}
	return g.values, g.taken, !g.taken.IsZero() && time.Since(g.taken) < max(gaugesExpiry, 2*g.opt.Every)
}

package worker

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics counts batches, by the name of their loop, and measures how long they take.
type Metrics struct {
	batches *prometheus.CounterVec
	seconds *prometheus.HistogramVec
	success *prometheus.GaugeVec
}

// NewMetrics registers the metrics of loops.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	factory := promauto.With(reg)
	m := &Metrics{
		batches: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "purser_worker_batches_total", Help: "Batches of background work, by result: ok or error.",
		}, []string{"worker", "result"}),
		seconds: factory.NewHistogramVec(prometheus.HistogramOpts{
			Name: "purser_worker_batch_duration_seconds", Help: "Time that a batch of background work took.",
			Buckets: []float64{.001, .005, .025, .1, .5, 2.5, 10, 60, 300},
		}, []string{"worker"}),
		success: factory.NewGaugeVec(prometheus.GaugeOpts{
			Name: "purser_worker_last_success_timestamp_seconds", Help: "When a batch of background work last succeeded, in Unix time. Until the first one has, when the process began with it.",
		}, []string{"worker"}),
	}
	return m
}

// began says that a loop starts. Its last success counts from now on, so that work that has never
// succeeded shows as late too.
func (m *Metrics) began(name string) {
	if m != nil {
		m.success.WithLabelValues(name).SetToCurrentTime()
	}
}

func (m *Metrics) observe(name string, took time.Duration, err error) {
	if m == nil {
		return
	}
	m.seconds.WithLabelValues(name).Observe(took.Seconds())
	if err != nil {
		m.batches.WithLabelValues(name, "error").Inc()
		return
	}
	m.batches.WithLabelValues(name, "ok").Inc()
	m.success.WithLabelValues(name).SetToCurrentTime()
}

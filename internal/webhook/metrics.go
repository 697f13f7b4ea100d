package webhook

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Outcomes of attempts.
const (
	resultDelivered = "delivered"
	resultFailed    = "failed"
	resultGivenUp   = "given_up" // counted in addition to the failure of the last attempt
)

// Metrics counts what senders do.
type Metrics struct {
	results *prometheus.CounterVec
	pending prometheus.Gauge
}

// NewMetrics registers the metrics of senders.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	factory := promauto.With(reg)
	m := &Metrics{
		results: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "purser_webhook_notices_total",
			Help: "Attempts to send a notice to the webhook that this process made, delivered or failed, and notices that it has given_up.",
		}, []string{"result"}),
		pending: factory.NewGauge(prometheus.GaugeOpts{
			Name: "purser_webhook_pending",
			Help: "Notices of all processes that wait to be delivered, counted each minute up to 100,000.",
		}),
	}
	for _, result := range []string{resultDelivered, resultFailed, resultGivenUp} {
		m.results.WithLabelValues(result) // so that the series begins with 0
	}
	return m
}

func (m *Metrics) count(result string) {
	if m != nil {
		m.results.WithLabelValues(result).Inc()
	}
}

func (m *Metrics) setPending(n float64) {
	if m != nil {
		m.pending.Set(n)
	}
}

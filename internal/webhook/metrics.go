package webhook

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
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
func NewMetrics(reg prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		results: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "purser_webhook_notices_total",
			Help: "Attempts to send a notice to the webhook that this process made, delivered or failed, and notices that it has given_up.",
		}, []string{"result"}),
		pending: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "purser_webhook_pending",
			Help: "Notices of all processes that wait to be delivered, counted each minute up to 100,000.",
		}),
	}
	for _, result := range []string{resultDelivered, resultFailed, resultGivenUp} {
		m.results.WithLabelValues(result) // so that the series begins with 0
	}
	for _, c := range []prometheus.Collector{m.results, m.pending} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("registering the metrics of the webhook: %w", err)
		}
	}
	return m, nil
}

func (m *Metrics) count(result string) {
	if m != nil {
		m.results.WithLabelValues(result).Inc()
	}
}

func (m *Metrics) setPending(n int) {
	if m != nil {
		m.pending.Set(float64(n))
	}
}

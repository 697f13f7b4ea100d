package limit

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// These are the values of the label "limit" in the metric that counts refused requests and
// connections. ShedConnections and ShedClientConnections count connections that were accepted and
// later closed to make room for others; BodyRate also counts those whose bodies were slow.
const (
	Connections       = "connections"
	ClientConnections = "client_connections"
	Requests          = "requests"
	ClientRequests    = "client_requests"
	AccountRequests   = "account_requests"
	ClientRate        = "client_rate"
	AccountRate       = "account_rate"
	Uploads           = "uploads"
	ClientUploads     = "client_uploads"
	AccountUploads    = "account_uploads"
	RobotUploads      = "robot_uploads"
	BodyMemory        = "body_memory"
	ClientBodyMemory  = "client_body_memory"
	AccountBodyMemory = "account_body_memory"
	BodyRate          = "body_rate"
	AnswerIdle        = "answer_idle"

	ShedConnections       = "shed_connections"
	ShedClientConnections = "shed_client_connections"
)

// Metrics are the metrics of this package's limits. A nil *Metrics records nothing.
type Metrics struct {
	refused      *prometheus.CounterVec
	acceptErrors *prometheus.CounterVec
	connections  prometheus.Gauge
	used, total  prometheus.Gauge
	waiting      prometheus.Gauge
}

// NewMetrics registers the metrics of limits.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	factory := promauto.With(reg)
	m := &Metrics{
		refused: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "purser_limit_refused_total", Help: "Requests and connections that were refused or cut off, by the limit that they reached.",
		}, []string{"limit"}),
		acceptErrors: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "purser_http_accept_errors_total", Help: "Connections that could not be accepted: out of file descriptors, a header of the PROXY protocol missing or wrong, or other reasons.",
		}, []string{"reason"}),
		connections: factory.NewGauge(prometheus.GaugeOpts{
			Name: "purser_http_connections", Help: "Open connections of clients of the registry.",
		}),
		used: factory.NewGauge(prometheus.GaugeOpts{
			Name: "purser_body_memory_bytes", Help: "Part of the memory budget that bodies of requests, and long answers, have now.",
		}),
		total: factory.NewGauge(prometheus.GaugeOpts{
			Name: "purser_body_memory_limit_bytes", Help: "The budget for bodies in memory, 0: none.",
		}),
		waiting: factory.NewGauge(prometheus.GaugeOpts{
			Name: "purser_body_memory_waiting", Help: "Requests that wait for a part of the budget for bodies in memory.",
		}),
	}
	for _, name := range []string{
		Connections, ClientConnections, Requests, ClientRequests, AccountRequests, ClientRate, AccountRate,
		Uploads, ClientUploads, AccountUploads, RobotUploads, BodyMemory, ClientBodyMemory, AccountBodyMemory, BodyRate, AnswerIdle,
		ShedConnections, ShedClientConnections,
	} {
		m.refused.WithLabelValues(name)
	}
	for _, reason := range []string{acceptDescriptors, acceptOther, acceptProxyHeader} {
		m.acceptErrors.WithLabelValues(reason)
	}
	return m
}

// Refused counts one request or connection that was refused because of `limit`, which is one
// of the constants above.
func (m *Metrics) Refused(limit string) {
	if m != nil {
		m.refused.WithLabelValues(limit).Inc()
	}
}

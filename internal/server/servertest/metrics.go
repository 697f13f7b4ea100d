package servertest

import (
	"fmt"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics is a registry of metrics that can gather some of them without the others: gathering all
// of a registry's metrics takes longer than most requests of a test.
type Metrics struct {
	*prometheus.Registry
	mu         sync.Mutex
	collectors []prometheus.Collector
}

// Register implements prometheus.Registerer.
func (m *Metrics) Register(c prometheus.Collector) error {
	if err := m.Registry.Register(c); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.collectors = append(m.collectors, c)
	return nil
}

// MustRegister implements prometheus.Registerer.
func (m *Metrics) MustRegister(list ...prometheus.Collector) {
	for _, c := range list {
		if err := m.Register(c); err != nil {
			panic(err)
		}
	}
}

// Only returns the metrics of the collectors that have the metric with a name.
func (m *Metrics) Only(name string) prometheus.Gatherer {
	m.mu.Lock()
	defer m.mu.Unlock()
	some := prometheus.NewRegistry()
	for _, c := range m.collectors {
		descriptions := make(chan *prometheus.Desc, 100)
		go func() { c.Describe(descriptions); close(descriptions) }()
		found := false
		for d := range descriptions {
			// A description tells its name only in this text.
			found = found || strings.Contains(d.String(), fmt.Sprintf("fqName: %q,", name))
		}
		if found {
			some.MustRegister(c)
		}
	}
	return some
}

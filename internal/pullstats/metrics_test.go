package pullstats

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// The metric of pulls by namespace must count each pull and have a bounded number of series.
func TestPullsByNamespace(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	m := NewMetrics(reg)
	for range 2 {
		for i := range 3 * maxNamespaces {
			m.pulled(fmt.Sprintf("n%d/app", i))
		}
	}
	families, err := reg.Gather()
	must(t, err)
	for _, f := range families {
		if f.GetName() != "purser_pulls_total" {
			continue
		}
		if len(f.GetMetric()) != maxNamespaces+1 {
			t.Errorf("there are %d series", len(f.GetMetric()))
		}
		for _, series := range f.GetMetric() {
			want := 2.0
			if series.GetLabel()[0].GetValue() == "" {
				want = 4 * maxNamespaces
			}
			if series.GetCounter().GetValue() != want {
				t.Errorf("%v, want %v", series, want)
			}
		}
		return
	}
	t.Error("there is no such metric")
}

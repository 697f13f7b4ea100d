package serve

import (
	"math"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/quota"
)

// TestQuotasWithoutDatabase: nobody knows how full quotas are, and the metric doesn't show how full
// they were.
func TestQuotasWithoutDatabase(t *testing.T) {
	t.Parallel()
	b := catalogtest.Setup(t)
	b.Push(t, "acme/app", "layer")
	if err := b.Quotas.Create(t.Context(), "acme", quota.Values{Tags: new(int64(10))}); err != nil {
		t.Fatal(err)
	}
	for more, err := true, error(nil); more; {
		if more, err = b.Quotas.Count(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	ratio := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "ratio"}, []string{"namespace", "quota"})
	unshown := prometheus.NewGauge(prometheus.GaugeOpts{Name: "unshown"})
	if err := measureQuotas(t.Context(), b.Quotas, ratio, unshown); err != nil || testutil.CollectAndCount(ratio) != 1 {
		t.Fatalf("%d series of quotas, want 1: %v", testutil.CollectAndCount(ratio), err)
	}
	b.Exec(t, "ALTER VIEW shown_quotas RENAME TO away")
	if err := measureQuotas(t.Context(), b.Quotas, ratio, unshown); err == nil || !math.IsNaN(testutil.ToFloat64(unshown)) {
		t.Error("quotas are measured without their view")
	}
	if n := testutil.CollectAndCount(ratio); n != 0 {
		t.Errorf("%d series of quotas that nobody knows", n)
	}
}

package serve

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// namedMetrics returns metrics with and without names of what is stored.
func namedMetrics() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	pulls := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "purser_pulls_total", Help: "Pulls."}, []string{"namespace"})
	quotas := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "purser_quota_used_ratio", Help: "Used."}, []string{"namespace", "quota"})
	left := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "purser_hold_seconds_left", Help: "Left."}, []string{"namespace", "reporter"})
	states := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "purser_hold_reporters", Help: "Reporters."}, []string{"state"})
	unknown := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "purser_unknown", Help: "Unknown."}, []string{"repository"})
	times := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "purser_times", Help: "Times."}, []string{"account"})
	reg.MustRegister(pulls, quotas, left, states, unknown, times)
	pulls.WithLabelValues("secret-a").Add(2)
	pulls.WithLabelValues("secret-b").Add(3)
	quotas.WithLabelValues("secret-a", "bytes").Set(0.5)
	quotas.WithLabelValues("secret-b", "bytes").Set(0.9)
	quotas.WithLabelValues("secret-b", "tags").Set(0.1)
	left.WithLabelValues("secret-a", "secret-cluster").Set(60)
	left.WithLabelValues("", "secret-host").Set(-5)
	states.WithLabelValues("live").Set(1)
	unknown.WithLabelValues("secret-a/app").Set(1)
	times.WithLabelValues("secret-ann").Observe(1)
	return reg
}

// TestNamelessMetrics: metrics without names add up counters, and have the worst of the gauges.
// Series that can't be joined are left out.
func TestNamelessMetrics(t *testing.T) {
	t.Parallel()
	reg := namedMetrics()
	for range 2 { // the first round doesn't change the metrics
		if err := testutil.GatherAndCompare(nameless{reg}, strings.NewReader(`# HELP purser_hold_reporters Reporters.
# TYPE purser_hold_reporters gauge
purser_hold_reporters{state="live"} 1
# HELP purser_hold_seconds_left Left.
# TYPE purser_hold_seconds_left gauge
purser_hold_seconds_left -5
# HELP purser_pulls_total Pulls.
# TYPE purser_pulls_total counter
purser_pulls_total 5
# HELP purser_quota_used_ratio Used.
# TYPE purser_quota_used_ratio gauge
purser_quota_used_ratio{quota="bytes"} 0.9
purser_quota_used_ratio{quota="tags"} 0.1
`)); err != nil {
			t.Error(err)
		}
	}
	if n, err := testutil.GatherAndCount(reg, "purser_pulls_total"); n != 2 || err != nil {
		t.Errorf("the metrics with names: %d, %v", n, err)
	}
}

// TestMetricsPage: who isn't on this machine gets no names, whether or not a proxy says so.
func TestMetricsPage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		local         bool
		remote, proxy string
		names         bool
	}{
		{true, "127.0.0.1:1", "", true},
		{true, "127.0.0.1:1", "X-Forwarded-For", false},
		{true, "127.0.0.1:1", "Via", false},
		{true, "10.0.0.1:1", "", false},
		{false, "10.0.0.1:1", "", false},
		{false, "127.0.0.1:1", "", false},
		{false, "10.0.0.1:1", "Authorization", false}, // nobody can log in
	} {
		w, r := httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil)
		if r.RemoteAddr = c.remote; c.proxy != "" {
			r.Header.Set(c.proxy, "198.51.100.1")
		}
		newMetricsPage(namedMetrics(), c.local).ServeHTTP(w, r)
		if text := w.Body.String(); w.Code != 200 || !strings.Contains(text, "purser_pulls_total") || strings.Contains(text, "secret") != c.names {
			t.Errorf("%+v: %d\n%s", c, w.Code, text)
		}
	}
}

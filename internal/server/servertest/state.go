package servertest

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/oci"
)

// Exec runs SQL that must succeed.
func (r *Registry) Exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := r.DB.Pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// Entries lists the audit entries that match a filter, oldest first.
func (r *Registry) Entries(t testing.TB, f audit.Filter) []audit.Entry {
	t.Helper()
	var list []audit.Entry
	for cursor := ""; ; {
		page, next, err := audit.New(r.DB).List(t.Context(), f, cursor, 0)
		if err != nil {
			t.Fatal(err)
		}
		if list = append(list, page...); next == "" {
			slices.Reverse(list)
			return list
		}
		cursor = next
	}
}

// line formats an audit entry as one line of text, without the members that differ between runs
// of a test.
func line(e audit.Entry) string {
	s := fmt.Sprintf("%s %s %s %s %.15s", e.Kind, e.Namespace, e.Repository, e.Tag, e.Digest)
	if e.Detail != nil {
		s += fmt.Sprintf(" %s", e.Detail)
	}
	return s
}

// WantLog checks that the audit entries that match the filter are exactly the lines `want`, in
// any order.
func (r *Registry) WantLog(t testing.TB, f audit.Filter, want ...string) {
	t.Helper()
	var got []string
	for _, e := range r.Entries(t, f) {
		got = append(got, line(e))
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("the log has\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

// Since returns a filter that selects the audit entries which are written from now on, by the
// database's clock.
func (r *Registry) Since(t testing.TB) audit.Filter {
	t.Helper()
	var f audit.Filter
	if err := r.DB.Pool.QueryRow(t.Context(), "SELECT clock_timestamp()").Scan(&f.From); err != nil {
		t.Fatal(err)
	}
	return f
}

// Samples returns the samples of a metric. The key of a sample is the values of its labels
// route, method and code, joined by commas; trailing commas are removed. The value is that of
// the sample, or the number of observations if the metric is a histogram.
func (r *Registry) Samples(t *testing.T, name string) map[string]float64 {
	t.Helper()
	families, err := r.Metrics.Only(name).Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.Metric {
			labels := map[string]string{}
			for _, l := range m.Label {
				labels[l.GetName()] = l.GetValue()
			}
			key := strings.TrimRight(labels["route"]+","+labels["method"]+","+labels["code"], ",")
			got[key] += value(m)
		}
	}
	return got
}

func value(m *dto.Metric) float64 {
	if m.Histogram != nil {
		return float64(m.Histogram.GetSampleCount())
	}
	return m.GetCounter().GetValue() + m.GetGauge().GetValue()
}

// Gauge returns the value of a metric without labels.
func (r *Registry) Gauge(t *testing.T, name string) float64 { return r.Samples(t, name)[""] }

// Key returns the storage key of a blob's object.
func (r *Registry) Key(t *testing.T, d oci.Digest) string {
	t.Helper()
	var key string
	if err := r.DB.Pool.QueryRow(t.Context(), "SELECT storage_key FROM blobs WHERE digest = $1", d.Bytes()).Scan(&key); err != nil {
		t.Fatal(err)
	}
	return key
}

// Remove removes a file.
func Remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

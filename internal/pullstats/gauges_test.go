package pullstats

import (
	"math"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/pullstats/statsdb"
)

// gauge returns the value of a gauge, as a scrape would see it.
func gauge(t *testing.T, reg *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := reg.Gather()
	must(t, err)
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}

// PostgreSQL dies. A worker that counts can't know how late it is, so the lag must grow from when
// it was last known.
func TestLagWhenPostgresDies(t *testing.T) {
	t.Parallel()
	s := open(t, false, 1)
	reg := prometheus.NewRegistry()
	m := NewMetrics(reg)
	w := s.worker(t, func(o *SyncOptions) { o.Metrics = m })
	for more := true; more; {
		var err error
		more, err = w.round(t.Context())
		must(t, err)
	}
	before := gauge(t, reg, "purser_pull_statistics_lag_seconds")
	lost := dbtest.New(t)
	lost.Close()
	w.opt.Stats = lost
	m.growing.Seconds(statsdb.LagKnown(time.Duration(before*float64(time.Second))+time.Hour), time.Now())
	w.due = time.Time{}
	if _, err := w.round(t.Context()); err == nil {
		t.Fatal("counting without a database succeeds")
	}
	if after := gauge(t, reg, "purser_pull_statistics_lag_seconds"); after < before+3600 {
		t.Errorf("the lag is %g s, and was %g s an hour before", after, before)
	}
}

// PostgreSQL dies while a run waits for processes to write what they served. How many there are is
// then unknown.
func TestUnwrittenWhenPostgresDies(t *testing.T) {
	t.Parallel()
	s := open(t, false, 1)
	reg := prometheus.NewRegistry()
	w := s.worker(t, func(o *SyncOptions) { o.Metrics = NewMetrics(reg) })
	must(t, w.Settle(t.Context()))
	if n := gauge(t, reg, "purser_pull_statistics_unwritten_processes"); n != 0 {
		t.Fatalf("%g processes haven't written, want none", n)
	}
	if _, err := s.stats.Pool.Exec(t.Context(), "ALTER TABLE pullrecorders RENAME TO away"); err != nil {
		t.Fatal(err)
	}
	if err := w.Settle(t.Context()); err == nil {
		t.Error("a run is told that all processes have written")
	}
	if n := gauge(t, reg, "purser_pull_statistics_unwritten_processes"); !math.IsNaN(n) {
		t.Errorf("still %g processes haven't written", n)
	}
}

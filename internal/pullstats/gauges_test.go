package pullstats

import (
	"math"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/purser-registry/purser/internal/db/dbtest"
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

// Redis dies. The next round fails, and the metrics must say that Redis is down and that the
// flush is late. When Redis is back, they must say that too. The same holds if PostgreSQL dies
// first: Redis is looked at all the same.
func TestGaugesWhenRedisDies(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	s := open(t, false, 1)
	reg := prometheus.NewRegistry()
	m := NewMetrics(reg)
	w := s.flusher(t, server.open(t, s.stats), func(o *FlushOptions) { o.Metrics = m })
	_, err := w.round(t.Context())
	must(t, err)
	if up := gauge(t, reg, "purser_redis_up"); up != 1 {
		t.Fatalf("purser_redis_up is %g while Redis works", up)
	}
	if keys := gauge(t, reg, "purser_redis_pull_keys"); keys != 0 {
		t.Fatalf("%g keys in an empty Redis", keys)
	}

	server.Kill()
	if _, err := s.stats.Pool.Exec(t.Context(), "UPDATE redisprocessingstate SET last_processed_timestamp = now() - interval '2 h'"); err != nil {
		t.Fatal(err)
	}
	w.due = time.Time{}
	if _, err := w.round(t.Context()); err == nil {
		t.Fatal("a flush without Redis succeeds")
	}
	if up, lag := gauge(t, reg, "purser_redis_up"), gauge(t, reg, "purser_redis_flush_lag_seconds"); up != 0 || lag < 7200 {
		t.Errorf("without Redis purser_redis_up is %g, and the lag %g s", up, lag)
	}
	for _, name := range []string{"purser_redis_pull_keys", "purser_redis_memory_bytes"} {
		if n := gauge(t, reg, name); !math.IsNaN(n) {
			t.Errorf("without Redis %s is still %g", name, n)
		}
	}

	// Without the database too, nobody knows the lag, so it must grow.
	lost := dbtest.New(t)
	lost.Close()
	w.opt.Stats = lost
	m.redis.growing.since = time.Now().Add(-3 * time.Hour)
	if _, err := w.round(t.Context()); err == nil {
		t.Fatal("a flush without a database succeeds")
	}
	if up, lag := gauge(t, reg, "purser_redis_up"), gauge(t, reg, "purser_redis_flush_lag_seconds"); up != 0 || lag < 3*3600 {
		t.Errorf("without Redis and PostgreSQL purser_redis_up is %g, and the lag %g s", up, lag)
	}
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
	m.growing.since = m.growing.since.Add(-time.Hour)
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

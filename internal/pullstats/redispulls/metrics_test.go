package redispulls

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

// Redis dies. The next round fails, and the metrics must say that Redis is down and that the
// flush is late. When Redis is back, they must say that too. The same holds if PostgreSQL dies
// first: Redis is looked at all the same.
func TestGaugesWhenRedisDies(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	d := dbtest.New(t)
	reg := prometheus.NewRegistry()
	m := NewMetrics(reg)
	w := newFlusher(t, server.open(t, d), d, m)
	_, err := w.round(t.Context())
	must(t, err)
	if up := gauge(t, reg, "purser_redis_up"); up != 1 {
		t.Fatalf("purser_redis_up is %g while Redis works", up)
	}
	if keys := gauge(t, reg, "purser_redis_pull_keys"); keys != 0 {
		t.Fatalf("%g keys in an empty Redis", keys)
	}

	server.Kill()
	if _, err := d.Pool.Exec(t.Context(), "UPDATE redisprocessingstate SET last_processed_timestamp = now() - interval '2 h'"); err != nil {
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
	m.growing.Seconds(statsdb.LagKnown(3*time.Hour), time.Now())
	if _, err := w.round(t.Context()); err == nil {
		t.Fatal("a flush without a database succeeds")
	}
	if up, lag := gauge(t, reg, "purser_redis_up"), gauge(t, reg, "purser_redis_flush_lag_seconds"); up != 0 || lag < 3*3600 {
		t.Errorf("without Redis and PostgreSQL purser_redis_up is %g, and the lag %g s", up, lag)
	}
}

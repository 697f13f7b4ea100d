package serve

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"

	"github.com/purser-registry/purser/cmd/purser/internal/servetest"
	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/pullstats/redistest"
	"github.com/purser-registry/purser/internal/worker"
)

// unaffected are the gauges that show a number while the database fails, with the reasons. Those of
// the Go runtime and of the process, go_… and process_…, aren't in it.
var unaffected = map[string]string{
	"purser_build_info":                            "of the program",
	"purser_db_pool_connections":                   "of this process's pool",
	"purser_db_pool_max_connections":               "of this process's pool",
	"purser_http_connections":                      "of this process's clients",
	"purser_http_requests_in_flight":               "of this process's clients",
	"purser_body_memory_bytes":                     "of this process's memory",
	"purser_body_memory_limit_bytes":               "of this process's memory",
	"purser_body_memory_waiting":                   "of this process's clients",
	"purser_password_queue_length":                 "of this process's clients",
	"purser_disk_free_bytes":                       "of the disk, which is asked at each scrape: TestGaugesWithoutDisk",
	"purser_disk_size_bytes":                       "of the disk, which is asked at each scrape: TestGaugesWithoutDisk",
	"purser_disk_reserve_bytes":                    "of the disk, which is asked at each scrape: TestGaugesWithoutDisk",
	"purser_storage_wrong_store":                   "of the store, as its identity was when it was last compared",
	"purser_worker_last_success_timestamp_seconds": "the time since which the work fails",
	"purser_ready":                                 "the database is asked at each scrape: TestReadinessMetrics",
	"purser_ready_check":                           "the database is asked at each scrape: TestReadinessMetrics",

	"purser_pull_statistics_lag_seconds":         "it grows while it isn't known: TestLagWhenPostgresDies of package pullstats",
	"purser_pull_statistics_unwritten_processes": "of the last wait, of which there was none: TestUnwrittenWhenPostgresDies of package pullstats",
	"purser_redis_flush_lag_seconds":             "it grows while it isn't known: TestGaugesWhenRedisDies of package pullstats",
	"purser_redis_pull_events_waiting":           "of this process's memory",
	"purser_redis_pull_keys":                     "of Redis, which is there: TestGaugesWhenRedisDies of package pullstats",
	"purser_redis_memory_bytes":                  "of Redis, which is there: TestGaugesWhenRedisDies of package pullstats",
	"purser_redis_up":                            "of Redis, which is there: TestGaugesWhenRedisDies of package pullstats",
}

// numbers returns the series of gauges that show a number, by their names with labels.
func numbers(t *testing.T, reg *prometheus.Registry) map[string]string {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if value := m.GetGauge().GetValue(); f.GetType() == dto.MetricType_GAUGE && !math.IsNaN(value) {
				found[fmt.Sprint(f.GetName(), m.GetLabel(), " ", value)] = f.GetName()
			}
		}
	}
	return found
}

// TestEachGaugeWithoutDatabase: the database fails, and each worker of the registry notices. Each gauge
// must then be left out, or be no number (NaN), rather than show how it was, or be in the list of those
// that the database says nothing of.
func TestEachGaugeWithoutDatabase(t *testing.T) {
	t.Parallel()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	dsn, replica, quiet := dbtest.DSN(t), uuid.New(), slog.New(slog.DiscardHandler)
	cfg := servetest.Config(t, "PURSER_DATABASE_MAIN="+dsn, "PURSER_REDIS_URL="+redistest.Start(t).URL(), "FEATURE_REDIS_PULL_TRACKING=true")
	reg, ready := newRegistry(), newReadiness()
	reg.MustRegister(ready)
	limits, err := newLimits(cfg, reg, quiet)
	must(err)
	pools, err := openPools(t.Context(), cfg, dsn, replica, quiet)
	must(err)
	t.Cleanup(pools.close)
	store, disks, err := openStore(t.Context(), cfg, pools.metadata, reg, quiet)
	must(err)
	loops := worker.NewMetrics(reg)
	limits.shareRates(pools.metadata, loops)
	p := dependencies{db: pools.metadata, reviews: pools.reviews, prunes: pools.prunes, keys: pools.keys, store: store,
		loops: loops, replica: replica, metrics: reg, log: quiet, limits: limits, disks: disks}
	must(p.open(cfg))
	t.Cleanup(func() { p.pulls.redis.Close() }) //nolint:errcheck // the test is over
	site, workers, err := assemble(t.Context(), cfg, p)
	must(err)
	t.Cleanup(func() { site.close() }) //nolint:errcheck // the database is away
	ready.started(readinessCheck{name: "database", run: pools.metadata.Ping})

	pools.close()
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for _, run := range workers {
		running.Go(func() { run(ctx) }) //nolint:errcheck // the database is away
	}
	defer func() { stop(); running.Wait() }()
	var wrong []string
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		wrong = nil
		for series, name := range numbers(t, reg) {
			if unaffected[name] == "" && !strings.HasPrefix(name, "go_") && !strings.HasPrefix(name, "process_") {
				wrong = append(wrong, series)
			}
		}
		if len(wrong) == 0 || time.Now().After(end) {
			break
		}
	}
	for _, series := range wrong {
		t.Errorf("%s: a number, though the database fails", series)
	}
	there := map[string]bool{}
	for _, name := range numbers(t, reg) {
		there[name] = true
	}
	for name := range unaffected {
		if !there[name] && !strings.HasPrefix(name, "purser_redis_") { // Redis may not have been asked yet
			t.Errorf("%s is in the list, and isn't a gauge with a number", name)
		}
	}
}

// TestBackupsWithoutDatabase: nobody knows how old backups are, and the metrics don't show how old they
// were.
func TestBackupsWithoutDatabase(t *testing.T) {
	t.Parallel()
	m := backupMetrics{}
	for _, g := range []*prometheus.Gauge{&m.snapshot, &m.verified, &m.damaged} {
		*g = prometheus.NewGauge(prometheus.GaugeOpts{Name: "backups"})
	}
	d := dbtest.New(t)
	if err := m.measure(t.Context(), d); err != nil || testutil.ToFloat64(m.damaged) != 0 {
		t.Fatalf("%v are damaged, %v", testutil.ToFloat64(m.damaged), err)
	}
	d.Close()
	if err := m.measure(t.Context(), d); err == nil {
		t.Error("backups are measured without a database")
	}
	for name, g := range map[string]prometheus.Gauge{"snapshot": m.snapshot, "verified": m.verified, "damaged": m.damaged} {
		if v := testutil.ToFloat64(g); !math.IsNaN(v) {
			t.Errorf("%s is %v, want NaN", name, v)
		}
	}
}

// TestGaugesWithoutDisk: a disk can't be asked what it has free. Its gauges show no number.
func TestGaugesWithoutDisk(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	diskGauges(blob.Disks{{Of: "the blobs", Path: t.TempDir()}}, reg)
	if found := numbers(t, reg); len(found) != 3 {
		t.Errorf("of a disk that is there: %v, want three gauges", found)
	}
	reg = prometheus.NewRegistry()
	diskGauges(blob.Disks{{Of: "the blobs", Path: filepath.Join(t.TempDir(), "missing")}}, reg)
	if n, err := testutil.GatherAndCount(reg); err != nil || n != 3 {
		t.Errorf("%d gauges, %v", n, err)
	}
	if found := numbers(t, reg); len(found) != 0 {
		t.Errorf("of a disk that isn't there: %v", found)
	}
}

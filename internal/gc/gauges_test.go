package gc_test

import (
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"

	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/gc"
)

func (b *storeBundle) gauges(every time.Duration) *gc.Gauges {
	b.t.Helper()
	g, err := gc.NewGauges(gc.GaugesOptions{Collector: b.gc, Every: every, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.t.Fatal(err)
	}
	return g
}

// doomedGauge returns the value of the metric purser_gc_doomed_objects, or -1 if it isn't
// exported.
func doomedGauge(t *testing.T, g *gc.Gauges) float64 {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	if err := reg.Register(g); err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "purser_gc_doomed_objects" {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	return -1
}

func TestGauges(t *testing.T) {
	t.Parallel()
	b := setupStore(t)
	b.exec(`INSERT INTO gc_blob_review_queue (digest, review_after, event, set_aside_at) VALUES
		('\x01', now() - interval '1 h', 'blob_upload', now()), ('\x02', now() + interval '1 h', 'blob_upload', NULL),
		('\x03', now() + interval '1 h', 'blob_upload', NULL)`)
	b.exec(`INSERT INTO gc_manifest_review_queue (top_level_namespace_id, repository_id, manifest_id, review_after, event)
		VALUES (1, 1, 1, now() - interval '100 h', 'tag_delete')`)
	b.exec("INSERT INTO gc_doomed_objects (storage_key, size, delete_after) VALUES ('a', 30, now()), ('b', 12, now() + interval '1 h')")
	b.exec("INSERT INTO gc_doomed_objects (storage_key, of_upload, delete_after, again_at, sweeping) SELECT 'c', true, t, t, true FROM (SELECT now() + interval '1 h' AS t) one")
	b.exec("INSERT INTO blobs (digest, size, storage_key, lost_at) VALUES ('\\x05', 1, 'lost', now()), ('\\x04', 1, 'there', NULL)")
	b.exec("DELETE FROM gc_blob_review_queue WHERE digest IN ('\\x04', '\\x05')")
	g := b.gauges(time.Hour)
	want := `
# HELP purser_gc_doomed_bytes Size of the objects that wait to be deleted from the store.
# TYPE purser_gc_doomed_bytes gauge
purser_gc_doomed_bytes 42
# HELP purser_gc_doomed_objects Objects that wait to be deleted from the store.
# TYPE purser_gc_doomed_objects gauge
purser_gc_doomed_objects 2
# HELP purser_gc_kept_bytes Bytes of purser_gc_doomed_bytes that are kept for gc.keep_doomed or for a day after a repair.
# TYPE purser_gc_kept_bytes gauge
purser_gc_kept_bytes 12
# HELP purser_gc_kept_objects Objects of purser_gc_doomed_objects that are kept for gc.keep_doomed or for a day after a repair.
# TYPE purser_gc_kept_objects gauge
purser_gc_kept_objects 1
# HELP purser_gc_queue_rows Rows of the review queues by state: due, waiting for their delay, or set_aside (not tried again after too many failures).
# TYPE purser_gc_queue_rows gauge
purser_gc_queue_rows{queue="blobs",state="due"} 0
purser_gc_queue_rows{queue="blobs",state="set_aside"} 1
purser_gc_queue_rows{queue="blobs",state="waiting"} 2
purser_gc_queue_rows{queue="manifests",state="due"} 1
purser_gc_queue_rows{queue="manifests",state="set_aside"} 0
purser_gc_queue_rows{queue="manifests",state="waiting"} 0
# HELP purser_gc_second_sweeps Objects that were deleted from the store and will be deleted once more, when the longest possible request is over; purser_gc_doomed_objects leaves them out.
# TYPE purser_gc_second_sweeps gauge
purser_gc_second_sweeps 1
# HELP purser_lost_blobs Blobs whose objects the store has lost, and that were not pushed again since.
# TYPE purser_lost_blobs gauge
purser_lost_blobs 1
`
	if err := testutil.CollectAndCompare(g, strings.NewReader(want),
		"purser_gc_doomed_bytes", "purser_gc_doomed_objects", "purser_gc_kept_bytes", "purser_gc_kept_objects",
		"purser_gc_second_sweeps", "purser_gc_queue_rows", "purser_lost_blobs"); err != nil {
		t.Error(err)
	}
	if n := testutil.CollectAndCount(g, "purser_gc_oldest_overdue_seconds"); n != 2 {
		t.Errorf("%d gauges of the oldest overdue rows, want 2", n)
	}
	if problems, err := testutil.CollectAndLint(g); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v %v", problems, err)
	}
}

// Prometheus scrapes the gauges many times within GaugesOptions.Every. Gauges must query
// the database only once, and export the old values until then.
func TestGaugesAskSeldom(t *testing.T) {
	t.Parallel()
	b := setupStore(t)
	b.exec("INSERT INTO gc_doomed_objects (storage_key) VALUES ('a')")
	seldom, often := b.gauges(time.Hour), b.gauges(time.Nanosecond)
	if a, o := doomedGauge(t, seldom), doomedGauge(t, often); a != 1 || o != 1 {
		t.Fatalf("%v and %v, want 1", a, o)
	}
	b.exec("INSERT INTO gc_doomed_objects (storage_key) VALUES ('b')")
	var scrapes sync.WaitGroup
	for range 8 {
		scrapes.Go(func() {
			if v := doomedGauge(t, seldom); v != 1 {
				t.Errorf("%v, want the value of before", v)
			}
		})
	}
	scrapes.Wait()
	if v := doomedGauge(t, often); v != 2 {
		t.Errorf("%v, want 2", v)
	}
}

// If the database doesn't answer, Gauges must export its last values and no error: if one
// collector returns an error, Prometheus gets no metrics from the whole scrape.
func TestGaugesWithoutDatabase(t *testing.T) {
	t.Parallel()
	b := setupStore(t)
	own := dbtest.New(t)
	own.Close()
	b.gc = gc.New(gc.Options{Catalog: b.catalog, DB: own})
	if v := doomedGauge(t, b.gauges(time.Nanosecond)); v != -1 {
		t.Errorf("%v, want no value where there never was one", v)
	}
	b = setupStore(t)
	g := b.gauges(time.Nanosecond)
	if v := doomedGauge(t, g); v != 0 {
		t.Errorf("%v, want 0", v)
	}
	b.db.Close()
	if v := doomedGauge(t, g); v != 0 {
		t.Errorf("%v, want the last value", v)
	}
	var age prometheus.Metric
	metrics := make(chan prometheus.Metric, 100)
	g.Collect(metrics)
	close(metrics)
	for m := range metrics {
		if strings.Contains(m.Desc().String(), "purser_gc_backlog_timestamp_seconds") {
			age = m
		}
	}
	var told dto.Metric
	if age == nil || age.Write(&told) != nil || time.Since(time.UnixMilli(int64(told.GetGauge().GetValue()*1000))) > time.Minute {
		t.Errorf("of their age it tells %v", &told)
	}
	g.Age(gc.GaugesExpiry - time.Minute)
	if v := doomedGauge(t, g); v != 0 {
		t.Errorf("%v, want the last value for another minute", v)
	}
	g.Age(time.Minute)
	if v := doomedGauge(t, g); v != -1 {
		t.Errorf("%v, want no value when the last one is two minutes old", v)
	}
}

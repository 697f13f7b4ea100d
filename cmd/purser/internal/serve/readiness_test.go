package serve

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/purser-registry/purser/internal/blob"
)

// TestReadinessMetrics: whoever is told by metrics learns what /readyz would say.
func TestReadinessMetrics(t *testing.T) {
	t.Parallel()
	const ready = "# HELP purser_ready 1 if requests can succeed, as /readyz says, else 0.\n# TYPE purser_ready gauge\npurser_ready %d\n"
	const checks = "# HELP purser_ready_check 1 if a check of /readyz succeeds, else 0. There is none while the server starts and stops.\n# TYPE purser_ready_check gauge\n"
	r := newReadiness()
	expect := func(when, want string) {
		t.Helper()
		if err := testutil.CollectAndCompare(r, strings.NewReader(want)); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	expect("at the start", fmt.Sprintf(ready, 0))
	r.started(readinessCheck{name: "database", run: func(context.Context) error { return nil }},
		readinessCheck{name: "statistics", run: func(context.Context) error { return errors.New("no luck") }, spare: true})
	expect("with a failure that doesn't matter", fmt.Sprintf(ready, 1)+checks+"purser_ready_check{check=\"database\"} 1\npurser_ready_check{check=\"statistics\"} 0\n")
	r.stopping()
	expect("at the end", fmt.Sprintf(ready, 0))
}

func TestReadiness(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newReadiness()
		ask := func() (int, string) {
			rec := httptest.NewRecorder()
			r.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/readyz", nil))
			return rec.Code, rec.Body.String()
		}
		expect := func(wantCode int, want string) {
			t.Helper()
			if code, body := ask(); code != wantCode || body != want {
				t.Errorf("%d %q, want %d %q", code, body, wantCode, want)
			}
		}
		expect(503, "starting\n")
		var runs atomic.Int32
		var broken atomic.Bool
		r.started(readinessCheck{name: "database", run: func(context.Context) error {
			runs.Add(1)
			if broken.Load() {
				return errors.New("no luck")
			}
			return nil
		}}, readinessCheck{name: "storage", run: func(ctx context.Context) error {
			if broken.Load() {
				<-ctx.Done() // hangs
			}
			return ctx.Err()
		}})
		for range 10 {
			expect(200, "database: ok\nstorage: ok\n")
		}
		if n := runs.Load(); n != 1 {
			t.Errorf("%d checks within a second, want 1", n)
		}
		broken.Store(true)
		time.Sleep(2 * checkEvery)
		began := time.Now()
		expect(503, "database: no luck\nstorage: context deadline exceeded\n")
		if took := time.Since(began); took != checkTimeout {
			t.Errorf("a check that hangs took %v, want %v", took, checkTimeout)
		}
		broken.Store(false)
		time.Sleep(2 * checkEvery)
		expect(200, "database: ok\nstorage: ok\n")
		r.stopping()
		expect(503, "stopping\n")
	})
}

// TestReadinessOfWhatHangs: the file system of the blobs hangs, and calls there heed no context. /readyz and
// the metrics answer in time, again and again, while one call alone hangs, and tell of it. The server can
// stop meanwhile, and is ready again once the call has returned.
func TestReadinessOfWhatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newReadiness()
		var calls atomic.Int32
		goOn := make(chan struct{})
		checks := []readinessCheck{{name: "database", run: func(context.Context) error { return nil }}, {name: "storage", run: func(context.Context) error {
			calls.Add(1)
			<-goOn
			return nil
		}}}
		r.started(checks...)
		inTime := func(what string, ask func()) {
			t.Helper()
			began := time.Now()
			ask()
			if took := time.Since(began); took > checkTimeout+checkGrace {
				t.Errorf("%s: after %v, want at most %v", what, took, checkTimeout+checkGrace)
			}
		}
		readyz := func(wantCode int, want string) {
			t.Helper()
			inTime("/readyz", func() {
				rec := httptest.NewRecorder()
				r.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/readyz", nil))
				if rec.Code != wantCode || rec.Body.String() != want {
					t.Errorf("%d %q, want %d %q", rec.Code, rec.Body, wantCode, want)
				}
			})
		}
		const hangs = "database: ok\nstorage: it doesn't answer\n"
		const metrics = "# HELP purser_ready_check 1 if a check of /readyz succeeds, else 0. There is none while the server starts and stops.\n" +
			"# TYPE purser_ready_check gauge\npurser_ready_check{check=\"database\"} 1\npurser_ready_check{check=\"storage\"} 0\n"
		for range 2 {
			readyz(503, hangs)
			time.Sleep(2 * checkEvery)
			inTime("the metrics", func() {
				if err := testutil.CollectAndCompare(r, strings.NewReader(metrics), "purser_ready_check"); err != nil {
					t.Error(err)
				}
			})
			time.Sleep(2 * checkEvery)
		}
		var crowd sync.WaitGroup
		for range 10 {
			crowd.Go(func() { readyz(503, hangs) })
		}
		synctest.Wait() // until they wait for the checks
		r.stopping()
		readyz(503, "stopping\n")
		crowd.Wait()
		if n := calls.Load(); n != 1 {
			t.Errorf("%d calls hang, want 1", n)
		}
		close(goOn)
		r.started(checks...)
		time.Sleep(2 * checkEvery)
		readyz(200, "database: ok\nstorage: ok\n")
	})
}

// TestGaugesOfDisksThatHang: the metrics of disks whose file systems don't answer show no number, in time,
// while one call alone hangs at each.
func TestGaugesOfDisksThatHang(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		goOn := make(chan struct{})
		reg := prometheus.NewRegistry()
		diskGaugesBy(func(string) (blob.DiskSpace, error) {
			calls.Add(1)
			<-goOn
			return blob.DiskSpace{Size: 100, Free: 40}, nil
		}, blob.Disks{{Of: "the blobs", Path: "/mnt"}, {Of: "the database", Path: "/srv"}}, reg)
		free := func(want float64) {
			t.Helper()
			began := time.Now()
			found, err := reg.Gather()
			if err != nil || len(found) != 3 || len(found[0].GetMetric()) != 2 {
				t.Fatal(found, err)
			}
			if took := time.Since(began); took > checkTimeout {
				t.Errorf("the metrics took %v, want at most %v", took, checkTimeout)
			}
			for _, m := range found[0].GetMetric() { // purser_disk_free_bytes
				if v := m.GetGauge().GetValue(); v != want && !(math.IsNaN(v) && math.IsNaN(want)) {
					t.Errorf("%v, want %v", v, want)
				}
			}
		}
		for range 2 {
			free(math.NaN())
		}
		if n := calls.Load(); n != 2 {
			t.Errorf("%d calls hang, want 2", n)
		}
		close(goOn)
		synctest.Wait()
		free(40)
	})
}

// TestBriefReadiness: on a listener that other machines can reach, /readyz says only "not
// ready"; the reason is logged, once.
func TestBriefReadiness(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	ready := newReadiness()
	h := briefly(ready, slog.New(slog.NewTextHandler(&log, nil)))
	expect := func(wantCode int, want string) {
		t.Helper()
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/readyz", nil))
		if rec.Code != wantCode || rec.Body.String() != want {
			t.Errorf("%d %q, want %d %q", rec.Code, rec.Body, wantCode, want)
		}
	}
	expect(503, "not ready\n")
	ready.started(readinessCheck{name: "database", run: func(context.Context) error { return errors.New("user=purser host=10.0.0.7") }})
	expect(503, "not ready\n")
	expect(503, "not ready\n")
	if n := strings.Count(log.String(), "host=10.0.0.7"); n != 1 {
		t.Errorf("the reason is logged %d times, want once:\n%s", n, &log)
	}
	ready.started(readinessCheck{name: "database", run: func(context.Context) error { return nil }})
	ready.checked = time.Time{}
	expect(200, "ok\n")
}

package distribution_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// TestListsTakeMemoryFirst: while PostgreSQL answers, a request for a list has the memory that a page of
// it needs, and gives it back at the end. Clients that ask for more at once than the budget has get 503.
func TestListsTakeMemoryFirst(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *servertest.Options) {
		o.Server.Limits.Memory = limit.BudgetOptions{Total: 16 << 20}
		o.Server.Limits.Metrics = limit.NewMetrics(o.Server.Metrics)
	})
	d := r.Put(t, "acme/app", "v1", r.Simple(t, "acme/app", 1, nil))
	used := func() float64 { return r.Gauge(t, "purser_body_memory_bytes") }
	givenBack := func(path string) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); used() != 0; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: %v bytes are held in the end", path, used())
			}
		}
	}
	for _, c := range []struct {
		path, table string
		least       float64 // bytes
		atOnce      int     // how many requests the budget has room for, of one client half of it
	}{
		{"/v2/acme/app/tags/list", "tags", 10_000 * 2 * oci.MaxTagLength, 2},
		{"/v2/_catalog", "repositories", 1000 * 2 * oci.MaxNameLength, 10},
		{"/v2/acme/app/referrers/" + d.String(), "manifests", 512 << 10, 12},
	} {
		r.Do(t, "GET", c.path, "").WantStatus(t, 200)
		givenBack(c.path)
		tx, err := r.DB.Pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), "LOCK TABLE "+c.table+" IN ACCESS EXCLUSIVE MODE"); err != nil {
			t.Fatal(err)
		}
		const requests = 20
		answers := make(chan int, requests)
		var all sync.WaitGroup
		for range requests {
			// Another page than above, which may be cached.
			all.Go(func() { answers <- r.Do(t, "GET", c.path+"?last=0", "").StatusCode })
		}
		for range requests - c.atOnce {
			if status := <-answers; status != 503 {
				t.Errorf("%s: a request beyond the budget is answered with %d", c.path, status)
			}
		}
		if n := used(); n < float64(c.atOnce)*c.least || n > 8<<20 {
			t.Errorf("%s: %d requests hold %v bytes, want at least %v each", c.path, c.atOnce, n, c.least)
		}
		if err := tx.Rollback(context.WithoutCancel(t.Context())); err != nil {
			t.Fatal(err)
		}
		all.Wait()
		for range c.atOnce {
			if status := <-answers; status != 200 {
				t.Errorf("%s: %d", c.path, status)
			}
		}
		givenBack(c.path)
	}
}

package management_test

import (
	"context"
	"sync"
	"testing"
	"time"
)

// TestCostlyReadsTakeTurns: a client asks many times at once for the counts of the log, which may read
// a million entries each, for tags by size, for namespaces with their sizes, or searches many times at once. Only one of
// these requests uses the database, so that connections are left for others.
func TestCostlyReadsTakeTurns(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]struct{ table, path, statement string }{
		"counts":   {"auditlog", "/superuser/aggregatelogs", "%date_trunc%"},
		"sizes":    {"tags", "/repository/acme/app/tag/?sort=size", "%FROM tags%"},
		"sums":     {"repository_blobs", "/organization?statistics=true", "%own AS MATERIALIZED%"},
		"searches": {"top_level_namespaces", "/find/all?query=a", "%live_namespaces%"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			takesTurns(t, of.table, "/api/v1"+of.path, of.statement)
		})
	}
}

// takesTurns checks that of one client's requests for the path only one waits for the table, with the
// statement that is like this.
func takesTurns(t *testing.T, table, path, statement string) {
	t.Helper()
	r := setup(t)
	r.Put(t, "acme/app", "v1", r.Simple(t, "acme/app", 1, nil))
	const requests = 5
	ctx := context.WithoutCancel(t.Context())
	unlock := lock(t, r, table)
	answers := make(chan int, requests)
	for range requests {
		go func() {
			a, err := r.Try(ctx, "GET", path, nil)
			if err != nil {
				t.Error(err)
			}
			answers <- a.StatusCode
		}()
	}
	counting := func() (n int) {
		t.Helper()
		err := r.DB.Pool.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE $1`, statement).Scan(&n)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for began := time.Now(); r.Gauge(t, "purser_http_requests_in_flight") < requests || counting() == 0; {
		if time.Since(began) > time.Minute {
			t.Fatal("the requests don't come")
		}
	}
	if n := counting(); n != 1 {
		t.Errorf("%d of one client's requests count at once, want 1", n)
	}
	unlock()
	for range requests {
		if status := <-answers; status != 200 && status != 503 { // a search doesn't wait for long
			t.Errorf("status %d", status)
		}
	}
}

// TestSortingEnds: sorting tags by size ends when it takes too long, with an error that says what can be done
// instead.
func TestSortingEnds(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.Put(t, "acme/app", "v1", r.Simple(t, "acme/app", 1, nil))
	unlock := lock(t, r, "manifest_references")
	r.Manage(t, "GET", "/repository/acme/app/tag/?sort=-size", "").Refused(t, 503, "unavailable", "sorting the tags of acme/app by size took longer than 10s.*sort by name or pushed")
	unlock()
	r.Manage(t, "GET", "/repository/acme/app/tag/?sort=-size", "").WantStatus(t, 200)
}

// lock locks a table until unlock is called.
func lock(t *testing.T, r *registry, table string) (unlock func()) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	tx, err := r.DB.Pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	unlock = func() { tx.Rollback(ctx) } //nolint:errcheck // it was rolled back
	t.Cleanup(unlock)
	for _, sql := range []string{"SET LOCAL idle_in_transaction_session_timeout = 0", "LOCK TABLE " + table + " IN ACCESS EXCLUSIVE MODE"} {
		if _, err := tx.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	return unlock
}

// TestNamespacesWithoutSizes: while the sizes of namespaces can't be added up in time, the list comes without
// them, and the turn goes on to the next request.
func TestNamespacesWithoutSizes(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.Push(t, "acme/app", "content")
	type namespaces struct {
		Namespaces []struct {
			Name string
			Size *struct{ Bytes int }
		}
	}
	unlock := lock(t, r, "repository_blobs")
	for range 2 {
		var list namespaces
		r.Manage(t, "GET", "/organization?statistics=true", "").Into(t, 200, &list)
		if len(list.Namespaces) != 1 || list.Namespaces[0].Name != "acme" || list.Namespaces[0].Size != nil {
			t.Errorf("while the links can't be read: %+v", list)
		}
	}
	// Those whose turn doesn't come in time come without sizes too, and don't wait for each other.
	trips := func() float64 {
		return r.Samples(t, "purser_http_database_round_trips_total")["/api/v1/organization,GET"]
	}
	before := trips()
	r.Manage(t, "GET", "/organization", "").WantStatus(t, 200)
	const requests = 4
	each, before := trips()-before, trips()
	var group sync.WaitGroup
	for range requests {
		group.Go(func() {
			if a, err := r.Try(t.Context(), "GET", "/api/v1/organization?statistics=true", nil); err != nil || a.StatusCode != 200 {
				t.Errorf("%v, %v", err, a)
			}
		})
	}
	group.Wait()
	if sums := trips() - before - requests*each; sums != 1 {
		t.Errorf("%v statements added sizes up, want that of the first request alone", sums)
	}
	unlock()
	var list namespaces
	r.Manage(t, "GET", "/organization?statistics=true", "").Into(t, 200, &list)
	if len(list.Namespaces) != 1 || list.Namespaces[0].Size == nil || list.Namespaces[0].Size.Bytes != 7 {
		t.Errorf("afterwards: %+v", list)
	}
}

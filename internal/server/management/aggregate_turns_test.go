package management_test

import (
	"context"
	"testing"
	"time"
)

// TestCountsOfTheLogTakeTurns: a client asks many times at once for the counts of the log, which may read
// a million entries each. Only one of them uses the database, so that connections are left for others.
func TestCountsOfTheLogTakeTurns(t *testing.T) {
	t.Parallel()
	r := setup(t)
	const requests = 5
	ctx := context.WithoutCancel(t.Context())
	tx, err := r.DB.Pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(ctx) //nolint:errcheck // it was rolled back
	for _, sql := range []string{"SET LOCAL idle_in_transaction_session_timeout = 0", "LOCK TABLE auditlog IN ACCESS EXCLUSIVE MODE"} {
		if _, err := tx.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	answers := make(chan int, requests)
	for range requests {
		go func() {
			a, err := r.Try(ctx, "GET", "/api/v1/superuser/aggregatelogs", nil)
			if err != nil {
				t.Error(err)
			}
			answers <- a.StatusCode
		}()
	}
	counting := func() (n int) {
		t.Helper()
		err := r.DB.Pool.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%date_trunc%'`).Scan(&n)
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
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	for range requests {
		if status := <-answers; status != 200 {
			t.Errorf("status %d", status)
		}
	}
}

package hold_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/hold"
)

// TestStormOfReports: reports to the namespace acme don't end, since its row is locked. Neither many
// of them by one account nor one by each of many accounts keep out another account's report to another
// namespace, nor one for the whole registry.
func TestStormOfReports(t *testing.T) {
	t.Parallel()
	b := setup(t, func(o *hold.Options) { o.Patience = 2 * time.Minute })
	robot, other := b.account(t, "robot"), b.account(t, "other")
	robots := []hold.By{robot, robot, robot, robot, robot, robot, robot, robot}
	for i := range 4 {
		robots = append(robots, b.account(t, fmt.Sprint("acme+", i)))
	}
	ctx := context.WithoutCancel(t.Context())
	tx, err := b.d.Pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(ctx) //nolint:errcheck // it was committed
	for _, sql := range []string{"SET LOCAL idle_in_transaction_session_timeout = 0", "SELECT FROM top_level_namespaces WHERE name = 'acme' FOR UPDATE"} {
		if _, err := tx.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan error, len(robots))
	for i, by := range robots {
		place := hold.Place{Namespace: "acme", Reporter: fmt.Sprint("cluster-", i)}
		go func() {
			_, err := b.Report(ctx, place, hold.Report{Full: true, Items: items(0, 10, ""), By: by})
			done <- err
		}()
	}
	const waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
	for began := time.Now(); b.number(t, waiting) == 0; {
		if time.Since(began) > time.Minute {
			t.Fatal("the reports don't wait")
		}
	}
	for _, place := range []hold.Place{{Namespace: "other", Reporter: "prod"}, {Reporter: "prod"}} {
		if n := b.report(t, place, hold.Report{Full: true, Items: items(0, 3, ""), By: other}).Digests; n != 3 || len(done) > 0 {
			t.Errorf("%s: %d digests, want 3; %d of the others' reports had ended", place, n, len(done))
		}
	}
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	for range robots {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

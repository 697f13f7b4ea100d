package hold_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/purser-registry/purser/internal/hold"
	"github.com/purser-registry/purser/internal/limit"
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

// TestReportsWithoutMemory: the reports of two accounts, as many as are handled at once, wait for memory.
// A third account, which gets its memory, reports meanwhile.
func TestReportsWithoutMemory(t *testing.T) {
	t.Parallel()
	b := setup(t)
	metrics := prometheus.NewRegistry()
	budget := limit.NewBudget(limit.BudgetOptions{Total: 1 << 20, Wait: 2 * time.Minute, Metrics: limit.NewMetrics(metrics)})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	places := []hold.Place{{Namespace: "acme", Reporter: "prod"}, {Namespace: "other", Reporter: "prod"}, {Reporter: "prod"}}
	robots, leases := make([]hold.By, len(places)), make([]*limit.Lease, len(places))
	for i, place := range places {
		robots[i] = b.account(t, fmt.Sprint("robot-", i))
		leases[i] = budget.Lease(robots[i].Name)
		b.report(t, place, hold.Report{Full: true, Items: items(0, 10, ""), By: robots[i]}) // which the next report reads
	}
	report := func(i int) error {
		_, err := b.Report(limit.WithLease(ctx, leases[i]), places[i], hold.Report{Full: true, Items: items(0, 11, ""), By: robots[i]})
		return err
	}
	done := make(chan error, 2)
	for i, share := range []int64{1 << 19, 1 << 18} { // half of the memory, and half of what is left
		if _, err := leases[i].Take(ctx, share); err != nil {
			t.Fatal(err)
		}
		go func() { done <- report(i) }()
	}
	for began := time.Now(); waitingForMemory(t, metrics) < 2; {
		if time.Since(began) > time.Minute {
			t.Fatal("the reports don't wait for memory")
		}
	}
	if err := report(2); err != nil || len(done) > 0 {
		t.Errorf("the third report: %v; %d of those without memory had ended", err, len(done))
	}
	cancel()
	for range 2 {
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("a report that nobody waits for any more: %v", err)
		}
	}
}

// waitingForMemory returns how many requests wait for memory of a budget.
func waitingForMemory(t *testing.T, from prometheus.Gatherer) (n int) {
	t.Helper()
	families, err := from.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "purser_body_memory_waiting" {
			n = int(f.GetMetric()[0].GetGauge().GetValue())
		}
	}
	return n
}

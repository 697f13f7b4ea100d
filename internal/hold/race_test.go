package hold_test

import (
	"context"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/hold"
	"github.com/purser-registry/purser/internal/oci"
)

// TestReportsAtOnce: two reports that are differences to the same revision wait for the reporter's
// row. The second must see what the first has changed, and be refused.
func TestReportsAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	revision := b.report(t, acme, hold.Report{Full: true, Items: items(0, 10, "a")}).Revision
	ctx := context.WithoutCancel(t.Context())
	tx, err := b.d.Pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(ctx) //nolint:errcheck // it was committed
	if _, err := tx.Exec(ctx, "SELECT FROM holdreporters FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 2)
	for i := range 2 {
		go func() {
			_, err := b.Report(ctx, acme, hold.Report{Base: &revision, By: hold.By{MayEnd: true}, Items: items(20+i, 21+i, "")})
			done <- err
		}()
	}
	const waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
	for began := time.Now(); b.number(t, waiting) < 2 && len(done) == 0; {
		if time.Since(began) > time.Minute {
			t.Fatal("the reports don't wait")
		}
	}
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	refused := 0
	for range 2 {
		if err := <-done; oci.CodeOf(err) == oci.Unsupported {
			refused++
		} else if err != nil {
			t.Error(err)
		}
	}
	if n := b.number(t, "SELECT count(*) FROM holds"); refused != 1 || n != 11 {
		t.Errorf("%d reports were refused, and there are %d holds; want 1 and 11", refused, n)
	}
}

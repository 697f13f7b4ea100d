package hold_test

import (
	"context"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/hold"
	"github.com/purser-registry/purser/internal/oci"
)

// TestReportsAtOnce: two reports that are differences to the same revision come to two replicas and
// wait for the reporter's row. The second must see what the first has changed, and be refused.
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
	replica, err := hold.New(hold.Options{DB: b.d})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 2)
	for i, h := range []*hold.Holds{b.Holds, replica} {
		go func() {
			_, err := h.Report(ctx, acme, hold.Report{Base: &revision, By: hold.By{MayEnd: true}, Items: items(20+i, 21+i, "")})
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

// TestLastPlaceAtOnce: an account has one place for a reporter, and takes it in a transaction that
// isn't committed yet. A report under another name must wait for it before it counts.
func TestLastPlaceAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t, func(o *hold.Options) { o.MostReporters = 1 })
	by := b.account(t, "user")
	ctx := context.WithoutCancel(t.Context())
	tx, err := b.d.Pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(ctx) //nolint:errcheck // it was committed
	for _, sql := range []string{
		"SELECT pg_advisory_xact_lock(1886745448, hashint8(id)) FROM top_level_namespaces WHERE name = 'acme'",
		`INSERT INTO holdreporters (namespace_id, name, lease, expires_at, owner_id)
			SELECT n.id, 'one', '1 day', now() + interval '1 day', a.id FROM top_level_namespaces n, accounts a WHERE n.name = 'acme' AND a.name = 'user'`,
	} {
		if done, err := tx.Exec(ctx, sql); err != nil || done.RowsAffected() != 1 {
			t.Fatalf("%s: %v, %v", sql, done, err)
		}
	}
	done := make(chan error, 1)
	go func() {
		_, err := b.Report(ctx, hold.Place{Namespace: "acme", Reporter: "two"}, hold.Report{By: by})
		done <- err
	}()
	const waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
	for began := time.Now(); b.number(t, waiting) == 0 && len(done) == 0; {
		if time.Since(began) > time.Minute {
			t.Fatal("the report doesn't wait")
		}
	}
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-done; oci.CodeOf(err) != oci.Unsupported {
		t.Errorf("the report: %v, want a refusal", err)
	}
}

// TestReportMeetsDeletion: a namespace goes into the trash while its reporter reports. The report waits,
// and is refused: nobody may be told that the digests are held where there is nothing to hold.
func TestReportMeetsDeletion(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.report(t, acme, hold.Report{Full: true, Items: items(0, 1, "")}) // so that no foreign key is to be checked
	ctx := context.WithoutCancel(t.Context())
	tx, err := b.d.Pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(ctx) //nolint:errcheck // it was committed
	for _, sql := range []string{
		"SELECT FROM top_level_namespaces WHERE name = 'acme' FOR UPDATE", "SELECT purser_holds_lock()",
		"UPDATE top_level_namespaces SET deleted_at = now(), deleted_name = name, name = '#' || id, purge_after = now() + interval '1 day' WHERE name = 'acme'",
	} {
		if _, err := tx.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan error, 1)
	go func() {
		_, err := b.Report(ctx, acme, hold.Report{Items: items(5, 6, "")})
		done <- err
	}()
	const waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
	for began := time.Now(); b.number(t, waiting) < 1 && len(done) == 0; {
		if time.Since(began) > time.Minute {
			t.Fatal("the report doesn't wait")
		}
	}
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-done; oci.CodeOf(err) != oci.NameUnknown {
		t.Errorf("a report in a namespace that went: %v", err)
	}
}

// TestOneWatcher: a replica watches reporters, and isn't ready yet, or a reporter is reporting. Another
// replica must not wait for that, and must tell of nothing.
func TestOneWatcher(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.report(t, acme, hold.Report{Full: true, Items: items(0, 3, ""), Lease: time.Hour})
	b.exec(t, "UPDATE holdreporters SET reported_at = reported_at - interval '31 minutes', expires_at = expires_at - interval '31 minutes'")
	watch := func(what string, want int) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		if _, err := b.Watch(ctx); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if len(b.notices) != want {
			t.Errorf("%s: the notices are %q, want %d", what, b.notices, want)
		}
	}
	for what, sql := range map[string]string{
		"another replica watches":   "SELECT pg_advisory_xact_lock(1886745447, 1)",
		"the reporter is reporting": "SELECT FROM holdreporters FOR UPDATE",
	} {
		tx, err := b.d.Pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
		watch(what, 0)
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	watch("nobody else watches", 1)
}

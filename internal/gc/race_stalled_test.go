package gc_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// limits returns connection settings for a review whose transaction may take the time
// `transaction`: a statement may take half of it, and the other half may pass idle between
// two statements.
func (b bundle) limits(t *testing.T, transaction time.Duration) (settings []string) {
	t.Helper()
	d, err := db.Open(t.Context(), db.Options{
		DSN: b.DB.Pool.Config().ConnString(), StatementTimeout: transaction / 2, IdleTimeout: transaction / 2,
		LockTimeout: 200 * time.Millisecond, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, name := range []string{"statement_timeout", "idle_in_transaction_session_timeout", "lock_timeout"} {
		var value string
		if err := d.Pool.QueryRow(t.Context(), "SELECT current_setting($1)", name).Scan(&value); err != nil {
			t.Fatal(err)
		}
		settings = append(settings, name, value)
	}
	return settings
}

// A review stalls while it holds locks: its process is stopped between two statements, or a
// statement hangs. PostgreSQL must end the review's transaction, so that requests that wait
// for the locks are answered within the transaction's timeout. The test fails if the
// review's connection has no statement timeout or no idle timeout: then the requests wait
// as long as the review is stalled, or until their own statement timeout of 30 s.
func TestRaceReviewStalls(t *testing.T) {
	t.Parallel()
	const timeout, margin = 2 * time.Second, 4 * time.Second // the margin is for slow machines
	for _, stall := range []string{beforeDelete, beforeCommit, "in a statement"} {
		t.Run(stall, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			config := b.Push(t, "r", "config")
			payload := catalogtest.Numbered(t, 1, config)
			d := b.Put(t, "r", payload)
			b.DueNow(t)
			p := b.pausing(t, ofManifests(), b.limits(t, timeout)...)
			ended := make(chan error, 1)
			if stall == "in a statement" {
				b.Exec(t, `CREATE FUNCTION hang() RETURNS trigger LANGUAGE plpgsql AS
					$$ BEGIN PERFORM pg_sleep(600); RETURN OLD; END $$`)
				b.Exec(t, "CREATE TRIGGER hang BEFORE DELETE ON manifests FOR EACH ROW EXECUTE FUNCTION hang()")
				go func() { _, err := p.finish(t); ended <- err }()
				watch := b.Session(t)
				catalogtest.Eventually(t, "the deletion hangs", func() bool {
					var n int
					if err := watch.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()").Scan(&n); err != nil {
						t.Fatal(err)
					}
					return n == 1
				})
			} else {
				p.to(t, stall)
			}

			start := time.Now()
			requests := map[string]<-chan error{
				"tag": catalogtest.Later(func() error { _, err := b.TryPut(context.Background(), "r", payload, "t"); return err }),
				"index": catalogtest.Later(func() error {
					_, err := b.TryPut(context.Background(), "r", catalogtest.Index(t, d), "list")
					return err
				}),
				"HEAD": catalogtest.Later(func() error { _, err := b.PromiseManifestExists(context.Background(), "r", d); return err }),
			}
			for what, done := range requests {
				select {
				case err := <-done:
					if err != nil {
						t.Errorf("%s: %v", what, err)
					}
				case <-time.After(timeout + margin - time.Since(start)):
					t.Fatalf("%s: it still waits after %v, where transactions may take %v", what, time.Since(start), timeout)
				}
			}
			t.Logf("the requests waited for %v", time.Since(start))
			if stall != "in a statement" {
				_, err := p.finish(t)
				ended <- err
			}
			if err := catalogtest.Soon(t, "the review", ended); err == nil {
				t.Error("the review that was ended has no error")
			} else {
				t.Logf("the review: %v", err)
			}
			// The review must have changed nothing, and the clients' requests must have
			// stored everything.
			b.Whole(t, "r", "t", config)
			b.Whole(t, "r", "list")
			if got := b.queued(t, d); got != "manifest_upload" {
				t.Errorf("in review: %q, want the row there as before", got)
			}
			if _, err := b.ManifestByDigest(t.Context(), "r", oci.Compute(oci.SHA256, payload)); err != nil {
				t.Error(err)
			}
		})
	}
}

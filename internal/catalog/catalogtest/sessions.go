package catalogtest

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
)

// Session is a connection to the database on which a test runs, step by step, the statements
// of one concurrent client.
type Session struct {
	*pgx.Conn
	PID uint32
}

// Session connects to the test's database. The connection doesn't set purser.replica, so the
// caches of all processes are notified of its changes.
func (b Bundle) Session(t *testing.T) Session {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	conn, err := pgx.Connect(ctx, b.DB.Pool.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(ctx) }) //nolint:errcheck // nothing is lost
	return Session{conn, conn.PgConn().PID()}
}

func (s Session) Exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := s.Conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// Blocks waits until at least n database connections wait for locks that session s has. It
// queries pg_stat_activity through the session `watch`, since s may be in a transaction.
func (s Session) Blocks(t *testing.T, watch Session, n int) {
	t.Helper()
	Eventually(t, "blocked by the other Session", func() bool {
		var got int
		if err := watch.QueryRow(t.Context(),
			"SELECT count(*) FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))", int32(s.PID)).Scan(&got); err != nil {
			t.Fatal(err)
		}
		return got >= n
	})
}

// Collecting begins a transaction as a review of blob d does: it locks the row in
// gc_blob_review_queue, then the blob's row, each FOR UPDATE SKIP LOCKED. It returns whether
// it could lock both rows.
func (s Session) Collecting(t *testing.T, d oci.Digest) bool {
	t.Helper()
	s.Exec(t, "BEGIN")
	for _, sql := range []string{
		"SELECT FROM gc_blob_review_queue WHERE digest = $1 FOR UPDATE SKIP LOCKED",
		"SELECT FROM blobs WHERE digest = $1 FOR UPDATE SKIP LOCKED",
	} {
		tag, err := s.Conn.Exec(t.Context(), sql, d.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		if tag.RowsAffected() == 0 {
			s.Exec(t, "ROLLBACK")
			return false
		}
	}
	return true
}

// Collect ends the review by deleting the blob.
func (s Session) Collect(t *testing.T, d oci.Digest) {
	t.Helper()
	s.Exec(t, `WITH d AS (DELETE FROM blobs WHERE digest = $1 RETURNING storage_key)
		INSERT INTO gc_doomed_objects (storage_key) SELECT storage_key FROM d`, d.Bytes())
	s.Exec(t, "DELETE FROM gc_blob_review_queue WHERE digest = $1", d.Bytes())
	s.Exec(t, "COMMIT")
}

// Waiting returns the number of connections to the test's database that wait for a lock.
func (b Bundle) Waiting(t *testing.T) int {
	t.Helper()
	return b.Count(t, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
}

// Later runs f in a goroutine and returns a channel that delivers its error.
func Later(f func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return done
}

// Soon returns the error of a call that nothing blocks any more. It fails the test if the call
// hasn't ended after two minutes; `what` names the call in the message.
func Soon(t *testing.T, what string, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(2 * time.Minute):
		t.Fatalf("%s: still waiting after 2 min", what)
		return nil
	}
}

// PatientDSN creates a database in which PostgreSQL resolves deadlocks only after an hour. So
// in a test, calls that deadlock don't end.
func PatientDSN(t *testing.T) string {
	t.Helper()
	dsn := dbtest.DSN(t)
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context()) //nolint:errcheck // nothing is lost
	if _, err := conn.Exec(t.Context(), `DO $$ BEGIN
		EXECUTE format('ALTER DATABASE %I SET deadlock_timeout = ''1h''', current_database()); END $$`); err != nil {
		t.Fatal(err)
	}
	return dsn
}

// Meanwhile runs `sql` in a transaction, calls fn, waits until fn waits for the transaction, and
// commits it. It returns fn's error.
func (b Bundle) Meanwhile(t *testing.T, fn func() error, sql string, args ...any) error {
	t.Helper()
	x := b.Session(t)
	x.Exec(t, "BEGIN")
	x.Exec(t, sql, args...)
	done := Later(fn)
	x.Blocks(t, b.Session(t), 1)
	x.Exec(t, "COMMIT")
	return Soon(t, "the other call", done)
}

// Beside runs `sql`, which locks rows, in a transaction, and fn, which must not wait for them. Then it
// rolls the transaction back.
func (b Bundle) Beside(t *testing.T, fn func(ctx context.Context) error, sql ...string) {
	t.Helper()
	x := b.Session(t)
	x.Exec(t, "BEGIN")
	for _, s := range sql {
		x.Exec(t, s)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := fn(ctx); err != nil {
		t.Errorf("beside another transaction: %v", err)
	}
	x.Exec(t, "ROLLBACK")
}

// CollectUnused deletes blobs to which nothing refers, without any delay, until ctx ends.
func (b Bundle) CollectUnused(ctx context.Context) error {
	for ctx.Err() == nil {
		err := b.collectOnce(context.WithoutCancel(ctx))
		if err != nil {
			return err
		}
	}
	return nil
}

func (b Bundle) collectOnce(ctx context.Context) error {
	tx, err := b.DB.Pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx) //nolint:errcheck // after a commit it does nothing
	if _, err := tx.Exec(ctx, "SET LOCAL lock_timeout = '200ms'"); err != nil {
		return err
	}
	rows, err := tx.Query(ctx, "SELECT digest FROM blobs WHERE random() < 0.5 LIMIT 2 FOR UPDATE SKIP LOCKED")
	if err != nil {
		return err
	}
	locked, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `
		WITH d AS (
			DELETE FROM blobs b WHERE digest = ANY ($1)
				AND NOT EXISTS (SELECT FROM gc_blobs_layers x WHERE x.digest = b.digest)
				AND NOT EXISTS (SELECT FROM gc_blobs_configurations x WHERE x.digest = b.digest)
			RETURNING storage_key)
		INSERT INTO gc_doomed_objects (storage_key) SELECT storage_key FROM d`, locked)
	if db.Code(err) == db.CodeLockNotAvailable {
		return nil // only requests must succeed; this deletion is tried again in the next round
	}
	if err != nil {
		return err
	}
	return tx.Commit(ctx)
}

package catalog_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
)

// session is a connection by which a test makes one side of an interleaving.
type session struct {
	*pgx.Conn
	pid uint32
}

// session connects to the test's database, without a replica's name.
func (b bundle) session(t *testing.T) session {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	conn, err := pgx.Connect(ctx, b.db.Pool.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(ctx) }) //nolint:errcheck // nothing is lost
	return session{conn, conn.PgConn().PID()}
}

func (s session) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := s.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// blocks waits until n backends wait for a lock that s holds.
func (s session) blocks(t *testing.T, watch session, n int) {
	t.Helper()
	eventually(t, "blocked by the other session", func() bool {
		var got int
		if err := watch.QueryRow(t.Context(),
			"SELECT count(*) FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))", int32(s.pid)).Scan(&got); err != nil {
			t.Fatal(err)
		}
		return got >= n
	})
}

// later runs f in a goroutine and returns the channel of its error.
func later(f func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return done
}

// soon returns the error of a call that must no longer be blocked.
func soon(t *testing.T, what string, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(2 * time.Minute):
		t.Fatalf("%s: still waiting after 2 min", what)
		return nil
	}
}

// collecting begins a review as garbage collection does: it locks the queue's row, then the
// blob's, each FOR UPDATE SKIP LOCKED, and says whether it got both.
func (s session) collecting(t *testing.T, d oci.Digest) bool {
	t.Helper()
	s.exec(t, "BEGIN")
	for _, sql := range []string{
		"SELECT FROM gc_blob_review_queue WHERE digest = $1 FOR UPDATE SKIP LOCKED",
		"SELECT FROM blobs WHERE digest = $1 FOR UPDATE SKIP LOCKED",
	} {
		tag, err := s.Exec(t.Context(), sql, d.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		if tag.RowsAffected() == 0 {
			s.exec(t, "ROLLBACK")
			return false
		}
	}
	return true
}

// collect ends the review by deleting the blob.
func (s session) collect(t *testing.T, d oci.Digest) {
	t.Helper()
	s.exec(t, `WITH d AS (DELETE FROM blobs WHERE digest = $1 RETURNING storage_key)
		INSERT INTO gc_doomed_objects (storage_key) SELECT storage_key FROM d`, d.Bytes())
	s.exec(t, "DELETE FROM gc_blob_review_queue WHERE digest = $1", d.Bytes())
	s.exec(t, "COMMIT")
}

func (b bundle) linked(t *testing.T, path string, d oci.Digest) bool {
	t.Helper()
	return b.count(t, `SELECT count(*) FROM repository_blobs rb JOIN repositories r ON r.id = rb.repository_id
		WHERE r.path = $1 AND rb.blob_digest = $2`, path, d.Bytes()) == 1
}

// owned checks that every storage key has one owner, and returns the number of keys.
func (b bundle) owned(t *testing.T) int {
	t.Helper()
	if n := b.count(t, `SELECT count(*) FROM (
			SELECT FROM (SELECT storage_key FROM blobs UNION ALL SELECT storage_key FROM uploads
				UNION ALL SELECT storage_key FROM gc_doomed_objects) x
			GROUP BY storage_key HAVING count(*) > 1) y`); n != 0 {
		t.Errorf("%d storage keys have several owners", n)
	}
	return b.count(t, "SELECT (SELECT count(*) FROM blobs) + (SELECT count(*) FROM uploads) + (SELECT count(*) FROM gc_doomed_objects)")
}

// patientDSN connects to a database without deadlock detection, so that a test sees a
// deadlock as two calls that don't end.
func patientDSN(t *testing.T) string {
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

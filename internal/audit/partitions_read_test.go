package audit

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

// stopped is a pgx tracer that blocks a connection before each statement whose SQL contains
// `text`. It sends the process id of the connection on `reached`, and lets the connection
// continue when it receives a value from `release`.
type stopped struct {
	text    string
	reached chan uint32 // gets the process id of the connection
	release chan struct{}
}

func (s *stopped) TraceQueryStart(ctx context.Context, conn *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if strings.Contains(q.SQL, s.text) {
		s.reached <- conn.PgConn().PID()
		<-s.release
	}
	return ctx
}

func (s *stopped) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TestReadersWaitForAMove starts a query while the partition manager moves entries out of
// the default partition. The query must find all entries. PostgreSQL first chooses the
// partitions that a query reads, then waits for their locks, and reads with a later
// snapshot. If the query waited only for the default partition's lock, it would read this
// partition after the entries were moved, and wouldn't read the new partition.
func TestReadersWaitForAMove(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	clock := day("2026-05-15 00:00:00")
	for range 3 {
		must(t, Append(t.Context(), d.Pool, Entry{Kind: PullRepo, Time: clock, RepositoryID: 1, Repository: "acme/app"}))
	}
	stop := &stopped{"DROP CONSTRAINT month", make(chan uint32), make(chan struct{})}
	cfg := d.Pool.Config().Copy()
	cfg.ConnConfig.Tracer = stop
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	must(t, err)
	defer pool.Close()
	updated := make(chan error, 1)
	go func() {
		_, err := at(&db.DB{Pool: db.PoolOver(pool)}, clock, PartitionOptions{}).Update(context.WithoutCancel(t.Context()))
		updated <- err
	}()
	pid := <-stop.reached

	reader, err := pgx.Connect(t.Context(), d.Pool.Config().ConnString())
	must(t, err)
	defer reader.Close(context.WithoutCancel(t.Context())) //nolint:errcheck // nothing is lost
	var seen int
	read := make(chan error, 1)
	go func() {
		read <- reader.QueryRow(t.Context(), "SELECT count(*) FROM auditlog WHERE kind = $1", PullRepo).Scan(&seen)
	}()
	eventually(t, "the reader waits", func() bool {
		return count(t, d, "SELECT count(*) FROM pg_stat_activity WHERE pid = $1 AND $2 = ANY (pg_blocking_pids(pid))",
			int32(reader.PgConn().PID()), int32(pid)) == 1
	})
	stop.release <- struct{}{}
	must(t, <-read)
	if seen != 3 {
		t.Errorf("the reader saw %d entries of 3", seen)
	}
	for done := false; !done; { // the partition of the next month
		select {
		case <-stop.reached:
			stop.release <- struct{}{}
		case err := <-updated:
			must(t, err)
			done = true
		}
	}
}

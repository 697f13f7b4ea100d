package pullstats

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

// TestStatisticsWithoutConnection: while pulls wait for a connection to the statistics' database, they keep
// no connection to the log's database and no lock there. Otherwise a statistics server that is slow or gone
// would keep requests and deletions waiting that don't need it.
func TestStatisticsWithoutConnection(t *testing.T) {
	t.Parallel()
	s := open(t, true, 1)
	dsn := dbtest.DSN(t)
	stats, err := db.Open(t.Context(), db.Options{DSN: dsn, MaxConns: 1, Log: quiet})
	must(t, err)
	t.Cleanup(stats.Close)
	taken, err := stats.Pool.Acquire(t.Context())
	must(t, err)
	d := Databases{s.log, stats, namespaces}

	before := s.log.Pool.Stat().AcquireCount()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	err = d.withAlive(ctx, s.repositories, func(living, pgx.Tx) error { return nil })
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without a connection: %v", err)
	}
	if n := s.log.Pool.Stat().AcquireCount() - before; n != 0 {
		t.Errorf("%d connections to the log's database were taken meanwhile", n)
	}
	taken.Release()
	var alive living
	must(t, d.withAlive(t.Context(), s.repositories, func(found living, _ pgx.Tx) error {
		alive = found
		return nil
	}))
	if !alive.has(s.repositories[0]) {
		t.Errorf("the repositories that exist are %v", alive)
	}
}

// TestCommitOfStatisticsComesFirst: what was counted is committed before the lock of the repositories ends,
// so that the clean-up after a deletion finds it.
func TestCommitOfStatisticsComesFirst(t *testing.T) {
	t.Parallel()
	s := open(t, true, 1)
	d := Databases{Log: s.log, Stats: s.stats}
	exec(t, s.stats, "CREATE TABLE counted (n int)")
	deleted := make(chan error, 1)
	d.Alive = namespaces
	must(t, d.withAlive(t.Context(), s.repositories, func(_ living, tx pgx.Tx) error {
		go func() { // it waits for the lock of the repository
			deleted <- pgx.BeginFunc(t.Context(), s.log.Pool, func(tx pgx.Tx) error {
				if _, err := tx.Exec(t.Context(), "SELECT FROM repositories WHERE id = $1 FOR UPDATE", s.repositories[0]); err != nil {
					return err
				}
				var n int
				if err := s.stats.Pool.QueryRow(t.Context(), "SELECT count(*) FROM counted").Scan(&n); err != nil {
					return err
				}
				if n != 1 {
					return errors.New("a deletion didn't find what had been counted")
				}
				return nil
			})
		}()
		for waits := false; !waits; {
			if err := s.log.Pool.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE NOT granted AND a.datname = current_database())").Scan(&waits); err != nil {
				return err
			}
		}
		_, err := tx.Exec(t.Context(), "INSERT INTO counted VALUES (1)")
		return err
	}))
	must(t, <-deleted)
}

// TestReadingIsNotWaitedForInVain: who waits for a worker that reads the audit log gives up with its
// context, since it may have a connection and locks for which that worker waits.
func TestReadingIsNotWaitedForInVain(t *testing.T) {
	t.Parallel()
	s := open(t, false, 1)
	w := s.worker(t)
	must(t, w.reading.Acquire(t.Context(), 1))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := w.Sync(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while another batch is read, Sync returns %v", err)
	}
	if _, err := w.Status(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while another batch is read, Status returns %v", err)
	}
	w.reading.Release(1)
	must(t, w.Sync(t.Context()))
}

package statsdb

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// shop is a test's registry with one repository, whose log and statistics are in two databases.
type shop struct {
	log, stats   *db.DB
	repositories []int64
}

func open(t testing.TB) *shop {
	t.Helper()
	s := &shop{log: dbtest.New(t), stats: dbtest.New(t), repositories: make([]int64, 1)}
	must(t, s.log.Pool.QueryRow(t.Context(), `
		WITH acme AS (INSERT INTO top_level_namespaces (name) VALUES ('acme') RETURNING id)
		INSERT INTO repositories (top_level_namespace_id, path) SELECT id, 'acme/app' FROM acme RETURNING id`).Scan(&s.repositories[0]))
	return s
}

// namespaces locks those of the repositories that exist and returns the ids of their
// namespaces, as catalog.LivingNamespaces does.
func namespaces(ctx context.Context, tx pgx.Tx, ids []int64) (map[int64]int64, error) {
	rows, err := tx.Query(ctx, "SELECT id, top_level_namespace_id FROM repositories WHERE id = ANY ($1) ORDER BY id FOR KEY SHARE", ids)
	if err != nil {
		return nil, err
	}
	of := map[int64]int64{}
	var id, namespace int64
	_, err = pgx.ForEachRow(rows, []any{&id, &namespace}, func() error { of[id] = namespace; return nil })
	return of, err
}

// TestStatisticsWithoutConnection: while pulls wait for a connection to the statistics' database, they keep
// no connection to the log's database and no lock there. Otherwise a statistics server that is slow or gone
// would keep requests and deletions waiting that don't need it.
func TestStatisticsWithoutConnection(t *testing.T) {
	t.Parallel()
	s := open(t)
	dsn := dbtest.DSN(t)
	stats, err := db.Open(t.Context(), db.Options{DSN: dsn, MaxConns: 1, Log: slog.New(slog.DiscardHandler)})
	must(t, err)
	t.Cleanup(stats.Close)
	taken, err := stats.Pool.Acquire(t.Context())
	must(t, err)
	d := Databases{s.log, stats, namespaces}

	before := s.log.Pool.Stat().AcquireCount()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	err = d.WithAlive(ctx, s.repositories, func(Living, pgx.Tx) error { return nil })
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without a connection: %v", err)
	}
	if n := s.log.Pool.Stat().AcquireCount() - before; n != 0 {
		t.Errorf("%d connections to the log's database were taken meanwhile", n)
	}
	taken.Release()
	var alive Living
	must(t, d.WithAlive(t.Context(), s.repositories, func(found Living, _ pgx.Tx) error {
		alive = found
		return nil
	}))
	if !alive.Has(s.repositories[0]) {
		t.Errorf("the repositories that exist are %v", alive)
	}
}

// TestCommitOfStatisticsComesFirst: what was counted is committed before the lock of the repositories ends,
// so that the clean-up after a deletion finds it.
func TestCommitOfStatisticsComesFirst(t *testing.T) {
	t.Parallel()
	s := open(t)
	d := Databases{Log: s.log, Stats: s.stats}
	_, err := s.stats.Pool.Exec(t.Context(), "CREATE TABLE counted (n int)")
	must(t, err)
	deleted := make(chan error, 1)
	d.Alive = namespaces
	must(t, d.WithAlive(t.Context(), s.repositories, func(_ Living, tx pgx.Tx) error {
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

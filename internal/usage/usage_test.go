package usage_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/usage"
	"github.com/purser-registry/purser/internal/worker"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

// bundle is a database that belongs to one test, with namespaces n1, n2 … of three repositories each.
type bundle struct {
	t  *testing.T
	db *db.DB
}

const (
	namespaces   = 4
	repositories = 3 * namespaces
	blobs        = 60
)

func setup(t *testing.T) bundle {
	t.Helper()
	b := bundle{t, dbtest.New(t)}
	b.exec(`INSERT INTO top_level_namespaces (name) SELECT 'n' || i FROM generate_series(1, $1::int) i`, namespaces)
	b.exec(`INSERT INTO repositories (top_level_namespace_id, path) SELECT n.id, n.name || '/r' || i FROM top_level_namespaces n, generate_series(1, 3) i`)
	b.exec(`INSERT INTO blobs (digest, size, storage_key) SELECT int4send(i), i * i, i::text FROM generate_series(1, $1::int) i`, blobs)
	return b
}

func (b bundle) exec(sql string, args ...any) {
	b.t.Helper()
	if _, err := b.db.Pool.Exec(b.t.Context(), sql, args...); err != nil {
		b.t.Fatal(err)
	}
}

// meter makes a meter that reads slices of the given size, as a process of its own would.
func (b bundle) meter(slice int) *usage.Meter {
	b.t.Helper()
	m, err := usage.New(usage.Options{DB: b.db, Slice: slice, Kept: slice % 4})
	if err != nil {
		b.t.Fatal(err)
	}
	return m
}

// pass measures from the beginning to the end.
func (b bundle) pass(m *usage.Meter) {
	b.t.Helper()
	b.exec("UPDATE usage_state SET next_at = '-infinity', owner_until = '-infinity'")
	for {
		more, err := m.Step(b.t.Context())
		if err != nil {
			b.t.Fatal(err)
		}
		if !more {
			return
		}
	}
}

// link changes one link, repository or namespace at random, as pushes, deletions and restores do.
func change(ctx context.Context, d *db.DB, r *rand.Rand) error {
	repository, namespace, digest := 1+r.IntN(repositories), 1+r.IntN(namespaces), 1+r.IntN(blobs)
	var (
		sql  string
		args []any
	)
	switch r.IntN(8) {
	case 0, 1, 2, 3:
		sql = `INSERT INTO repository_blobs (top_level_namespace_id, repository_id, blob_digest)
			SELECT top_level_namespace_id, id, int4send($2::int) FROM repositories WHERE id = $1 ON CONFLICT DO NOTHING`
		args = []any{repository, digest}
	case 4, 5:
		sql = "DELETE FROM repository_blobs WHERE repository_id = $1 AND blob_digest = int4send($2::int)"
		args = []any{repository, digest}
	case 6:
		sql = `UPDATE repositories SET deleted_at = CASE WHEN deleted_at IS NULL THEN now() END, purge_after = CASE WHEN deleted_at IS NULL THEN now() END,
			deleted_path = CASE WHEN deleted_at IS NULL THEN path END, path = CASE WHEN deleted_at IS NULL THEN '#' || id ELSE deleted_path END WHERE id = $1`
		args = []any{repository}
	default:
		sql = `UPDATE top_level_namespaces SET deleted_at = CASE WHEN deleted_at IS NULL THEN now() END, purge_after = CASE WHEN deleted_at IS NULL THEN now() END,
			deleted_name = CASE WHEN deleted_at IS NULL THEN name END, name = CASE WHEN deleted_at IS NULL THEN '#' || id ELSE deleted_name END WHERE id = $1`
		args = []any{namespace}
	}
	_, err := d.Pool.Exec(ctx, sql, args...)
	return err
}

// differences counts rows that the published pass has and the plain sums don't, or the other way round.
const differences = `
	WITH links AS (
		SELECT l.blob_digest AS digest, l.top_level_namespace_id AS namespace_id, l.repository_id, b.size,
			EXISTS (SELECT FROM live_repositories r WHERE r.id = l.repository_id) AS live
		FROM repository_blobs l JOIN blobs b ON b.digest = l.blob_digest
	), repositories AS (
		SELECT repository_id, namespace_id, count(*), sum(size)::bigint, COALESCE(sum(size) FILTER (WHERE NOT EXISTS (
			SELECT FROM links o WHERE o.live AND o.digest = l.digest AND o.namespace_id = l.namespace_id AND o.repository_id <> l.repository_id)), 0)::bigint
		FROM links l WHERE live GROUP BY 1, 2
	), namespaces AS (
		SELECT namespace_id, count(*), sum(size)::bigint, COALESCE(sum(size) FILTER (WHERE NOT EXISTS (
			SELECT FROM links o WHERE o.live AND o.digest = l.digest AND o.namespace_id <> l.namespace_id)), 0)::bigint
		FROM (SELECT DISTINCT digest, namespace_id, size FROM links WHERE live) l GROUP BY 1
	), registry AS (
		SELECT count(*), sum(size)::bigint,
			COALESCE(sum(size) FILTER (WHERE EXISTS (SELECT FROM links l WHERE l.digest = b.digest)
				AND NOT EXISTS (SELECT FROM links l WHERE l.digest = b.digest AND l.live)), 0)::bigint,
			COALESCE(sum(size) FILTER (WHERE NOT EXISTS (SELECT FROM links l WHERE l.digest = b.digest)), 0)::bigint
		FROM blobs b
	), r AS (SELECT u.repository_id, u.namespace_id, u.blobs, u.bytes, u.own_bytes FROM usage_repositories u JOIN usage_state s ON s.published = u.pass),
	n AS (SELECT u.namespace_id, u.blobs, u.bytes, u.own_bytes FROM usage_namespaces u JOIN usage_state s ON s.published = u.pass),
	g AS (SELECT u.blobs, u.bytes, u.trash_bytes, u.unreferenced_bytes FROM usage_registry u JOIN usage_state s ON s.published = u.pass)
	SELECT (SELECT count(*) FROM ((TABLE r EXCEPT TABLE repositories) UNION ALL (TABLE repositories EXCEPT TABLE r)) d),
		(SELECT count(*) FROM ((TABLE n EXCEPT TABLE namespaces) UNION ALL (TABLE namespaces EXCEPT TABLE n)) d),
		(SELECT count(*) FROM ((TABLE g EXCEPT TABLE registry) UNION ALL (TABLE registry EXCEPT TABLE g)) d)`

// equal compares what the published pass says with plain sums over all links.
func (b bundle) equal() {
	b.t.Helper()
	var repositories, namespaces, registry int
	if err := b.db.Pool.QueryRow(b.t.Context(), differences).Scan(&repositories, &namespaces, &registry); err != nil {
		b.t.Fatal(err)
	}
	if repositories+namespaces+registry > 0 {
		b.t.Errorf("the published sums differ from plain ones: %d rows of repositories, %d of namespaces, %d of the registry", repositories, namespaces, registry)
	}
}

// TestPass: while clients push, delete and restore, three processes measure, of which one is stopped again
// and again within slices. A pass after all this has the sums that one statement over all links has.
func TestPass(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			var clients, meters sync.WaitGroup
			for i := range uint64(2) {
				clients.Go(func() {
					r := rand.New(rand.NewPCG(seed, i))
					for range 300 {
						if err := change(ctx, b.db, r); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			for i := range 3 {
				m := b.meter(3 + 4*i)
				meters.Go(func() {
					r := rand.New(rand.NewPCG(seed, uint64(10+i)))
					for ctx.Err() == nil {
						ctx, cancel := context.WithCancel(ctx)
						if i == 0 && r.IntN(3) == 0 {
							go cancel() // in the middle of a slice
						}
						if _, err := m.Step(ctx); err != nil && ctx.Err() == nil {
							t.Error(err)
						}
						cancel()
						if r.IntN(4) == 0 { // as if the owner had been silent for a minute
							if _, err := b.db.Pool.Exec(ctx, "UPDATE usage_state SET owner_until = '-infinity'"); err != nil && ctx.Err() == nil {
								t.Error(err)
							}
						}
						if _, err := b.db.Pool.Exec(ctx, "UPDATE usage_state SET next_at = '-infinity' WHERE phase = 'idle' AND next_at > now()"); err != nil && ctx.Err() == nil {
							t.Error(err)
						}
					}
				})
			}
			clients.Wait()
			stop()
			meters.Wait()
			m := b.meter(7)
			b.pass(m) // ends the one that has begun
			b.pass(m)
			b.equal()
		})
	}
}

// TestOwners: processes take a pass from each other at random while each keeps sums in memory, also when one
// of them comes back to a position that another has stored, and some slices fail. The sums are those of one
// statement over all links.
func TestOwners(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r := rand.New(rand.NewPCG(7, 8))
	for range 400 {
		if err := change(t.Context(), b.db, r); err != nil {
			t.Fatal(err)
		}
	}
	meters := []*usage.Meter{b.meter(3), b.meter(6), b.meter(7), b.meter(11)}
	for range 20 {
		b.exec("UPDATE usage_state SET next_at = '-infinity'")
		began := int64(-1)
		for ended := false; !ended; {
			if r.IntN(3) > 0 {
				b.exec("UPDATE usage_state SET owner_until = '-infinity'")
			}
			ctx, cancel := context.WithCancel(t.Context())
			fails := r.IntN(8) == 0
			if fails {
				cancel()
			}
			if _, err := meters[r.IntN(len(meters))].Step(ctx); (err != nil) != fails {
				t.Fatalf("a slice got %v", err)
			}
			cancel()
			var pass, published int64
			if err := b.db.Pool.QueryRow(t.Context(), "SELECT pass, published FROM usage_state").Scan(&pass, &published); err != nil {
				t.Fatal(err)
			}
			if began < 0 && pass > published {
				began = pass
			}
			ended = began >= 0 && published == began
		}
		b.equal()
	}
}

// TestTwoProcesses: two processes take turns at one pass, with slices that end in the middle of a blob's
// links, and a process whose slice isn't over does not hold the other up.
func TestTwoProcesses(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(`INSERT INTO repository_blobs (top_level_namespace_id, repository_id, blob_digest)
		SELECT r.top_level_namespace_id, r.id, b.digest FROM repositories r, blobs b WHERE (r.id * get_byte(b.digest, 3)) % 5 < 2`)
	meters := []*usage.Meter{b.meter(5), b.meter(5)}
	for i := 0; ; i++ {
		b.exec("UPDATE usage_state SET owner_until = '-infinity'") // so that the other may go on
		more, err := meters[i%2].Step(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !more {
			break
		}
	}
	b.equal()

	b.exec("UPDATE usage_state SET next_at = '-infinity'")
	if more, err := meters[0].Step(t.Context()); !more || err != nil { // begins a pass
		t.Fatalf("%t, %v", more, err)
	}
	if more, err := meters[0].Step(t.Context()); !more || err != nil { // reads a slice
		t.Fatalf("%t, %v", more, err)
	}
	if more, err := meters[1].Step(t.Context()); more || err != nil {
		t.Errorf("while another process owns the pass, one got %t, %v; want that it does nothing", more, err)
	}
	hangs, err := b.db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer hangs.Rollback(t.Context()) //nolint:errcheck // nothing is to be kept
	if _, err := hangs.Exec(t.Context(), "SELECT FROM usage_state FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	if more, err := meters[1].Step(t.Context()); more || err != nil {
		t.Errorf("beside a process at a slice, another got %t, %v; want that it does nothing", more, err)
	}
}

// TestDays: a namespace gets a row for a day if its sums changed, the last pass of a day counts, and the row of the
// registry is there for each day. What is too old goes but for the last of it, unless nothing may be deleted for
// its age.
func TestDays(t *testing.T) {
	t.Parallel()
	b := setup(t)
	link := func(repository, digest int) {
		b.exec(`INSERT INTO repository_blobs (top_level_namespace_id, repository_id, blob_digest)
			SELECT top_level_namespace_id, id, int4send($2::int) FROM repositories WHERE id = $1`, repository, digest)
	}
	link(1, 3)
	m := b.meter(2)
	b.pass(m)
	b.exec("UPDATE usage_days SET day = day - 500")
	b.exec("INSERT INTO usage_days (namespace_id, day, bytes, own_bytes) SELECT namespace_id, day - 1, 1, 1 FROM usage_days")
	b.exec("INSERT INTO usage_registry_days (day, bytes, trash_bytes, unreferenced_bytes) SELECT day - 500, 1, 1, 1 FROM usage_registry_days")
	for _, test := range []struct {
		digest int
		days   []int64
	}{{4, []int64{9, 9 + 16}}, {5, []int64{9, 9 + 16 + 25}}} {
		link(1, test.digest)
		b.pass(m)
		rows, _ := b.db.Pool.Query(t.Context(), "SELECT bytes FROM usage_days ORDER BY day") //nolint:errcheck // CollectRows returns its error
		days, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if err != nil || fmt.Sprint(days) != fmt.Sprint(test.days) {
			t.Errorf("days %v, %v; want %v", days, err, test.days)
		}
	}
	b.exec("UPDATE usage_days SET day = day - 1")
	b.pass(m)
	var days, registry, passes int
	err := b.db.Pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM usage_days), (SELECT count(*) FROM usage_registry_days),
		(SELECT count(DISTINCT pass) FROM usage_repositories)`).Scan(&days, &registry, &passes)
	if err != nil || days != 2 || registry != 1 || passes > 2 {
		t.Errorf("%d rows of the namespace, %d of the registry, %d passes, %v; want 2, 1, and 2 at most", days, registry, passes, err)
	}

	b.exec("UPDATE usage_registry_days SET day = day - 500")
	doubts, err := usage.New(usage.Options{DB: b.db, CheckTime: func(context.Context, time.Time) error {
		return fmt.Errorf("the clock is in doubt: %w", worker.ErrRest)
	}})
	if err != nil {
		t.Fatal(err)
	}
	b.pass(doubts)
	if err := b.db.Pool.QueryRow(t.Context(), "SELECT count(*) FROM usage_registry_days").Scan(&registry); err != nil || registry != 2 {
		t.Errorf("while the clock is in doubt, %d days are there, %v; want the old one too", registry, err)
	}
	if _, err := usage.New(usage.Options{}); err == nil {
		t.Error("a meter without a database was made")
	}
}

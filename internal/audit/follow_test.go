package audit

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/testscale"
	"github.com/purser-registry/purser/internal/worker"
)

// follower follows the log in each of the three ways in which readers do.
type follower struct {
	d                       *db.DB
	pulls, changes, counted Position
	seen                    map[string]int // how many times each entry was read in each way
}

func newFollower(d *db.DB) *follower { return &follower{d: d, seen: map[string]int{}} }

// read reads up to n entries in each way.
func (f *follower) read(ctx context.Context, n int) error {
	pulls, err := New(f.d).Pulls(ctx, f.pulls, n)
	if err != nil {
		return err
	}
	for _, p := range pulls {
		if err := f.pass(&f.pulls, p.Position, "pulls "+p.Tag); err != nil {
			return err
		}
	}
	return pgx.BeginFunc(ctx, f.d.Pool, func(tx pgx.Tx) error {
		changes, _, err := Changes(ctx, tx, f.changes, n)
		if err != nil {
			return err
		}
		for _, c := range changes {
			if err := f.pass(&f.changes, c.Position, "changes "+c.Tag); err != nil {
				return err
			}
		}
		counts, last, _, err := CountPulls(ctx, tx, f.counted, n, []Watch{{NamespaceID: 1}})
		for _, c := range counts {
			f.seen["counts "+c.Repository] += int(c.Pulls)
		}
		if err == nil && last.Less(f.counted) {
			err = fmt.Errorf("CountPulls goes back from %v to %v", f.counted, last)
		}
		f.counted = last
		return err
	})
}

// pass moves one of the positions past an entry, and takes note of the entry.
func (f *follower) pass(from *Position, to Position, entry string) error {
	if !from.Less(to) {
		return fmt.Errorf("%s at %v comes after %v", entry, to, *from)
	}
	*from = to
	f.seen[entry]++
	return nil
}

// want fails the test unless the follower reads, in the end, each of the entries of these writers once
// in each way, and nothing else.
func (f *follower) want(t *testing.T, writers map[string]bool) {
	t.Helper()
	want := map[string]int{}
	for w := range writers {
		for _, entry := range []string{"pulls %s", "pulls %s-head", "counts %s", "changes %s-1", "changes %s-2"} {
			want[fmt.Sprintf(entry, w)] = 1
		}
	}
	eventually(t, "everything can be read", func() bool { // a transaction of another test may be open
		return count(t, f.d, `
			SELECT count(*) FROM (SELECT xid FROM auditlog UNION ALL SELECT xid FROM pullheads) e
			WHERE xid >= pg_snapshot_xmin(pg_current_snapshot())`) == 0
	})
	for before := -1; before != len(f.seen); {
		before = len(f.seen)
		must(t, f.read(t.Context(), 100))
	}
	if more, err := Unread(t.Context(), f.d.Pool, f.changes, f.counted); err != nil || more {
		t.Errorf("there is more to read: %v, %v", more, err)
	}
	for _, entry := range slices.Sorted(maps.Keys(f.seen)) {
		if f.seen[entry] != want[entry] {
			t.Errorf("%q was read %d times, want %d", entry, f.seen[entry], want[entry])
		}
	}
	for entry := range want {
		if f.seen[entry] == 0 {
			t.Errorf("%q was never read", entry)
		}
	}
}

// writing has the steps of a transaction that writes entries.
var writing = []func(ctx context.Context, tx pgx.Tx, name string) error{
	func(ctx context.Context, tx pgx.Tx, _ string) error { // it gets its id
		_, err := tx.Exec(ctx, "SELECT pg_current_xact_id()")
		return err
	},
	func(ctx context.Context, tx pgx.Tx, name string) error {
		_, err := tx.Exec(ctx, `INSERT INTO auditlog (kind, namespace_id, repository, tag)
			VALUES ('push_repo', 1, $1, $1 || '-1'), ('pull_repo', 1, $1, $1)`, name)
		return err
	},
	func(ctx context.Context, tx pgx.Tx, name string) error {
		if _, err := tx.Exec(ctx, "INSERT INTO pullheads (time, client, repository_id, tag, port) VALUES (now(), '', 1, $1 || '-head', 0)", name); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "INSERT INTO auditlog (kind, namespace_id, repository, tag) VALUES ('move_tag', 1, $1, $1 || '-2')", name)
		return err
	},
}

// Transactions write entries in every order of their steps, and commit or roll back in every order.
// After each step a reader reads one or two entries. It must read each committed entry once.
func TestEveryOrderOfCommits(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	f := newFollower(d)
	committed := map[string]bool{}
	steps := len(writing) + 1
	for n, order := range orders([]int{steps, steps}) {
		for _, ends := range testscale.Pick([]int{n % 3}, []int{0, 1, 2}) { // 0: both commit, otherwise one of them rolls back
			var open [2]pgx.Tx
			var done [2]int
			for i, w := range order {
				name := fmt.Sprintf("%d-%d-%d", n, ends, w)
				if open[w] == nil {
					var err error
					open[w], err = d.Pool.Begin(t.Context())
					must(t, err)
				}
				switch {
				case done[w] < len(writing):
					must(t, writing[done[w]](t.Context(), open[w], name))
				case ends == w+1:
					must(t, open[w].Rollback(t.Context()))
				default:
					must(t, open[w].Commit(t.Context()))
					committed[name] = true
				}
				done[w]++
				must(t, f.read(t.Context(), 1+i%2))
			}
		}
	}
	f.want(t, committed)
}

// orders returns every order of the steps of several writers; counts has how many steps each of them
// has. An order says whose step comes next.
func orders(counts []int) (list [][]int) {
	left := false
	for w, n := range counts {
		if n == 0 {
			continue
		}
		left = true
		rest := slices.Clone(counts)
		rest[w]--
		for _, tail := range orders(rest) {
			list = append(list, append([]int{w}, tail...))
		}
	}
	if !left {
		return [][]int{nil}
	}
	return list
}

// Many transactions write entries at once, wait at any step, and commit or roll back. Meanwhile
// readers follow the log, some of them a few entries at a time. Each of them must read each committed
// entry once.
func TestFollowersReadOnce(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var mu sync.Mutex
	committed := map[string]bool{}
	write := func(ctx context.Context, random *rand.Rand, name string) error {
		tx, err := d.Pool.Begin(ctx)
		if err != nil {
			return err
		}
		defer tx.Rollback(ctx) //nolint:errcheck // after the commit it does nothing
		for _, step := range writing {
			if random.IntN(3) == 0 {
				_ = worker.Sleep(ctx, time.Duration(random.IntN(10))*time.Millisecond)
			}
			if err := step(ctx, tx, name); err != nil {
				return err
			}
		}
		if random.IntN(3) == 0 {
			_ = worker.Sleep(ctx, time.Duration(random.IntN(20))*time.Millisecond)
		}
		if random.IntN(5) == 0 {
			return nil // it rolls back
		}
		if err := tx.Commit(ctx); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		committed[name] = true
		return nil
	}
	var writers, readers errgroup.Group
	for w := range 5 {
		writers.Go(func() error {
			random := rand.New(rand.NewPCG(seed, uint64(w)))
			for i := range testscale.Pick(60, 600) {
				if err := write(t.Context(), random, fmt.Sprintf("%d-%d", w, i)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	followers := []*follower{newFollower(d), newFollower(d), newFollower(d)}
	for i, f := range followers {
		readers.Go(func() error {
			random := rand.New(rand.NewPCG(seed, uint64(100+i)))
			for ctx.Err() == nil {
				if err := f.read(context.WithoutCancel(ctx), 1+random.IntN(1+i*20)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	must(t, writers.Wait())
	stop()
	must(t, readers.Wait())
	for _, f := range followers {
		f.want(t, committed)
	}
}

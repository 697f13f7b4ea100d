package pullstats

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/pullstats/statsdb"
	"github.com/purser-registry/purser/internal/testscale"
)

// writers runs n writers, each of which writes `each` entries in many transactions. The
// transactions stay open for a while, end in any order, and are sometimes rolled back.
// writers returns those committed entries that the SyncWorker must count.
func (s *shop) writers(ctx context.Context, n, each int) ([]audit.Entry, error) {
	var mu sync.Mutex
	var all []audit.Entry
	undo := errors.New("undo")
	var group errgroup.Group
	var clock atomic.Int64
	for i := range n {
		group.Go(func() error {
			r := rand.New(rand.NewPCG(uint64(i), 7))
			for range each {
				var list []audit.Entry
				for range 1 + r.IntN(4) {
					tag := ""
					if r.IntN(3) > 0 {
						tag = fmt.Sprint("v", r.IntN(4))
					}
					// No two pulls have the same time, and the times aren't in the order of
					// the entries.
					at := noon.Add(time.Duration(r.IntN(1e6))*time.Second + time.Duration(clock.Add(1))*time.Microsecond)
					e := s.pull(r.IntN(len(s.repositories)), tag, fmt.Sprint(r.IntN(5)), at)
					if r.IntN(3) == 0 {
						e.Pulls = 2 + r.IntN(100)
					}
					if r.IntN(5) == 0 {
						e.CountedBy = audit.CountedByRedis
					}
					list = append(list, e)
				}
				err := s.log.Tx(ctx, func(tx pgx.Tx) error {
					for _, e := range list { // a statement for each entry, so that its id is taken long before the commit
						if err := audit.Append(ctx, tx, e); err != nil {
							return err
						}
					}
					if _, err := tx.Exec(ctx, "SELECT pg_sleep($1)", r.Float64()*0.03); err != nil {
						return err
					}
					if r.IntN(6) == 0 {
						return undo
					}
					return nil
				})
				if errors.Is(err, undo) {
					continue
				}
				if err != nil {
					return err
				}
				mu.Lock()
				for _, e := range list {
					if e.CountedBy != audit.CountedByRedis {
						all = append(all, e)
					}
				}
				mu.Unlock()
			}
			return nil
		})
	}
	err := group.Wait()
	return all, err
}

// crashes counts the workers that died, by the way of dying: after reading, before their
// commit, after it, when their connections were ended, or at a random time.
type crashes [5]atomic.Int64

var errCrash = errors.New("the process ends here")

// crashing runs SyncWorkers one after another. Each worker dies at one of its steps: it
// stops at the step, its context ends in the middle of a statement, or PostgreSQL ends its
// connections.
func (s *shop) crashing(t *testing.T, ctx context.Context, seed uint64, died *crashes) error {
	r := rand.New(rand.NewPCG(seed, 1))
	for ctx.Err() == nil {
		log, stats := s.process(t)
		w, err := NewSyncWorker(SyncOptions{Databases: statsdb.Databases{Log: log, Stats: stats, Alive: namespaces}, Logger: quiet, Batch: 1 + r.IntN(40)})
		if err != nil {
			return err
		}
		life, die := context.WithCancel(ctx)
		steps := r.IntN(6)
		w.crash = func(step string) error {
			if steps--; steps > 0 {
				return nil
			}
			way := r.IntN(3)
			switch {
			case way == 0:
				die()
			case way == 1 && step == "before commit":
				died[3].Add(1)
				return s.kill(life)
			}
			died[map[string]int{"read": 0, "before commit": 1, "after commit": 2}[step]].Add(1)
			if way == 0 {
				return nil // later statements fail, since the context has ended
			}
			return errCrash
		}
		if r.IntN(4) == 0 {
			time.AfterFunc(time.Duration(r.IntN(20_000))*time.Microsecond, die)
			died[4].Add(1)
		}
		for life.Err() == nil {
			if err = w.Sync(life); err != nil {
				break
			}
			time.Sleep(time.Millisecond)
		}
		if ctx.Err() == nil && life.Err() == nil && !errors.Is(err, errCrash) && db.Code(err) != "57P01" && !db.Unavailable(err) {
			die()
			return err
		}
		die()
		log.Close()
		stats.Close()
	}
	return nil
}

// process opens the database pools of a process of its own.
func (s *shop) process(t *testing.T) (log, stats *db.DB) {
	open := func(of *db.DB) *db.DB {
		d, err := db.Open(context.WithoutCancel(t.Context()), db.Options{DSN: of.Pool.Config().ConnString(), ApplicationName: "counting", MaxConns: 3, Log: quiet})
		if err != nil {
			panic(err) // the DSN was good before
		}
		return d
	}
	if log = open(s.log); s.log == s.stats {
		return log, log
	}
	return log, open(s.stats)
}

// kill ends the connections to the statistics' database of all workers that crashing runs.
func (s *shop) kill(ctx context.Context) error {
	_, err := s.stats.Pool.Exec(ctx, `
		SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE datname = current_database() AND application_name = 'counting' AND pid <> pg_backend_pid()`)
	return err
}

// 100 or 200 writers write pulls in transactions that end in any order, while three workers count
// and die at every step. Another worker counts the rest in the end. Each pull must count
// once.
func TestExactlyOnce(t *testing.T) {
	t.Parallel()
	for _, apart := range []bool{false, true} {
		t.Run(fmt.Sprintf("apart=%v", apart), func(t *testing.T) {
			t.Parallel()
			s := open(t, apart, 4)
			ctx, stop := context.WithCancel(t.Context())
			var workers errgroup.Group
			var died crashes
			for i := range 3 {
				workers.Go(func() error { return s.crashing(t, ctx, uint64(i), &died) })
			}
			entries, err := s.writers(t.Context(), testscale.Pick(100, 200), 12)
			must(t, err)
			counted := number(t, s.stats, "SELECT COALESCE(sum(entries_counted), 0) FROM pullstatisticsprocessingstate")
			want := int64(0)
			for _, e := range entries {
				want += int64(max(e.Pulls, 1))
			}
			deadline := time.After(5 * time.Second) // give the workers that die time to count
			for done := false; !done; {
				select {
				case <-deadline:
					done = true
				case <-time.After(20 * time.Millisecond):
					done = number(t, s.stats, "SELECT entries_counted FROM pullstatisticsprocessingstate") == want
				}
			}
			stop()
			must(t, workers.Wait())
			settle(t, s.worker(t))
			compare(t, s.books(t), truth(entries))
			st, err := s.worker(t).Status(t.Context())
			must(t, err)
			if st.Counted != want || len(entries) < 1000 {
				t.Errorf("%d pulls counted, want %d", st.Counted, want)
			}
			for i := range died {
				if died[i].Load() == 0 {
					t.Errorf("no crash of kind %d", i)
				}
			}
			t.Logf("%d entries, %d pulls counted while they were written; crashes %d %d %d %d %d", len(entries), counted,
				died[0].Load(), died[1].Load(), died[2].Load(), died[3].Load(), died[4].Load())
		})
	}
}

// A worker commits a batch but doesn't learn that the commit succeeded. The next attempt
// must not count the pull again.
func TestUnansweredCommit(t *testing.T) {
	t.Parallel()
	s := open(t, true, 1)
	e := s.pull(0, "v1", "a", noon)
	must(t, audit.Append(t.Context(), s.log.Pool, e))
	w := s.worker(t)
	lost := false
	w.crash = func(step string) error {
		if step == "after commit" && !lost {
			lost = true
			return errCrash
		}
		return nil
	}
	for deadline := time.Now().Add(time.Minute); !lost; time.Sleep(5 * time.Millisecond) {
		if err := w.Sync(t.Context()); err != nil && !errors.Is(err, errCrash) || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	settle(t, w)
	compare(t, s.books(t), truth([]audit.Entry{e}))
}

package autoprune_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/autoprunetest"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/testscale"
)

// TestCapHoldsWhileTagsCome: tags that are pushed between the count and the deletion must not
// let a policy delete more than its cap or its approval, and other policies must go on.
func TestCapHoldsWhileTagsCome(t *testing.T) {
	t.Parallel()
	for _, approved := range []bool{false, true} {
		t.Run(fmt.Sprintf("approved %v", approved), func(t *testing.T) {
			t.Parallel()
			n := capped(t, 4, 1)
			n.policy(n.app, `{"method": "creation_date", "olderThan": "1h", "tagPattern": "^other"}`)
			most, id := int64(5), n.policy(n.app, capOf5)
			if approved {
				n.push(0, "some", 3)
				n.run()
				n.approve(n.asks(7), 9)
				most = 9
			}
			var once sync.Once
			_, pruner := n.replica(func(o *autoprune.Options) {
				o.Batch = 2
				o.Notify = func(_ context.Context, _ db.Querier, event string, _ any) error {
					if event == autoprune.EventStarted { // the first repository was counted and judged
						once.Do(func() {
							n.push(2, "more", 30)
							n.push(3, "other", 1)
						})
					}
					return nil
				}
			})
			old := n.pruner
			n.pruner = pruner
			n.run()
			d := n.last()
			if d.Deleted < most-2 || d.Deleted > most+1 { // a batch that would exceed the cap isn't deleted
				t.Errorf("the run deleted %d tags; it may delete %d and another policy 1", d.Deleted, most)
			}
			by := int64(0)
			for _, r := range d.PerRepository {
				by += r.Policies[id]
			}
			if by > most || by == 0 {
				t.Errorf("the policy deleted %d tags of %d: %+v", by, most, d.PerRepository)
			}
			if left := autoprunetest.Value[int](n.Registry, "SELECT count(*) FROM tags WHERE name LIKE 'other%'"); left != 0 {
				t.Errorf("another policy left %d tags", left)
			}
			n.consistent()
			n.pruner = old
			n.run()
			if ask := n.asks(int64(n.old())); ask.Approved != nil {
				t.Errorf("after the run, %+v asks", ask)
			}
		})
	}
}

// TestCapOfTwoPruners: pruners that take a namespace from each other must together delete no more
// in a run than was approved, and use an approval for one run.
func TestCapOfTwoPruners(t *testing.T) {
	t.Parallel()
	n := capped(t, 3, 4)
	id := n.policy(n.app, capOf5)
	n.run()
	rounds := testscale.Pick(2, 3)
	for round := range rounds {
		n.approve(n.asks(12), 12)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		var wg sync.WaitGroup
		// On a busy machine a lease of a millisecond always ends before its slice does. With one that
		// lasts longer, the work ends.
		for _, lease := range []time.Duration{time.Millisecond, 10 * time.Millisecond, 500 * time.Millisecond} {
			_, pruner := n.replica(func(o *autoprune.Options) {
				o.Batch, o.Turn, o.Lease = 1, time.Nanosecond, lease
			})
			wg.Go(func() {
				for ctx.Err() == nil && n.old() > 0 {
					if _, err := pruner.Work(ctx); err != nil && ctx.Err() == nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		cancel()
		if n.old() != 0 {
			t.Fatalf("round %d: %d old tags are left", round, n.old())
		}
		n.Exec("UPDATE autoprunetaskstatus SET leased_until = NULL")
		n.run()
		for i := range 3 {
			n.push(i, "old", 4)
		}
		n.run()
		if n.old() != 12 {
			t.Fatalf("round %d: an approval served two runs", round)
		}
	}
	var deleted int64
	runs := autoprunetest.Values[int64](n.Registry, "SELECT deleted FROM autopruneruns WHERE deleted > 0")
	for _, d := range runs {
		deleted += d
	}
	if len(runs) != rounds || deleted != int64(12*rounds) {
		t.Errorf("by policy %s, the runs deleted %v", id, runs)
	}
	n.consistent()
}

// TestCapAfterKills kills the worker before each statement with which it writes. The next worker
// must continue the run and end it as if nothing had happened, and the approval must serve this
// run alone.
func TestCapAfterKills(t *testing.T) {
	t.Parallel()
	n := capped(t, 3, 0)
	n.policy(n.app, capOf5)
	n.Exec(`CREATE SEQUENCE writes`)
	n.Exec(`CREATE TABLE lives AS SELECT 1000000000::bigint AS writes`)
	n.Exec(`CREATE FUNCTION kill() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF nextval('writes') > (SELECT writes FROM lives) THEN RAISE EXCEPTION 'killed'; END IF; RETURN NULL; END $$`)
	for _, table := range []string{"autoprunetaskstatus", "autopruneruns", "autopruneruns_repositories", "autopruneasks", "tags"} {
		n.Exec("CREATE TRIGGER kill BEFORE INSERT OR UPDATE OR DELETE ON " + table + " FOR EACH STATEMENT EXECUTE FUNCTION kill()")
	}
	slices := func(o *autoprune.Options) { o.Batch, o.Turn = 1, time.Nanosecond }
	_, victim := n.replica(slices)
	killed, rounds, step := 0, 0, testscale.Pick(9, 1)
	for writes := 1; ; writes += step {
		rounds++
		for i := range 3 {
			n.push(i, "old", 2)
		}
		n.run()
		n.approve(n.asks(6), 6)
		n.Exec("UPDATE lives SET writes = $1", writes)
		n.Exec("ALTER SEQUENCE writes RESTART")
		var err error
		for err == nil && n.old() > 0 {
			_, err = victim.Work(t.Context())
		}
		n.Exec("UPDATE lives SET writes = 1000000000")
		n.Exec("UPDATE autoprunetaskstatus SET leased_until = NULL")
		n.run()
		n.run()
		if n.quiet(); n.old() != 0 {
			t.Fatalf("killed before write %d (%v), %d old tags are left", writes, err, n.old())
		}
		if got := autoprunetest.Values[int64](n.Registry, "SELECT deleted FROM autopruneruns WHERE deleted > 0"); len(got) != rounds || got[len(got)-1] != 6 {
			t.Fatalf("killed before write %d (%v), the runs deleted %v", writes, err, got)
		}
		if err == nil {
			break
		}
		killed++
	}
	if killed < 30/step {
		t.Errorf("the worker was killed only %d times", killed)
	}
	n.consistent()
}

// TestAskWhileNamespaceIsDeleted: while a transaction has locked the namespace to delete it, the
// end of a run must not wait for that lock, since it has locked the task.
func TestAskWhileNamespaceIsDeleted(t *testing.T) {
	t.Parallel()
	asked := make(chan error, 1)
	n := capped(t, 1, 6)
	_, pruner := n.replica(func(o *autoprune.Options) {
		o.Notify = func(context.Context, db.Querier, string, any) error {
			asked <- nil
			return nil
		}
	})
	n.policy(n.app, capOf5)
	deletion, err := n.DB.Pool.Begin(t.Context())
	n.Must(err)
	defer deletion.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // the test is over
	_, err = deletion.Exec(t.Context(), "SELECT FROM top_level_namespaces WHERE name = 'app' FOR UPDATE")
	n.Must(err)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	go func() {
		_, err := pruner.Work(ctx)
		asked <- errors.Join(errors.New("the run ended and no policy asked"), err)
	}()
	n.Must(<-asked)
}

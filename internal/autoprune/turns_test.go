package autoprune_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/autoprunetest"
	"github.com/purser-registry/purser/internal/autoprune/policies"
)

// TestTurnsAreFair lets unfinished runs and other namespaces wait for random times, with time slices
// of random lengths, on a clock of its own. While both kinds wait, neither may have had more than a
// time slice more than the other; and while one kind waits, the worker must never be idle.
func TestTurnsAreFair(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(seed, 1))
			longest := time.Duration(1+random.IntN(100)) * time.Second
			var s autoprune.Turns
			had := make(map[bool]time.Duration) // by kind, since both have been waiting
			waits := map[bool]bool{true: true, false: true}
			for range 5000 {
				if random.IntN(50) == 0 {
					kind := random.IntN(2) == 0
					waits[kind] = !waits[kind]
					clear(had)
				}
				kind := s.UnfinishedFirst()
				if !waits[kind] {
					s.Absent()
					kind = !kind
				}
				if !waits[kind] {
					continue
				}
				took := time.Duration(random.Int64N(int64(longest)))
				if random.IntN(2) == 0 {
					took /= 1000 // nothing to do
				}
				s.Spent(kind, took)
				if had[kind] += took; waits[true] && waits[false] && (had[true]-had[false]).Abs() > 2*longest {
					t.Fatalf("while both waited, unfinished runs had %s and others %s; the longest time slice is %s", had[true], had[false], longest)
				}
			}
		})
	}
}

// idle makes namespaces in which there is nothing to do, not even a repository to look at.
func (r *registry) idle(n int) {
	for i := range n {
		name := fmt.Sprintf("idle%d", i)
		r.Repository(name + "/a")
		r.policy(policies.Target{Namespace: name}, `{"method": "creation_date", "olderThan": "1d"}`)
	}
	r.Exec("DELETE FROM repositories WHERE path LIKE 'idle%'")
	r.Exec("UPDATE autoprunetaskstatus SET last_ran_ms = 1 WHERE run IS NULL") // they have been due for longest
}

// finish lets the worker work as its loop does, but without sleeping, until the namespace has no
// unfinished run. It returns the number of time slices and for how long the worker would have slept.
func (r *registry) finish(namespace string) (slices int, slept time.Duration) {
	r.T.Helper()
	for ; slices < 1000; slices++ {
		more, err := r.pruner.Work(r.T.Context())
		r.Must(err)
		if autoprunetest.Value[int](r.Registry, "SELECT count(*) FROM autoprunetaskstatus t JOIN top_level_namespaces n ON n.id = t.namespace_id WHERE n.name = $1 AND run IS NOT NULL", namespace) == 0 {
			return slices + 1, slept
		}
		if !more {
			next, err := r.pruner.Next(r.T.Context())
			r.Must(err)
			slept += next
		}
	}
	r.T.Fatal("the run never ends")
	return 0, 0
}

// TestUnfinishedRunKeepsItsTurn: a run needs many time slices, beside namespaces in which there is
// nothing to do. The worker must take turns and never sleep.
func TestUnfinishedRunKeepsItsTurn(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *autoprune.Options) { o.Turn, o.Interval = time.Nanosecond, time.Hour })
	const parts = 8
	for i := range parts {
		r.Tag(r.Repository(fmt.Sprintf("long/r%d", i)), "v1", "m", 10*day)
	}
	r.policy(policies.Target{Namespace: "long"}, `{"method": "creation_date", "olderThan": "1d"}`)
	_, err := r.pruner.Work(t.Context())
	r.Must(err)
	if !autoprunetest.Value[bool](r.Registry, "SELECT run IS NOT NULL FROM autoprunetaskstatus") {
		t.Fatal("the run has ended in one time slice")
	}
	r.idle(30)
	slices, slept := r.finish("long")
	if slept > 0 || slices == parts-1 {
		t.Errorf("the worker slept for %s while the run waited, and had %d time slices for %d of the run", slept, slices, parts-1)
	}
	if n := autoprunetest.Value[int](r.Registry, "SELECT count(*) FROM tags t JOIN repositories r ON r.id = t.repository_id WHERE r.path LIKE 'long/%'"); n != 0 {
		t.Errorf("%d tags are left", n)
	}
	r.consistent()
}

// TestRunOfDeadWorker: the process of a run was killed, and many namespaces without work are due.
// The run must be continued as soon as the lease has ended; while it lasts, the worker must not
// sleep beyond its end.
func TestRunOfDeadWorker(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *autoprune.Options) { o.Turn, o.Interval, o.IdleShare = time.Nanosecond, time.Hour, 1e-6 })
	for i := range 2 {
		r.Tag(r.Repository(fmt.Sprintf("long/r%d", i)), "v1", "m", 10*day)
	}
	r.policy(policies.Target{Namespace: "long"}, `{"method": "creation_date", "olderThan": "1d"}`)
	_, err := r.pruner.Work(t.Context())
	r.Must(err)
	r.Exec("UPDATE autoprunetaskstatus SET lease = gen_random_uuid(), leased_until = clock_timestamp() + interval '20 s'")
	r.idle(3)
	more, err := r.pruner.Work(t.Context())
	r.Must(err)
	if next, err := r.pruner.Next(t.Context()); err != nil || more || next < time.Second || next > 20*time.Second {
		t.Errorf("the worker sleeps for %s (more work: %t, %v), want until the lease ends", next, more, err)
	}
	r.Exec("UPDATE autoprunetaskstatus SET leased_until = clock_timestamp() - interval '1 s' WHERE lease IS NOT NULL")
	if slices, slept := r.finish("long"); slices > 4 || slept > 0 {
		t.Errorf("the run ended after %d time slices and %s of sleep", slices, slept)
	}
	r.consistent()
}

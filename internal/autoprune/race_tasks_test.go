package autoprune_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/autoprunetest"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/judge"
)

func isLockTimeout(err error) bool { return db.Code(err) == db.CodeLockNotAvailable }

// notice returns a function for Options.Notify, which the pruner calls with each notice. At
// the first notice, this function calls `do` inside the transaction that queues the notice.
func notice(do func()) func(context.Context, db.Querier, string, any) error {
	var once sync.Once
	return func(context.Context, db.Querier, string, any) error {
		once.Do(do)
		return nil
	}
}

func (r *registry) tasks() int {
	return autoprunetest.Value[int](r.Registry, "SELECT count(*) FROM autoprunetaskstatus")
}

// TestPolicyComesWhileItsTaskGoes: a worker has found no policy and is about to delete the
// namespace's task, when a client creates a policy. Whether the worker or the client
// commits first, the namespace must have a task at the end.
func TestPolicyComesWhileItsTaskGoes(t *testing.T) {
	t.Parallel()
	namespace := policies.Target{Namespace: "app"}
	const text = `{"method": "creation_date", "olderThan": "1d"}`
	create := func(target policies.Target) func(r *registry) {
		return func(r *registry) { r.policy(target, text) }
	}
	for name, come := range map[string]func(r *registry){
		"of the namespace":  create(namespace),
		"of the repository": create(policies.Target{Repository: "app/a"}),
		"of the registry":   create(policies.Target{}),
		// The next three cases insert the policy with SQL and don't raise the version, as
		// if the code had forgotten to do so.
		"by hand": func(r *registry) {
			r.Exec("INSERT INTO namespaceautoprunepolicy (uuid, namespace_id, policy) SELECT gen_random_uuid(), id, $1 FROM top_level_namespaces", text)
		},
		"by hand, of the repository": func(r *registry) {
			r.Exec("INSERT INTO repositoryautoprunepolicy (uuid, namespace_id, repository_id, policy) SELECT gen_random_uuid(), top_level_namespace_id, id, $1 FROM repositories", text)
		},
		"by hand, of the registry": func(r *registry) {
			r.Exec("INSERT INTO defaultautoprunepolicy (uuid, policy) VALUES (gen_random_uuid(), $1)", text)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			a := r.Repository("app/a")
			r.Tag(a, "v1", "m1", 10*day)
			id := r.policy(namespace, text)
			r.Must(r.pruner.Policies.Delete(t.Context(), namespace, id))
			var once sync.Once
			_, pruner := r.replica(func(o *autoprune.Options) {
				o.Pulls = func(ctx context.Context) (judge.PullRecord, error) { // all policies were read
					once.Do(func() { come(r) })
					return reliable(ctx)
				}
			})
			_, err := pruner.Work(t.Context())
			r.Must(err)
			if r.tasks() != 1 {
				t.Fatal("the policy has no task")
			}
			_, err = pruner.Work(t.Context())
			r.Must(err)
			if got := r.Tags(a); len(got) != 0 {
				t.Errorf("the policy was not applied: %v", got)
			}
		})
	}
}

// TestPolicyWaitsForTheTaskThatGoes: a transaction has deleted the namespace's task and
// hasn't committed yet. A client that creates a policy must wait for this transaction, and
// then create the task again.
func TestPolicyWaitsForTheTaskThatGoes(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.Repository("app/a")
	namespace := policies.Target{Namespace: "app"}
	id := r.policy(namespace, `{"method": "creation_date", "olderThan": "1d"}`)
	r.Must(r.pruner.Policies.Delete(t.Context(), namespace, id))
	tx, err := r.DB.Pool.Begin(t.Context())
	r.Must(err)
	_, err = tx.Exec(t.Context(), "DELETE FROM autoprunetaskstatus")
	r.Must(err)
	made := make(chan error, 1)
	go func() {
		_, err := r.pruner.Policies.Create(t.Context(), namespace, autoprunetest.Parsed(t, `{"method": "creation_date", "olderThan": "1d"}`))
		made <- err
	}()
	r.Await("SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE NOT granted AND datname = current_database())")
	r.Must(tx.Commit(t.Context()))
	r.Must(<-made)
	if r.tasks() != 1 || autoprunetest.Value[int](r.Registry, "SELECT count(*) FROM namespaceautoprunepolicy") != 1 {
		t.Error("a policy without a task, or the other way round")
	}
}

// TestTaskWaitsForThePolicyThatComes: a worker has found no policy and is about to delete
// the task, while a client's transaction has created a policy and hasn't committed yet. The
// worker must wait for the client's transaction, and the task must stay.
func TestTaskWaitsForThePolicyThatComes(t *testing.T) {
	t.Parallel()
	r := setup(t)
	a := r.Repository("app/a")
	namespace := policies.Target{Namespace: "app"}
	r.Must(r.pruner.Policies.Delete(t.Context(), namespace, r.policy(namespace, `{"method": "number_of_tags", "numTags": 1}`)))
	var once sync.Once
	committed := make(chan error, 1)
	_, pruner := r.replica(func(o *autoprune.Options) {
		o.Pulls = func(ctx context.Context) (judge.PullRecord, error) { // all policies were read
			once.Do(func() {
				tx, err := r.DB.Pool.Begin(context.WithoutCancel(ctx))
				r.Must(err)
				for _, sql := range []string{ // as Create does
					"UPDATE autoprunetaskstatus SET policies_version = policies_version + 1, last_ran_ms = NULL WHERE namespace_id = $1",
					`INSERT INTO namespaceautoprunepolicy (uuid, namespace_id, policy)
						VALUES (gen_random_uuid(), $1, '{"method": "number_of_tags", "numTags": 1}')`,
				} {
					_, err = tx.Exec(ctx, sql, a.NamespaceID)
					r.Must(err)
				}
				go func() {
					r.Await("SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE NOT granted AND datname = current_database())")
					committed <- tx.Commit(context.WithoutCancel(ctx))
				}()
			})
			return reliable(ctx)
		}
	})
	_, err := pruner.Work(t.Context())
	r.Must(err)
	r.Must(<-committed)
	if r.tasks() != 1 {
		t.Error("the policy has no task")
	}
}

// TestOneWorkerEach: several workers claim tasks at the same time. Each must get the task
// that has been due longest among the tasks that no other worker has leased, without
// waiting for the other workers.
func TestOneWorkerEach(t *testing.T) {
	t.Parallel()
	r := setup(t)
	names := []string{"a", "b", "c"}
	for _, name := range names {
		r.Tag(r.Repository(name+"/x"), "v1", "m1", 10*day)
		r.policy(policies.Target{Namespace: name}, `{"method": "creation_date", "olderThan": "1d"}`)
	}
	r.Exec(`UPDATE autoprunetaskstatus t SET last_ran_ms = CASE n.name WHEN 'a' THEN 30 WHEN 'b' THEN 10 ELSE 20 END
		FROM top_level_namespaces n WHERE n.id = t.namespace_id`)
	var order []string
	var within func(depth int) func(*autoprune.Options)
	within = func(depth int) func(*autoprune.Options) {
		return func(o *autoprune.Options) {
			o.Interval = time.Hour
			o.Pulls = func(ctx context.Context) (judge.PullRecord, error) {
				order = append(order, autoprunetest.Values[string](r.Registry, `SELECT n.name FROM autoprunetaskstatus t JOIN top_level_namespaces n ON n.id = t.namespace_id
					WHERE lease IS NOT NULL ORDER BY last_ran_ms DESC LIMIT 1`)...)
				if depth < 3 {
					_, other := r.replica(within(depth + 1))
					_, err := other.Work(ctx)
					return judge.PullRecord{}, err
				}
				return judge.PullRecord{}, errors.New("a fourth task")
			}
		}
	}
	_, first := r.replica(within(0))
	_, err := first.Work(t.Context())
	r.Must(err)
	if !slices.Equal(order, []string{"b", "c", "a"}) {
		t.Errorf("the tasks were taken in the order %v", order)
	}
	r.consistent()
	if n := autoprunetest.Value[int](r.Registry, "SELECT count(*) FROM autoprunetaskstatus WHERE status LIKE 'success: deleted 1 of 1 tag,%' AND lease IS NULL AND run IS NULL"); n != 3 {
		t.Errorf("%d tasks were done, want 3: %v", n, autoprunetest.Values[string](r.Registry, "SELECT status FROM autoprunetaskstatus"))
	}
}

// TestTaskThatIsBeingClaimed: while a worker claims the only task, another one finds none. It doesn't
// wait for the task, which it would then claim too.
func TestTaskThatIsBeingClaimed(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.Tag(r.Repository("app/a"), "v1", "m1", 10*day)
	r.policy(policies.Target{Namespace: "app"}, `{"method": "creation_date", "olderThan": "1d"}`)
	tx, err := r.DB.Pool.Begin(t.Context())
	r.Must(err)
	defer tx.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // it may have ended
	_, err = tx.Exec(t.Context(), "SELECT FROM autoprunetaskstatus FOR UPDATE")
	r.Must(err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := r.pruner.Work(ctx); err != nil {
		t.Errorf("a worker waits for a task that another one claims: %v", err)
	}
	if n := autoprunetest.Value[int](r.Registry, "SELECT count(*) FROM autopruneruns"); n != 0 {
		t.Errorf("%d runs of a task that another worker claims", n)
	}
	r.Must(tx.Rollback(t.Context()))
	r.run()
	if n := autoprunetest.Value[int](r.Registry, "SELECT count(*) FROM autopruneruns"); n != 1 {
		t.Errorf("%d runs, want 1", n)
	}
}

// TestAskedForWhileItRuns: a client asks for a run while a run is under way. Another run
// must be queued after it.
func TestAskedForWhileItRuns(t *testing.T) {
	t.Parallel()
	m := inTheMiddle(t, policies.Target{Namespace: "app"})
	m.timeSlice(func(ctx context.Context, _ []*judge.Tag) error { return m.pruner.RunNow(ctx, "app") })
	task, err := m.pruner.Task(t.Context(), "app")
	m.Must(err)
	if task.Status != "queued" || task.LastRan != nil || len(m.Tags(m.a)) != 0 {
		t.Errorf("the task: %+v, tags: %v", task, m.Tags(m.a))
	}
}

// TestAskedForBetweenTurns: a run of several time slices has already finished a repository
// when a client asks for a run or changes a policy. A second run must follow at once, and
// must prune this repository too.
func TestAskedForBetweenTurns(t *testing.T) {
	t.Parallel()
	namespace := policies.Target{Namespace: "app"}
	for name, ask := range map[string]func(r *registry, policy string) error{
		"asked": func(r *registry, _ string) error { return r.pruner.RunNow(t.Context(), "app") },
		"changed": func(r *registry, policy string) error {
			return r.pruner.Policies.Update(t.Context(), namespace, policy, autoprunetest.Parsed(t, `{"method": "creation_date", "olderThan": "20d"}`))
		},
		"created": func(r *registry, _ string) error {
			_, err := r.pruner.Policies.Create(t.Context(), namespace, autoprunetest.Parsed(t, `{"method": "number_of_tags", "numTags": 1}`))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t, func(o *autoprune.Options) { o.Turn, o.Interval = time.Nanosecond, time.Hour })
			a, b := r.Repository("app/a"), r.Repository("app/b")
			policy := r.policy(namespace, `{"method": "creation_date", "olderThan": "1d"}`)
			r.Tag(b, "v1", "m1", 10*day)
			work := func() { // one time slice
				t.Helper()
				_, err := r.pruner.Work(t.Context())
				r.Must(err)
			}
			work()
			if next := autoprunetest.Value[int64](r.Registry, "SELECT next_repository FROM autoprunetaskstatus"); next != a.ID {
				t.Fatalf("the run is behind repository %d, want %d", next, a.ID)
			}
			for i := range 3 {
				r.Tag(a, fmt.Sprintf("v%d", i), fmt.Sprintf("m%d", i), 30*day)
			}
			r.Must(ask(r, policy))
			for autoprunetest.Value[bool](r.Registry, "SELECT run IS NOT NULL FROM autoprunetaskstatus") {
				work()
			}
			task, err := r.pruner.Task(t.Context(), "app")
			r.Must(err)
			if task.Status != "queued" || task.LastRan != nil {
				t.Errorf("the task between the runs: %+v", task)
			}
			for work(); autoprunetest.Value[bool](r.Registry, "SELECT run IS NOT NULL FROM autoprunetaskstatus"); {
				work()
			}
			if got := r.Tags(a); len(got) != 0 {
				t.Errorf("the second run has left %v", got)
			}
			if n := autoprunetest.Value[int](r.Registry, "SELECT count(*) FROM autopruneruns WHERE state = 'success'"); n != 2 {
				t.Errorf("%d runs have ended, want 2", n)
			}
			if task, err = r.pruner.Task(t.Context(), "app"); err != nil || task.LastRan == nil {
				t.Errorf("the task after the runs: %+v, %v: want no third", task, err)
			}
			r.consistent()
		})
	}
}

// TestClientsGoFirst: a client holds a lock that the worker needs, for longer than the
// worker's lock timeout. The worker must try again, and the run must succeed without a
// failed repository.
func TestClientsGoFirst(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{
		"before the run is begun": "SELECT FROM autoprunetaskstatus FOR UPDATE",
		"while tags are deleted":  "SELECT FROM autopruneruns FOR UPDATE",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := inTheMiddle(t, policies.Target{Namespace: "app"})
			reads, blocked, begun := 0, make(chan struct{}), false
			_, pruner := m.replica(func(o *autoprune.Options) {
				o.Interval = time.Hour
				o.Pulls = reliable
				o.Used = func(ctx context.Context, _ int64, _ []*judge.Tag) error {
					reads++ // 1: for the judgement; 2: just before the deletion
					if begun || reads != map[bool]int{true: 1, false: 2}[name == "before the run is begun"] {
						return nil
					}
					begun = true
					tx, err := m.DB.Pool.Begin(context.WithoutCancel(ctx))
					if err != nil {
						return err
					}
					if _, err = tx.Exec(ctx, sql); err != nil {
						return err
					}
					go func() {
						defer close(blocked)
						// The worker's lock timeout has passed twice when a database
						// session has begun to wait for a lock for the third time.
						for waits, before := 0, false; waits < 3; {
							waiting := autoprunetest.Value[bool](m.Registry, `SELECT EXISTS (SELECT FROM pg_stat_activity
								WHERE datname = current_database() AND wait_event_type = 'Lock')`)
							if waiting && !before {
								waits++
							}
							before = waiting
						}
						tx.Rollback(context.WithoutCancel(ctx))
					}()
					return nil
				}
			})
			_, err := pruner.Work(t.Context())
			m.Must(err)
			if !begun {
				t.Fatal("nobody was in the way")
			}
			<-blocked
			runs, _, err := m.pruner.Runs(t.Context(), "app", "", 9)
			m.Must(err)
			if len(runs) != 1 || runs[0].State != "success" || runs[0].Deleted != 3 {
				t.Errorf("runs: %+v", runs)
			}
			m.consistent()
		})
	}
}

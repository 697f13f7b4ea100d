package autoprune_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/autoprunetest"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/protection"
)

// meanwhile calls the function `do` once in the middle of a time slice: after tags were
// judged, and just before the first of them are deleted.
type meanwhile struct {
	do   func(ctx context.Context, tags []*judge.Tag) error
	once sync.Once
	done bool
}

func (m *meanwhile) options(r **registry) func(*autoprune.Options) {
	return func(o *autoprune.Options) {
		o.Pulls = reliable
		o.Used = func(ctx context.Context, _ int64, tags []*judge.Tag) (err error) {
			// The worker calls Used when it judges tags, and again just before it deletes
			// them. It creates the run's row in between, so the row shows which of the two
			// calls this is.
			if autoprunetest.Value[bool]((*r).Registry, "SELECT EXISTS (SELECT FROM autopruneruns WHERE announced)") {
				m.once.Do(func() {
					m.done = true
					err = m.do(ctx, tags)
				})
			}
			return err
		}
	}
}

// reliable returns pull statistics that are complete and contain no pull.
func reliable(context.Context) (judge.PullRecord, error) {
	return judge.PullRecord{Since: time.Now().Add(-10_000 * day)}, nil
}

const unused = `{"method": "last_pulled", "olderThan": "1d"}`

// middle is a registry with the repository app/a, whose tags v1 to v3 a last_pulled policy
// selects. Its method timeSlice calls a function of the test in the middle of the worker's
// time slice.
type middle struct {
	*registry
	a      catalog.Repository
	policy string
	scope  policies.Target
	m      *meanwhile
}

func inTheMiddle(t *testing.T, scope policies.Target) *middle {
	m := &middle{m: new(meanwhile), scope: scope}
	m.registry = setup(t, m.m.options(&m.registry))
	m.a = m.Repository("app/a")
	for i := range 3 {
		m.Tag(m.a, fmt.Sprintf("v%d", i+1), fmt.Sprintf("m%d", i+1), 10*day)
	}
	m.policy = m.registry.policy(scope, unused)
	return m
}

// timeSlice lets the worker prune for one time slice. The worker calls `do` after it has
// judged the tags, and before it deletes the first of them. timeSlice fails the test if
// `do` isn't called.
func (m *middle) timeSlice(do func(ctx context.Context, tags []*judge.Tag) error) {
	m.T.Helper()
	m.m.do = do
	for range 3 { // the first makes the tasks for default policies
		if _, err := m.pruner.Work(m.T.Context()); err != nil {
			m.T.Fatal(err)
		}
		if m.m.done {
			break
		}
	}
	if !m.m.done {
		m.T.Fatal("the worker was not interrupted")
	}
	m.consistent()
}

// consistent checks that the number of deletions in each run's row equals the sum over its
// repositories and the number of its entries in the audit log, and that a run has no two
// entries of the same deletion. A run may delete the same tag twice only if the undo of
// another run has restored it in between.
func (r *registry) consistent() {
	r.T.Helper()
	for _, wrong := range autoprunetest.Values[string](r.Registry, `
		SELECT format('run %s counts %s, by repository %s, and has %s entries of %s tags', r.id, r.deleted,
			COALESCE(p.deleted, 0), COALESCE(e.n, 0), COALESCE(e.tags, 0))
		FROM autopruneruns r
		LEFT JOIN (SELECT run, sum(deleted) AS deleted FROM autopruneruns_repositories GROUP BY 1) p ON p.run = r.id
		FULL JOIN (SELECT run, count(*) AS n, count(DISTINCT (repository_id, tag, detail ->> 'created_at', detail ->> 'updated_at',
				(SELECT count(*) FROM auditlog b WHERE b.kind = 'revert_tag' AND b.repository_id = d.repository_id AND b.tag = d.tag
					AND b.id < d.id))) AS tags
			FROM auditlog d WHERE kind = 'autoprune_tag_delete' GROUP BY 1) e ON e.run = r.id
		WHERE r.id IS NULL OR r.deleted <> COALESCE(p.deleted, 0) OR r.deleted <> COALESCE(e.n, 0) OR e.n <> e.tags`) {
		r.T.Error(wrong)
	}
}

// TestWhatChangesAfterTheSelection: after a run has selected tags, a client changes a
// policy, a protection rule, the namespace or a tag. The run may delete only those tags
// that are unchanged and that unchanged policies and rules still select.
func TestWhatChangesAfterTheSelection(t *testing.T) {
	t.Parallel()
	namespace, repository, defaults := policies.Target{Namespace: "app"}, policies.Target{Repository: "app/a"}, policies.Target{}
	all := []string{"v1", "v2", "v3"}
	for name, c := range map[string]struct {
		scope policies.Target
		do    func(m *middle) error
		stay  []string // the tags that are left right after the time slice
		still bool     // the same tags are left after further time slices
	}{
		"nothing": {namespace, func(*middle) error { return nil }, nil, true},
		"the policy is deleted": {namespace, func(m *middle) error {
			return m.pruner.Policies.Delete(m.T.Context(), m.scope, m.policy)
		}, all, true},
		"the policy is changed": {namespace, func(m *middle) error {
			return m.pruner.Policies.Update(m.T.Context(), m.scope, m.policy, autoprunetest.Parsed(m.T, `{"method": "creation_date", "olderThan": "20d"}`))
		}, all, true},
		"the policy is saved as it was": {namespace, func(m *middle) error {
			return m.pruner.Policies.Update(m.T.Context(), m.scope, m.policy, autoprunetest.Parsed(m.T, unused))
		}, all, false},
		"the repository's policy is deleted": {repository, func(m *middle) error {
			return m.pruner.Policies.Delete(m.T.Context(), m.scope, m.policy)
		}, all, true},
		"the repository is deleted with its policy": {repository, func(m *middle) error {
			m.Exec("DELETE FROM repositories WHERE path = 'app/a'")
			return nil
		}, all, true}, // the worker for deleted repositories deletes its rows
		"the default is deleted": {defaults, func(m *middle) error {
			return m.pruner.Policies.Delete(m.T.Context(), m.scope, m.policy)
		}, all, true},
		"the default is changed": {defaults, func(m *middle) error {
			return m.pruner.Policies.Update(m.T.Context(), m.scope, m.policy, autoprunetest.Parsed(m.T, `{"method": "creation_date", "olderThan": "20d"}`))
		}, all, true},
		"the defaults are refused": {defaults, func(m *middle) error {
			return m.pruner.Policies.UseDefaults(m.T.Context(), "app", false)
		}, all, true},
		"the namespace gets a policy of its own": {defaults, func(m *middle) error {
			_, err := m.pruner.Policies.Create(m.T.Context(), namespace, autoprunetest.Parsed(m.T, `{"method": "number_of_tags", "numTags": 9}`))
			return err
		}, all, true},
		"the registry protects tags": {namespace, func(m *middle) error { return m.Protect(protection.Scope{}, "v[12]") }, all, false},
		"the namespace protects tags": {namespace, func(m *middle) error {
			return m.Protect(protection.Scope{Namespace: "app"}, "v.*")
		}, all, true},
		"the repository protects tags": {namespace, func(m *middle) error {
			return m.Protect(protection.Scope{Repository: "app/a"}, "v.*")
		}, all, true},
		"another worker has the task": {namespace, func(m *middle) error {
			m.Exec("UPDATE autoprunetaskstatus SET lease = gen_random_uuid()")
			return nil
		}, all, true},
		"the namespace is deleted": {namespace, func(m *middle) error {
			m.Exec("DELETE FROM top_level_namespaces WHERE name = 'app'")
			return nil
		}, all, true},
		"a tag is moved": {namespace, func(m *middle) error {
			return m.Catalog.PointTag(m.T.Context(), "app/a", "v1", autoprunetest.DigestOf("m2"))
		}, []string{"v1"}, true},
		"a tag is moved by hand, and its time stays": {namespace, func(m *middle) error {
			m.Exec("UPDATE tags SET manifest_id = (SELECT manifest_id FROM tags WHERE name = 'v2') WHERE name = 'v1'")
			return nil
		}, []string{"v1"}, false},
		"a tag is pushed again": {namespace, func(m *middle) error {
			return m.Catalog.PointTag(m.T.Context(), "app/a", "v1", autoprunetest.DigestOf("m1"))
		}, []string{"v1"}, true},
		"a tag is deleted and made again": {namespace, func(m *middle) error {
			if err := m.Catalog.DeleteTag(m.T.Context(), "app/a", "v1"); err != nil {
				return err
			}
			return m.Catalog.PointTag(m.T.Context(), "app/a", "v1", autoprunetest.DigestOf("m1"))
		}, []string{"v1"}, true},
		"a tag is made again and looks the same": {namespace, func(m *middle) error { // as an undo makes it
			return m.renew("v1")
		}, []string{"v1"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := inTheMiddle(t, c.scope)
			m.timeSlice(func(context.Context, []*judge.Tag) error { return c.do(m) })
			if got := m.Tags(m.a); !slices.Equal(got, c.stay) {
				t.Fatalf("after the time slice there are %v, want %v", got, c.stay)
			}
			for range 3 {
				_, err := m.pruner.Work(t.Context())
				m.Must(err)
			}
			if got := m.Tags(m.a); slices.Equal(got, c.stay) != c.still {
				t.Errorf("after further time slices there are %v, want the same as before: %t", got, c.still)
			}
			m.consistent()
		})
	}
}

// TestUsedTagsStay: after a run has selected tags, a client's use of one of them becomes
// known. That tag must stay.
func TestUsedTagsStay(t *testing.T) {
	t.Parallel()
	m := inTheMiddle(t, policies.Target{Namespace: "app"})
	m.timeSlice(func(_ context.Context, tags []*judge.Tag) error {
		for _, one := range tags {
			if one.Name == "v2" {
				one.Checked = time.Now()
			}
		}
		return nil
	})
	if got := m.Tags(m.a); !slices.Equal(got, []string{"v2"}) {
		t.Errorf("there are %v, want v2", got)
	}
}

// TestTagInSomebodysHandsStays: a client's transaction has locked a tag that a run has
// selected. The worker must not delete the tag, and must not wait for the lock.
func TestTagInSomebodysHandsStays(t *testing.T) {
	t.Parallel()
	m := inTheMiddle(t, policies.Target{Namespace: "app"})
	var tx pgx.Tx
	m.timeSlice(func(ctx context.Context, _ []*judge.Tag) (err error) {
		if tx, err = m.DB.Pool.Begin(ctx); err == nil {
			_, err = tx.Exec(ctx, "UPDATE tags SET updated_at = now() WHERE name = 'v3'")
		}
		return err
	})
	m.Must(tx.Commit(t.Context()))
	if got := m.Tags(m.a); !slices.Equal(got, []string{"v3"}) {
		t.Errorf("there are %v, want v3", got)
	}
	if runs, _, err := m.pruner.Runs(t.Context(), "app", "", 1); err != nil || runs[0].State != "success" || runs[0].Deleted != 2 {
		t.Errorf("the run: %+v, %v", runs[0], err)
	}
}

// TestSleeperChangesNothing: a worker is stopped for so long that its lease expires and
// another worker finishes its run. Whether the first worker then continues, fails or is
// canceled, it must change neither the run's row nor the task.
func TestSleeperChangesNothing(t *testing.T) {
	t.Parallel()
	for name, next := range map[string]func(cancel func()) error{
		"goes on":  func(func()) error { return nil },
		"fails":    func(func()) error { return errors.New("the disk is on fire") },
		"is ended": func(cancel func()) error { cancel(); return context.Canceled },
	} {
		for _, when := range []string{"before it reads", "before it deletes"} {
			t.Run(name+" "+when, func(t *testing.T) {
				t.Parallel()
				m := inTheMiddle(t, policies.Target{Namespace: "app"})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var task, run string
				asleep := false
				sleep := func() error {
					asleep = true
					_, other := m.replica(func(o *autoprune.Options) { o.Pulls, o.Interval = reliable, time.Hour })
					m.Exec("UPDATE autoprunetaskstatus SET leased_until = clock_timestamp() - interval '1s'")
					_, err := other.Work(t.Context())
					m.Must(err)
					task, run = m.books()
					return next(cancel)
				}
				_, sleeper := m.replica(func(o *autoprune.Options) {
					m.m.options(&m.registry)(o)
					if when == "before it reads" {
						o.Pulls = func(ctx context.Context) (judge.PullRecord, error) {
							if !asleep {
								if err := sleep(); err != nil {
									return judge.PullRecord{}, err
								}
							}
							return reliable(ctx)
						}
					}
				})
				m.m.do = func(context.Context, []*judge.Tag) error { return sleep() }
				m.m.once.Do(func() {})
				if when == "before it deletes" {
					m.m.once = sync.Once{}
				}
				sleeper.Work(ctx) // its error is its own
				if !asleep {
					t.Fatal("the worker did not sleep")
				}
				if got := m.Tags(m.a); len(got) != 0 {
					t.Errorf("the other worker left %v", got)
				}
				if after, runs := m.books(); after != task || runs != run {
					t.Errorf("after the sleeper:\n%s\n%s\nbefore:\n%s\n%s", after, runs, task, run)
				}
				m.consistent()
			})
		}
	}
}

// books returns the complete rows of tasks and runs.
func (r *registry) books() (tasks, runs string) {
	return autoprunetest.Value[string](r.Registry, "SELECT COALESCE(json_agg(t ORDER BY namespace_id)::text, '') FROM autoprunetaskstatus t"),
		autoprunetest.Value[string](r.Registry, "SELECT COALESCE(json_agg(r ORDER BY id)::text, '') FROM autopruneruns r") +
			autoprunetest.Value[string](r.Registry, "SELECT COALESCE(json_agg(r ORDER BY run, repository_id)::text, '') FROM autopruneruns_repositories r")
}

// TestTakeoverGoesOn: a worker dies in the middle of a run. Another worker must continue
// the same run, and the notices of its start and end must each be sent once.
func TestTakeoverGoesOn(t *testing.T) {
	t.Parallel()
	m := inTheMiddle(t, policies.Target{Namespace: "app"})
	b := m.Repository("app/b")
	m.Tag(b, "v1", "m1", 10*day)
	var told []string
	notify := func(o *autoprune.Options) {
		o.Interval = time.Hour
		o.Pulls = reliable
		o.Notify = func(_ context.Context, _ db.Querier, event string, data any) error {
			if event == autoprune.EventStarted && len(m.Tags(m.a))+len(m.Tags(b)) != 4 {
				t.Error("tags were deleted before it was told")
			}
			told = append(told, event)
			return nil
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, first := m.replica(notify, func(o *autoprune.Options) {
		o.Batch = 1
		o.Used = func(ctx context.Context, repository int64, _ []*judge.Tag) error {
			if repository == b.ID { // the first repository is done
				cancel()
			}
			return ctx.Err()
		}
	})
	if _, err := first.Work(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("the first worker ended with %v", err)
	}
	m.Exec("UPDATE autoprunetaskstatus SET lease = gen_random_uuid(), leased_until = clock_timestamp() - interval '1s'") // it never came back
	runs, _, err := m.pruner.Runs(t.Context(), "app", "", 9)
	m.Must(err)
	if len(runs) != 1 || runs[0].State != "running" || runs[0].Deleted != 3 {
		t.Fatalf("in the middle: %+v", runs)
	}
	_, second := m.replica(notify)
	_, err = second.Work(t.Context())
	m.Must(err)
	after, _, err := m.pruner.Runs(t.Context(), "app", "", 9)
	m.Must(err)
	if len(after) != 1 || after[0].ID != runs[0].ID || after[0].State != "success" || after[0].Deleted != 4 || after[0].Repositories != 2 {
		t.Errorf("in the end: %+v", after)
	}
	if !slices.Equal(told, []string{autoprune.EventStarted, autoprune.EventFinished}) {
		t.Errorf("told: %v", told)
	}
	m.consistent()
}

// TestPolicyChangeKeepsTheCount: a client changes a policy in the middle of a run. The run
// must keep the numbers of failures and tags that it has counted before the change, and the
// worker must continue the run at once.
func TestPolicyChangeKeepsTheCount(t *testing.T) {
	t.Parallel()
	m := inTheMiddle(t, policies.Target{Namespace: "app"})
	b := m.Repository("app/b")
	m.Tag(b, "v1", "m1", 10*day)
	failed := false
	_, pruner := m.replica(func(o *autoprune.Options) {
		o.Interval = time.Hour
		o.Pulls = reliable
		o.Used = func(ctx context.Context, repository int64, _ []*judge.Tag) error {
			if repository == m.a.ID {
				failed = true
				return errors.New("out of luck")
			}
			if n := autoprunetest.Value[int](m.Registry, "SELECT count(*) FROM autopruneruns WHERE announced"); n == 1 {
				return m.pruner.Policies.Update(ctx, m.scope, m.policy, autoprunetest.Parsed(t, `{"method": "last_pulled", "olderThan": "2d"}`))
			}
			return nil
		}
	})
	more, err := pruner.Work(t.Context())
	m.Must(err)
	if !failed || !more {
		t.Fatalf("failed: %t, more to do: %t", failed, more)
	}
	runs, _, err := m.pruner.Runs(t.Context(), "app", "", 9)
	m.Must(err)
	if len(runs) != 1 || runs[0].Failed != 1 || runs[0].Repositories != 1 || runs[0].Error == "" {
		t.Errorf("runs: %+v", runs)
	}
}

package autoprune_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/autoprunetest"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/testscale"
)

// expensive fills a namespace with tags whose evaluation takes many time slices: the tags'
// names are long, and the policies' patterns match none of them, but a regular expression
// takes long to find that out.
func (r *registry) expensive(namespace string, tags int) {
	r.T.Helper()
	target := r.Repository(namespace + "/a")
	for i := range tags {
		r.Tag(target, fmt.Sprintf("%s%03d", strings.Repeat("a", 120), i), "m", 10*day)
	}
	for i := range 5 {
		r.policy(policies.Target{Namespace: namespace},
			fmt.Sprintf(`{"method": "creation_date", "olderThan": "%dd", "tagPattern": "(a|a?a?){30}(a?){50}!$"}`, i+1))
	}
	r.policy(policies.Target{Namespace: namespace}, `{"method": "number_of_tags", "numTags": 1}`)
}

// TestJudgementSharesItsTime: the evaluation of one repository takes longer than a time
// slice. The worker must prune another namespace meanwhile, then continue the evaluation,
// and count each tag once.
func TestJudgementSharesItsTime(t *testing.T) {
	t.Parallel()
	for name, namespaces := range map[string][]string{"one": {"slow"}, "two": {"slow", "slow2"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			_, r.pruner = r.replica(func(o *autoprune.Options) { o.Turn, o.Interval = 2*time.Millisecond, time.Hour })
			slow := testscale.Pick(10, 40) // tags
			for _, namespace := range namespaces {
				r.expensive(namespace, slow)
			}
			fast := r.Repository("fast/a")
			r.Tag(fast, "v1", "m", 10*day)
			r.policy(policies.Target{Namespace: "fast"}, `{"method": "creation_date", "olderThan": "1d"}`)
			for i, namespace := range append(slices.Clone(namespaces), "fast") { // in this order
				r.Exec(`UPDATE autoprunetaskstatus SET last_ran_ms = $1
					WHERE namespace_id = (SELECT id FROM top_level_namespaces WHERE name = $2)`, i+1, namespace)
			}
			for range 10_000 {
				if autoprunetest.Value[int](r.Registry, "SELECT count(*) FROM autoprunetaskstatus WHERE run IS NOT NULL OR last_ran_ms < 100") == 0 {
					break
				}
				_, err := r.pruner.Work(t.Context())
				r.Must(err)
				if got := r.Tags(fast); len(namespaces) == 1 && len(got) != 0 && autoprunetest.Value[int](r.Registry, "SELECT count(*) FROM autopruneruns WHERE namespace <> 'fast' AND state = 'success'") > 0 {
					t.Errorf("when the run of another namespace has ended, fast has %v", got)
				}
			}
			runs, _, err := r.pruner.Runs(t.Context(), "", "", 9)
			r.Must(err)
			for _, run := range runs {
				deleted, tags := int64(slow-1), int64(slow)
				if run.Namespace == "fast" {
					deleted, tags = 1, 1
				}
				if run.State != "success" || run.Deleted != deleted || run.Tags != tags || run.Repositories != 1 {
					t.Errorf("the run: %+v", run)
				}
			}
			if len(runs) != len(namespaces)+1 {
				t.Errorf("runs: %+v", runs)
			}
			r.consistent()
		})
	}
}

// TestTagsAreCountedOnce: a run is divided into many time slices. At the end it must have
// counted each tag once.
func TestTagsAreCountedOnce(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *autoprune.Options) { o.Turn, o.Batch, o.Page = time.Nanosecond, 7, 11 })
	a, b := r.Repository("app/a"), r.Repository("app/b")
	for i := range 100 {
		r.Tag(a, fmt.Sprintf("v%03d", i), "m", time.Duration(10+i)*day)
	}
	r.Tag(b, "v1", "m", 0)
	r.policy(policies.Target{Namespace: "app"}, `{"method": "number_of_tags", "numTags": 10}`)
	r.run()
	runs, _, err := r.pruner.Runs(t.Context(), "app", "", 9)
	r.Must(err)
	if len(runs) != 1 || runs[0].Deleted != 90 || runs[0].Tags != 101 || runs[0].Repositories != 2 {
		t.Errorf("runs: %+v", runs)
	}
	r.consistent()
}

// TestStoppedRunIsTold: a run has sent EventStarted, and then a client deletes the run's
// policies or its namespace. The pruner must send EventFinished for the run too.
func TestStoppedRunIsTold(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(m *middle) error{
		"policies": func(m *middle) error { return m.pruner.Policies.Delete(m.T.Context(), m.scope, m.policy) },
		"namespace": func(m *middle) error {
			m.Exec("DELETE FROM top_level_namespaces WHERE name = 'app'")
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := inTheMiddle(t, policies.Target{Namespace: "app"})
			var told []string
			_, m.pruner = m.replica(m.m.options(&m.registry), func(o *autoprune.Options) {
				o.Notify = func(_ context.Context, _ db.Querier, event string, data any) error {
					if f, ok := data.(autoprune.FinishedNotice); ok {
						event += " " + f.State + " of " + f.Namespace
					}
					told = append(told, event)
					return nil
				}
			})
			m.timeSlice(func(context.Context, []*judge.Tag) error { return stop(m) })
			for range 3 {
				_, err := m.pruner.Work(t.Context())
				m.Must(err)
			}
			if want := []string{"autoprune.started", "autoprune.finished stopped of app"}; !slices.Equal(told, want) {
				t.Errorf("told: %v, want %v", told, want)
			}
		})
	}
}

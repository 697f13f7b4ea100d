package autoprune_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/judge"
)

// TestKeepRuleSavedMeanwhile: after a run has selected tags by a policy of the namespace, a
// client saves a keep rule with a policy of the repository. The run must not delete the tag
// that the rule keeps.
func TestKeepRuleSavedMeanwhile(t *testing.T) {
	t.Parallel()
	m := inTheMiddle(t, policies.Target{Namespace: "app"})
	m.timeSlice(func(context.Context, []*judge.Tag) error {
		m.registry.policy(policies.Target{Repository: "app/a"}, `{"method": "creation_date", "olderThan": "9y", "keep": [{"tagPattern": "2$"}]}`)
		return nil
	})
	if got := m.Tags(m.a); !slices.Contains(got, "v2") {
		t.Errorf("there are %v, want v2, too", got)
	}
	m.run()
	if got := m.Tags(m.a); !slices.Equal(got, []string{"v2"}) {
		t.Errorf("after another run there are %v, want v2", got)
	}
}

// TestUsedWithinLooksAgain: after a run has selected tags by their push time, a client's use
// of one of them becomes known. A keep rule of another policy keeps tags that were used, so
// that tag must stay. Only tags that were pushed before the rule's age, and that its policy
// considers, must be looked up.
func TestUsedWithinLooksAgain(t *testing.T) {
	t.Parallel()
	m := new(meanwhile)
	var r *registry
	options := m.options(&r)
	asked := make(map[string]bool)
	r = setup(t, func(o *autoprune.Options) {
		options(o)
		next := o.Used
		o.Used = func(ctx context.Context, repository int64, tags []*judge.Tag) error {
			for _, one := range tags {
				asked[one.Name] = true
			}
			return next(ctx, repository, tags)
		}
	})
	a := r.Repository("app/a")
	for name, age := range map[string]time.Duration{"v1": 10 * day, "v2": 10 * day, "v3": 2 * day, "w1": 10 * day} {
		r.Tag(a, name, name, age)
	}
	r.policy(policies.Target{Namespace: "app"}, `{"method": "creation_date", "olderThan": "1d"}`)
	r.policy(policies.Target{Repository: "app/a"}, `{"method": "number_of_tags", "numTags": 100, "tagPattern": "^v", "keep": [{"usedWithin": "5d"}]}`)
	m.do = func(_ context.Context, tags []*judge.Tag) error {
		for _, one := range tags {
			if one.Name == "v2" {
				one.Pulled = time.Now()
			}
		}
		return nil
	}
	r.run()
	if got := r.Tags(a); !slices.Equal(got, []string{"v2", "v3"}) || !m.done {
		t.Errorf("there are %v, want v2 and v3; the use came meanwhile: %v", got, m.done)
	}
	if !asked["v1"] || !asked["v2"] || asked["v3"] || asked["w1"] {
		t.Errorf("looked up: %v, want v1 and v2", asked)
	}
}

// TestKeepStaysAfterUndo: a run deletes tags, an undo restores them, and then another policy
// would delete them. The restored tags must not take the places of tags that a keep rule
// keeps.
func TestKeepStaysAfterUndo(t *testing.T) {
	t.Parallel()
	r := setup(t)
	a := r.Repository("app/a")
	for name, age := range map[string]time.Duration{"a": 2 * day, "b": 3 * day, "c": 4 * day, "d": 5 * day} {
		r.Tag(a, name, name, age)
	}
	r.policy(policies.Target{Namespace: "app"}, `{"method": "creation_date", "olderThan": "1d", "keep": [{"newest": 2}]}`)
	r.run()
	if got := r.Tags(a); !slices.Equal(got, []string{"a", "b"}) {
		t.Fatalf("there are %v, want a and b", got)
	}
	runs, _, err := r.pruner.Runs(t.Context(), "app", "", 1)
	r.Must(err)
	undone, err := r.pruner.Undo(t.Context(), runs[0].ID, "", time.Minute)
	r.Must(err)
	r.Exec("DELETE FROM tags WHERE name = 'a'")
	r.policy(policies.Target{Repository: "app/a"}, `{"method": "creation_date", "olderThan": "1h"}`)
	r.Tag(a, "e", "e", 6*day)
	preview, err := r.pruner.Preview(t.Context(), policies.Target{Namespace: "app"}, autoprune.PreviewOptions{})
	r.Must(err)
	r.run()
	if got := r.Tags(a); !slices.Equal(got, []string{"b", "c", "d", "e"}) {
		t.Errorf("there are %v, want b and e, which are counted, and c and d, which are newer than e", got)
	}
	if undone.Restored != 2 || preview.Deleted != 0 || preview.Reasons[judge.KeptNewest] != 4 {
		t.Errorf("restored %d; the preview: %+v", undone.Restored, preview)
	}
}

package autoprune_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/autoprunetest"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/oci"
)

// clockFunc is a clock that is always right, and is called when a run begins to judge a repository.
type clockFunc func()

func (clockFunc) Check(context.Context) error { return nil }

func (f clockFunc) CheckTime(context.Context, time.Time) error {
	f()
	return nil
}

// TestExceptionStopsPolicies: in an exception only the repository's own policies delete, at once and
// until it ends; elsewhere nothing changes.
func TestExceptionStopsPolicies(t *testing.T) {
	t.Parallel()
	r := setup(t)
	web, other := r.Repository("app/web"), r.Repository("app/other")
	for i := range 4 {
		r.Tag(web, fmt.Sprintf("v%d", i), fmt.Sprintf("m%d", i), time.Duration(i)*10*day)
		r.Tag(other, fmt.Sprintf("v%d", i), fmt.Sprintf("m%d", i), time.Duration(i)*10*day)
	}
	r.Must(r.pruner.Policies.Except(t.Context(), "app/web", nil))
	r.policy(policies.Target{Namespace: "app"}, `{"method": "number_of_tags", "numTags": 1, "keep": [{"tagPattern": "^v3$"}]}`)
	r.run()
	if got := r.Tags(web); len(got) != 4 {
		t.Errorf("the exception has %v", got)
	}
	if got := r.Tags(other); !slices.Equal(got, []string{"v0", "v3"}) {
		t.Errorf("another repository has %v", got)
	}
	preview, err := r.pruner.Preview(t.Context(), policies.Target{Repository: "app/web"}, autoprune.PreviewOptions{})
	r.Must(err)
	if preview.Deleted != 0 || len(preview.Staying) == 0 || preview.Staying[0].Code != judge.Inactive {
		t.Errorf("the preview has %+v", preview.Staying)
	}
	list, _, err := r.pruner.Policies.Exceptions(t.Context(), policies.Target{Namespace: "app"}, "", 10)
	r.Must(err)
	if len(list) != 1 || list[0].Repository != "app/web" || list[0].Until != nil {
		t.Errorf("the list has %+v", list)
	}

	// its own policies delete, and what the namespace's keep rules keep stays
	r.policy(policies.Target{Repository: "app/web"}, `{"method": "creation_date", "olderThan": "15d"}`)
	r.run()
	if got := r.Tags(web); !slices.Equal(got, []string{"v0", "v1", "v3"}) {
		t.Errorf("with a policy of its own the exception has %v", got)
	}
	was, err := r.pruner.Policies.EndException(t.Context(), "app/web")
	r.Must(err)
	if !was {
		t.Error("there was no exception to end")
	}
	r.run()
	if got := r.Tags(web); !slices.Equal(got, []string{"v0", "v3"}) {
		t.Errorf("after its end it has %v", got)
	}
	if n := autoprunetest.Value[int](r.Registry, "SELECT count(*) FROM auditlog WHERE kind = 'change_autoprune_exception' AND repository = 'app/web'"); n != 2 {
		t.Errorf("the audit log has %d entries", n)
	}
}

// TestExceptionEnds: an exception with a time ends at that time; a time that is over is refused.
func TestExceptionEnds(t *testing.T) {
	t.Parallel()
	r := setup(t)
	web := r.Repository("app/web")
	r.Tag(web, "old", "m", 10*day)
	r.policy(policies.Target{Namespace: "app"}, `{"method": "creation_date", "olderThan": "2d"}`)
	past := time.Now().Add(-time.Hour)
	if err := r.pruner.Policies.Except(t.Context(), "app/web", &past); oci.CodeOf(err) != oci.Unsupported {
		t.Errorf("a time that is over: %v", err)
	}
	soon := time.Now().Add(time.Hour)
	r.Must(r.pruner.Policies.Except(t.Context(), "app/web", &soon))
	r.run()
	if got := r.Tags(web); len(got) != 1 {
		t.Fatalf("the exception has %v", got)
	}
	r.Exec("UPDATE autopruneexceptions SET until = now() - interval '1 second'")
	r.run()
	if got := r.Tags(web); len(got) != 0 {
		t.Errorf("after its time it has %v", got)
	}
}

// TestExceptionStopsARunThatIsUnderWay: after the answer, a run that read the policies before deletes
// nothing more of the repository.
func TestExceptionStopsARunThatIsUnderWay(t *testing.T) {
	t.Parallel()
	r := setup(t)
	web := r.Repository("app/web")
	for i := range 50 {
		r.Tag(web, fmt.Sprintf("v%02d", i), fmt.Sprintf("m%d", i), 10*day)
	}
	r.policy(policies.Target{Namespace: "app"}, `{"method": "creation_date", "olderThan": "2d"}`)
	excepted := false
	_, p := r.replica(func(o *autoprune.Options) {
		o.Batch = 5
		o.Clock = clockFunc(func() {
			if !excepted { // the run has read its policies
				excepted = true
				r.Must(r.pruner.Policies.Except(t.Context(), "app/web", nil))
			}
		})
	})
	r.pruner = p
	r.run()
	if got := r.Tags(web); len(got) != 50 || !excepted {
		t.Errorf("%d tags are left after the exception was made during the run (%t)", len(got), excepted)
	}
}

// TestImmutableTagsStay: no policy deletes an immutable tag, also if it became so after the snapshot.
func TestImmutableTagsStay(t *testing.T) {
	t.Parallel()
	r := setup(t)
	web := r.Repository("app/web")
	for i := range 3 {
		r.Tag(web, fmt.Sprintf("v%d", i), fmt.Sprintf("m%d", i), 10*day)
	}
	r.Must(r.Catalog.SetTagImmutable(t.Context(), "app/web", "v1", true))
	r.policy(policies.Target{Namespace: "app"}, `{"method": "creation_date", "olderThan": "2d"}`)
	preview, err := r.pruner.Preview(t.Context(), policies.Target{Repository: "app/web"}, autoprune.PreviewOptions{})
	r.Must(err)
	if preview.Reasons[judge.Protected] != 1 || preview.Staying[0].Reason != "protected: it is immutable" {
		t.Errorf("the preview has %+v", preview.Staying)
	}
	_, p := r.replica(func(o *autoprune.Options) {
		o.Clock = clockFunc(func() { r.Exec("UPDATE tags SET immutable = true WHERE name = 'v2'") }) // the snapshot is there
	})
	r.pruner = p
	r.run()
	if got := r.Tags(web); !slices.Equal(got, []string{"v1", "v2"}) {
		t.Errorf("the repository has %v", got)
	}
}

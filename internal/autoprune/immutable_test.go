package autoprune_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/autoprune"
)

// clockFunc is a clock that is always right, and is called when a run begins to judge a repository.
type clockFunc func()

func (clockFunc) Check(context.Context) error { return nil }

func (f clockFunc) CheckTime(context.Context, time.Time) error {
	f()
	return nil
}

// TestImmutableTagsStay: no policy deletes an immutable tag, also if it became so after the snapshot.
func TestImmutableTagsStay(t *testing.T) {
	t.Parallel()
	r := setup(t)
	web := r.repository("app/web")
	for i := range 3 {
		r.tag(web, fmt.Sprintf("v%d", i), fmt.Sprintf("m%d", i), 10*day)
	}
	r.must(r.catalog.SetTagImmutable(t.Context(), "app/web", "v1", true))
	r.policy(autoprune.Target{Namespace: "app"}, `{"method": "creation_date", "olderThan": "2d"}`)
	preview, err := r.pruner.Preview(t.Context(), autoprune.Target{Repository: "app/web"}, autoprune.PreviewOptions{})
	r.must(err)
	if preview.Reasons[autoprune.Protected] != 1 || preview.Staying[0].Reason != "protected: it is immutable" {
		t.Errorf("the preview has %+v", preview.Staying)
	}
	_, p := r.replica(func(o *autoprune.Options) {
		o.Clock = clockFunc(func() { r.exec("UPDATE tags SET immutable = true WHERE name = 'v2'") }) // the snapshot is there
	})
	r.pruner = p
	r.run()
	if got := r.tags(web); !slices.Equal(got, []string{"v1", "v2"}) {
		t.Errorf("the repository has %v", got)
	}
}

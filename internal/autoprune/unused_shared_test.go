package autoprune_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/testscale"
)

// TestPreviewFreesWhatUntaggedShare: manifests that no tag needs share blobs with those of tags that
// are pruned, in the same repository and in others, below indexes and subjects that have no tag
// either. Garbage collection deletes all of them; so the preview must state the bytes that are free
// then and weren't free without the run.
func TestPreviewFreesWhatUntaggedShare(t *testing.T) {
	t.Parallel()
	freed := int64(0)
	for seed := range uint64(testscale.Pick(2, 60)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { // which closes the connections
			r := setup(t, func(o *autoprune.Options) { o.Batch, o.Page = 3, 5 })
			l := &library{registry: r, rnd: rand.New(rand.NewPCG(seed, 36))}
			l.fill()
			r.policy(policies.Target{Namespace: "n"}, `{"method": "number_of_tags", "numTags": 1, "tagPattern": ".*b.*|.*"}`) // fill makes no such policy
			before := l.bytes()
			preview, err := r.pruner.Preview(t.Context(), policies.Target{Namespace: "n"}, autoprune.PreviewOptions{})
			r.Must(err)
			r.run()
			if now := l.bytes(); before-now != *preview.Bytes {
				t.Errorf("%d bytes were to be freed, and can be %d", *preview.Bytes, before-now)
			}
			freed += *preview.Bytes
			r.consistent()
		})
	}
	if freed == 0 {
		t.Error("no bytes were to be freed")
	}
}

// TestWhatKeepsSharedBlobs: the image of a pruned tag shares each of its blobs with another manifest
// without a tag. The blobs of those stay that a repository in the trash or a tagged index needs.
func TestWhatKeepsSharedBlobs(t *testing.T) {
	t.Parallel()
	r := setup(t)
	app, other := r.Repository("n/app"), r.Repository("trash/app")
	r.Tag(app, "v1", "m1", 10*day)
	r.Layer(app, "m1", "own", 1)
	r.Layer(app, "m1", "with untagged", 10)
	r.Layer(app, "untagged", "with untagged", 10)
	r.Layer(app, "m1", "with trash", 100)
	r.Layer(other, "untagged too", "with trash", 100)
	r.Layer(app, "m1", "below an index", 1000)
	r.Layer(app, "child", "below an index", 1000)
	r.Index(app, "index", "child")
	r.Layer(app, "m1", "below a tagged index", 10000)
	r.Layer(app, "kept", "below a tagged index", 10000)
	r.Index(app, "tagged", "kept")
	r.Tag(app, "latest", "tagged", 0)
	r.Exec("UPDATE repositories SET deleted_at = now(), deleted_path = path, purge_after = now() + interval '1 day', path = '#' || path WHERE id = $1", other.ID)
	r.policy(policies.Target{Namespace: "n"}, `{"method": "creation_date", "olderThan": "1d"}`)
	preview, err := r.pruner.Preview(t.Context(), policies.Target{Namespace: "n"}, autoprune.PreviewOptions{})
	r.Must(err)
	if *preview.Bytes != 1011 {
		t.Errorf("%d bytes would be freed, want 1011", *preview.Bytes)
	}
}

package gc_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/gc"
)

// A subject was deleted, and 200 of its 300 referrers still have to be queued for review. A
// dry run of Collect must find all 300, and Collect must delete them. A running reviewer
// must delete them too.
func TestReferrersOfADeletedSubject(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"run", "reviewer"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			b := setupStore(t)
			if err := b.gc.SetReviewDelays(t.Context(), 0, nil); err != nil {
				t.Fatal(err)
			}
			b.untagged(301)
			b.exec("UPDATE manifests SET subject_digest = (SELECT digest FROM manifests ORDER BY id LIMIT 1) WHERE id > (SELECT min(id) FROM manifests)")
			b.exec("DELETE FROM gc_manifest_review_queue")
			start := func() {}
			if how == "reviewer" {
				r := b.reviewer(gc.ReviewOfManifests, func(o *gc.ReviewerOptions) { o.Batch, o.Idle = 50, time.Second })
				start = func() { b.start(r.Run) }
			}
			b.exec("DELETE FROM manifests WHERE id = (SELECT min(id) FROM manifests)")
			if n := b.count("SELECT count(*) FROM gc_manifest_review_queue"); n != 100 {
				t.Errorf("the deletion queued %d referrers, want 100", n)
			}
			start()
			if how == "run" {
				o := gc.CollectOptions{Collector: b.gc, Store: b.store, DryRun: true, Batch: 50, Log: slog.New(slog.DiscardHandler)}
				if p, err := gc.Collect(t.Context(), o); err != nil || p.ManifestsDeleted != 300 {
					t.Errorf("a dry run found %d manifests, %v; want 300", p.ManifestsDeleted, err)
				}
				o.DryRun = false
				if p, err := gc.Collect(t.Context(), o); err != nil || p.ManifestsDeleted != 300 {
					t.Errorf("a run deleted %d manifests, %v; want 300", p.ManifestsDeleted, err)
				}
			}
			b.eventually("all referrers are deleted", func() bool {
				return b.count("SELECT (SELECT count(*) FROM manifests) + (SELECT count(*) FROM gc_subject_review_queue)") == 0
			})
		})
	}
}

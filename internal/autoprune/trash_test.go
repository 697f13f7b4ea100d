package autoprune_test

import (
	"slices"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/catalog"
)

// TestTrashIsNotPruned: nothing in the trash is pruned, whether a repository or its namespace was
// deleted, also if a run was under way. Its policies go on after the restoration.
func TestTrashIsNotPruned(t *testing.T) {
	t.Parallel()
	r := setup(t)
	c := catalog.New(catalog.Options{DB: r.db, CacheOff: true, Log: quiet, TrashKeep: time.Hour})
	a, b, live := r.repository("acme/a"), r.repository("gone/b"), r.repository("acme/live")
	for _, repository := range []catalog.Repository{a, b, live} {
		r.tag(repository, "old", "one", 2*time.Hour)
		r.tag(repository, "new", "two", time.Hour)
	}
	for _, namespace := range []string{"acme", "gone"} {
		r.policy(autoprune.Target{Namespace: namespace}, `{"method": "number_of_tags", "value": 1}`)
	}
	repository, err := c.RemoveRepository(t.Context(), "acme/a")
	r.must(err)
	namespace, err := c.RemoveNamespace(t.Context(), "gone")
	r.must(err)
	r.exec("UPDATE autoprunetaskstatus SET last_ran_ms = NULL")
	for range 10 {
		_, err := r.pruner.Work(t.Context())
		r.must(err)
	}
	if got := r.tags(live); !slices.Equal(got, []string{"new"}) {
		t.Errorf("tags of the repository that exists: %v", got)
	}
	for _, in := range []catalog.Repository{a, b} {
		if got := r.tags(in); len(got) != 2 {
			t.Errorf("tags of %s in the trash: %v", in.Path, got)
		}
		r.prune(func(tx autoprune.DeletionTx) { // as of a run that has read its tags before
			if _, err := tx.LockRepository(t.Context(), in); err == nil {
				t.Errorf("%s in the trash could be locked for pruning", in.Path)
			}
		})
	}
	for _, id := range []string{repository, namespace} {
		_, err := c.RestoreTrashed(t.Context(), id, "")
		r.must(err)
	}
	r.run()
	for _, in := range []catalog.Repository{a, b} {
		if got := r.tags(in); !slices.Equal(got, []string{"new"}) {
			t.Errorf("tags of %s after the restoration: %v", in.Path, got)
		}
	}
}

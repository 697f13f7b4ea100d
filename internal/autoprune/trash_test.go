package autoprune_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/autoprunetest"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/catalog/trash"
	"github.com/purser-registry/purser/internal/judge"
)

// TestTrashIsNotPruned: nothing in the trash is pruned, whether a repository or its namespace was
// deleted, also if a run was under way. Its policies go on after the restoration.
func TestTrashIsNotPruned(t *testing.T) {
	t.Parallel()
	r := setup(t)
	c := trash.New(trash.Options{Catalog: catalog.New(catalog.Options{DB: r.DB, CacheOff: true, Log: quiet}), Keep: time.Hour})
	a, b, live := r.Repository("acme/a"), r.Repository("gone/b"), r.Repository("acme/live")
	for _, repository := range []catalog.Repository{a, b, live} {
		r.Tag(repository, "old", "one", 2*time.Hour)
		r.Tag(repository, "new", "two", time.Hour)
	}
	for _, namespace := range []string{"acme", "gone"} {
		r.policy(policies.Target{Namespace: namespace}, `{"method": "number_of_tags", "value": 1}`)
	}
	repository, err := c.RemoveRepository(t.Context(), "acme/a")
	r.Must(err)
	namespace, err := c.RemoveNamespace(t.Context(), "gone")
	r.Must(err)
	r.Exec("UPDATE autoprunetaskstatus SET last_ran_ms = NULL")
	for range 10 {
		_, err := r.pruner.Work(t.Context())
		r.Must(err)
	}
	if got := r.Tags(live); !slices.Equal(got, []string{"new"}) {
		t.Errorf("tags of the repository that exists: %v", got)
	}
	for _, in := range []catalog.Repository{a, b} {
		if got := r.Tags(in); len(got) != 2 {
			t.Errorf("tags of %s in the trash: %v", in.Path, got)
		}
		r.prune(func(tx autoprune.DeletionTx) { // as of a run that has read its tags before
			if _, err := tx.LockRepository(t.Context(), in); err == nil {
				t.Errorf("%s in the trash could be locked for pruning", in.Path)
			}
		})
	}
	for _, id := range []string{repository, namespace} {
		_, err := c.Restore(t.Context(), id, "")
		r.Must(err)
	}
	r.run()
	for _, in := range []catalog.Repository{a, b} {
		if got := r.Tags(in); !slices.Equal(got, []string{"new"}) {
			t.Errorf("tags of %s after the restoration: %v", in.Path, got)
		}
	}
}

// TestUndoAfterRestoring: a run can be undone in a repository that came back from the trash, also
// under another name, and if its namespace has another name: the run is that namespace's.
func TestUndoAfterRestoring(t *testing.T) {
	t.Parallel()
	r := setup(t)
	c := trash.New(trash.Options{Catalog: catalog.New(catalog.Options{DB: r.DB, CacheOff: true, Log: quiet}), Keep: time.Hour})
	var repositories []catalog.Repository
	for _, path := range []string{"acme/same", "acme/other", "zoo/app"} {
		repository := r.Repository(path)
		r.Tag(repository, "old", "one", 2*time.Hour)
		r.Tag(repository, "new", "two", time.Hour)
		repositories = append(repositories, repository)
	}
	for _, namespace := range []string{"acme", "zoo"} {
		r.policy(policies.Target{Namespace: namespace}, `{"method": "number_of_tags", "value": 1}`)
		r.run()
	}
	for path, as := range map[string]string{"acme/same": "", "acme/other": "acme/renamed"} {
		id, err := c.RemoveRepository(t.Context(), path)
		r.Must(err)
		_, err = c.Restore(t.Context(), id, as)
		r.Must(err)
	}
	r.Repository("acme/other") // a newer one
	id, err := c.RemoveNamespace(t.Context(), "zoo")
	r.Must(err)
	_, err = c.Restore(t.Context(), id, "zoo2")
	r.Must(err)
	for namespace, want := range map[string]int64{"acme": 2, "zoo": 1} {
		runs, _, err := r.pruner.Runs(t.Context(), namespace, "", 10)
		r.Must(err)
		restored := int64(0)
		for _, run := range runs {
			undone, err := r.pruner.Undo(t.Context(), run.ID, "", time.Minute)
			r.Must(err)
			restored += undone.Restored
		}
		if restored != want || len(runs) == 0 {
			t.Errorf("%d runs of %s, %d tags restored, want %d", len(runs), namespace, restored, want)
		}
	}
	for i, want := range []int{2, 2, 2} {
		if got := r.Tags(repositories[i]); len(got) != want {
			t.Errorf("tags of %s: %v", repositories[i].Path, got)
		}
	}
}

// TestUndoInTheTrash: an undo of a run must not call tags gone whose repository, or its namespace, is
// in the trash: it names the repository. After its restoration the tags come back. What was purged
// is gone.
func TestUndoInTheTrash(t *testing.T) {
	t.Parallel()
	r := setup(t)
	c := trash.New(trash.Options{Catalog: catalog.New(catalog.Options{DB: r.DB, CacheOff: true, Log: quiet}), Keep: time.Hour})
	for _, path := range []string{"acme/kept", "acme/purged", "zoo/app"} {
		repository := r.Repository(path)
		r.Tag(repository, "older", "one", 3*time.Hour)
		r.Tag(repository, "old", "two", 2*time.Hour)
		r.Tag(repository, "new", "three", time.Hour)
	}
	undo := func(namespace string) (all autoprune.Undone) {
		runs, _, err := r.pruner.Runs(t.Context(), namespace, "", 10)
		r.Must(err)
		for _, run := range runs {
			u, err := r.pruner.Undo(t.Context(), run.ID, "", time.Minute)
			r.Must(err)
			all.Restored, all.Gone, all.InTrash = all.Restored+u.Restored, all.Gone+u.Gone, all.InTrash+u.InTrash
			all.TrashNames = append(all.TrashNames, u.TrashNames...)
		}
		return all
	}
	for _, namespace := range []string{"acme", "zoo"} {
		r.policy(policies.Target{Namespace: namespace}, `{"method": "number_of_tags", "value": 1}`)
	}
	r.run()
	r.run()
	kept, err := c.RemoveRepository(t.Context(), "acme/kept")
	r.Must(err)
	purged, err := c.RemoveRepository(t.Context(), "acme/purged")
	r.Must(err)
	r.Must(c.Purge(t.Context(), purged))
	zoo, err := c.RemoveNamespace(t.Context(), "zoo")
	r.Must(err)
	if u := undo("acme"); u.InTrash != 2 || !slices.Equal(u.TrashNames, []string{"acme/kept"}) || u.Gone != 2 || u.Restored != 0 {
		t.Errorf("in the trash: %+v", u)
	}
	if u := undo("zoo"); u.InTrash != 2 || !slices.Equal(u.TrashNames, []string{"zoo/app"}) || u.Gone != 0 {
		t.Errorf("with its namespace in the trash: %+v", u)
	}
	for _, id := range []string{kept, zoo} {
		_, err := c.Restore(t.Context(), id, "")
		r.Must(err)
	}
	for _, namespace := range []string{"acme", "zoo"} {
		if u := undo(namespace); u.InTrash != 0 || u.Restored != 2 {
			t.Errorf("%s after the restoration: %+v", namespace, u)
		}
	}
}

// TestTrashIsNotRead: a run that was under way when the repository was put into the trash reads no
// configurations of its images, and policies keep no untagged manifests there: the trash does.
func TestTrashIsNotRead(t *testing.T) {
	t.Parallel()
	l := newLabelled(t)
	web := l.Repository("app/web")
	l.image(web, "v1", stageTest)
	l.policy(policies.Target{Namespace: "app"}, `{"method": "creation_date", "olderThan": "1y", "keepUntagged": "9d", "labels": {"stage": "test"}}`)
	id := l.Manifest(web, "v1", "")
	asks, stop := []judge.Applied{{Policy: autoprunetest.Parsed(t, `{"method": "creation_date", "olderThan": "1y", "labels": {"stage": "test"}}`)}}, errors.New("stop")
	look := func(unread int, kept bool) {
		t.Helper()
		n := 0 // batches of one configuration, none of which is read
		err := l.pruner.Repositories.ReadConfigurations(t.Context(), l.DB.Pool, web, asks, time.Minute, func(context.Context) error {
			n++
			return stop
		})
		if n != unread || n > 0 && !errors.Is(err, stop) {
			t.Errorf("%d configurations are to be read, want %d: %v", n, unread, err)
		}
		if found := l.untagged(web, id); len(found) > 0 != kept {
			t.Errorf("policies keep %v", found)
		}
	}
	look(1, true)
	c := trash.New(trash.Options{Catalog: catalog.New(catalog.Options{DB: l.DB, CacheOff: true, Log: quiet}), Keep: time.Hour})
	trashed, err := c.RemoveRepository(t.Context(), "app/web")
	l.Must(err)
	look(0, false)
	_, err = c.Restore(t.Context(), trashed, "")
	l.Must(err)
	look(1, true)
}

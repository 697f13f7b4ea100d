package autoprune_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/oci"
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

// TestUndoAfterRestoring: a run can be undone in a repository that came back from the trash, also
// under another name, and if its namespace has another name: the run is that namespace's.
func TestUndoAfterRestoring(t *testing.T) {
	t.Parallel()
	r := setup(t)
	c := catalog.New(catalog.Options{DB: r.db, CacheOff: true, Log: quiet, TrashKeep: time.Hour})
	var repositories []catalog.Repository
	for _, path := range []string{"acme/same", "acme/other", "zoo/app"} {
		repository := r.repository(path)
		r.tag(repository, "old", "one", 2*time.Hour)
		r.tag(repository, "new", "two", time.Hour)
		repositories = append(repositories, repository)
	}
	for _, namespace := range []string{"acme", "zoo"} {
		r.policy(autoprune.Target{Namespace: namespace}, `{"method": "number_of_tags", "value": 1}`)
		r.run()
	}
	for path, as := range map[string]string{"acme/same": "", "acme/other": "acme/renamed"} {
		id, err := c.RemoveRepository(t.Context(), path)
		r.must(err)
		_, err = c.RestoreTrashed(t.Context(), id, as)
		r.must(err)
	}
	r.repository("acme/other") // a newer one
	id, err := c.RemoveNamespace(t.Context(), "zoo")
	r.must(err)
	_, err = c.RestoreTrashed(t.Context(), id, "zoo2")
	r.must(err)
	for namespace, want := range map[string]int64{"acme": 2, "zoo": 1} {
		runs, _, err := r.pruner.Runs(t.Context(), namespace, "", 10)
		r.must(err)
		restored := int64(0)
		for _, run := range runs {
			undone, err := r.pruner.Undo(t.Context(), run.ID, "", time.Minute)
			r.must(err)
			restored += undone.Restored
		}
		if restored != want || len(runs) == 0 {
			t.Errorf("%d runs of %s, %d tags restored, want %d", len(runs), namespace, restored, want)
		}
	}
	for i, want := range []int{2, 2, 2} {
		if got := r.tags(repositories[i]); len(got) != want {
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
	c := catalog.New(catalog.Options{DB: r.db, CacheOff: true, Log: quiet, TrashKeep: time.Hour})
	for _, path := range []string{"acme/kept", "acme/purged", "zoo/app"} {
		repository := r.repository(path)
		r.tag(repository, "older", "one", 3*time.Hour)
		r.tag(repository, "old", "two", 2*time.Hour)
		r.tag(repository, "new", "three", time.Hour)
	}
	undo := func(namespace string) (all autoprune.Undone) {
		runs, _, err := r.pruner.Runs(t.Context(), namespace, "", 10)
		r.must(err)
		for _, run := range runs {
			u, err := r.pruner.Undo(t.Context(), run.ID, "", time.Minute)
			r.must(err)
			all.Restored, all.Gone, all.InTrash = all.Restored+u.Restored, all.Gone+u.Gone, all.InTrash+u.InTrash
			all.TrashNames = append(all.TrashNames, u.TrashNames...)
		}
		return all
	}
	for _, namespace := range []string{"acme", "zoo"} {
		r.policy(autoprune.Target{Namespace: namespace}, `{"method": "number_of_tags", "value": 1}`)
	}
	r.run()
	r.run()
	kept, err := c.RemoveRepository(t.Context(), "acme/kept")
	r.must(err)
	purged, err := c.RemoveRepository(t.Context(), "acme/purged")
	r.must(err)
	r.must(c.PurgeTrashed(t.Context(), purged))
	zoo, err := c.RemoveNamespace(t.Context(), "zoo")
	r.must(err)
	if u := undo("acme"); u.InTrash != 2 || !slices.Equal(u.TrashNames, []string{"acme/kept"}) || u.Gone != 2 || u.Restored != 0 {
		t.Errorf("in the trash: %+v", u)
	}
	if u := undo("zoo"); u.InTrash != 2 || !slices.Equal(u.TrashNames, []string{"zoo/app"}) || u.Gone != 0 {
		t.Errorf("with its namespace in the trash: %+v", u)
	}
	for _, id := range []string{kept, zoo} {
		_, err := c.RestoreTrashed(t.Context(), id, "")
		r.must(err)
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
	web := l.repository("app/web")
	l.image(web, "v1", stageTest)
	l.policy(autoprune.Target{Namespace: "app"}, `{"method": "creation_date", "olderThan": "1y", "keepUntagged": "9d", "labels": {"stage": "test"}}`)
	id := l.manifest(web, "v1", "")
	look := func(unread int, kept bool) {
		t.Helper()
		n, err := l.pruner.Unread(t.Context(), web)
		if l.must(err); n != unread {
			t.Errorf("%d configurations are to be read, want %d", n, unread)
		}
		if found := l.untagged(web, id); len(found) > 0 != kept {
			t.Errorf("policies keep %v", found)
		}
	}
	look(1, true)
	c := catalog.New(catalog.Options{DB: l.db, CacheOff: true, Log: quiet, TrashKeep: time.Hour})
	trashed, err := c.RemoveRepository(t.Context(), "app/web")
	l.must(err)
	look(0, false)
	_, err = c.RestoreTrashed(t.Context(), trashed, "")
	l.must(err)
	look(1, true)
}

// TestPolicyOfWhatGoes: a repository or a namespace goes into the trash while a client creates a policy
// there. There must be no such policy.
func TestPolicyOfWhatGoes(t *testing.T) {
	t.Parallel()
	for deletion, target := range map[string]autoprune.Target{
		"UPDATE repositories SET path = '#1/' || path, deleted_path = path, deleted_at = now(), purge_after = now()":         {Repository: "app/a"},
		"UPDATE top_level_namespaces SET name = '#1/' || name, deleted_name = name, deleted_at = now(), purge_after = now()": {Namespace: "app"},
	} {
		r := setup(t)
		r.repository("app/a")
		tx, err := r.db.Pool.Begin(t.Context())
		r.must(err)
		defer tx.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // it is committed, or the test has failed
		_, err = tx.Exec(t.Context(), deletion)
		r.must(err)
		made := make(chan error, 1)
		go func() {
			_, err := r.pruner.Create(t.Context(), target, parsed(t, `{"method": "number_of_tags", "numTags": 1}`))
			made <- err
		}()
		r.await("SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE NOT granted AND datname = current_database())")
		r.must(tx.Commit(t.Context()))
		if err := <-made; oci.CodeOf(err) != oci.NameUnknown {
			t.Errorf("a policy of %s: %v", target, err)
		}
	}
}

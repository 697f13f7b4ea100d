package autoprune_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/autoprunetest"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/oci"
)

func attachedTag(image string) string {
	return "sha256-" + autoprunetest.DigestOf(image).Hex() + ".sig"
}

// TestAttachedTagStaysWithItsImage: a run has selected a signature together with its image.
// Before the deletion, a client gives the image another tag, or pushes a tagged index that
// lists it. The signature must stay.
func TestAttachedTagStaysWithItsImage(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(m *middle) error{
		"tagged": func(m *middle) error {
			return m.Catalog.PointTag(m.T.Context(), "app/a", "again", autoprunetest.DigestOf("m1"))
		},
		"under an index":    func(m *middle) error { return m.underIndex("index", "m1") },
		"under two indexes": func(m *middle) error { return errors.Join(m.underIndex("index", "m1"), m.underIndex("above", "index")) },
		"tagged and retaken": func(m *middle) error {
			return m.Catalog.PointTag(m.T.Context(), "app/a", "v1", autoprunetest.DigestOf("m1"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := inTheMiddle(t, policies.Target{Namespace: "app"})
			for _, image := range []string{"m1", "m2"} {
				m.Tag(m.a, attachedTag(image), "signature of "+image, 10*day)
			}
			m.timeSlice(func(context.Context, []*judge.Tag) error { return do(m) })
			got := m.Tags(m.a)
			if !slices.Contains(got, attachedTag("m1")) || slices.Contains(got, attachedTag("m2")) {
				t.Errorf("there are %v, want the signature of m1 and not that of m2", got)
			}
			m.consistent()
		})
	}
}

// underIndex makes a tagged index that lists a manifest.
func (m *middle) underIndex(name, child string) error {
	m.Tag(m.a, name, name, 0)
	m.Index(m.a, name, child)
	return nil
}

// TestAttachedToAttached: an old image has a signature, which has a signature, and so on.
// One run must delete the whole chain, for every order of the names and every batch size.
func TestAttachedToAttached(t *testing.T) {
	t.Parallel()
	for _, batch := range []int{1, 2, 1000} {
		r := setup(t, func(o *autoprune.Options) { o.Batch = batch })
		a := r.Repository("app/a")
		r.Tag(a, "new", "new", 0)
		r.Tag(a, "old", "old", 10*day)
		for image := range 6 { // a chain of signatures, each of the one before
			below := []string{"old", "s0", "s1", "s2", "s3", "s4"}[image]
			r.Tag(a, attachedTag(below), []string{"s0", "s1", "s2", "s3", "s4", "s5"}[image], 10*day)
		}
		r.policy(policies.Target{Namespace: "app"}, `{"method": "number_of_tags", "numTags": 1}`)
		preview, err := r.pruner.Preview(t.Context(), policies.Target{Namespace: "app"}, autoprune.PreviewOptions{})
		r.Must(err)
		r.run()
		if got := r.Tags(a); !slices.Equal(got, []string{"new"}) || preview.Deleted != 7 {
			t.Errorf("in batches of %d: %d were to go, and these are left: %v", batch, preview.Deleted, got)
		}
		r.consistent()
	}
}

// TestAttachedTagAwaitsItsImage: when a run judged a signature, its image was missing. A
// client pushes the image before the deletion. The signature must stay.
func TestAttachedTagAwaitsItsImage(t *testing.T) {
	t.Parallel()
	m := inTheMiddle(t, policies.Target{Namespace: "app"})
	m.Tag(m.a, attachedTag("late"), "signature", 10*day)
	m.Tag(m.a, attachedTag("never"), "signature", 10*day)
	id := m.Manifest(m.a, "bill", "late as well") // belongs to its image by its subject
	other := m.Manifest(m.a, "other bill", "never at all")
	for name, manifest := range map[string]int64{"bill": id, "other-bill": other} {
		m.Exec(`INSERT INTO tags (top_level_namespace_id, repository_id, name, manifest_id, created_at)
			VALUES ($1, $2, $3, $4, now() - interval '10 days')`, m.a.NamespaceID, m.a.ID, name, manifest)
	}
	m.timeSlice(func(context.Context, []*judge.Tag) error {
		m.Manifest(m.a, "late", "")
		m.Manifest(m.a, "late as well", "")
		return nil
	})
	if got, want := m.Tags(m.a), []string{"bill", attachedTag("late")}; !slices.Equal(got, want) {
		t.Errorf("there are %v, want %v", got, want)
	}
}

// prune runs fn in a transaction of the catalog that deletes.
func (r *registry) prune(fn func(tx autoprune.DeletionTx)) {
	r.T.Helper()
	r.Must(r.pruner.Deletion(r.T.Context(), func(tx autoprune.DeletionTx) error {
		fn(tx)
		return nil
	}))
}

// refused returns whether a statement failed because another transaction had locked rows
// that the statement needs.
func (r *registry) refused(sql string, args ...any) bool {
	r.T.Helper()
	err := pgx.BeginFunc(r.T.Context(), r.DB.Pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(r.T.Context(), "SET LOCAL lock_timeout = 50"); err != nil {
			return err
		}
		_, err := tx.Exec(r.T.Context(), sql, args...)
		return err
	})
	if err != nil && !isLockTimeout(err) {
		r.T.Fatal(err)
	}
	return err != nil
}

// TestHeldImages: while a transaction has locked images with LockImages, no client may tag
// them or put an index that lists them. LockImages must return neither images that a tag
// reaches nor images that don't exist.
func TestHeldImages(t *testing.T) {
	t.Parallel()
	r := setup(t)
	a := r.Repository("app/a")
	ids := make(map[string]int64)
	for _, name := range []string{"free", "tagged", "below", "index", "above", "lonely", "lonely index"} {
		ids[name] = r.Manifest(a, name, "")
	}
	r.Tag(a, "tagged", "tagged", 0)
	r.Tag(a, "above", "above", 0)
	r.Index(a, "above", "index")
	r.Index(a, "index", "below")
	r.Index(a, "lonely index", "lonely")
	images := []int64{ids["free"], ids["tagged"], ids["below"], ids["lonely"], 1 << 40}
	r.prune(func(tx autoprune.DeletionTx) {
		free, err := tx.LockImages(t.Context(), a, images)
		r.Must(err)
		slices.Sort(free)
		if want := []int64{ids["free"], ids["lonely"]}; !slices.Equal(free, want) {
			t.Errorf("free are %v, want %v", free, want)
		}
		for _, name := range []string{"free", "lonely", "lonely index", "index"} {
			if !r.refused(`INSERT INTO tags (top_level_namespace_id, repository_id, name, manifest_id) VALUES ($1, $2, 'x', $3)`,
				a.NamespaceID, a.ID, ids[name]) {
				t.Errorf("%s got a tag while it was held", name)
			}
			if !r.refused(`INSERT INTO manifest_references (top_level_namespace_id, repository_id, parent_id, child_id) VALUES ($1, $2, $3, $4)`,
				a.NamespaceID, a.ID, ids["tagged"], ids[name]) {
				t.Errorf("%s got an index while it was held", name)
			}
		}
	})
	// A client's transaction that hasn't ended is tagging an image. LockImages waits for
	// it, and fails with ErrBusy after the lock timeout.
	tx, err := r.DB.Pool.Begin(t.Context())
	r.Must(err)
	_, err = tx.Exec(t.Context(), `INSERT INTO tags (top_level_namespace_id, repository_id, name, manifest_id) VALUES ($1, $2, 'y', $3)`,
		a.NamespaceID, a.ID, ids["free"])
	r.Must(err)
	err = r.pruner.Deletion(t.Context(), func(tx autoprune.DeletionTx) error {
		_, err := tx.LockImages(t.Context(), a, images)
		return err
	})
	if !errors.Is(err, autoprune.ErrBusy) {
		t.Errorf("held an image that is being tagged: %v", err)
	}
	r.Must(tx.Rollback(t.Context()))
}

// TestHeldRepository: while a transaction has locked a repository with BlockPushes, no
// client may push to it.
func TestHeldRepository(t *testing.T) {
	t.Parallel()
	r := setup(t)
	a := r.Repository("app/a")
	here := r.Manifest(a, "here", "")
	alone, follows := r.Manifest(a, "alone", "not here"), r.Manifest(a, "follows", "here")
	r.prune(func(tx autoprune.DeletionTx) {
		absent, lonely, err := tx.BlockPushes(t.Context(), a, []oci.DigestPrefix{prefixOf("here"), prefixOf("not here")}, []int64{here, alone, follows})
		r.Must(err)
		if absent[prefixOf("here")] || !absent[prefixOf("not here")] || !lonely[alone] || lonely[follows] {
			t.Errorf("absent: %v, alone: %v", absent, lonely)
		}
		if !r.refused("SELECT FROM repositories WHERE id = $1 FOR KEY SHARE", a.ID) {
			t.Error("a push could begin")
		}
	})
}

// TestRepositoryThatGoes: while a worker's transaction deletes tags of a repository, nobody may put
// the repository into the trash; and while somebody does that, no worker deletes its tags, since
// they would be missing when it comes back.
func TestRepositoryThatGoes(t *testing.T) {
	t.Parallel()
	r := setup(t)
	a := r.Repository("app/a")
	const goes = "SELECT FROM repositories WHERE id = $1 FOR UPDATE" // as the deletion locks it
	r.prune(func(tx autoprune.DeletionTx) {
		_, err := tx.LockRepository(t.Context(), a)
		r.Must(err)
		if !r.refused(goes, a.ID) {
			t.Error("the repository could go while its tags were deleted")
		}
	})
	tx, err := r.DB.Pool.Begin(t.Context())
	r.Must(err)
	defer tx.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // it changes nothing
	_, err = tx.Exec(t.Context(), goes, a.ID)
	r.Must(err)
	lock := func(tx autoprune.DeletionTx) error {
		if _, err := tx.Exec(t.Context(), "SET LOCAL lock_timeout = 50"); err != nil {
			return err
		}
		_, err := tx.LockRepository(t.Context(), a)
		return err
	}
	if err := r.pruner.Deletion(t.Context(), lock); !errors.Is(err, autoprune.ErrBusy) {
		t.Errorf("locked a repository that goes: %v", err)
	}
}

// TestHeldPolicies: while a worker's transaction deletes tags, statements of clients that
// change the policies, the protection rules or the namespace must wait for the end of this
// transaction.
func TestHeldPolicies(t *testing.T) {
	t.Parallel()
	r := setup(t)
	a := r.Repository("app/a")
	r.Tag(a, "v1", "m1", 10*day)
	r.policy(policies.Target{Namespace: "app"}, `{"method": "creation_date", "olderThan": "1d"}`)
	looked := false
	_, pruner := r.replica(func(o *autoprune.Options) {
		o.Interval = time.Hour
		o.Notify = notice(func() { // in the deleting transaction, which holds the locks
			looked = true
			for _, sql := range []string{
				"UPDATE autoprunetaskstatus SET policies_version = policies_version + 1",
				"UPDATE settings SET value = '100' WHERE name = 'autoprune_defaults_version'",
				"UPDATE settings SET value = '100' WHERE name = 'tag_protection_version'",
				"DELETE FROM top_level_namespaces",
				"DELETE FROM autoprunetaskstatus",
			} {
				if !r.refused(sql) {
					t.Errorf("didn't wait for the worker: %s", sql)
				}
			}
		})
	})
	_, err := pruner.Work(t.Context())
	r.Must(err)
	if !looked || len(r.Tags(a)) != 0 {
		t.Errorf("looked: %t, tags: %v", looked, r.Tags(a))
	}
}

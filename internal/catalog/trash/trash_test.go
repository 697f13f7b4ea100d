package trash_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/catalog/browse"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/catalog/trash"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/testscale"
	"github.com/purser-registry/purser/loosefk"
)

// TestTrashRepository: a deleted repository is invisible, garbage collection takes nothing of it,
// and it comes back whole, also for another replica that has cached what was there before.
func TestTrashRepository(t *testing.T) { catalogtest.AtBoth(t, testTrashRepository) }

func testTrashRepository(t *testing.T, dsn string) {
	ctx := t.Context()
	b, other := withTrash(t, dsn), withTrash(t, dsn)
	b.AtOnce(t)
	b.Listen(t)
	other.Listen(t)
	w := b.LooseKeys(t, loosefk.Options{})
	img := b.Fill(t, "acme/app")
	config := b.Push(t, "acme/app", "config")
	untagged := b.Put(t, "acme/app", catalogtest.Numbered(t, 7, config))
	other.Whole(t, "acme/app", "image")
	id, err := b.Trash.RemoveRepository(ctx, "acme/app")
	if err != nil || !strings.HasPrefix(id, "repository-") {
		t.Fatal(id, err)
	}
	b.gone(t, "acme/app", img)
	catalogtest.Eventually(t, "gone for the other replica", func() bool {
		_, err := other.ManifestByTag(ctx, "acme/app", "image")
		return oci.CodeOf(err) == oci.NameUnknown
	})
	other.gone(t, "acme/app", img)

	b.DueNow(t)
	if manifests, blobs := b.ReviewAll(t); manifests+blobs != 0 {
		t.Errorf("garbage collection deleted %d manifests and %d blobs of the trash", manifests, blobs)
	}
	b.Drain(t, w)

	list := b.Trashed(t)
	if len(list) != 1 || list[0].ID != id || list[0].Name != "acme/app" || list[0].Tags.Rows != 3 || list[0].Manifests.Rows != 4 || len(list[0].Conflicts) != 0 {
		t.Errorf("trash: %+v", list)
	}
	b.Put(t, "acme/app", catalogtest.Image(t, b.Push(t, "acme/app", "config"), nil, nil), "new")
	if item, err := b.Trash.Item(ctx, id); err != nil || len(item.Conflicts) != 1 {
		t.Errorf("conflicts: %+v, %v", item, err)
	}
	_, err = b.Trash.Restore(ctx, id, "")
	catalogtest.WantCode(t, err, oci.Denied)
	_, err = b.Trash.Restore(ctx, id, "else/app")
	catalogtest.WantCode(t, err, oci.Unsupported)
	if name, err := b.Trash.Restore(ctx, id, "acme/old"); err != nil || name != "acme/old" {
		t.Fatal(name, err)
	}
	b.Whole(t, "acme/old", "image", oci.Compute(oci.SHA256, []byte("layer of acme/app")))
	b.Whole(t, "acme/old", "index")
	b.Whole(t, "acme/app", "new")
	if _, err := b.ManifestByDigest(ctx, "acme/old", untagged); err != nil {
		t.Errorf("the untagged manifest: %v", err)
	}
	catalogtest.Eventually(t, "back for the other replica", func() bool {
		_, err := other.ManifestByTag(ctx, "acme/old", "image")
		return err == nil
	})
	_, err = b.Trash.Restore(ctx, id, "")
	catalogtest.WantCode(t, err, oci.NameUnknown)
	catalogtest.WantCode(t, b.Trash.Purge(ctx, id), oci.NameUnknown)
	b.Complete(t)
}

// TestTrashNamespace: a deleted namespace is invisible with all that is in it, its name is free
// for another one with the same repositories, and it comes back under another name.
func TestTrashNamespace(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	b := withTrash(t, dbtest.DSN(t))
	b.AtOnce(t)
	img := b.Fill(t, "acme/app")
	b.Fill(t, "acme/web")
	b.Put(t, "acme/app", catalogtest.Numbered(t, 7, b.Push(t, "acme/app", "config"))) // without a tag
	b.Exec(t, "INSERT INTO accounts (name, kind, top_level_namespace_id) SELECT 'acme+ci', 'robot', id FROM top_level_namespaces WHERE name = 'acme'")
	repository, err := b.Trash.RemoveRepository(ctx, "acme/web")
	if err != nil {
		t.Fatal(err)
	}
	id, err := b.Trash.RemoveNamespace(ctx, "acme")
	if err != nil {
		t.Fatal(err)
	}
	b.gone(t, "acme/app", img)
	if list, _, err := browse.New(b.Catalog).Namespaces(ctx, browse.Everyone, browse.NameFilter{}, "", 10); err != nil || len(list) != 0 {
		t.Errorf("namespaces: %v, %v", list, err)
	}
	b.DueNow(t)
	if manifests, blobs := b.ReviewAll(t); manifests+blobs != 0 {
		t.Errorf("garbage collection deleted %d manifests and %d blobs of the trash", manifests, blobs)
	}
	_, err = b.Trash.Restore(ctx, repository, "")
	catalogtest.WantCode(t, err, oci.Denied)
	b.Put(t, "acme/app", catalogtest.Image(t, b.Push(t, "acme/app", "config"), nil, nil), "new")
	b.Exec(t, "INSERT INTO accounts (name, kind, top_level_namespace_id) SELECT 'acme+ci', 'robot', id FROM top_level_namespaces WHERE name = 'acme'")
	_, err = b.Trash.Restore(ctx, id, "")
	catalogtest.WantCode(t, err, oci.Denied)
	if name, err := b.Trash.Restore(ctx, id, "zoo"); err != nil || name != "zoo" {
		t.Fatal(name, err)
	}
	b.Whole(t, "zoo/app", "image")
	b.Whole(t, "acme/app", "new")
	if n := b.Count(t, "SELECT count(*) FROM accounts WHERE name IN ('zoo+ci', 'acme+ci') AND deleted_name IS NULL"); n != 2 {
		t.Errorf("%d robots are back, want 2", n)
	}
	if name, err := b.Trash.Restore(ctx, repository, "zoo/web2"); err != nil || name != "zoo/web2" {
		t.Fatal(name, err)
	}
	b.Whole(t, "zoo/web2", "index")
	if list := b.Trashed(t); len(list) != 0 {
		t.Errorf("trash: %+v", list)
	}
	b.Complete(t)
}

// TestPurge: what is due is deleted for good, with its content, and nothing else.
func TestPurge(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	b := withTrash(t, dbtest.DSN(t))
	b.AtOnce(t)
	w := b.LooseKeys(t, loosefk.Options{})
	b.Fill(t, "acme/app")
	b.Fill(t, "zoo/app")
	b.Fill(t, "stay/app")
	for _, err := range []error{b.Trash.DeleteRepository(ctx, "acme/app"), b.Trash.DeleteNamespace(ctx, "zoo")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if more, err := b.Trash.PurgeExpired(ctx); err != nil || more || len(b.Trashed(t)) != 2 {
		t.Fatalf("purged too early: %v, %v", more, err)
	}
	b.ExpireTrash(t)
	if more, err := b.Trash.PurgeExpired(ctx); err != nil || more {
		t.Fatal(more, err)
	}
	if list := b.Trashed(t); len(list) != 0 {
		t.Errorf("trash: %+v", list)
	}
	b.Drain(t, w)
	b.NoOrphans(t)
	b.DueNow(t)
	b.ReviewAll(t)
	if n := b.Rows(t, "manifests"); n != 3 {
		t.Errorf("%d manifests are left, want those of stay/app", n)
	}
	b.Whole(t, "stay/app", "image")
	if id, err := b.Trash.RemoveRepository(ctx, "stay/app", trash.PurgeAtOnce); err != nil || id != "" || len(b.Trashed(t)) != 0 {
		t.Error(id, err)
	}
	b.Complete(t)
}

// TestExpirationInTrash: a tag whose date comes while its repository is in the trash keeps the
// date, and expires when the repository is back.
func TestExpirationInTrash(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	b := withTrash(t, dbtest.DSN(t))
	b.Fill(t, "acme/app")
	b.Exec(t, "UPDATE tags SET expires_at = now() - interval '1 s' WHERE name = 'also'")
	id, err := b.Trash.RemoveRepository(ctx, "acme/app")
	if err != nil {
		t.Fatal(err)
	}
	if done, err := b.ExpireTags(ctx); err != nil || done.Deleted != 0 || done.Held != 1 {
		t.Fatalf("%+v, %v", done, err)
	}
	if _, err := b.Trash.Restore(ctx, id, ""); err != nil {
		t.Fatal(err)
	}
	if done, err := b.ExpireTags(ctx); err != nil || done.Deleted != 1 {
		t.Fatalf("%+v, %v", done, err)
	}
	b.Whole(t, "acme/app", "image")
}

// TestTrashWaitsForPushes: a deletion waits for a push in flight, whose tag then is in the trash
// and not lost, or in the new repository's way.
func TestTrashWaitsForPushes(t *testing.T) {
	t.Parallel()
	for _, of := range []string{"repository", "namespace"} {
		t.Run(of, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			b := withTrash(t, dbtest.DSN(t))
			b.Fill(t, "acme/app")
			push, watch := b.Session(t), b.Session(t)
			push.Exec(t, "BEGIN")
			push.Exec(t, `SELECT FROM live_namespaces n JOIN repositories r ON r.top_level_namespace_id = n.id
				WHERE r.path = 'acme/app' AND r.deleted_at IS NULL FOR KEY SHARE`)
			done := catalogtest.Later(func() error {
				if of == "namespace" {
					return b.Trash.DeleteNamespace(ctx, "acme")
				}
				return b.Trash.DeleteRepository(ctx, "acme/app")
			})
			push.Blocks(t, watch, 1)
			push.Exec(t, `INSERT INTO tags (top_level_namespace_id, repository_id, name, manifest_id)
				SELECT top_level_namespace_id, repository_id, 'late', manifest_id FROM tags WHERE name = 'image'`)
			push.Exec(t, "COMMIT")
			if err := catalogtest.Soon(t, "the deletion", done); err != nil {
				t.Fatal(err)
			}
			if _, err := b.Trash.Restore(ctx, b.Trashed(t)[0].ID, ""); err != nil {
				t.Fatal(err)
			}
			b.Whole(t, "acme/app", "late")
		})
	}
}

// TestTrashStorm lets two replicas push, delete, restore, purge and collect garbage at once. Each
// push that was acknowledged is afterwards in the repository of its name, in the trash, or was
// purged; what is in the trash comes back whole.
func TestTrashStorm(t *testing.T) {
	t.Parallel()
	dsn := dbtest.DSN(t)
	replicas := []bundle{withTrash(t, dsn), withTrash(t, dsn)}
	b := replicas[0]
	b.AtOnce(t)
	for _, r := range replicas {
		r.Listen(t)
	}
	w := b.LooseKeys(t, loosefk.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), testscale.Pick(2*time.Second, 30*time.Second))
	defer cancel()
	var all errgroup.Group
	for worker := range 8 {
		all.Go(func() error {
			r := replicas[worker%2]
			for n := 0; ctx.Err() == nil; n++ {
				if err := r.trashStep(t, worker, n); err != nil {
					return fmt.Errorf("worker %d: %w", worker, err)
				}
			}
			return nil
		})
	}
	if err := all.Wait(); err != nil {
		t.Fatal(err)
	}
	for i, item := range b.Trashed(t) {
		if item.Kind == "namespace" {
			if _, err := b.Trash.Restore(t.Context(), item.ID, fmt.Sprintf("back%d", i)); err != nil {
				t.Errorf("%+v: %v", item, err)
			}
		}
	}
	for i, item := range b.Trashed(t) {
		if _, err := b.Trash.Restore(t.Context(), item.ID, fmt.Sprintf("%s/back%d", item.Namespace, i)); err != nil {
			t.Errorf("%+v: %v", item, err)
		}
	}
	b.Drain(t, w)
	b.NoOrphans(t)
	b.everyTagWhole(t)
	b.DueNow(t)
	b.ReviewAll(t)
	b.everyTagWhole(t)
	b.Complete(t)
}

// everyTagWhole checks that every tag of every repository can be pulled.
func (b bundle) everyTagWhole(t *testing.T) {
	t.Helper()
	paths, _, err := browse.New(b.Catalog).RepositoryPaths(t.Context(), browse.Everyone, "", 10_000)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		tags, _, err := b.Tags(t.Context(), path, "", 1000)
		if err != nil {
			t.Fatal(err)
		}
		for _, tag := range tags {
			b.Whole(t, path, tag, oci.Compute(oci.SHA256, []byte("layer "+tag)))
		}
	}
}

// trashStep does one random thing. It returns an error that shouldn't occur.
func (b bundle) trashStep(t *testing.T, worker, n int) error {
	ctx := t.Context()
	namespace := fmt.Sprintf("ns%d", rand.IntN(2))
	path := fmt.Sprintf("%s/r%d", namespace, rand.IntN(2))
	var err error
	switch rand.IntN(10) {
	default:
		err = b.trashPush(t, path, fmt.Sprintf("t%d-%d", worker, n))
	case 4, 5:
		err = b.Trash.DeleteRepository(ctx, path)
	case 6:
		err = b.Trash.DeleteNamespace(ctx, namespace)
	case 7, 8:
		var list []trash.Trashed
		if list, _, err = b.Trash.List(ctx, "", "", 50); err == nil && len(list) > 0 {
			item := list[rand.IntN(len(list))]
			if _, err = b.Trash.Restore(ctx, item.ID, ""); err == nil || rand.IntN(4) > 0 {
				break
			}
			err = b.Trash.Purge(ctx, item.ID)
		}
	case 9:
		if err := b.TryReviews(ctx, 100); err != nil && !db.Retryable(err) {
			return err
		}
		if _, err = b.Trash.PurgeExpired(ctx); db.Retryable(err) || db.Code(err) == db.CodeLockNotAvailable {
			err = nil
		}
	}
	if e, ok := errors.AsType[*oci.Error](err); ok && slices.Contains([]oci.Code{oci.NameUnknown, oci.Denied}, oci.CodeOf(e)) {
		return nil
	}
	return err
}

// trashPush pushes an image with a tag and a layer of its own. Without a delay of reviews a blob
// may be collected before its manifest is put; then the push begins again.
func (b bundle) trashPush(t *testing.T, path, tag string) error {
	for {
		config, err := b.TryPush(t.Context(), path, "config")
		if err != nil {
			return err
		}
		layer, err := b.TryPush(t.Context(), path, "layer "+tag)
		if err != nil {
			return err
		}
		_, err = b.TryPut(t.Context(), path, catalogtest.Image(t, config, []oci.Digest{layer}, nil), tag)
		if code := oci.CodeOf(err); code != oci.ManifestBlobUnknown && code != oci.NameUnknown {
			return err
		}
	}
}

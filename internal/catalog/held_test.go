package catalog_test

import (
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/catalog/trash"
	"github.com/purser-registry/purser/internal/oci"
)

// TestHeldIsRefused: what is held, with its relatives, is deleted only by a client that overrides
// holds, and the audit log says so.
func TestHeldIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	config := b.Push(t, "acme/app", "config")
	child := b.Put(t, "acme/app", catalogtest.Numbered(t, 1, config), "child")
	sibling := b.Put(t, "acme/app", catalogtest.Numbered(t, 2, config), "sibling")
	index := b.Put(t, "acme/app", catalogtest.Index(t, child, sibling), "index")
	signature := b.Put(t, "acme/app", catalogtest.SubjectOf(t, config, index), "signature")
	cosigned := "sha256-" + index.Hex() + ".sig"
	cosign := b.Put(t, "acme/app", catalogtest.Numbered(t, 3, config), cosigned)
	b.Put(t, "acme/app", catalogtest.Numbered(t, 4, config), "free")
	b.Hold(t, "acme", child)
	for _, tag := range []string{"child", "sibling", "index", "signature", cosigned} {
		catalogtest.WantHeld(t, tag, b.DeleteTag(ctx, "acme/app", tag))
	}
	for _, d := range []oci.Digest{index, signature, cosign} {
		catalogtest.WantHeld(t, d.String(), b.DeleteManifest(ctx, "acme/app", d))
	}
	catalogtest.WantCode(t, b.DeleteManifest(ctx, "acme/app", child), oci.Denied) // listed by the index
	catalogtest.WantHeld(t, "the repository", b.Trash.DeleteRepository(ctx, "acme/app"))
	catalogtest.WantHeld(t, "the namespace", b.Trash.DeleteNamespace(ctx, "acme"))
	if err := b.DeleteTag(ctx, "acme/app", "free"); err != nil {
		t.Error(err)
	}
	b.Put(t, "acme/app", catalogtest.Numbered(t, 5, config), "child") // moving a tag is no deletion
	for _, delete := range []func() error{
		func() error { return b.DeleteTag(ctx, "acme/app", "sibling", catalog.OverrideHolds) },
		func() error { return b.DeleteManifest(ctx, "acme/app", cosign, catalog.OverrideHolds) },
		func() error { return b.DeleteManifest(ctx, "acme/app", index, catalog.OverrideHolds) },
		func() error { return b.Trash.DeleteRepository(ctx, "acme/app", trash.OverrideHolds) },
		func() error { return b.Trash.DeleteNamespace(ctx, "acme", trash.OverrideHolds) },
	} {
		if err := delete(); err != nil {
			t.Error(err)
		}
	}
	const overridden = `SELECT count(*) FROM auditlog WHERE kind = ANY ($1) AND detail @> '{"holds": "overridden", "held_by": ["prod"]}'`
	if n := b.Count(t, overridden, []string{"delete_tag"}); n != 3 {
		t.Errorf("%d entries of tags say that holds were overridden, want those of 3", n)
	}
	if n := b.Count(t, overridden, []string{"delete_manifest", "delete_repo"}); n != 3 {
		t.Errorf("%d entries of manifests and repositories say that holds were overridden, want those of 3", n)
	}
}

// TestHoldsElsewhere: the holds of a namespace are not in force in others, those of the registry
// are in force everywhere, and a hold that has ended is in force nowhere.
func TestHoldsElsewhere(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	config := b.Push(t, "acme/app", "config")
	b.Push(t, "other/app", "config")
	d := b.Put(t, "acme/app", catalogtest.Numbered(t, 1, config), "v1", "v2")
	b.Put(t, "other/app", catalogtest.Numbered(t, 1, config), "v1")
	b.Hold(t, "acme", d)
	if err := b.DeleteTag(ctx, "other/app", "v1"); err != nil {
		t.Error(err)
	}
	b.Hold(t, "acme")
	b.Hold(t, "", d)
	catalogtest.WantHeld(t, "v1", b.DeleteTag(ctx, "acme/app", "v1"))
	b.Exec(t, "UPDATE holdreporters SET expires_at = now() - interval '1 second'")
	if err := b.DeleteTag(ctx, "acme/app", "v1"); err != nil {
		t.Error(err)
	}
	if err := b.Trash.DeleteNamespace(ctx, "acme"); err != nil {
		t.Error(err)
	}
}

// TestHeldTagExpires: a tag that is held keeps its date, which acts after the hold. Held tags don't
// hide others, and aren't looked at without a pause.
func TestHeldTagExpires(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	config := b.Push(t, "acme/app", "config")
	d := b.Put(t, "acme/app", catalogtest.Numbered(t, 1, config), "held0")
	b.Exec(t, `INSERT INTO tags (top_level_namespace_id, repository_id, name, manifest_id)
		SELECT top_level_namespace_id, repository_id, 'held' || n, manifest_id FROM tags, generate_series(1, 450) n`)
	b.Put(t, "acme/app", catalogtest.Numbered(t, 2, config), "free")
	b.Exec(t, "UPDATE tags SET expires_at = now() - interval '1 hour'")
	b.Exec(t, "UPDATE tags SET expires_at = now() - interval '1 minute' WHERE name = 'free'")
	b.Hold(t, "acme", d)
	held, deleted := 0, 0
	for more := true; more; {
		done, err := b.ExpireTags(ctx)
		if err != nil {
			t.Fatal(err)
		}
		more, held, deleted = done.More, held+done.Held, deleted+done.Deleted
	}
	if held != 451 || deleted != 1 {
		t.Errorf("held %d, deleted %d, want 451 and 1", held, deleted)
	}
	if next, some, err := b.NextExpiration(ctx); err != nil || some && next < time.Second {
		t.Errorf("the next expiration is in %s (%v, %v)", next, some, err)
	}
	b.Hold(t, "acme")
	for range 4 {
		if _, err := b.ExpireTags(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if n := b.Rows(t, "tags"); n != 0 {
		t.Errorf("%d tags are left after the hold", n)
	}
}

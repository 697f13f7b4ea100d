package trash_test

import (
	"fmt"
	"testing"

	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/catalog/trash"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
)

// TestRestoreAgainstRemoval stops the restoration of a repository whose image is deployed before
// each of its statements, and deletes its namespace then, and the other way round. A deletion looks
// for holds in the repositories that aren't in the trash. So it must see the repository, and be
// refused, or the restoration must see that the namespace is gone.
func TestRestoreAgainstRemoval(t *testing.T) {
	t.Parallel()
	for _, atOnce := range []bool{false, true} {
		for _, restoreFirst := range []bool{true, false} {
			t.Run(fmt.Sprintf("at once %v, restore first %v", atOnce, restoreFirst), func(t *testing.T) {
				t.Parallel()
				b := withTrash(t, dbtest.DSN(t))
				restored, removed := 0, 0
				catalogtest.EachStep(t, func(t *testing.T, n int) bool {
					ctx, namespace := t.Context(), fmt.Sprintf("acme%d", n)
					path := namespace + "/app"
					img := b.Fill(t, path)
					id, err := b.Trash.RemoveRepository(ctx, path)
					if err != nil {
						t.Fatal(err)
					}
					b.Hold(t, namespace, img)
					restore := func(b catalogtest.Bundle) error { _, err := b.Trash.Restore(ctx, id, ""); return err }
					remove := func(b catalogtest.Bundle) error {
						if atOnce {
							return b.Trash.DeleteNamespace(ctx, namespace, trash.PurgeAtOnce)
						}
						return b.Trash.DeleteNamespace(ctx, namespace)
					}
					first, second := restore, remove
					if !restoreFirst {
						first, second = remove, restore
					}
					stopped, err, err2 := b.Interleave(t, n, first, second)
					if !stopped {
						return false
					}
					back, gone := err, err2
					if !restoreFirst {
						back, gone = err2, err
					}
					switch {
					case back == nil:
						restored++
						catalogtest.WantCode(t, gone, oci.Denied)
						b.Whole(t, path, "image")
					case gone == nil && atOnce:
						removed++
						catalogtest.WantCode(t, back, oci.NameUnknown)
					case gone == nil:
						removed++
						catalogtest.WantCode(t, back, oci.Denied)
					default:
						t.Errorf("step %d: restoration: %v; deletion: %v", n, back, gone)
					}
					return true
				})
				if restored == 0 || removed == 0 {
					t.Errorf("%d restored, %d removed", restored, removed)
				}
			})
		}
	}
}

// TestDeletionSeesHeldPush: a push in flight brings what a reporter holds already. A deletion of
// the repository, or of its namespace, waits for the push, and must look for holds afterwards.
func TestDeletionSeesHeldPush(t *testing.T) {
	t.Parallel()
	for _, of := range []string{"repository", "namespace"} {
		t.Run(of, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			ctx := t.Context()
			b.Put(t, "acme/app", catalogtest.Image(t, b.Push(t, "acme/app", "config"), nil, nil), "image")
			late := oci.Compute(oci.SHA256, []byte("late"))
			b.Hold(t, "", late)
			push := b.Session(t)
			push.Exec(t, "BEGIN")
			push.Exec(t, `SELECT FROM live_namespaces n JOIN repositories r ON r.top_level_namespace_id = n.id
				WHERE r.path = 'acme/app' AND r.deleted_at IS NULL FOR KEY SHARE`)
			done := catalogtest.Later(func() error {
				if of == "namespace" {
					return b.Trash.DeleteNamespace(ctx, "acme")
				}
				return b.Trash.DeleteRepository(ctx, "acme/app")
			})
			push.Blocks(t, b.Session(t), 1)
			push.Exec(t, `INSERT INTO manifests (top_level_namespace_id, repository_id, digest, media_type, payload, total_size)
				SELECT top_level_namespace_id, repository_id, $1, media_type, payload, total_size FROM manifests`, late.Bytes())
			push.Exec(t, "COMMIT")
			catalogtest.WantHeld(t, of, catalogtest.Soon(t, "the deletion", done))
		})
	}
}

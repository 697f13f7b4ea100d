package catalog_test

import (
	"fmt"
	"testing"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
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
				eachStep(t, func(t *testing.T, n int) bool {
					ctx, namespace := t.Context(), fmt.Sprintf("acme%d", n)
					path := namespace + "/app"
					img := b.Fill(t, path)
					id, err := b.RemoveRepository(ctx, path)
					if err != nil {
						t.Fatal(err)
					}
					b.held(t, namespace, img)
					restore := func(b bundle) error { _, err := b.RestoreTrashed(ctx, id, ""); return err }
					remove := func(b bundle) error {
						if atOnce {
							return b.DeleteNamespace(ctx, namespace, catalog.PurgeAtOnce)
						}
						return b.DeleteNamespace(ctx, namespace)
					}
					first, second := restore, remove
					if !restoreFirst {
						first, second = remove, restore
					}
					stopped, err, err2 := b.interleave(t, n, first, second)
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

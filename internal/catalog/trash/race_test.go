package trash_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
)

// TestRestoreAgainstPurge stops a restoration before each of its statements and purges then, and
// the other way round. One of them wins: what is in the trash comes back whole, or is gone.
func TestRestoreAgainstPurge(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"repository", "namespace"} {
		for _, how := range []string{"purge", "expire"} {
			for _, restoreFirst := range []bool{true, false} {
				t.Run(fmt.Sprint(kind, " ", how, " ", restoreFirst), func(t *testing.T) {
					t.Parallel()
					b := withTrash(t, dbtest.DSN(t))
					restored, purged := 0, 0
					catalogtest.EachStep(t, func(t *testing.T, n int) bool {
						ctx, path := t.Context(), fmt.Sprintf("acme%d/app", n)
						b.Fill(t, path)
						id, err := b.Trash.RemoveRepository(ctx, path)
						if kind == "namespace" {
							b.Fill(t, path)
							id, err = b.Trash.RemoveNamespace(ctx, path[:len(path)-4])
						}
						if err != nil {
							t.Fatal(err)
						}
						b.ExpireTrash(t)
						restore := func(b catalogtest.Bundle) error { _, err := b.Trash.Restore(ctx, id, ""); return err }
						purge := func(b catalogtest.Bundle) error { return b.Trash.Purge(ctx, id) }
						if how == "expire" {
							purge = func(b catalogtest.Bundle) error { _, err := b.Trash.PurgeExpired(ctx); return err }
						}
						first, second := restore, purge
						if !restoreFirst {
							first, second = purge, restore
						}
						stopped, err, err2 := b.Interleave(t, n, first, second)
						if !stopped {
							return false
						}
						back, gone := err, err2
						if !restoreFirst {
							back, gone = err2, err
						}
						if back == nil {
							restored++
							b.Whole(t, path, "image")
						} else {
							purged++
							catalogtest.WantCode(t, back, oci.NameUnknown)
							_, err := b.ManifestByTag(ctx, path, "image")
							catalogtest.WantCode(t, err, oci.NameUnknown)
						}
						if how == "expire" && gone != nil || how == "purge" && (gone == nil) == (back == nil) || gone != nil && oci.CodeOf(gone) != oci.NameUnknown {
							t.Errorf("step %d: restoration: %v; purge: %v", n, back, gone)
						}
						return true
					})
					if restored == 0 || purged == 0 && restoreFirst {
						t.Errorf("%d restored, %d purged", restored, purged)
					}
				})
			}
		}
	}
}

// TestRestoreAgainstPush stops a restoration before each of its statements, and pushes to the same
// name then, and the other way round. The push succeeds, in the restored repository or in a new
// one. With a new one the restoration is refused, and is possible under another name.
func TestRestoreAgainstPush(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"repository", "namespace"} {
		for _, restoreFirst := range []bool{true, false} {
			t.Run(fmt.Sprint(kind, " ", restoreFirst), func(t *testing.T) {
				t.Parallel()
				b := withTrash(t, dbtest.DSN(t))
				restored, refused := 0, 0
				catalogtest.EachStep(t, func(t *testing.T, n int) bool {
					ctx, namespace := t.Context(), fmt.Sprintf("acme%d", n)
					path := namespace + "/app"
					b.Fill(t, path)
					remove, of, other := b.Trash.RemoveRepository, path, namespace+"/other"
					if kind == "namespace" {
						remove, of, other = b.Trash.RemoveNamespace, namespace, fmt.Sprintf("other%d", n)
					}
					id, err := remove(ctx, of)
					if err != nil {
						t.Fatal(err)
					}
					restore := func(b catalogtest.Bundle) error { _, err := b.Trash.Restore(ctx, id, ""); return err }
					push := func(b catalogtest.Bundle) error { return bundle{b}.trashPush(t, path, "new") }
					first, second := restore, push
					if !restoreFirst {
						first, second = push, restore
					}
					stopped, err, err2 := b.Interleave(t, n, first, second)
					if !stopped {
						return false
					}
					back, pushed := err, err2
					if !restoreFirst {
						back, pushed = err2, err
					}
					if pushed != nil {
						t.Errorf("step %d: push: %v", n, pushed)
					}
					b.Whole(t, path, "new")
					if back == nil {
						restored++
						b.Whole(t, path, "image")
					} else {
						refused++
						catalogtest.WantCode(t, back, oci.Denied)
						if _, err := b.Trash.Restore(ctx, id, other); err != nil {
							t.Fatal(err)
						}
						if kind == "namespace" {
							other += "/app"
						}
						b.Whole(t, other, "image")
					}
					if live := b.Count(t, "SELECT count(*) FROM live_repositories WHERE path = '"+path+"'"); live != 1 {
						t.Errorf("step %d: %d repositories %s", n, live, path)
					}
					return true
				})
				if restored == 0 || refused == 0 {
					t.Errorf("%d restored, %d refused", restored, refused)
				}
			})
		}
	}
}

// TestLateChangeInTrash: a change below a repository or a namespace in the trash, such as a review
// makes without locking its row, commits after the restoration. Then other replicas must drop what
// they have cached in between, whatever the name is now.
func TestLateChangeInTrash(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"repository", "namespace"} {
		for what, change := range map[string]string{
			"link": "DELETE FROM repository_blobs WHERE blob_digest = $1",
			"blob": "UPDATE blobs SET size = size WHERE digest = $1",
		} {
			t.Run(kind+" "+what, func(t *testing.T) {
				t.Parallel()
				ctx := t.Context()
				b := withTrash(t, dbtest.DSN(t))
				b.Listen(t)
				b.Fill(t, "acme/app")
				unused := b.Push(t, "acme/app", "unused")
				remove, of, as := b.Trash.RemoveRepository, "acme/app", "acme/web"
				if kind == "namespace" {
					remove, of, as = b.Trash.RemoveNamespace, "acme", "web"
				}
				id, err := remove(ctx, of)
				if err != nil {
					t.Fatal(err)
				}
				review, replica := b.Session(t), b.Session(t)
				review.Exec(t, "BEGIN")
				review.Exec(t, change, unused.Bytes())
				if _, err := b.Trash.Restore(ctx, id, as); err != nil {
					t.Fatal(err)
				}
				replica.Exec(t, "LISTEN purser_changed")
				review.Exec(t, "COMMIT")
				n, err := replica.Conn.WaitForNotification(ctx)
				if err != nil || n.Payload != "*" {
					t.Errorf("notified %+v, %v", n, err)
				}
			})
		}
	}
}

// TestPurgePassesOver: the purge of what is due passes over what another transaction has locked, which
// may be restoring it, and doesn't wait for it.
func TestPurgePassesOver(t *testing.T) {
	t.Parallel()
	b := withTrash(t, dbtest.DSN(t))
	b.Fill(t, "acme/app")
	b.Fill(t, "zoo/app")
	for _, err := range []error{b.Trash.DeleteRepository(t.Context(), "acme/app"), b.Trash.DeleteNamespace(t.Context(), "zoo")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	b.ExpireTrash(t)
	purge := func(ctx context.Context) error { _, err := b.Trash.PurgeExpired(ctx); return err }
	b.Beside(t, purge, "SELECT FROM repositories WHERE deleted_at IS NOT NULL FOR UPDATE", "SELECT FROM top_level_namespaces WHERE deleted_at IS NOT NULL FOR UPDATE")
	if list := b.Trashed(t); len(list) != 2 {
		t.Errorf("the trash has %+v, want the two that were locked", list)
	}
	if err := purge(t.Context()); err != nil || len(b.Trashed(t)) != 0 {
		t.Errorf("the trash has %+v, %v; want nothing", b.Trashed(t), err)
	}
}

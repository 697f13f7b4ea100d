package catalog_test

import (
	"context"
	"testing"

	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/catalog/trash"
	"github.com/purser-registry/purser/internal/hold"
	"github.com/purser-registry/purser/internal/oci"
)

// TestReportWaitsForDeletions: a deletion by a client has looked for holds, and then waits for
// another transaction: for the manifest's row in the queue of reviews, or before its entry in the
// audit log. A report must wait for the lock of deletions: if it were acknowledged now, what it
// holds would be deleted afterwards.
func TestReportWaitsForDeletions(t *testing.T) {
	t.Parallel()
	for what, deletion := range map[string]func(ctx context.Context, b bundle, img oci.Digest) error{
		"tag":         func(ctx context.Context, b bundle, _ oci.Digest) error { return b.DeleteTag(ctx, "acme/app", "image") },
		"expired tag": func(ctx context.Context, b bundle, _ oci.Digest) error { _, err := b.ExpireTags(ctx); return err },
		"manifest": func(ctx context.Context, b bundle, img oci.Digest) error {
			return b.DeleteManifest(ctx, "acme/app", img)
		},
		"repository": func(ctx context.Context, b bundle, _ oci.Digest) error {
			return b.Trash.DeleteRepository(ctx, "acme/app")
		},
		"namespace": func(ctx context.Context, b bundle, _ oci.Digest) error { return b.Trash.DeleteNamespace(ctx, "acme") },
		"namespace at once": func(ctx context.Context, b bundle, _ oci.Digest) error {
			return b.Trash.DeleteNamespace(ctx, "acme", trash.PurgeAtOnce)
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			ctx := t.Context()
			img := b.Put(t, "acme/app", catalogtest.Image(t, b.Push(t, "acme/app", "config"), nil, nil), "image")
			h, err := hold.New(hold.Options{DB: b.DB})
			if err != nil {
				t.Fatal(err)
			}
			if what == "expired tag" {
				b.Exec(t, "UPDATE tags SET expires_at = now() - interval '1 s'")
			}
			blocker := b.Session(t)
			blocker.Exec(t, "BEGIN")
			if what == "tag" || what == "expired tag" || what == "manifest" { // all statements are prepared first, which needs a lock of the audit log
				blocker.Exec(t, `INSERT INTO gc_manifest_review_queue (top_level_namespace_id, repository_id, manifest_id, review_after, event)
					SELECT top_level_namespace_id, repository_id, id, now(), 'manifest_upload' FROM manifests
					ON CONFLICT (top_level_namespace_id, repository_id, manifest_id) DO UPDATE SET review_after = now()`)
			} else {
				blocker.Exec(t, "LOCK TABLE auditlog IN EXCLUSIVE MODE")
			}
			deleted := catalogtest.Later(func() error { return deletion(ctx, b, img) })
			blocker.Blocks(t, b.Session(t), 1)
			reported := catalogtest.Later(func() error {
				_, err := h.Report(ctx, hold.Place{Reporter: "prod"}, hold.Report{By: hold.By{MayEnd: true}, Items: []hold.Item{{Digest: img}}})
				return err
			})
			catalogtest.Eventually(t, "the report waits", func() bool { return len(reported) == 1 || b.Waiting(t) >= 2 })
			if n := b.Count(t, `SELECT count(*) FROM pg_locks
				WHERE locktype = 'advisory' AND classid = 1886745447 AND NOT granted
					AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`); n != 1 {
				t.Error("the report doesn't wait for the deletion")
			}
			blocker.Exec(t, "COMMIT")
			if err := catalogtest.Soon(t, "the deletion", deleted); err != nil {
				t.Error(err)
			}
			if err := catalogtest.Soon(t, "the report", reported); err != nil {
				t.Error(err)
			}
		})
	}
}

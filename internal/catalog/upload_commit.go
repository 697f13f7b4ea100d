package catalog

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// CommitUpload turns the upload into a blob of its repository, in one transaction. If the blob
// is new, the transaction is one statement, which deletes the upload's row and inserts the
// blob's row and its link to the repository. If the blob exists already, the upload's objects
// are recorded for deletion, and the client is promised that the blob stays for the review
// delay. But if the store has lost the existing blob's object, the upload's object replaces
// it. `key` is the storage key of the upload's object; `leftovers` says that the upload may
// have other objects, which are then recorded for deletion. Error: the same as ClaimUpload's. No
// repository is made for an upload that belonged to one which was deleted.
func (c *Catalog) CommitUpload(ctx context.Context, u Upload, d oci.Digest, key string, leftovers bool) error {
	if err := c.quotas.AdmitBlob(ctx, u.Repository, u.ID, d, u.Size); err != nil {
		return err
	}
	doing := fmt.Sprintf("committing upload %s to %s as %s", u.ID, u.Repository, d)
	mayCreate := func(ctx context.Context) error {
		h, err := c.Home(ctx, u.Repository)
		if err == nil && !slices.Contains(h.Earlier(), u.Home) {
			err = UploadMoved()
		}
		return err
	}
	err := c.write(ctx, write{path: u.Repository, doing: doing, create: true, checkBeforeCreate: mayCreate, run: func(ctx context.Context, r repository) error {
		err := c.commitNew(ctx, r, u, d, key, leftovers)
		if errors.Is(err, blobExists) {
			if err = c.verifyKnown(ctx, u.Repository, d); err == nil {
				err = c.commitKnown(ctx, r, u, d)
			}
		}
		if errors.Is(err, blobLost) {
			err = c.commitLost(ctx, r, u, d, key, leftovers)
		}
		return err
	}})
	if errors.Is(err, uploadLost) {
		return UploadMoved()
	}
	return err
}

// commitNew commits an upload whose blob doesn't exist yet, and returns the refusal blobExists
// if the blob exists. Its statement is a chain of CTEs, each of which reads the CTE before it,
// so that they run in this order: lock the repository; lock the upload; insert the blob;
// delete the upload's row if the blob was inserted. The insert waits for transactions that
// insert or delete the same blob.
func (c *Catalog) commitNew(ctx context.Context, r repository, u Upload, d oci.Digest, key string, leftovers bool) error {
	b := new(batch)
	b.guard(nil, `
		WITH alive AS MATERIALIZED (
			SELECT FROM live_namespaces n JOIN repositories r ON r.top_level_namespace_id = n.id
			WHERE n.id = @namespace AND r.id = @repository AND r.path = @path AND r.deleted_at IS NULL
			FOR KEY SHARE
		), held AS MATERIALIZED (
			SELECT FROM uploads WHERE id = @upload AND attempt = @attempt AND status = 1 AND EXISTS (SELECT FROM alive)
				AND COALESCE(namespace_id, @home_namespace) IN (0, @namespace) AND COALESCE(repository_id, @home_repository) IN (0, @repository)
			FOR UPDATE
		), b AS (
			INSERT INTO blobs (digest, size, storage_key)
			SELECT @digest, @size, @key FROM held
			ON CONFLICT (digest) DO NOTHING
			RETURNING digest
		), l AS (
			INSERT INTO repository_blobs (top_level_namespace_id, repository_id, blob_digest)
			SELECT @namespace, @repository, digest FROM b ON CONFLICT DO NOTHING
		), gone AS (
			DELETE FROM uploads WHERE id = @upload AND EXISTS (SELECT FROM b) RETURNING storage_key
		), doomed AS (
			INSERT INTO gc_doomed_objects (storage_key, of_upload, keep, again_at)
			SELECT storage_key, true, @key, now() + @late::interval FROM gone WHERE @leftovers
		)
		SELECT CASE
			WHEN NOT EXISTS (SELECT FROM alive) THEN purser_refuse('the repository was deleted meanwhile')
			WHEN NOT EXISTS (SELECT FROM held) THEN purser_refuse('another request has continued, finished or cancelled the upload')
			WHEN NOT EXISTS (SELECT FROM b) THEN purser_refuse('the blob exists already') END`,
		db.Args{"upload": u.ID, "attempt": u.Attempt, "digest": d.Bytes(), "size": u.Size, "key": key, "leftovers": leftovers,
			"late": c.late(), "namespace": r.namespace, "repository": r.id, "path": u.Repository,
			"home_namespace": u.Home.Namespace, "home_repository": u.Home.Repository})
	return b.Send(ctx, c.db.Pool)
}

// commitKnown commits an upload whose blob exists: it promises that the blob stays for the
// review delay, locks the blob's row, and links the blob to the repository. If another
// transaction deletes the blob while commitKnown waits for the lock, commitKnown returns the
// refusal blobGone, and [Catalog.write] runs the whole commit again.
func (c *Catalog) commitKnown(ctx context.Context, r repository, u Upload, d oci.Digest) error {
	b := new(batch)
	b.lockRepository(r, u.Repository)
	b.promiseBlob(d)
	b.guard(nil, `
		SELECT CASE WHEN count(*) <> 1 THEN purser_refuse('the blob was deleted meanwhile')
			WHEN count(lost_at) > 0 THEN purser_refuse('the store has lost the blob') END
		FROM (SELECT lost_at FROM blobs WHERE digest = $1 FOR KEY SHARE) locked`, d.Bytes())
	b.guard(nil, `
		WITH u AS (
			DELETE FROM uploads WHERE id = @upload AND attempt = @attempt AND status = 1 AND purser_accepted()
				AND COALESCE(namespace_id, @home_namespace) IN (0, @namespace) AND COALESCE(repository_id, @home_repository) IN (0, @repository)
			RETURNING storage_key
		), doomed AS (
			INSERT INTO gc_doomed_objects (storage_key, of_upload, size, again_at)
			SELECT storage_key, true, @size, now() + @late::interval FROM u)
		SELECT CASE WHEN NOT EXISTS (SELECT FROM u) THEN purser_refuse('another request has continued, finished or cancelled the upload') END`,
		db.Args{"upload": u.ID, "attempt": u.Attempt, "size": u.Size, "late": c.late(), "namespace": r.namespace, "repository": r.id,
			"home_namespace": u.Home.Namespace, "home_repository": u.Home.Repository})
	b.linkBlob(r, d)
	return b.Send(ctx, c.db.Pool)
}

// commitLost commits an upload whose blob exists but has lost its object in the store. The
// blob's row gets the upload's object, so every repository with a link to the blob has it
// again. The old object is recorded for deletion. If two uploads of the same lost blob are committed at once, the second
// commit finds that the blob has an object again, and CommitUpload runs again and calls
// commitKnown. Right after it has locked the blob, commitLost deletes the upload's row, and
// refuses the commit if the row has another attempt. So a request whose upload was taken over
// by a newer request changes nothing else.
func (c *Catalog) commitLost(ctx context.Context, r repository, u Upload, d oci.Digest, key string, leftovers bool) error {
	b := new(batch)
	b.lockRepository(r, u.Repository)
	b.promiseBlob(d)
	b.guard(nil, `SELECT CASE WHEN count(*) <> 1 THEN purser_refuse('the blob was deleted meanwhile') END
		FROM (SELECT FROM blobs WHERE digest = $1 AND lost_at IS NOT NULL FOR NO KEY UPDATE) locked`, d.Bytes())
	b.guard(nil, `
		WITH u AS (
			DELETE FROM uploads WHERE id = @upload AND attempt = @attempt AND status = 1 AND purser_accepted()
				AND COALESCE(namespace_id, @home_namespace) IN (0, @namespace) AND COALESCE(repository_id, @home_repository) IN (0, @repository)
			RETURNING storage_key
		), doomed AS (
			INSERT INTO gc_doomed_objects (storage_key, of_upload, keep, again_at)
			SELECT storage_key, true, @key, now() + @late::interval FROM u WHERE @leftovers)
		SELECT CASE WHEN NOT EXISTS (SELECT FROM u) THEN purser_refuse('another request has continued, finished or cancelled the upload') END`,
		db.Args{"upload": u.ID, "attempt": u.Attempt, "key": key, "late": c.late(), "leftovers": leftovers, "namespace": r.namespace, "repository": r.id,
			"home_namespace": u.Home.Namespace, "home_repository": u.Home.Repository})
	b.Exec(`
		INSERT INTO gc_doomed_objects (storage_key, size)
		SELECT storage_key, size FROM blobs WHERE digest = $1 AND purser_accepted()
		ON CONFLICT DO NOTHING`, d.Bytes())
	b.Exec("UPDATE blobs SET storage_key = $2, size = $3, lost_at = NULL WHERE digest = $1 AND purser_accepted()",
		d.Bytes(), key, u.Size)
	b.linkBlob(r, d)
	return b.Send(ctx, c.db.Pool)
}

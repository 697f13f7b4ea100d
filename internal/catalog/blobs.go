package catalog

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// Mount links blob d, which must be in the repository `from`, to the repository `path` as
// well, and promises that the blob stays for the review delay. It returns false if `from`
// doesn't have the blob.
//
// Mount first locks the blob's row in gc_blob_review_queue, as every transaction does that
// inserts or removes a link of an existing blob. Then it locks the blob's row in the table
// blobs, and then it looks for the link of the repository `from`. So a concurrent deletion of
// the blob either waits for the mount, or was first, and then the mount finds no row in blobs.
// OFFSET 0 in its SQL makes PostgreSQL look rows up by an index: see "Plans" in package db.
func (c *Catalog) Mount(ctx context.Context, path, from string, d oci.Digest) (bool, error) {
	// Look up the blob before the transaction, so that a mount that must fail creates no
	// repository.
	known, err := c.Blob(ctx, from, d)
	if oci.IsClientError(err) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	if !c.promised(contentKey{digest: d}, c.cache.everywhere()) {
		if whole, err := c.VerifyBlob(ctx, from, known); err != nil || !whole {
			return false, err
		}
	}
	if err := c.quotas.AdmitBlob(ctx, path, uuid.Nil, d, known.Size); err != nil {
		return false, err
	}
	doing := fmt.Sprintf("mounting blob %s of %s in %s", d, from, path)
	err = c.write(ctx, write{path: path, doing: doing, create: true, run: func(ctx context.Context, r repository) error {
		b := new(batch)
		b.lockRepository(r, path)
		b.promiseBlob(d)
		b.guard(nil, `
			SELECT CASE WHEN count(*) <> 1 THEN purser_refuse('the repository lacks a blob') END
			FROM (SELECT FROM blobs WHERE digest = $1 AND lost_at IS NULL FOR KEY SHARE) locked`, d.Bytes())
		b.guard(nil, `
			SELECT CASE WHEN NOT EXISTS (
				SELECT FROM live_repositories r
				CROSS JOIN LATERAL (
					SELECT FROM repository_blobs
					WHERE top_level_namespace_id = r.top_level_namespace_id AND repository_id = r.id AND blob_digest = $2
					OFFSET 0) link
				WHERE r.path = $1)
				THEN purser_refuse('the repository lacks a blob') END`, from, d.Bytes())
		b.linkBlob(r, d)
		return b.Send(ctx, c.db.Pool)
	}})
	if errors.Is(err, blobsMissing) {
		return false, nil
	}
	return err == nil, err
}

// linkBlob adds a statement that links blob d to the repository. If the link exists already,
// the statement locks it and sets its created_at to the present. If another transaction is
// deleting the link, the statement waits until that transaction has ended, and then inserts
// the link anew.
func (b *batch) linkBlob(r repository, d oci.Digest) {
	b.Exec(`
		INSERT INTO repository_blobs (top_level_namespace_id, repository_id, blob_digest)
		SELECT $1, $2, $3 WHERE purser_accepted()
		ON CONFLICT (top_level_namespace_id, repository_id, blob_digest) DO UPDATE SET created_at = now()`,
		r.namespace, r.id, d.Bytes())
}

// promiseBlob adds a statement that promises that the blob stays for the review delay: it
// inserts a row into gc_blob_review_queue, or postpones the review of the existing row, and
// never makes it earlier. If a later guard refuses the batch, the promise does no harm: it
// only postpones a review.
func (b *batch) promiseBlob(d oci.Digest) {
	b.Exec(`
		INSERT INTO gc_blob_review_queue AS q (digest, review_after, event)
		SELECT $1, gc_review_after('blob_upload'), 'blob_upload' WHERE purser_accepted()
		ON CONFLICT (digest) DO UPDATE SET
			review_after = GREATEST(q.review_after, EXCLUDED.review_after), review_count = 0, set_aside_at = NULL`, d.Bytes())
}

// DeleteBlob unlinks a blob from the repository and queues the blob for review. Errors:
// NAME_UNKNOWN, BLOB_UNKNOWN, and DENIED with status 409 while a manifest of the repository
// uses the blob.
//
// DeleteBlob locks the blob's row in gc_blob_review_queue before the link, as garbage
// collection does, and locks the link before it looks for manifests that use the blob. So if a
// client puts a manifest that uses the blob at the same time, either the put has locked the
// link, and DeleteBlob waits for the end of the put, or the put finds that the link was
// deleted.
func (c *Catalog) DeleteBlob(ctx context.Context, path string, d oci.Digest) error {
	return c.write(ctx, write{
		path: path, doing: fmt.Sprintf("deleting blob %s of %s", d, path), drop: c.cache.dropAll,
		run: func(ctx context.Context, r repository) error {
			return c.txOrAnswer(ctx, func(tx pgx.Tx) error { return c.unlinkBlob(ctx, tx, r, path, d) })
		},
	})
}

func (c *Catalog) unlinkBlob(ctx context.Context, tx pgx.Tx, r repository, path string, d oci.Digest) error {
	// Lock the blob's row in gc_blob_review_queue, and insert it if there is none. No row is
	// inserted for a blob that the repository doesn't have, since a client may invent digests.
	// If a manifest of the repository uses the blob, the client's request is refused, but the
	// queue's row is committed; the review then finds the blob in use and deletes the row.
	var linked bool
	b := new(batch)
	b.lockRepository(r, path)
	b.Row([]any{&linked}, `
		WITH queued AS (
			INSERT INTO gc_blob_review_queue AS q (digest, review_after, event)
			SELECT blob_digest, gc_review_after('blob_delete'), 'blob_delete' FROM repository_blobs
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND blob_digest = $3 AND purser_accepted()
			ON CONFLICT (digest) DO UPDATE SET
				review_after = GREATEST(q.review_after, EXCLUDED.review_after), review_count = 0, set_aside_at = NULL
			RETURNING 1)
		SELECT EXISTS (SELECT FROM queued)`, r.namespace, r.id, d.Bytes())
	if err := b.Send(ctx, tx); err != nil {
		return err
	}
	if !linked {
		return blobUnknown(path, d)
	}
	var one int
	err := tx.QueryRow(ctx, `
		SELECT 1 FROM repository_blobs
		WHERE top_level_namespace_id = $1 AND repository_id = $2 AND blob_digest = $3
		FOR UPDATE`, r.namespace, r.id, d.Bytes()).Scan(&one)
	if isNoRows(err) {
		return blobUnknown(path, d)
	}
	if err != nil {
		return err
	}
	var user []byte
	err = tx.QueryRow(ctx, `
		SELECT m.digest FROM manifests m
		WHERE m.top_level_namespace_id = $1 AND m.repository_id = $2 AND m.configuration_blob_digest = $3
		UNION ALL
		SELECT m.digest FROM layers l
		JOIN manifests m ON m.top_level_namespace_id = l.top_level_namespace_id
			AND m.repository_id = l.repository_id AND m.id = l.manifest_id
		WHERE l.top_level_namespace_id = $1 AND l.repository_id = $2 AND l.digest = $3
		LIMIT 1`, r.namespace, r.id, d.Bytes()).Scan(&user)
	if err == nil {
		return blobInUse(path, d, user)
	}
	if !isNoRows(err) {
		return err
	}
	_, err = tx.Exec(ctx, `
		WITH gone AS (
			DELETE FROM repository_blobs
			WHERE top_level_namespace_id = @namespace AND repository_id = @repository AND blob_digest = @digest
			RETURNING repository_id, blob_digest
		), logged AS (
			INSERT INTO auditlog (kind, actor, address, user_agent, request_id, namespace, repository, repository_id, digest)
			SELECT 'delete_blob', @actor, @address, @user_agent, @request_id, split_part(@path::text, '/', 1), @path, repository_id, blob_digest
			FROM gone
		)
		SELECT FROM gone`, audit.Args(ctx, db.Args{"namespace": r.namespace, "repository": r.id, "digest": d.Bytes(), "path": path}))
	return err
}

func blobInUse(path string, d oci.Digest, user []byte) error {
	manifest, err := oci.DigestFromBytes(user)
	if err != nil {
		return err
	}
	return oci.Errorf(oci.Denied, "blob %s is used by manifest %s of %s: delete the manifest first", d, manifest, path).
		WithStatus(http.StatusConflict).WithDetail(map[string]string{"digest": d.String(), "manifest": manifest.String()})
}

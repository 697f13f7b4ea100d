package catalog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// An Import is a row of the table imports: the storage of another registry, whose files become
// objects of this registry. Package registryimport says how.
type Import struct {
	Source   string // what the keys of the storage's objects begin with
	Format   string
	Begun    time.Time
	Finished time.Time // zero: its objects are foreign, and nothing deletes them
}

// ErrImportFinished says that an import was finished, so that its objects belong to this registry.
var ErrImportFinished = errors.New("the import is finished")

const importFinished refusal = "the import is finished"

// BeginImport records that the objects whose keys begin with `source` are foreign, if it isn't
// recorded yet. Error: ErrImportFinished if they, or some of them, belong to this registry already.
func (c *Catalog) BeginImport(ctx context.Context, source, format string) error {
	return pgx.BeginTxFunc(ctx, c.db.Pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		// Two imports that begin at once see each other.
		if _, err := tx.Exec(ctx, "LOCK TABLE imports IN SHARE ROW EXCLUSIVE MODE"); err != nil {
			return fmt.Errorf("beginning the import of %s: %w", source, err)
		}
		if err := refuseFinished(ctx, tx, source); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "INSERT INTO imports (source, format) VALUES ($1, $2) ON CONFLICT DO NOTHING", source, format)
		if err != nil {
			return fmt.Errorf("beginning the import of %s: %w", source, err)
		}
		return nil
	})
}

// CanImport returns the error that BeginImport would return now, without writing anything.
func (c *Catalog) CanImport(ctx context.Context, source string) error {
	return refuseFinished(ctx, c.db.Pool, source)
}

func refuseFinished(ctx context.Context, q db.Querier, source string) error {
	var finished *string
	err := q.QueryRow(ctx, `
		SELECT min(source) FROM imports
		WHERE finished_at IS NOT NULL AND (starts_with(source, $1) OR starts_with($1, source))`, source).Scan(&finished)
	switch {
	case err != nil:
		return fmt.Errorf("looking for finished imports of %s: %w", source, err)
	case finished != nil:
		return fmt.Errorf("%w: the files below %q belong to this registry", ErrImportFinished, *finished)
	}
	return nil
}

// Imports returns all imports, the oldest first, and the number and bytes of the foreign objects
// that no blob names any more.
func (c *Catalog) Imports(ctx context.Context) (list []Import, waiting, bytes int64, err error) {
	rows, err := c.db.Pool.Query(ctx, "SELECT source, format, begun_at, COALESCE(finished_at, '0001-01-01 00:00:00Z') FROM imports ORDER BY begun_at, source")
	if err == nil {
		list, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Import])
	}
	if err == nil {
		err = c.db.Pool.QueryRow(ctx, "SELECT count(*), COALESCE(sum(size), 0)::bigint FROM gc_foreign_objects").Scan(&waiting, &bytes)
	}
	if err != nil {
		return nil, 0, 0, fmt.Errorf("reading the imports: %w", err)
	}
	for i, m := range list {
		if m.Finished.Year() == 1 {
			list[i].Finished = time.Time{}
		}
	}
	return list, waiting, bytes, nil
}

// FinishImports ends all imports: their objects are no longer foreign. Those that no blob names any
// more become pending deletions; it returns their number and bytes.
//
// The first statement waits for all transactions in which the trigger gc_keep_foreign_objects has
// written to gc_foreign_objects, since they lock the rows of imports. The second one, with a
// snapshot of its own, sees all that they have written.
func (c *Catalog) FinishImports(ctx context.Context) (objects, bytes int64, err error) {
	ctx = db.Unhurried(ctx)
	err = c.db.Tx(ctx, func(tx pgx.Tx) error {
		if err := db.LiftLimits(ctx, tx); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "UPDATE imports SET finished_at = now() WHERE finished_at IS NULL"); err != nil {
			return err
		}
		return tx.QueryRow(ctx, `
			WITH freed AS (
				DELETE FROM gc_foreign_objects f
				WHERE EXISTS (SELECT FROM imports WHERE starts_with(f.storage_key, source))
				RETURNING storage_key, size
			), doomed AS (
				INSERT INTO gc_doomed_objects (storage_key, size) SELECT storage_key, size FROM freed ORDER BY storage_key
				ON CONFLICT DO NOTHING
			)
			SELECT count(*), COALESCE(sum(size), 0)::bigint FROM freed`).Scan(&objects, &bytes)
	})
	if err != nil {
		return 0, 0, fmt.Errorf("finishing the imports: %w", err)
	}
	return objects, bytes, nil
}

// ForeignBlob is a blob whose object another registry has written.
type ForeignBlob struct {
	Digest oci.Digest
	Key    string // of the object; contains a "/"
	Size   int64  // of the object, in bytes
}

// AddForeignBlobs makes the objects in `list` blobs, in one transaction, and links them to the
// repository, which it creates if need be. If a blob exists already, only the link is made. But if
// the store has lost the object of the existing blob, the blob gets the foreign object. Each blob
// stays for the review delay. `source` is the import that was begun. The digests in `list` are
// distinct. Errors: ErrImportFinished; a client's error DENIED if a quota is exceeded.
//
// A foreign object may have been the object of a blob before, which garbage collection has deleted.
// Then the object's row in gc_foreign_objects goes in the transaction that inserts the blob, so that
// it always has one owner. The statement that deletes that row comes after those that insert and lock
// the blob. A review that deleted the old blob has committed by then, so the statement, which has a
// snapshot of its own, sees the row that the review wrote. No review deletes the new blob while it
// is locked, and then its row in gc_blob_review_queue postpones the review. The lock on the row of
// imports keeps the import from being finished meanwhile, so no sweeper deletes the object.
func (c *Catalog) AddForeignBlobs(ctx context.Context, path, source string, list []ForeignBlob) error {
	digests, keys, sizes := make([][]byte, len(list)), make([]string, len(list)), make([]int64, len(list))
	for i, b := range list {
		digests[i], keys[i], sizes[i] = b.Digest.Bytes(), b.Key, b.Size
	}
	const want = "unnest(@digests::bytea[], @keys::text[], @sizes::bigint[]) AS want (digest, key, size)"
	err := c.write(ctx, write{path: path, doing: "adding blobs to " + path, create: true, run: func(ctx context.Context, r repository) error {
		args := db.SharedArgs{"namespace": r.namespace, "repository": r.id, "source": source, "digests": digests, "keys": keys, "sizes": sizes}
		b := new(batch)
		b.lockRepository(r, path)
		b.guard(nil, `
			SELECT CASE WHEN count(*) <> 1 THEN purser_refuse('the import is finished') END
			FROM (SELECT FROM imports WHERE source = @source AND finished_at IS NULL FOR SHARE) begun`, args)
		b.Exec(`
			INSERT INTO gc_blob_review_queue AS q (digest, review_after, event)
			SELECT digest, gc_review_after('blob_upload'), 'blob_upload' FROM unnest(@digests::bytea[]) AS digest
			WHERE purser_accepted() ORDER BY digest
			ON CONFLICT (digest) DO UPDATE SET
				review_after = GREATEST(q.review_after, EXCLUDED.review_after), review_count = 0, set_aside_at = NULL`, args)
		b.Exec(`
			INSERT INTO blobs (digest, size, storage_key)
			SELECT digest, size, key FROM `+want+` WHERE purser_accepted() ORDER BY digest
			ON CONFLICT (digest) DO NOTHING`, args)
		b.Exec(`
			WITH lost AS MATERIALIZED (
				SELECT b.digest, b.storage_key, b.size FROM (SELECT * FROM `+want+` ORDER BY digest) want
				CROSS JOIN LATERAL (
					SELECT digest, storage_key, size FROM blobs
					WHERE digest = want.digest AND lost_at IS NOT NULL AND storage_key <> want.key AND purser_accepted()
					FOR NO KEY UPDATE) b
			), doomed AS (
				INSERT INTO gc_doomed_objects (storage_key, size) SELECT storage_key, size FROM lost ON CONFLICT DO NOTHING
			)
			UPDATE blobs b SET storage_key = want.key, size = want.size, lost_at = NULL
			FROM lost JOIN `+want+` ON want.digest = lost.digest
			WHERE b.digest = lost.digest`, args)
		b.guard(nil, `
			SELECT CASE WHEN count(*) <> cardinality(@digests::bytea[]) THEN purser_refuse('the blob was deleted meanwhile') END
			FROM (
				SELECT FROM (SELECT digest FROM unnest(@digests::bytea[]) AS digest WHERE purser_accepted() ORDER BY digest) want
				CROSS JOIN LATERAL (SELECT FROM blobs WHERE digest = want.digest FOR KEY SHARE) b) locked`, args)
		b.Exec(`
			DELETE FROM gc_foreign_objects WHERE purser_accepted() AND storage_key = ANY (ARRAY(
				SELECT b.storage_key FROM unnest(@digests::bytea[]) AS want (digest)
				CROSS JOIN LATERAL (SELECT storage_key FROM blobs WHERE digest = want.digest OFFSET 0) b
				WHERE b.storage_key = ANY (@keys::text[])))`, args)
		b.Exec(`
			INSERT INTO repository_blobs (top_level_namespace_id, repository_id, blob_digest)
			SELECT @namespace, @repository, digest FROM unnest(@digests::bytea[]) AS digest WHERE purser_accepted() ORDER BY digest
			ON CONFLICT (top_level_namespace_id, repository_id, blob_digest) DO UPDATE SET created_at = now()`, args)
		return b.Send(ctx, c.db.Pool)
	}})
	if errors.Is(err, importFinished) {
		return ErrImportFinished
	}
	return err
}

// LinkedBlobs returns those of the blobs that the repository has and whose objects aren't lost; none if
// there is no such repository.
func (c *Catalog) LinkedBlobs(ctx context.Context, path string, digests []oci.Digest) (map[oci.Digest]bool, error) {
	raw := make([][]byte, len(digests))
	for i, d := range digests {
		raw[i] = d.Bytes()
	}
	rows, err := c.db.Pool.Query(ctx, `
		SELECT want.digest FROM live_repositories r CROSS JOIN unnest($2::bytea[]) AS want (digest)
		CROSS JOIN LATERAL (
			SELECT FROM repository_blobs
			WHERE top_level_namespace_id = r.top_level_namespace_id AND repository_id = r.id AND blob_digest = want.digest OFFSET 0) linked
		CROSS JOIN LATERAL (SELECT FROM blobs WHERE digest = want.digest AND lost_at IS NULL OFFSET 0) b
		WHERE r.path = $1`, path, raw)
	if err != nil {
		return nil, fmt.Errorf("looking which blobs %s has: %w", path, err)
	}
	out := make(map[oci.Digest]bool)
	var digest []byte
	_, err = pgx.ForEachRow(rows, []any{&digest}, func() error {
		d, err := oci.DigestFromBytes(digest)
		out[d] = true
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("looking which blobs %s has: %w", path, err)
	}
	return out, nil
}

// Content is what a repository has.
type Content struct {
	Manifests map[oci.Digest]bool
	Tags      map[string]TaggedManifest
}

// TaggedManifest is the manifest to which a tag points.
type TaggedManifest struct {
	Digest oci.Digest
	Pushed time.Time // when the tag was pushed last
}

// Content returns the manifests and tags of a repository; none if there is no such repository.
func (c *Catalog) Content(ctx context.Context, path string) (Content, error) {
	out := Content{Manifests: make(map[oci.Digest]bool), Tags: make(map[string]TaggedManifest)}
	rows, err := c.db.Pool.Query(ctx, `
		SELECT m.digest, t.name, COALESCE(t.updated_at, t.created_at) FROM live_repositories r
		JOIN manifests m ON m.top_level_namespace_id = r.top_level_namespace_id AND m.repository_id = r.id
		LEFT JOIN tags t ON t.top_level_namespace_id = r.top_level_namespace_id AND t.repository_id = r.id AND t.manifest_id = m.id
		WHERE r.path = $1`, path)
	if err != nil {
		return out, fmt.Errorf("reading what %s has: %w", path, err)
	}
	var raw []byte
	var tag *string
	var pushed *time.Time
	_, err = pgx.ForEachRow(rows, []any{&raw, &tag, &pushed}, func() error {
		d, err := oci.DigestFromBytes(raw)
		if err != nil {
			return err
		}
		out.Manifests[d] = true
		if tag != nil {
			out.Tags[*tag] = TaggedManifest{d, *pushed}
		}
		return nil
	})
	if err != nil {
		return out, fmt.Errorf("reading what %s has: %w", path, err)
	}
	return out, nil
}

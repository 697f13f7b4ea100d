package catalog

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// NewManifest is a manifest to be stored.
type NewManifest struct {
	Repository string // a valid name; created if need be
	Digest     oci.Digest
	Manifest   *oci.Manifest // Payload, parsed
	Payload    []byte        // stored as it is
	Tags       []string      // valid tags that are to point to it; may be empty
}

// PutManifest stores a manifest with its references and tags, in one
// transaction and, when the manifest is new, one round trip. Every blob it
// names must be linked to the repository and every child of an index be in it,
// else MANIFEST_BLOB_UNKNOWN names what is missing; a subject need not exist. A
// manifest that is already there keeps its row and gets the tags or, without any,
// is promised for the review delay.
//
// Rows are locked in one order: repository, blobs, links, children; the queue
// last. A guard in each statement ends the batch when something is missing.
func (c *Catalog) PutManifest(ctx context.Context, p NewManifest) error {
	rows, err := manifestRows(p)
	if err != nil {
		return err
	}
	return c.change(ctx, p.Repository, c.cache.dropTags, func(ctx context.Context) error {
		return c.putManifest(ctx, p, rows)
	})
}

func (c *Catalog) putManifest(ctx context.Context, p NewManifest, rows manifestColumns) (err error) {
	// A manifest that can't be put doesn't make a repository.
	mayCreate := func() error { return nil }
	if len(rows.blobs)+len(rows.children) > 0 {
		mayCreate = func() error { return c.missing(ctx, p, rows) }
	}
	for range 5 {
		err = c.withRepository(ctx, p.Repository, mayCreate, func(r repository) error {
			return c.put(ctx, r, p, rows)
		})
		switch db.Code(err) {
		case stateManifestGone: // deleted between the two halves of put
			continue
		case stateBlobsMissing, stateChildMissing:
			if missing := c.missing(ctx, p, rows); missing != nil {
				return missing
			}
			continue // it has come meanwhile
		}
		if err != nil && !isAnswer(err) {
			return fmt.Errorf("storing manifest %s of %s: %w", p.Digest, p.Repository, err)
		}
		return err
	}
	return fmt.Errorf("storing manifest %s of %s: %w", p.Digest, p.Repository, err)
}

// manifestColumns is a NewManifest in the shape of its rows. Digests are
// distinct and ordered, so that every transaction locks in the same order.
type manifestColumns struct {
	digest, subject, config []byte
	artifactType            *string
	annotations             []byte
	totalSize               int64
	blobs                   [][]byte // configuration and layers
	layers                  [][]byte
	layerSizes              []int64
	layerTypes              []string
	children                [][]byte
	tags                    []string
}

func manifestRows(p NewManifest) (manifestColumns, error) {
	m := p.Manifest
	rows := manifestColumns{digest: p.Digest.Bytes(), totalSize: int64(len(p.Payload))}
	if m.ArtifactType != "" {
		rows.artifactType = &m.ArtifactType
	}
	if m.Subject != nil {
		rows.subject = m.Subject.Digest.Bytes()
		if len(m.Annotations) > 0 {
			b, err := json.Marshal(m.Annotations)
			if err != nil {
				return rows, fmt.Errorf("writing annotations: %w", err)
			}
			rows.annotations = b
		}
	}
	if m.Config != nil {
		rows.config = m.Config.Digest.Bytes()
		rows.totalSize += m.Config.Size
		rows.blobs = append(rows.blobs, rows.config)
	}
	// A foreign layer is elsewhere, unless the manifest also lists it as its own.
	own := slices.DeleteFunc(slices.Clone(m.Layers), oci.Descriptor.Foreign)
	for _, l := range distinct(own) {
		rows.blobs = append(rows.blobs, l.Digest.Bytes())
		rows.layers = append(rows.layers, l.Digest.Bytes())
		rows.layerSizes = append(rows.layerSizes, l.Size)
		rows.layerTypes = append(rows.layerTypes, l.MediaType)
		rows.totalSize += l.Size
	}
	rows.blobs = sortedSet(rows.blobs)
	for _, d := range distinct(m.Manifests) {
		rows.children = append(rows.children, d.Digest.Bytes())
		rows.totalSize += d.Size
	}
	rows.tags = slices.Clone(p.Tags)
	slices.Sort(rows.tags)
	rows.tags = slices.Compact(rows.tags)
	return rows, nil
}

// distinct orders descriptors by digest and drops repeated ones.
func distinct(list []oci.Descriptor) []oci.Descriptor {
	out := slices.Clone(list)
	slices.SortFunc(out, func(a, b oci.Descriptor) int { return strings.Compare(a.Digest.String(), b.Digest.String()) })
	return slices.CompactFunc(out, func(a, b oci.Descriptor) bool { return a.Digest == b.Digest })
}

func sortedSet(list [][]byte) [][]byte {
	slices.SortFunc(list, slices.Compare)
	return slices.CompactFunc(list, slices.Equal)
}

// put stores a new manifest or, when it is there already, tags it.
func (c *Catalog) put(ctx context.Context, r repository, p NewManifest, rows manifestColumns) error {
	var inserted bool
	b := new(batch)
	b.exec(lockRepository, r.namespace, r.id, p.Repository)
	b.lockContent(r, rows)
	b.lockQueue(r, rows)
	b.row([]any{&inserted}, insertManifest, r.namespace, r.id, rows.digest, p.Manifest.MediaType, rows.artifactType,
		rows.subject, rows.config, rows.annotations, p.Payload, rows.totalSize,
		rows.layers, rows.layerSizes, rows.layerTypes, rows.children, rows.tags)
	if err := b.send(ctx, c.db.Pool); err != nil || inserted {
		return err
	}
	return c.putAgain(ctx, r, p, rows)
}

// lockContent locks what the manifest refers to, and fails unless all of it is
// there and not lost: blobs first, then their links to the repository, then
// children and the subject.
func (b *batch) lockContent(r repository, rows manifestColumns) {
	if len(rows.blobs) > 0 {
		b.exec(`SELECT purser_require(count(*) = $2, '`+stateBlobsMissing+`') FROM (
				SELECT FROM (SELECT digest FROM unnest($1::bytea[]) AS digest ORDER BY digest) want
				CROSS JOIN LATERAL (SELECT FROM blobs WHERE digest = want.digest AND lost_at IS NULL FOR KEY SHARE) b) locked`,
			rows.blobs, len(rows.blobs))
		b.exec(`SELECT purser_require(count(*) = $4, '`+stateBlobsMissing+`') FROM (
				SELECT FROM (SELECT digest FROM unnest($3::bytea[]) AS digest ORDER BY digest) want
				CROSS JOIN LATERAL (
					SELECT FROM repository_blobs
					WHERE top_level_namespace_id = $1 AND repository_id = $2 AND blob_digest = want.digest
					FOR KEY SHARE) l) locked`,
			r.namespace, r.id, rows.blobs, len(rows.blobs))
	}
	if len(rows.children) > 0 {
		b.exec(`SELECT purser_require(count(*) = $4, '`+stateChildMissing+`') FROM (
				SELECT FROM (SELECT digest FROM unnest($3::bytea[]) AS digest ORDER BY digest) want
				CROSS JOIN LATERAL (
					SELECT FROM manifests
					WHERE top_level_namespace_id = $1 AND repository_id = $2 AND digest = want.digest
					FOR KEY SHARE) m) locked`,
			r.namespace, r.id, rows.children, len(rows.children))
	}
	// A subject need not be there. One that is being deleted is waited for: its
	// deletion can't see this manifest, so it must be over when this one is reviewed.
	if rows.subject != nil {
		b.exec(`SELECT FROM manifests
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND digest = $3
			FOR KEY SHARE`, r.namespace, r.id, rows.subject)
	}
}

// lockQueue locks the tags that are to move, then, in one order, the review rows
// that this put will write: those of manifests that lose a tag, and those of
// referrers that wait for this manifest as their subject. The latter are put
// off before the subject appears, since a reviewer who can't see it yet would
// delete them.
func (b *batch) lockQueue(r repository, rows manifestColumns) {
	if len(rows.tags) > 0 {
		b.exec(`SELECT FROM (SELECT name FROM unnest($3::text[]) AS name ORDER BY name COLLATE "C") want
			CROSS JOIN LATERAL (
				SELECT FROM tags
				WHERE top_level_namespace_id = $1 AND repository_id = $2 AND name = want.name
				FOR UPDATE) t`, r.namespace, r.id, rows.tags)
	}
	b.exec(`
		WITH concerned AS (
			SELECT id, true AS waits FROM manifests
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND subject_digest = $3
			UNION
			SELECT t.manifest_id, false FROM unnest($4::text[]) AS want (name)
			CROSS JOIN LATERAL (
				SELECT manifest_id FROM tags
				WHERE top_level_namespace_id = $1 AND repository_id = $2 AND name = want.name) t
		), locked AS (
			SELECT c.id, c.waits FROM (SELECT id, bool_or(waits) AS waits FROM concerned GROUP BY id ORDER BY id) c
			CROSS JOIN LATERAL (
				SELECT FROM gc_manifest_review_queue
				WHERE top_level_namespace_id = $1 AND repository_id = $2 AND manifest_id = c.id
				FOR UPDATE) q
		)
		UPDATE gc_manifest_review_queue q
		SET review_after = GREATEST(q.review_after, gc_review_after('manifest_upload'))
		FROM locked
		WHERE q.top_level_namespace_id = $1 AND q.repository_id = $2 AND q.manifest_id = locked.id
			AND locked.waits`, r.namespace, r.id, rows.digest, rows.tags)
}

// insertManifest inserts the manifest, what it refers to and its tags in one
// statement, so that the trigger that would queue an untagged manifest for
// review sees the tags. When the manifest exists it does nothing.
const insertManifest = `
	WITH m AS (
		INSERT INTO manifests (top_level_namespace_id, repository_id, digest, media_type, artifact_type,
			subject_digest, configuration_blob_digest, annotations, payload, total_size)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
		ON CONFLICT (top_level_namespace_id, repository_id, digest) DO NOTHING
		RETURNING id
	), l AS (
		INSERT INTO layers (top_level_namespace_id, repository_id, manifest_id, digest, size, media_type)
		SELECT $1, $2, m.id, d.digest, d.size, d.media_type
		FROM m, unnest($11::bytea[], $12::bigint[], $13::text[]) AS d (digest, size, media_type)
	), r AS (
		INSERT INTO manifest_references (top_level_namespace_id, repository_id, parent_id, child_id)
		SELECT $1, $2, m.id, c.id
		FROM m, unnest($14::bytea[]) AS child (digest)
		CROSS JOIN LATERAL (
			SELECT id FROM manifests
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND digest = child.digest) c
	), t AS (
		INSERT INTO tags (top_level_namespace_id, repository_id, name, manifest_id)
		SELECT $1, $2, name, m.id FROM m, unnest($15::text[]) AS name
		ON CONFLICT (top_level_namespace_id, repository_id, name) DO UPDATE
		SET manifest_id = EXCLUDED.manifest_id, updated_at = now()
	)
	SELECT EXISTS (SELECT FROM m)`

// putAgain tags a manifest that exists or, where no tag is given that holds it,
// promises it anew.
func (c *Catalog) putAgain(ctx context.Context, r repository, p NewManifest, rows manifestColumns) error {
	b := new(batch)
	b.exec(lockRepository, r.namespace, r.id, p.Repository)
	b.exec(`SELECT purser_require(count(*) = 1, '`+stateManifestGone+`') FROM (
			SELECT FROM manifests
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND digest = $3
			FOR KEY SHARE) locked`, r.namespace, r.id, rows.digest)
	if len(rows.tags) == 0 {
		b.exec(`
			INSERT INTO gc_manifest_review_queue AS q (top_level_namespace_id, repository_id, manifest_id, review_after, event)
			SELECT top_level_namespace_id, repository_id, id, gc_review_after('manifest_upload'), 'manifest_upload'
			FROM manifests
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND digest = $3
			ON CONFLICT (top_level_namespace_id, repository_id, manifest_id) DO UPDATE SET
				review_after = GREATEST(q.review_after, EXCLUDED.review_after), review_count = 0, set_aside_at = NULL`,
			r.namespace, r.id, rows.digest)
		return b.send(ctx, c.db.Pool)
	}
	b.lockQueue(r, rows)
	b.exec(`
		INSERT INTO tags AS t (top_level_namespace_id, repository_id, name, manifest_id)
		SELECT m.top_level_namespace_id, m.repository_id, name, m.id
		FROM manifests m, unnest($4::text[]) AS name
		WHERE m.top_level_namespace_id = $1 AND m.repository_id = $2 AND m.digest = $3
		ORDER BY name COLLATE "C"
		ON CONFLICT (top_level_namespace_id, repository_id, name) DO UPDATE
		SET manifest_id = EXCLUDED.manifest_id, updated_at = now()
		WHERE t.manifest_id <> EXCLUDED.manifest_id`, r.namespace, r.id, rows.digest, rows.tags)
	return b.send(ctx, c.db.Pool)
}

// missing says what a manifest names that the repository doesn't have, nil if
// all of it is there now.
func (c *Catalog) missing(ctx context.Context, p NewManifest, rows manifestColumns) error {
	absent, err := c.db.Pool.Query(ctx, `
		SELECT want.digest FROM unnest($2::bytea[]) AS want (digest)
		WHERE NOT EXISTS (
			SELECT FROM live_repositories r CROSS JOIN LATERAL (
				SELECT FROM repository_blobs rb
				WHERE rb.top_level_namespace_id = r.top_level_namespace_id
					AND rb.repository_id = r.id AND rb.blob_digest = want.digest
				OFFSET 0) link
			WHERE r.path = $1 AND EXISTS (SELECT FROM blobs b WHERE b.digest = want.digest AND b.lost_at IS NULL))
		UNION ALL
		SELECT want.digest FROM unnest($3::bytea[]) AS want (digest)
		WHERE NOT EXISTS (
			SELECT FROM live_repositories r JOIN manifests m ON m.top_level_namespace_id = r.top_level_namespace_id
				AND m.repository_id = r.id
			WHERE r.path = $1 AND m.digest = want.digest)`, p.Repository, rows.blobs, rows.children)
	if err != nil {
		return fmt.Errorf("looking for what manifest %s refers to: %w", p.Digest, err)
	}
	list, err := pgx.CollectRows(absent, pgx.RowTo[[]byte])
	if err != nil || len(list) == 0 {
		return err
	}
	names := make([]string, 0, len(list))
	for _, raw := range list {
		d, err := oci.DigestFromBytes(raw)
		if err != nil {
			return err
		}
		names = append(names, d.String())
	}
	return oci.Errorf(oci.ManifestBlobUnknown, "the manifest refers to %s, which repository %s doesn't have: push or mount it first",
		strings.Join(names, ", "), p.Repository).WithDetail(map[string]any{"name": p.Repository, "digests": names})
}

// DeleteTag removes a tag; its manifest goes to review. Errors: NAME_UNKNOWN,
// MANIFEST_UNKNOWN.
func (c *Catalog) DeleteTag(ctx context.Context, path, tag string) error {
	c.cache.dropAll(path) // the repository may be another one by now
	r, err := c.lookUp(ctx, path)
	if err != nil {
		return err
	}
	var n int64
	err = c.change(ctx, path, c.cache.dropTags, func(ctx context.Context) error {
		return db.Retry(ctx, func() error {
			done, err := c.db.Pool.Exec(ctx,
				"DELETE FROM tags WHERE top_level_namespace_id = $1 AND repository_id = $2 AND name = $3",
				r.namespace, r.id, tag)
			n = done.RowsAffected()
			return err
		})
	})
	switch {
	case err != nil:
		return fmt.Errorf("deleting tag %s of %s: %w", tag, path, err)
	case n == 0:
		return manifestUnknown(path, tag)
	}
	return nil
}

// DeleteManifest removes a manifest and the tags that point to it. One that an
// index holds stays: the error, DENIED with status 409, names the index. Other
// errors: NAME_UNKNOWN, MANIFEST_UNKNOWN.
func (c *Catalog) DeleteManifest(ctx context.Context, path string, d oci.Digest) error {
	c.cache.dropAll(path) // the repository may be another one by now
	r, err := c.lookUp(ctx, path)
	if err != nil {
		return err
	}
	err = c.change(ctx, path, c.cache.dropAll, func(ctx context.Context) error {
		return c.db.Tx(ctx, func(tx pgx.Tx) error { return c.deleteManifest(ctx, tx, r, path, d) })
	})
	if err != nil && !isAnswer(err) {
		return fmt.Errorf("deleting manifest %s of %s: %w", d, path, err)
	}
	return err
}

// deleteManifest locks the manifest, so that no new tag or index can hold it,
// and looks for those that do in statements of their own.
func (c *Catalog) deleteManifest(ctx context.Context, tx pgx.Tx, r repository, path string, d oci.Digest) error {
	var id int64
	err := tx.QueryRow(ctx, `
		SELECT id FROM manifests WHERE top_level_namespace_id = $1 AND repository_id = $2 AND digest = $3
		FOR UPDATE`, r.namespace, r.id, d.Bytes()).Scan(&id)
	if isNoRows(err) {
		return manifestUnknown(path, d.String())
	}
	if err != nil {
		return err
	}
	var parent []byte
	err = tx.QueryRow(ctx, `
		SELECT m.digest FROM manifest_references x
		JOIN manifests m ON m.top_level_namespace_id = x.top_level_namespace_id
			AND m.repository_id = x.repository_id AND m.id = x.parent_id
		WHERE x.top_level_namespace_id = $1 AND x.repository_id = $2 AND x.child_id = $3
		ORDER BY m.id LIMIT 1`, r.namespace, r.id, id).Scan(&parent)
	if err == nil {
		index, err := oci.DigestFromBytes(parent)
		if err != nil {
			return err
		}
		return oci.Errorf(oci.Denied, "manifest %s is part of index %s: delete the index first", d, index).
			WithStatus(409).WithDetail(map[string]string{"digest": d.String(), "index": index.String()})
	}
	if !isNoRows(err) {
		return err
	}
	// Tags are locked in the order of their names, as a put does, and the review
	// rows of blobs in the order of digests: the triggers that follow write those
	// of configurations before those of layers.
	for _, sql := range []string{
		`SELECT FROM tags WHERE top_level_namespace_id = $1 AND repository_id = $2 AND manifest_id = $3
			ORDER BY name FOR UPDATE`,
		"DELETE FROM tags WHERE top_level_namespace_id = $1 AND repository_id = $2 AND manifest_id = $3",
		`INSERT INTO gc_blob_review_queue AS q (digest, review_after, event)
			SELECT d.digest, gc_review_after('layer_delete'), 'layer_delete'
			FROM (
				SELECT digest FROM layers
				WHERE top_level_namespace_id = $1 AND repository_id = $2 AND manifest_id = $3
				UNION
				SELECT configuration_blob_digest FROM manifests
				WHERE top_level_namespace_id = $1 AND repository_id = $2 AND id = $3
					AND configuration_blob_digest IS NOT NULL) d
			ORDER BY d.digest` + greatestReview,
	} {
		if _, err := tx.Exec(ctx, sql, r.namespace, r.id, id); err != nil {
			return err
		}
	}
	_, err = tx.Exec(ctx, "DELETE FROM manifests WHERE top_level_namespace_id = $1 AND repository_id = $2 AND id = $3",
		r.namespace, r.id, id)
	return err
}

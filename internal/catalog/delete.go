package catalog

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// TagOption changes what DeleteTag does.
type TagOption int

// OverrideProtection deletes a tag though it is protected: for who may.
const OverrideProtection TagOption = 1

// DeleteTag removes a tag; its manifest goes to review. Errors: NAME_UNKNOWN,
// MANIFEST_UNKNOWN; DENIED, with status 409, for a protected tag.
func (c *Catalog) DeleteTag(ctx context.Context, path, tag string, options ...TagOption) error {
	return c.DeleteTagIf(ctx, path, tag, Condition{}, options...)
}

// DeleteTagIf is DeleteTag on a condition, which is about this tag. Where it doesn't
// hold the error is DENIED with status 412.
func (c *Catalog) DeleteTagIf(ctx context.Context, path, tag string, condition Condition, options ...TagOption) error {
	c.cache.dropAll(path) // the repository may be another one by now
	r, err := c.lookUp(ctx, path)
	if err != nil {
		return err
	}
	override := slices.Contains(options, OverrideProtection)
	var n int64
	err = c.change(ctx, path, c.cache.dropTags, func(ctx context.Context) error {
		return c.deletingTags(ctx, func(rules *protection) error {
			rule := rules.of(r, tag)
			n, err = c.deleteTag(ctx, r, path, tag, condition, rules.version, rule != nil, override)
			switch {
			case errors.Is(err, tagProtected):
				return rule.refusal(path, tag, "deleted", "delete it by the management API with the right to override rules")
			case errors.Is(err, conditionFails):
				return c.conditionFailed(ctx, path, condition, oci.Digest{})
			}
			return err
		})
	})
	switch {
	case errors.Is(err, repositoryGone):
		return nameUnknown(path)
	case err != nil && !isAnswer(err):
		return fmt.Errorf("deleting tag %s of %s: %w", tag, path, err)
	case err == nil && n == 0:
		return manifestUnknown(path, tag)
	}
	return err
}

// deleteTag locks the tag before it is deleted by a statement that sees it as it
// was locked.
func (c *Catalog) deleteTag(ctx context.Context, r repository, path, tag string, condition Condition, version string, protected, override bool) (n int64, err error) {
	err = db.Retry(ctx, func() error {
		b := new(batch)
		b.guard(nil, lockRepository, r.namespace, r.id, path)
		b.exec("SELECT FROM tags WHERE top_level_namespace_id = $1 AND repository_id = $2 AND name = $3 AND purser_accepted() FOR UPDATE",
			r.namespace, r.id, tag)
		b.guard([]any{&n}, `
			WITH found AS MATERIALIZED (
				SELECT t.name, m.digest FROM (
					SELECT name, manifest_id FROM tags
					WHERE top_level_namespace_id = $5 AND repository_id = $6 AND name = $7 OFFSET 0) t
				CROSS JOIN LATERAL (
					SELECT digest FROM manifests
					WHERE top_level_namespace_id = $5 AND repository_id = $6 AND id = t.manifest_id OFFSET 0) m
			), asked AS MATERIALIZED (
				SELECT CASE
					WHEN `+otherRules("$10")+` THEN purser_refuse('`+string(rulesChanged)+`')
					WHEN NOT $11::boolean AND EXISTS (SELECT FROM found) THEN purser_refuse('`+string(tagProtected)+`')
					WHEN EXISTS (SELECT FROM found WHERE NOT purser_condition_holds(digest, $12::bytea[], $13::bytea[]))
						THEN purser_refuse('`+string(conditionFails)+`') END AS refusal
				WHERE purser_accepted()
			), gone AS (
				DELETE FROM tags WHERE top_level_namespace_id = $5 AND repository_id = $6 AND name = $7
					AND EXISTS (SELECT FROM asked WHERE refusal IS NULL)
				RETURNING name
			), previous AS (
				SELECT found.name, found.digest FROM found JOIN gone ON gone.name = found.name
			), logged AS (`+c.entries(`
				SELECT 'delete_tag' AS kind, split_part($8::text, '/', 1) AS namespace, $8::text AS repository,
					$6::bigint AS repository_id, previous.name AS tag, previous.digest,
					CASE WHEN $9::boolean THEN '{"protection": "overridden"}'::jsonb END AS detail
				FROM previous`)+`)
			SELECT (SELECT count(*) FROM gone), (SELECT refusal FROM asked)`,
			c.who(ctx, r.namespace, r.id, tag, path, protected && override, version, !protected || override,
				condition.IfMatch.arg(), condition.IfNoMatch.arg())...)
		return b.send(ctx, c.db.Pool)
	})
	return n, err
}

// DeleteManifest removes a manifest and the tags that point to it. One that an
// index holds stays: the error, DENIED with status 409, names the index. So does
// one that has a protected tag. Other errors: NAME_UNKNOWN, MANIFEST_UNKNOWN.
func (c *Catalog) DeleteManifest(ctx context.Context, path string, d oci.Digest) error {
	c.cache.dropAll(path) // the repository may be another one by now
	r, err := c.lookUp(ctx, path)
	if err != nil {
		return err
	}
	err = c.change(ctx, path, c.cache.dropAll, func(ctx context.Context) error {
		return c.deletingTags(ctx, func(rules *protection) error {
			return c.txOrAnswer(ctx, func(tx pgx.Tx) error { return c.deleteManifest(ctx, tx, r, path, d, rules) })
		})
	})
	switch {
	case errors.Is(err, repositoryGone):
		return nameUnknown(path)
	case err != nil && !isAnswer(err):
		return fmt.Errorf("deleting manifest %s of %s: %w", d, path, err)
	}
	return err
}

// deleteManifest locks the manifest, so that no new tag or index can hold it, looks for
// those that do, and deletes it: two round trips between the transaction's ends, since
// others may wait for its locks.
func (c *Catalog) deleteManifest(ctx context.Context, tx pgx.Tx, r repository, path string, d oci.Digest, rules *protection) error {
	m, err := lockForDeletion(ctx, tx, r, path, d, rules.version)
	switch {
	case err != nil:
		return err
	case m.id == 0:
		return manifestUnknown(path, d.String())
	case m.index != nil:
		return heldByIndex(d, m.index)
	case m.otherRules:
		return rulesChanged
	}
	for _, tag := range m.tags {
		if rule := rules.of(r, tag); rule != nil {
			return rule.refusal(path, tag, "deleted with its manifest", "delete the tag first, by the management API with the right to override rules")
		}
	}
	b := new(batch)
	b.exec("DELETE FROM tags WHERE top_level_namespace_id = $1 AND repository_id = $2 AND manifest_id = $3", r.namespace, r.id, m.id)
	// The review rows of blobs are locked in the order of digests: the triggers that
	// follow write those of configurations before those of layers.
	b.exec(`INSERT INTO gc_blob_review_queue AS q (digest, review_after, event)
		SELECT d.digest, gc_review_after('layer_delete'), 'layer_delete'
		FROM (
			SELECT digest FROM layers
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND manifest_id = $3
			UNION
			SELECT configuration_blob_digest FROM manifests
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND id = $3
				AND configuration_blob_digest IS NOT NULL) d
		ORDER BY d.digest`+greatestReview, r.namespace, r.id, m.id)
	b.exec(`
		WITH gone AS (
			DELETE FROM manifests WHERE top_level_namespace_id = $5 AND repository_id = $6 AND id = $7
			RETURNING digest
		), logged AS (`+c.entries(`
			SELECT k.kind, split_part($8::text, '/', 1) AS namespace, $8::text AS repository, $6::bigint AS repository_id,
				k.tag, gone.digest, NULL::jsonb AS detail
			FROM gone CROSS JOIN (
				SELECT 'delete_manifest' AS kind, NULL AS tag
				UNION ALL
				SELECT 'delete_tag', name FROM unnest($9::text[]) AS name) k`)+`)
		SELECT FROM gone`, c.who(ctx, r.namespace, r.id, m.id, path, m.tags)...)
	return b.send(ctx, tx)
}

// lockedManifest is a manifest that is to be deleted, with all that holds it.
type lockedManifest struct {
	id         int64  // 0: there is none
	index      []byte // digest of an index that holds it; nil: none does
	tags       []string
	otherRules bool // tags are protected by other rules than those of the version
}

// lockForDeletion locks a manifest, then its tags in the order of their names, as a put
// does. Each look is a statement of its own, behind the lock.
func lockForDeletion(ctx context.Context, tx pgx.Tx, r repository, path string, d oci.Digest, version string) (m lockedManifest, err error) {
	b := new(batch)
	b.guard(nil, lockRepository, r.namespace, r.id, path)
	b.row([]any{&m.id}, `
		SELECT COALESCE((
			SELECT id FROM manifests WHERE top_level_namespace_id = $1 AND repository_id = $2 AND digest = $3
			FOR UPDATE), 0)`, r.namespace, r.id, d.Bytes())
	b.row([]any{&m.index}, `
		SELECT (
			SELECT m.digest FROM manifest_references x
			JOIN manifests m ON m.top_level_namespace_id = x.top_level_namespace_id
				AND m.repository_id = x.repository_id AND m.id = x.parent_id
			WHERE x.top_level_namespace_id = $1 AND x.repository_id = $2 AND x.child_id = (
				SELECT id FROM manifests WHERE top_level_namespace_id = $1 AND repository_id = $2 AND digest = $3)
			ORDER BY m.id LIMIT 1)`, r.namespace, r.id, d.Bytes())
	b.row([]any{&m.tags, &m.otherRules}, `
		SELECT COALESCE(array_agg(name), '{}'), `+otherRules("$4")+` FROM (
			SELECT name FROM tags WHERE top_level_namespace_id = $1 AND repository_id = $2 AND manifest_id = (
				SELECT id FROM manifests WHERE top_level_namespace_id = $1 AND repository_id = $2 AND digest = $3)
			ORDER BY name FOR UPDATE) t`, r.namespace, r.id, d.Bytes(), version)
	return m, b.send(ctx, tx)
}

// heldByIndex is the refusal to delete a manifest that an index holds.
func heldByIndex(d oci.Digest, parent []byte) error {
	index, err := oci.DigestFromBytes(parent)
	if err != nil {
		return err
	}
	return oci.Errorf(oci.Denied, "manifest %s is part of index %s: delete the index first", d, index).
		WithStatus(http.StatusConflict).WithDetail(map[string]string{"digest": d.String(), "index": index.String()})
}

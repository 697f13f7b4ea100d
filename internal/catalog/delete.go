package catalog

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/protection"
)

// TagOption changes what DeleteTag, DeleteManifest, PointTag or RestoreTag does.
type TagOption int

const (
	// OverrideProtection makes DeleteTag delete a tag even if a rule protects it. The caller
	// has checked that the client may override rules.
	OverrideProtection TagOption = 1
	// OverrideHolds makes DeleteTag and DeleteManifest delete what a reporter holds (see package
	// hold).
	OverrideHolds TagOption = 3
	// OnlyUntagged makes DeleteManifest refuse a manifest to which a tag points.
	OnlyUntagged TagOption = 4
	// KeepTag makes PointTag and RestoreTag refuse to move a tag to another manifest.
	KeepTag TagOption = 2
)

// DeleteTag deletes a tag; a trigger queues the manifest to which the tag pointed for review.
// Errors: NAME_UNKNOWN, MANIFEST_UNKNOWN; DENIED with status 409 for a protected tag, and for a
// tag of a held manifest.
func (c *Catalog) DeleteTag(ctx context.Context, path, tag string, options ...TagOption) error {
	return c.DeleteTagIf(ctx, path, tag, Condition{}, options...)
}

// DeleteTagIf is like DeleteTag, but only deletes the tag if the condition on the tag holds.
// Otherwise the error is DENIED with status 412.
func (c *Catalog) DeleteTagIf(ctx context.Context, path, tag string, condition Condition, options ...TagOption) error {
	return c.DeleteTagOf(ctx, uuid.Nil, path, tag, condition, options...)
}

// DeleteTagOf is like DeleteTagIf for one of the tags of a deletion. The tag's entry in the audit log
// has the id `deletion`, by which UndoDeletion restores all tags that were deleted with this id in the
// repository. The zero id stands for no deletion.
func (c *Catalog) DeleteTagOf(ctx context.Context, deletion uuid.UUID, path, tag string, condition Condition, options ...TagOption) error {
	d := tagDeletion{
		path: path, tag: tag, condition: condition, deletion: deletion,
		override: slices.Contains(options, OverrideProtection), overrideHolds: slices.Contains(options, OverrideHolds),
	}
	var n int64
	var rule *protection.Rule
	err := c.write(ctx, write{
		path: path, doing: fmt.Sprintf("deleting tag %s of %s", tag, path), drop: c.cache.dropTags,
		run: func(ctx context.Context, r repository) (err error) {
			rules := c.rules()
			rule = rules.Of(r.namespace, r.id, tag)
			n, err = c.deleteTag(ctx, r, d, rules.Version, rule != nil)
			return err
		},
		answer: func(ctx context.Context, r repository, why refusal) error {
			switch why {
			case manifestHeld:
				return c.tagHeld(ctx, r, path, tag)
			case tagProtected:
				const wayOut = "delete it by the management API with override_protection"
				if rule == nil {
					return immutableRefusal(path, tag, "deleted", wayOut)
				}
				return rule.Refusal(path, tag, "deleted", wayOut)
			case conditionFails:
				return c.conditionFailed(ctx, path, condition, oci.Digest{})
			default:
				return why
			}
		},
	})
	if err == nil && n == 0 {
		return ManifestUnknown(path, tag)
	}
	return err
}

// tagDeletion is what a client wants to delete, and under which conditions.
type tagDeletion struct {
	path, tag               string
	condition               Condition
	override, overrideHolds bool
	deletion                uuid.UUID // to which it belongs; zero: none
}

// deleteTag locks the tag's row by one statement. The next statement deletes the locked row
// unless a protection rule, the request's condition or a hold forbids this; then it refuses the
// batch. deleteTag returns the number of deleted tags, 0 or 1. The audit entry of a tag that
// belongs to a deletion has the times that UndoDeletion needs. OFFSET 0 in deleteTag's SQL makes
// PostgreSQL look rows up by an index: see "Plans" in package db.
func (c *Catalog) deleteTag(ctx context.Context, r repository, d tagDeletion, version string, protected bool) (n int64, err error) {
	b := new(batch)
	b.lockRepository(r, d.path)
	b.lockHolds()
	b.Exec("SELECT FROM tags WHERE top_level_namespace_id = $1 AND repository_id = $2 AND name = $3 AND purser_accepted() FOR UPDATE",
		r.namespace, r.id, d.tag)
	b.guard([]any{&n}, `
			WITH found AS MATERIALIZED (
				SELECT t.*, @protected::boolean OR t.immutable AS protected, m.digest FROM (
					SELECT name, manifest_id, immutable, created_at, updated_at, expires_at FROM tags
					WHERE top_level_namespace_id = @namespace AND repository_id = @repository AND name = @tag OFFSET 0) t
				CROSS JOIN LATERAL (
					SELECT digest FROM manifests
					WHERE top_level_namespace_id = @namespace AND repository_id = @repository AND id = t.manifest_id OFFSET 0) m
			), held AS MATERIALIZED (
				SELECT h.reporter FROM found CROSS JOIN LATERAL purser_held(@namespace, @repository, ARRAY[found.manifest_id]) h
				UNION
				SELECT h.reporter FROM found CROSS JOIN LATERAL purser_held_names(@namespace, @repository, ARRAY[found.name]) h
			), asked AS MATERIALIZED (
				SELECT CASE
					WHEN (SELECT value FROM settings WHERE name = 'tag_protection_version') IS DISTINCT FROM @rules
						THEN purser_refuse('the rules that protect tags were changed meanwhile')
					WHEN NOT @override::boolean AND EXISTS (SELECT FROM found WHERE protected)
						THEN purser_refuse('the tag is protected')
					WHEN EXISTS (SELECT FROM found WHERE NOT purser_condition_holds(digest, @if_match::bytea[], @if_no_match::bytea[]))
						THEN purser_refuse('the condition of the request does not hold')
					WHEN NOT @override_holds::boolean AND EXISTS (SELECT FROM held)
						THEN purser_refuse('a reporter holds the manifest') END AS refusal
				WHERE purser_accepted()
			), gone AS (
				DELETE FROM tags WHERE top_level_namespace_id = @namespace AND repository_id = @repository AND name = @tag
					AND EXISTS (SELECT FROM asked WHERE refusal IS NULL)
				RETURNING name
			), logged AS (
				INSERT INTO auditlog (kind, actor, address, user_agent, request_id, namespace, repository, repository_id, tag, digest, run, detail)
				SELECT 'delete_tag', @actor, @address, @user_agent, @request_id, split_part(@path::text, '/', 1), @path, @repository,
					gone.name, found.digest, @deletion::uuid, NULLIF(
						CASE WHEN found.protected AND @override THEN '{"protection": "overridden"}'::jsonb ELSE '{}' END ||
						CASE WHEN EXISTS (SELECT FROM held)
							THEN jsonb_build_object('holds', 'overridden', 'held_by', (SELECT jsonb_agg(reporter ORDER BY reporter) FROM held))
							ELSE '{}' END ||
						CASE WHEN @deletion::uuid IS NOT NULL THEN jsonb_strip_nulls(jsonb_build_object(
								'created_at', found.created_at, 'updated_at', found.updated_at, 'expires_at', found.expires_at))
							ELSE '{}' END, '{}')
				FROM gone JOIN found ON found.name = gone.name
			)
			SELECT (SELECT count(*) FROM gone), (SELECT refusal FROM asked)`, audit.Args(ctx, db.Args{
		"namespace": r.namespace, "repository": r.id, "path": d.path, "tag": d.tag,
		"rules": version, "protected": protected, "override": d.override, "override_holds": d.overrideHolds,
		"if_match": d.condition.IfMatch.arg(), "if_no_match": d.condition.IfNoMatch.arg(),
		"deletion": pgtype.UUID{Bytes: d.deletion, Valid: d.deletion != uuid.Nil},
	}))
	err = b.Send(ctx, c.db.Pool)
	return n, err
}

// DeleteManifest deletes a manifest and the tags that point to it. The error is DENIED with
// status 409 if an index lists the manifest (the error names the index), if a rule protects one of
// the tags, if the manifest is held, or if it has a tag and the option OnlyUntagged is given. Other errors: NAME_UNKNOWN, MANIFEST_UNKNOWN.
func (c *Catalog) DeleteManifest(ctx context.Context, path string, d oci.Digest, options ...TagOption) error {
	overrideHolds, untagged := slices.Contains(options, OverrideHolds), slices.Contains(options, OnlyUntagged)
	return c.write(ctx, write{
		path: path, doing: fmt.Sprintf("deleting manifest %s of %s", d, path), drop: c.cache.dropAll,
		run: func(ctx context.Context, r repository) error {
			err := c.deleteManifest(ctx, r, path, d, c.rules(), overrideHolds, untagged)
			if untagged && errors.Is(err, tagsChanged) {
				return oci.Errorf(oci.Denied, "manifest %s of %s has a tag now, so it stays", d, path).
					WithStatus(http.StatusConflict).WithDetail(map[string]string{"name": path, "digest": d.String()})
			}
			return err
		},
		answer: func(ctx context.Context, r repository, why refusal) error {
			switch why {
			case manifestGone:
				return ManifestUnknown(path, d.String())
			case manifestHeld:
				return c.manifestHeld(ctx, r, path, d)
			case tagProtected:
				return c.immutableTagOf(ctx, r, path, d)
			default:
				return why
			}
		},
	})
}

// deleteManifest first locks the manifest, so that no new tag or index can reference it, and
// then the manifest's tags in the order of their names, the order in which a put locks tags.
// Then it checks that no index lists the manifest and that no tag is protected, and deletes
// the manifest and the tags. It sends all statements in one round trip, since other
// transactions may wait for the locks. Each check is a separate statement after the locks, so
// that it sees everything that was committed before the locks were taken.
//
// If any rule applies to the repository, deleteManifest reads the manifest's tags and compares
// them with the rules before it locks anything. If the locked manifest turns out to have a
// further tag, deleteManifest returns the refusal tagsChanged, and [Catalog.write] runs it
// again.
//
// The last guard looks for holds of the manifest, and of the images that the names of its tags
// refer to. It stores the reporters for the audit log, as the guard before stores the tags.
func (c *Catalog) deleteManifest(ctx context.Context, r repository, path string, d oci.Digest, rules *protection.Rules, overrideHolds, untagged bool) error {
	var deletable []string // nil: every tag
	switch {
	case untagged:
		deletable = []string{}
	case rules.Apply(r.namespace, r.id):
		var err error
		if deletable, err = c.unprotectedTags(ctx, r, path, d, rules); err != nil {
			return err
		}
	}
	var index []byte
	b := new(batch)
	b.lockRepository(r, path)
	b.lockHolds()
	b.guard(nil, `
		SELECT CASE WHEN count(*) = 0 THEN purser_refuse('the manifest was deleted meanwhile') END
		FROM (SELECT FROM manifests
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND digest = $3 AND purser_accepted()
			FOR UPDATE) m`, r.namespace, r.id, d.Bytes())
	b.guard([]any{&index}, `
		SELECT x.digest, CASE WHEN x.digest IS NOT NULL THEN purser_refuse('the manifest is part of an index') END
		FROM (SELECT (
			SELECT m.digest FROM manifest_references x
			JOIN manifests m ON m.top_level_namespace_id = x.top_level_namespace_id
				AND m.repository_id = x.repository_id AND m.id = x.parent_id
			WHERE x.top_level_namespace_id = $1 AND x.repository_id = $2 AND x.child_id = (
				SELECT id FROM manifests WHERE top_level_namespace_id = $1 AND repository_id = $2 AND digest = $3)
			ORDER BY m.id LIMIT 1) AS digest) x`, r.namespace, r.id, d.Bytes())
	b.guard(nil, `
		SELECT CASE
			WHEN (SELECT value FROM settings WHERE name = 'tag_protection_version') IS DISTINCT FROM $4
				THEN purser_refuse('the rules that protect tags were changed meanwhile')
			WHEN NOT t.names <@ $5::text[] THEN purser_refuse('the manifest got a tag meanwhile')
			WHEN t.immutable THEN purser_refuse('the tag is protected')
			WHEN set_config('purser.deleted_tags', t.names::text, true) IS NULL THEN '' END
		FROM (SELECT COALESCE(array_agg(name), '{}') AS names, bool_or(immutable) AS immutable FROM (
			SELECT name, immutable FROM tags WHERE top_level_namespace_id = $1 AND repository_id = $2 AND manifest_id = (
				SELECT id FROM manifests
				WHERE top_level_namespace_id = $1 AND repository_id = $2 AND digest = $3 AND purser_accepted())
			ORDER BY name FOR UPDATE) n) t`, r.namespace, r.id, d.Bytes(), rules.Version, deletable)
	b.guard(nil, `
		WITH held AS MATERIALIZED (
			SELECT h.reporter FROM (
				SELECT id FROM manifests
				WHERE top_level_namespace_id = $1 AND repository_id = $2 AND digest = $3 AND purser_accepted() OFFSET 0) m
			CROSS JOIN LATERAL purser_held($1, $2, ARRAY[m.id]) h
			UNION
			SELECT h.reporter FROM purser_held_names($1, $2, NULLIF(current_setting('purser.deleted_tags', true), '')::text[]) h
			WHERE purser_accepted()
		)
		SELECT CASE
			WHEN NOT EXISTS (SELECT FROM held) THEN NULL
			WHEN NOT $4::boolean THEN purser_refuse('a reporter holds the manifest')
			WHEN set_config('purser.held_by', (SELECT jsonb_agg(reporter ORDER BY reporter)::text FROM held), true) IS NULL THEN '' END`,
		r.namespace, r.id, d.Bytes(), overrideHolds)
	c.deleteLocked(ctx, b, r, path, d)
	err := b.Send(ctx, c.db.Pool)
	if errors.Is(err, manifestListed) {
		return listedByIndex(d, index)
	}
	return err
}

// deleteLocked adds statements to b that delete a manifest and its tags and write the audit
// entries. Earlier statements of b have locked the manifest and the tags. Before the manifest
// is deleted, one statement locks the rows of its blobs in gc_blob_review_queue in the order
// of digests, as every transaction must. The triggers of the deletion would lock the
// configuration's row before the layers' rows, which may be another order.
//
// The triggers of the deletion lock further rows after the tags are deleted, but the namespace's
// quota must be locked after all of them. So the tags are counted at the end.
//
// The last statement writes all audit entries, since the audit log is locked last (see package
// audit). It reads the names of the deleted tags from the setting purser.deleted_tags, in
// which the statement that locked the tags has stored them until the transaction ends.
func (c *Catalog) deleteLocked(ctx context.Context, b *batch, r repository, path string, d oci.Digest) {
	b.Exec("SELECT purser_quota_later()")
	b.Exec(`
		DELETE FROM tags
		WHERE top_level_namespace_id = $1 AND repository_id = $2 AND purser_accepted() AND manifest_id = (
			SELECT id FROM manifests WHERE top_level_namespace_id = $1 AND repository_id = $2 AND digest = $3)`,
		r.namespace, r.id, d.Bytes())
	b.Exec(`
		WITH manifest AS (
			SELECT id, configuration_blob_digest FROM manifests
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND digest = $3 AND purser_accepted()
		)
		INSERT INTO gc_blob_review_queue AS q (digest, review_after, event)
		SELECT d.digest, gc_review_after('layer_delete'), 'layer_delete'
		FROM (
			SELECT digest FROM layers
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND manifest_id = (SELECT id FROM manifest)
			UNION
			SELECT configuration_blob_digest FROM manifest WHERE configuration_blob_digest IS NOT NULL) d
		ORDER BY d.digest
		ON CONFLICT (digest) DO UPDATE SET
			review_after = GREATEST(q.review_after, EXCLUDED.review_after), review_count = 0, set_aside_at = NULL`,
		r.namespace, r.id, d.Bytes())
	b.Exec(`
		DELETE FROM manifests
		WHERE top_level_namespace_id = $1 AND repository_id = $2 AND digest = $3 AND purser_accepted()`,
		r.namespace, r.id, d.Bytes())
	b.Exec("SELECT purser_quota_now($1)", r.namespace)
	// The manifest was locked, so it is deleted now, unless the batch was refused.
	b.Exec(`
		INSERT INTO auditlog (kind, actor, address, user_agent, request_id, namespace, repository, repository_id, tag, digest, detail)
		SELECT k.kind, @actor, @address, @user_agent, @request_id, split_part(@path::text, '/', 1), @path, @repository, k.tag, @digest,
			CASE WHEN current_setting('purser.held_by', true) <> ''
				THEN jsonb_build_object('holds', 'overridden', 'held_by', current_setting('purser.held_by', true)::jsonb) END
		FROM (
			SELECT 'delete_manifest' AS kind, NULL AS tag
			UNION ALL
			SELECT 'delete_tag', name FROM unnest(NULLIF(current_setting('purser.deleted_tags', true), '')::text[]) AS name) k
		WHERE purser_accepted()`, audit.Args(ctx, db.Args{"repository": r.id, "digest": d.Bytes(), "path": path}))
}

// unprotectedTags returns the names of all tags of a manifest, if no rule protects any of
// them. Errors: DENIED with status 409 if a rule protects one of the tags; rulesChanged if
// `rules`, which this process has cached, are out of date.
func (c *Catalog) unprotectedTags(ctx context.Context, r repository, path string, d oci.Digest, rules *protection.Rules) ([]string, error) {
	var otherwise bool
	tags := []string{} // nil would mean every tag
	err := c.db.Pool.QueryRow(ctx, `
		SELECT COALESCE(array_agg(name ORDER BY name), '{}'),
			(SELECT value FROM settings WHERE name = 'tag_protection_version') IS DISTINCT FROM $4
		FROM tags WHERE top_level_namespace_id = $1 AND repository_id = $2 AND manifest_id = (
			SELECT id FROM manifests WHERE top_level_namespace_id = $1 AND repository_id = $2 AND digest = $3)`,
		r.namespace, r.id, d.Bytes(), rules.Version).Scan(&tags, &otherwise)
	switch {
	case err != nil:
		return nil, err
	case otherwise:
		return nil, rulesChanged
	}
	for _, tag := range tags {
		if rule := rules.Of(r.namespace, r.id, tag); rule != nil {
			return nil, rule.Refusal(path, tag, "deleted with its manifest", "delete the tag first, by the management API with override_protection")
		}
	}
	return tags, nil
}

// listedByIndex returns the error for deleting a manifest that an index lists.
func listedByIndex(d oci.Digest, parent []byte) error {
	index, err := oci.DigestFromBytes(parent)
	if err != nil {
		return err
	}
	return oci.Errorf(oci.Denied, "manifest %s is part of index %s: delete the index first", d, index).
		WithStatus(http.StatusConflict).WithDetail(map[string]string{"digest": d.String(), "index": index.String()})
}

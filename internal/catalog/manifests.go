package catalog

import (
	"context"
	"errors"
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
	Manifest   *oci.Manifest // the parsed Payload
	Payload    []byte        // stored unchanged
	Tags       []string      // valid tags that are to point to it; may be empty
	Condition  Condition     // its Tag is the only one of Tags, or ""
}

// PutManifest stores a manifest with its references and tags in one transaction, which takes
// one round trip if the manifest is new. Every blob that it names must be linked to the
// repository, and every child of an index must be in the repository; otherwise the error
// MANIFEST_BLOB_UNKNOWN names what is missing. A subject need not exist. A manifest that
// exists already keeps its row and gets the tags; without tags its existence is promised for
// the review delay. The put is refused with DENIED and status 409 if a protected tag points
// to another manifest, and with status 412 if the condition doesn't hold.
//
// Rows are locked in one order: repository, blobs, links, children, and the queue last. A
// guard in each statement refuses when something is missing: see [batch].
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
	// A put that will be refused doesn't create a repository.
	mayCreate := func() error { return nil }
	switch {
	case len(rows.blobs)+len(c.requiredChildren(rows)) > 0:
		mayCreate = func() error { return c.missing(ctx, p, rows) }
	case p.Condition.IfMatch != nil:
		mayCreate = func() error { return c.conditionFailed(ctx, p.Repository, p.Condition, p.Digest) }
	}
	for range 5 {
		err = c.movingTags(ctx, p.Repository, rows.tags, p.Digest, func() (in repository, err error) {
			err = c.withRepository(ctx, p.Repository, mayCreate, func(r repository) error {
				in = r
				return c.put(ctx, r, p, rows)
			})
			return in, err
		})
		switch {
		case errors.Is(err, manifestGone): // deleted between the two transactions of put
			continue
		case errors.Is(err, blobsMissing), errors.Is(err, childMissing):
			if moved, err := c.listedManifests(ctx, p, &rows); err != nil {
				return err
			} else if moved {
				continue
			}
			if missing := c.missing(ctx, p, rows); missing != nil {
				return missing
			}
			continue // the missing content was pushed meanwhile
		case errors.Is(err, conditionFails):
			return c.conditionFailed(ctx, p.Repository, p.Condition, p.Digest)
		}
		if err != nil && !isAnswer(err) {
			return fmt.Errorf("storing manifest %s of %s: %w", p.Digest, p.Repository, err)
		}
		return err
	}
	return fmt.Errorf("storing manifest %s of %s: %w", p.Digest, p.Repository, err)
}

// manifestColumns is a NewManifest as database columns. Digests are distinct and sorted, so
// that every transaction locks in the same order.
type manifestColumns struct {
	digest, subject, config []byte
	artifactType            *string
	annotations             []byte
	blobs                   [][]byte // configuration and layers; of an index, the entries that aren't manifests
	layers                  [][]byte
	layerSizes              []int64
	layerTypes              []string
	children                [][]byte
	tags                    []string
}

func manifestRows(p NewManifest) (manifestColumns, error) {
	m := p.Manifest
	rows := manifestColumns{digest: p.Digest.Bytes()}
	if m.ArtifactType != "" {
		rows.artifactType = &m.ArtifactType
	}
	if m.Subject != nil {
		rows.subject = m.Subject.Digest.Bytes()
	}
	var err error
	if rows.annotations, err = referrerAnnotations(m); err != nil {
		return rows, err
	}
	if m.Config != nil {
		rows.config = m.Config.Digest.Bytes()
		rows.blobs = append(rows.blobs, rows.config)
	}
	// An index entry that isn't a manifest is a blob, and is handled like a layer. A foreign
	// layer is stored elsewhere, unless the manifest also lists it as an ordinary layer.
	own := slices.Concat(m.Layers, slices.DeleteFunc(slices.Clone(m.Manifests), oci.Descriptor.IsManifest))
	for _, l := range distinct(slices.DeleteFunc(own, oci.Descriptor.Foreign)) {
		rows.blobs = append(rows.blobs, l.Digest.Bytes())
		rows.layers = append(rows.layers, l.Digest.Bytes())
		rows.layerSizes = append(rows.layerSizes, l.Size)
		rows.layerTypes = append(rows.layerTypes, l.MediaType)
	}
	rows.blobs = sortedSet(rows.blobs)
	children := slices.DeleteFunc(slices.Clone(m.Manifests), func(d oci.Descriptor) bool { return !d.IsManifest() })
	for _, d := range distinct(children) {
		rows.children = append(rows.children, d.Digest.Bytes())
	}
	rows.tags = slices.Clone(p.Tags)
	slices.Sort(rows.tags)
	rows.tags = slices.Compact(rows.tags)
	return rows, nil
}

// distinct sorts descriptors by digest and drops duplicates.
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
	b.lockRepository(r, p.Repository, rows.tags)
	b.lockContent(r, rows, len(c.requiredChildren(rows)))
	b.lockQueue(r, rows)
	rules := c.rules()
	b.guard([]any{&inserted, nil}, c.insertManifest(), c.who(ctx, r.namespace, r.id, rows.digest,
		rows.tags, p.Repository, rules.protected(r, rows.tags), rules.version,
		p.Condition.IfMatch.arg(), p.Condition.IfNoMatch.arg(), p.Condition.Tag, p.Manifest.MediaType, rows.artifactType,
		rows.subject, rows.config, rows.annotations, p.Payload, len(p.Payload),
		rows.layers, rows.layerSizes, rows.layerTypes, rows.children, rows.blobs)...)
	if err := b.send(ctx, c.db.Pool); err != nil || inserted {
		return err
	}
	return c.putAgain(ctx, r, p, rows, "push_repo")
}

// lockRepository is the first statement of a put. It also waits for other puts of the same
// tags, by advisory locks: a tag that doesn't exist yet has no row to lock, and the second
// put would notice the first only after inserting its manifest, and had to be rolled back.
// These locks use a key space of their own, with two keys. A put takes them right after the
// repository's lock, in a fixed order.
func (b *batch) lockRepository(r repository, path string, tags []string) {
	if len(tags) == 0 {
		b.guard(nil, lockRepository, r.namespace, r.id, path)
		return
	}
	b.guard([]any{nil}, `
		SELECT (
			SELECT count(pg_advisory_xact_lock(`+putLocks+`, key)) FROM (
				SELECT DISTINCT hashtext($2::bigint || ':' || name) AS key FROM unnest($4::text[]) AS name ORDER BY key) k),
			CASE WHEN count(*) <> 1 THEN purser_refuse('`+string(repositoryGone)+`') END
		FROM (SELECT FROM top_level_namespaces n JOIN repositories r ON r.top_level_namespace_id = n.id
		      WHERE n.id = $1 AND r.id = $2 AND r.path = $3
		      FOR KEY SHARE) alive`, r.namespace, r.id, path, tags)
}

// putLocks is the first key of the advisory locks on tags that are being put.
const putLocks = "1886745443"

// lockContent locks what the manifest refers to: first blobs, then their links to the
// repository, then children and the subject. It refuses unless all blobs and links and the
// required number of children exist and no blob is lost.
func (b *batch) lockContent(r repository, rows manifestColumns, required int) {
	if len(rows.blobs) > 0 {
		b.guard(nil, `SELECT CASE WHEN count(*) <> $2 THEN purser_refuse('`+string(blobsMissing)+`') END FROM (
				SELECT FROM (SELECT digest FROM unnest($1::bytea[]) AS digest WHERE purser_accepted() ORDER BY digest) want
				CROSS JOIN LATERAL (SELECT FROM blobs WHERE digest = want.digest AND lost_at IS NULL FOR KEY SHARE) b) locked`,
			rows.blobs, len(rows.blobs))
		b.guard(nil, `SELECT CASE WHEN count(*) <> $4 THEN purser_refuse('`+string(blobsMissing)+`') END FROM (
				SELECT FROM (SELECT digest FROM unnest($3::bytea[]) AS digest WHERE purser_accepted() ORDER BY digest) want
				CROSS JOIN LATERAL (
					SELECT FROM repository_blobs
					WHERE top_level_namespace_id = $1 AND repository_id = $2 AND blob_digest = want.digest
					FOR KEY SHARE) l) locked`,
			r.namespace, r.id, rows.blobs, len(rows.blobs))
	}
	if len(rows.children) > 0 {
		b.guard(nil, `SELECT CASE WHEN count(*) < $4 THEN purser_refuse('`+string(childMissing)+`') END FROM (
				SELECT FROM (SELECT digest FROM unnest($3::bytea[]) AS digest WHERE purser_accepted() ORDER BY digest) want
				CROSS JOIN LATERAL (
					SELECT FROM manifests
					WHERE top_level_namespace_id = $1 AND repository_id = $2 AND digest = want.digest
					FOR KEY SHARE) m) locked`,
			r.namespace, r.id, rows.children, required)
	}
	// A subject need not exist. If it is being deleted, wait for that: the deletion can't
	// see this manifest, so it must be over before this manifest is reviewed.
	if rows.subject != nil {
		b.exec(`SELECT FROM manifests
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND digest = $3 AND purser_accepted()
			FOR KEY SHARE`, r.namespace, r.id, rows.subject)
	}
}

// lockQueue locks, in one order: for a manifest that doesn't exist yet, its digest against
// reviews of the referrers that wait for it (see [lockSubjects]); then the tags that are to
// move; then the review rows of the manifests that lose those tags.
func (b *batch) lockQueue(r repository, rows manifestColumns) {
	b.exec(`
		WITH there AS MATERIALIZED (
			SELECT FROM manifests
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND digest = $3 AND purser_accepted()
			FOR KEY SHARE
		)
		SELECT pg_advisory_xact_lock(`+subjectLocks+`, `+subjectKey("$2::bigint", "$3::bytea")+`)
		WHERE NOT EXISTS (SELECT FROM there) AND purser_accepted()`, r.namespace, r.id, rows.digest)
	if len(rows.tags) == 0 {
		return
	}
	b.exec(`SELECT FROM (
			SELECT name FROM unnest($3::text[]) AS name WHERE purser_accepted() ORDER BY name COLLATE "C") want
		CROSS JOIN LATERAL (
			SELECT FROM tags
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND name = want.name
			FOR UPDATE) t`, r.namespace, r.id, rows.tags)
	b.exec(`
		SELECT FROM (
			SELECT DISTINCT t.manifest_id AS id FROM unnest($3::text[]) AS want (name)
			CROSS JOIN LATERAL (
				SELECT manifest_id FROM tags
				WHERE top_level_namespace_id = $1 AND repository_id = $2 AND name = want.name OFFSET 0) t
			WHERE purser_accepted() ORDER BY id) loses
		CROSS JOIN LATERAL (
			SELECT FROM gc_manifest_review_queue
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND manifest_id = loses.id
			FOR UPDATE) q`, r.namespace, r.id, rows.tags)
}

// The following parts make up a statement that points tags to a manifest, m (id). Its
// arguments: $5 and $6 the repository, $7 the manifest's digest, $8 the names of the tags,
// $9 the path, $10 the protected ones of the names, $11 the version of the rules, $12 to $14
// the condition ([Condition]). Its part t writes the tags and returns name and moved (false:
// the tag is new); its part previous has the tags that existed, with the manifests they
// pointed to.
//
// The preceding statement has locked the existing tags, so previous is right for them. But a
// tag that didn't exist then may have been created since, and may be moved or deleted right
// now, by a writer that doesn't take the locks of puts. A tag that differs from previous
// isn't written; then the transaction fails and runs again.
//
// Its part asked runs before anything is written: it compares rules and condition with the
// current state and refuses if they don't hold. Its part accepted has a row if nothing was
// refused.
const (
	previousTags = `previous AS (
		SELECT t.name, t.manifest_id, p.digest FROM unnest($8::text[]) AS want (name)
		CROSS JOIN LATERAL (
			SELECT name, manifest_id FROM tags
			WHERE top_level_namespace_id = $5 AND repository_id = $6 AND name = want.name OFFSET 0) t
		CROSS JOIN LATERAL (
			SELECT digest FROM manifests
			WHERE top_level_namespace_id = $5 AND repository_id = $6 AND id = t.manifest_id OFFSET 0) p
	)`
	movedTags = `
		ON CONFLICT (top_level_namespace_id, repository_id, name) DO UPDATE
		SET manifest_id = EXCLUDED.manifest_id, updated_at = now(), expires_at = NULL
		WHERE tags.manifest_id = (SELECT p.manifest_id FROM previous p WHERE p.name = EXCLUDED.name)
		RETURNING name, updated_at IS NOT NULL AS moved`
)

// tagsAsked is the parts asked and accepted of such a statement.
var tagsAsked = `asked AS MATERIALIZED (
		SELECT CASE
			WHEN ` + otherRules("$11") + ` THEN purser_refuse('` + string(rulesChanged) + `')
			WHEN EXISTS (SELECT FROM previous p WHERE p.digest <> $7 AND p.name = ANY ($10::text[]))
				THEN purser_refuse('` + string(tagProtected) + `')
			WHEN NOT purser_condition_holds(
					CASE WHEN $14::text <> '' THEN (SELECT p.digest FROM previous p WHERE p.name = $14)
					ELSE (SELECT digest FROM manifests
						WHERE top_level_namespace_id = $5 AND repository_id = $6 AND digest = $7) END,
					$12::bytea[], $13::bytea[])
				THEN purser_refuse('` + string(conditionFails) + `') END AS refusal
		WHERE purser_accepted()
	), accepted AS MATERIALIZED (
		SELECT FROM asked WHERE refusal IS NULL
	)`

// tagsAsDecided is the end of such a statement: it raises an error if a tag differs from
// previous, and returns the refusal as its last column.
const tagsAsDecided = `purser_require((SELECT count(*) FROM m, unnest($8::text[]) AS name) = (
			SELECT count(*) FROM t LEFT JOIN previous p ON p.name = t.name WHERE t.moved = (p.name IS NOT NULL)), '` +
	db.CodeSerializationFailure + `'),
		(SELECT refusal FROM asked)`

// tagEntries builds the SELECT of audit rows of such a statement: one row of kind per tag, a
// single row for a put without tags, and a move_tag row for each tag that pointed to another
// manifest.
func tagEntries(kind string) string {
	previous := "jsonb_build_object('previous_digest', " + digestText("p.digest") + ")"
	detail := "NULL::jsonb"
	if kind == "revert_tag" {
		detail = "CASE WHEN p.manifest_id <> m.id THEN " + previous + " END"
	}
	query := `
		SELECT '` + kind + `' AS kind, split_part($9::text, '/', 1) AS namespace, $9::text AS repository,
			$6::bigint AS repository_id, t.name AS tag, $7::bytea AS digest, ` + detail + ` AS detail
		FROM m JOIN t ON true LEFT JOIN previous p ON p.name = t.name`
	if kind == "create_tag" { // create_tag only for tags that didn't exist
		query += " WHERE p.name IS NULL"
	}
	if kind != "revert_tag" {
		query += `
		UNION ALL
		SELECT '` + kind + `', split_part($9::text, '/', 1), $9::text, $6::bigint, NULL, $7::bytea, NULL
		FROM m WHERE COALESCE(cardinality($8::text[]), 0) = 0
		UNION ALL
		SELECT 'move_tag', split_part($9::text, '/', 1), $9::text, $6::bigint, t.name, $7::bytea, ` + previous + `
		FROM m JOIN t ON true JOIN previous p ON p.name = t.name WHERE p.manifest_id <> m.id`
	}
	return query
}

// insertManifest returns the statement that inserts the manifest, its references, its tags
// and the audit entries. It is a single statement so that the trigger that queues untagged
// manifests for review sees the tags. If the manifest exists, the statement does nothing.
func (c *Catalog) insertManifest() string {
	return `
	WITH ` + previousTags + `, ` + tagsAsked + `, m AS (
		INSERT INTO manifests (top_level_namespace_id, repository_id, digest, media_type, artifact_type,
			subject_digest, configuration_blob_digest, annotations, payload, total_size)
		SELECT $5, $6, $7, $15, $16, $17, $18, $19, $20, ` + putSize + ` FROM accepted
		ON CONFLICT (top_level_namespace_id, repository_id, digest) DO NOTHING
		RETURNING id
	), l AS (
		INSERT INTO layers (top_level_namespace_id, repository_id, manifest_id, digest, size, media_type)
		SELECT $5, $6, m.id, d.digest, d.size, d.media_type
		FROM m, unnest($22::bytea[], $23::bigint[], $24::text[]) AS d (digest, size, media_type)
	), r AS (
		INSERT INTO manifest_references (top_level_namespace_id, repository_id, parent_id, child_id)
		SELECT $5, $6, m.id, c.id
		FROM m, unnest($25::bytea[]) AS child (digest)
		CROSS JOIN LATERAL (
			SELECT id FROM manifests
			WHERE top_level_namespace_id = $5 AND repository_id = $6 AND digest = child.digest OFFSET 0) c
	), missing AS (
		INSERT INTO missing_children (top_level_namespace_id, repository_id, parent_id, child_digest)
		SELECT $5, $6, m.id, child.digest FROM m, unnest($25::bytea[]) AS child (digest)
		WHERE NOT EXISTS (
			SELECT FROM manifests
			WHERE top_level_namespace_id = $5 AND repository_id = $6 AND digest = child.digest OFFSET 0)
	), t AS (
		INSERT INTO tags (top_level_namespace_id, repository_id, name, manifest_id)
		SELECT $5, $6, name, m.id FROM m, unnest($8::text[]) AS name` + movedTags + `
	), logged AS (` + c.entries(tagEntries("push_repo")) + `)
	SELECT EXISTS (SELECT FROM m), ` + tagsAsDecided
}

// putAgain tags an existing manifest or, if no tag is given, promises its existence for the
// review delay. A tag that already points to it counts as pushed again. kind is the kind of
// the audit entries.
func (c *Catalog) putAgain(ctx context.Context, r repository, p NewManifest, rows manifestColumns, kind string) error {
	b := new(batch)
	b.lockRepository(r, p.Repository, rows.tags)
	b.guard(nil, `SELECT CASE WHEN count(*) <> 1 THEN purser_refuse('`+string(manifestGone)+`') END FROM (
			SELECT FROM manifests
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND digest = $3
			FOR KEY SHARE) locked`, r.namespace, r.id, rows.digest)
	if len(rows.tags) == 0 {
		b.exec(`
			INSERT INTO gc_manifest_review_queue AS q (top_level_namespace_id, repository_id, manifest_id, review_after, event)
			SELECT top_level_namespace_id, repository_id, id, gc_review_after('manifest_upload'), 'manifest_upload'
			FROM manifests
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND digest = $3 AND purser_accepted()
			ON CONFLICT (top_level_namespace_id, repository_id, manifest_id) DO UPDATE SET
				review_after = GREATEST(q.review_after, EXCLUDED.review_after), review_count = 0, set_aside_at = NULL`,
			r.namespace, r.id, rows.digest)
	} else {
		b.lockQueue(r, rows)
	}
	rules := c.rules()
	b.guard([]any{nil}, `
		WITH `+previousTags+`, `+tagsAsked+`, m AS (
			SELECT id FROM accepted, manifests WHERE top_level_namespace_id = $5 AND repository_id = $6 AND digest = $7
		), t AS (
			INSERT INTO tags (top_level_namespace_id, repository_id, name, manifest_id)
			SELECT $5, $6, name, m.id FROM m, unnest($8::text[]) AS name
			ORDER BY name COLLATE "C"`+movedTags+`
		), logged AS (`+c.entries(tagEntries(kind))+`)
		SELECT `+tagsAsDecided, c.who(ctx, r.namespace, r.id, rows.digest, rows.tags, p.Repository,
		rules.protected(r, rows.tags), rules.version, p.Condition.IfMatch.arg(), p.Condition.IfNoMatch.arg(), p.Condition.Tag)...)
	return b.send(ctx, c.db.Pool)
}

// missing returns an error that lists what the manifest names and the repository lacks, or
// nil if all of it exists now.
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
			WHERE r.path = $1 AND m.digest = want.digest)`, p.Repository, rows.blobs, c.requiredChildren(rows))
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

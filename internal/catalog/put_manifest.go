package catalog

import (
	"context"
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
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
	// KeepTags refuses the manifest if one of Tags points to another manifest.
	KeepTags bool
	// Imported is set if no client pushes the manifest, but an import brings it from another
	// registry. nil: a client pushes it.
	Imported *Imported
}

// Imported says when another registry got a manifest and its tags. A time of the future counts as now.
type Imported struct {
	Manifest time.Time
	Tags     map[string]time.Time // of each of the tags
}

// PutManifest stores a manifest with its references and tags in one transaction, which takes
// one round trip if the manifest is new. Every blob that the manifest names must be linked to
// the repository, and every child of an index must be in the repository; otherwise the error
// MANIFEST_BLOB_UNKNOWN names the missing ones. The subject need not exist. If the manifest
// exists already, PutManifest leaves its row unchanged and only points the tags to it. If
// there are no tags either, it promises the client that the manifest stays for the review
// delay. The error is DENIED with status 409 if a protected tag points to another manifest,
// DENIED with status 403 if any tag does and p.KeepTags is set, and DENIED with status 412 if
// the request's precondition (p.Condition) doesn't hold.
//
// The statements lock rows in one fixed order: repository, blobs, links of blobs to the
// repository, children, tags, and rows of the review queue last. Each statement checks that
// its rows exist and otherwise refuses the whole transaction: see [batch].
func (c *Catalog) PutManifest(ctx context.Context, p NewManifest) error {
	_, err := c.PushManifest(ctx, p)
	return err
}

// PushManifest is like PutManifest. In a namespace that allows it, labels of the image give the
// tags a date of expiration, or make them immutable (see labels.go): `ignored` says of labels why
// they don't count. The labels are read once, by one query and one read of the store for each
// image, before the transaction.
func (c *Catalog) PushManifest(ctx context.Context, p NewManifest) (ignored []string, err error) {
	rows, err := manifestRows(p)
	if err != nil {
		return nil, err
	}
	var labels *labelled
	w := write{
		path: p.Repository, doing: fmt.Sprintf("storing manifest %s of %s", p.Digest, p.Repository),
		create: true, drop: c.cache.dropTags,
		run: func(ctx context.Context, r repository) error {
			rows.decides = c.labelsOf(ctx, r, p, rows, &labels)
			ignored = rows.decides.ignored
			return c.put(ctx, r, p, rows)
		},
	}
	if err := c.quotas.AdmitTags(ctx, p.Repository, rows.tags); err != nil {
		return nil, err
	}
	// If the repository doesn't exist, write calls checkBeforeCreate first, so that a put that
	// will be refused creates no repository.
	switch {
	case len(rows.blobs)+len(c.requiredChildren(rows)) > 0:
		w.checkBeforeCreate = func(ctx context.Context) error { return c.missing(ctx, p, rows) }
	case p.Condition.IfMatch != nil:
		w.checkBeforeCreate = func(ctx context.Context) error { return c.conditionFailed(ctx, p.Repository, p.Condition, p.Digest) }
	}
	w.answer = func(ctx context.Context, r repository, why refusal) error {
		switch why {
		case tagProtected:
			return c.moveRefused(ctx, r, p, rows.tags)
		case conditionFails:
			return c.conditionFailed(ctx, p.Repository, p.Condition, p.Digest)
		case blobsMissing, childMissing:
			if moved, err := c.listedManifests(ctx, p, &rows); err != nil || moved {
				return err
			}
			return c.missing(ctx, p, rows)
		case manifestGone: // deleted between the two transactions of put
			return nil
		default:
			return why
		}
	}
	if err := c.write(ctx, w); err != nil {
		return nil, err
	}
	return ignored, nil
}

// manifestColumns holds the fields of a NewManifest as values of database columns. Lists of
// digests have no duplicates and are sorted, so that every transaction locks rows in the same
// order.
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
	decides                 tagLabels // without rules: the present ones, and no label
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
	// An entry of an index whose media type isn't that of a manifest is a blob, and is stored
	// like a layer. Foreign layers are left out, since clients fetch them from elsewhere,
	// unless the manifest also lists the same digest as an ordinary layer.
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

//go:embed put_manifest.sql
var putManifestFile string

var putStatement = db.Statements(putManifestFile)

// put stores a manifest and points the tags to it. If the repository has the manifest already,
// put only points the tags to it.
func (c *Catalog) put(ctx context.Context, r repository, p NewManifest, rows manifestColumns) error {
	inserted, err := c.putNew(ctx, r, p, rows)
	if err != nil || inserted {
		return err
	}
	return c.putExisting(ctx, r, p, rows, "push_repo")
}

// putNew stores a manifest if it is new.
func (c *Catalog) putNew(ctx context.Context, r repository, p NewManifest, rows manifestColumns) (inserted bool, err error) {
	args := c.tagArgs(ctx, r, p, rows)
	maps.Copy(args, db.SharedArgs{
		"media_type": p.Manifest.MediaType, "artifact_type": rows.artifactType, "subject": rows.subject, "config": rows.config,
		"annotations": rows.annotations, "payload": p.Payload, "blobs": rows.blobs, "children": rows.children,
		"required": len(c.requiredChildren(rows)),
		"layers":   rows.layers, "layer_sizes": rows.layerSizes, "layer_types": rows.layerTypes,
	})
	b := new(batch)
	b.guard([]any{nil}, putStatement("lock_repository"), args)
	if len(rows.blobs) > 0 {
		b.guard(nil, putStatement("lock_blobs"), args)
		b.guard(nil, putStatement("lock_links"), args)
	}
	if len(rows.children) > 0 {
		b.guard(nil, putStatement("lock_children"), args)
	}
	if rows.subject != nil {
		b.Exec(putStatement("lock_subject"), args)
	}
	b.Exec(putStatement("lock_digest"), args)
	if len(rows.tags) > 0 {
		b.Exec(putStatement("lock_tags"), args)
		b.Exec(putStatement("lock_reviews"), args)
	}
	b.guard([]any{&inserted, nil}, putStatement("insert_manifest"), args)
	err = b.Send(ctx, c.db.Pool)
	return inserted, err
}

// putExisting points the tags to an existing manifest. If there are no tags, it promises the
// client that the manifest stays for the review delay. `kind` is the kind of the audit
// entries: see the statement point_tags in put_manifest.sql.
func (c *Catalog) putExisting(ctx context.Context, r repository, p NewManifest, rows manifestColumns, kind string) error {
	args := c.tagArgs(ctx, r, p, rows)
	if p.Imported == nil {
		args["kind"] = kind
	}
	b := new(batch)
	b.guard([]any{nil}, putStatement("lock_repository"), args)
	b.guard(nil, putStatement("lock_manifest"), args)
	if len(rows.tags) == 0 {
		b.Exec(putStatement("promise_manifest"), args)
	} else {
		b.Exec(putStatement("lock_digest"), args)
		b.Exec(putStatement("lock_tags"), args)
		b.Exec(putStatement("lock_reviews"), args)
	}
	b.guard([]any{nil}, putStatement("point_tags"), args)
	return b.Send(ctx, c.db.Pool)
}

// tagArgs returns the arguments that the statements insert_manifest and point_tags have in
// common. Both point tags to a manifest.
func (c *Catalog) tagArgs(ctx context.Context, r repository, p NewManifest, rows manifestColumns) db.SharedArgs {
	labels := rows.decides
	rules := labels.rules
	if rules == nil {
		rules = c.rules()
	}
	protected := rules.Protected(r.namespace, r.id, rows.tags)
	undated := protected
	if p.KeepTags {
		protected = rows.tags
	}
	kind, created := audit.PushRepo, (*time.Time)(nil)
	var times []time.Time
	if p.Imported != nil {
		kind, created = audit.CreateTag, &p.Imported.Manifest
		for _, tag := range rows.tags {
			times = append(times, p.Imported.Tags[tag])
		}
	}
	return db.SharedArgs(audit.Args(ctx, db.Args{
		"namespace": r.namespace, "repository": r.id, "path": p.Repository, "digest": rows.digest, "tags": rows.tags,
		"kind": string(kind), "created": created, "times": times,
		"rules": rules.Version, "protected": protected, "condition_tag": p.Condition.Tag,
		"if_match": p.Condition.IfMatch.arg(), "if_no_match": p.Condition.IfNoMatch.arg(),
		"expires_after": labels.seconds(), "undated": undated, "immutable": labels.immutable, "labels_ignored": labels.text(),
		"keep_tags": p.KeepTags,
	}))
}

// missing returns the client's error, which lists the blobs and children that the manifest
// names and the repository lacks. It returns nil if all of them exist now. OFFSET 0 in its SQL
// makes PostgreSQL look rows up by an index: see "Plans" in package db.
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
		return fmt.Errorf("looking up the blobs and manifests to which manifest %s refers: %w", p.Digest, err)
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

// moveRefused returns the error for a client whose put would have moved a protected tag, or with
// p.KeepTags any tag, to another manifest. It returns nil if none of these tags points to
// another manifest any more. OFFSET 0 in its SQL makes PostgreSQL look rows up by an index: see
// "Plans" in package db.
func (c *Catalog) moveRefused(ctx context.Context, r repository, p NewManifest, tags []string) error {
	rules := c.rules()
	kept := tags
	if !p.KeepTags {
		kept = rules.Protected(r.namespace, r.id, tags)
	}
	var tag string
	var immutable bool
	err := c.db.Pool.QueryRow(ctx, `
		SELECT want.name, t.immutable FROM unnest($3::text[]) AS want (name)
		CROSS JOIN LATERAL (
			SELECT manifest_id, immutable FROM tags
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND name = want.name OFFSET 0) t
		CROSS JOIN LATERAL (
			SELECT digest FROM manifests
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND id = t.manifest_id OFFSET 0) m
		WHERE m.digest <> $4 AND (t.immutable OR want.name = ANY ($5::text[])) ORDER BY want.name LIMIT 1`,
		r.namespace, r.id, tags, p.Digest.Bytes(), kept).Scan(&tag, &immutable)
	switch {
	case isNoRows(err):
		return nil
	case err != nil:
		return fmt.Errorf("looking for the protected tag: %w", err)
	}
	if rule := rules.Of(r.namespace, r.id, tag); rule != nil {
		return rule.Refusal(p.Repository, tag, "moved to another manifest", "push under another tag")
	}
	if immutable {
		return immutableRefusal(p.Repository, tag, "moved to another manifest", "push under another tag")
	}
	return oci.Errorf(oci.Denied, "tag %s of %s exists, and these credentials may not move tags to other manifests: "+
		"push under another tag, or use credentials with the action overwrite", tag, p.Repository).
		WithDetail(map[string]string{"name": p.Repository, "tag": tag})
}

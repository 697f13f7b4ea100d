package explain

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/gc"
	"github.com/purser-registry/purser/internal/hold"
	"github.com/purser-registry/purser/internal/oci"
)

// ManifestExplanation says why a manifest is kept, or when and why it will be deleted.
type ManifestExplanation struct {
	AsOf         time.Time  `json:"as_of"` // by the database's clock
	Fate         Fate       `json:"fate"`
	Repository   string     `json:"repository"`
	Digest       oci.Digest `json:"digest"`
	MediaType    string     `json:"media_type"`
	ArtifactType string     `json:"artifact_type"` // "" for none
	Size         int64      `json:"size"`          // bytes, of the manifest itself
	CreatedAt    time.Time  `json:"created_at"`
	// Garbage collection keeps the manifest as long as it has a tag, an index lists it, or
	// its subject exists, unless Circle is set.
	Tags    Some[string]       `json:"tags"`
	Indexes Some[HoldingIndex] `json:"indexes"`
	Subject *ExplainedSubject  `json:"subject"` // nil: it names none
	// Circle says that the manifest is in a cycle of manifests that refer to each other,
	// and that none of these, and no manifest that refers to them, has a tag. Then the
	// manifest's indexes and its subject don't keep it. The whole cycle is deleted after
	// the review of any of its manifests.
	Circle bool `json:"circle"`
	// HeldBy has the reporters that hold the manifest or a relative, which keep it too: see
	// package hold.
	HeldBy []hold.Holder `json:"held_by" nullable:"false"`
	// RetainedBy says which policy of auto-pruning keeps the manifest until RetainedUntil
	// although nothing references it; "" if none does.
	RetainedBy    string         `json:"retained_by,omitempty"`
	RetainedUntil *time.Time     `json:"retained_until,omitempty"`
	Review        *PlannedReview `json:"review"` // nil: none is planned
	// Referrers and Children are queued for review when this manifest is deleted.
	Referrers Some[oci.Digest] `json:"referrers"`
	Children  Some[oci.Digest] `json:"children"`
	// Missing has the manifests that this manifest, a sparse index, lists and that the
	// repository doesn't have.
	Missing Some[oci.Digest] `json:"missing"`
}

// HoldingIndex is an index that lists a manifest.
type HoldingIndex struct {
	Digest oci.Digest   `json:"digest"`
	Tags   Some[string] `json:"tags"`
}

// ExplainedSubject is the subject that a manifest names.
type ExplainedSubject struct {
	Digest oci.Digest `json:"digest"`
	Exists bool       `json:"exists"` // in the same repository
}

// Manifest explains what refers to the manifest with the digest `d` in the repository at
// `path`, and what garbage collection will do with it. It returns the error NAME_UNKNOWN if
// there is no such repository, which names a deleted one that has the manifest, and
// MANIFEST_UNKNOWN if the repository doesn't have it.
func Manifest(ctx context.Context, c *gc.Collector, path string, d oci.Digest) (ManifestExplanation, error) {
	e := ManifestExplanation{Repository: path, Digest: d}
	err := c.Snapshot(ctx, func(tx pgx.Tx) error {
		r, err := findRepository(ctx, tx, path)
		if err != nil {
			return lookInTrash(ctx, tx, err, path, hasManifest, d.Bytes())
		}
		var id int64
		var subject []byte
		err = tx.QueryRow(ctx, `
			SELECT now(), id, media_type, COALESCE(artifact_type, ''), octet_length(payload), created_at, subject_digest
			FROM manifests WHERE top_level_namespace_id = $1 AND repository_id = $2 AND digest = $3`,
			r.namespace, r.id, d.Bytes()).Scan(&e.AsOf, &id, &e.MediaType, &e.ArtifactType, &e.Size, &e.CreatedAt, &subject)
		if errors.Is(err, pgx.ErrNoRows) {
			return catalog.ManifestUnknown(path, d.String())
		}
		if err != nil {
			return err
		}
		b := new(pgx.Batch)
		askHolders(b, &e, r, id)
		if err := askSubject(b, &e, r, subject); err != nil {
			return err
		}
		askDependents(b, &e, r, id)
		askReview(b, &e.Review, `
			SELECT event, created_at, review_after, review_count, set_aside_at, COALESCE(last_error, '')
			FROM gc_planned_manifest_reviews
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND manifest_id = $3`, r.namespace, r.id, id)
		if err := tx.SendBatch(ctx, b).Close(); err != nil {
			return err
		}
		holders, err := hold.Of(ctx, tx, r.namespace, r.id, []int64{id})
		if err != nil {
			return err
		}
		e.HeldBy = append([]hold.Holder{}, holders[id]...)
		if err := e.findCircle(ctx, tx, r, id); err != nil {
			return err
		}
		return e.findRetention(ctx, tx, c, r, id)
	})
	if _, known := errors.AsType[*oci.Error](err); err != nil && !known {
		err = fmt.Errorf("explaining manifest %s of %s: %w", d, path, err)
	}
	if err != nil {
		return e, err
	}
	e.Fate = fate(e.referenced() && !e.Circle || len(e.HeldBy) > 0 || e.RetainedUntil != nil, e.Review, e.AsOf)
	if e.Circle && e.Review == nil && len(e.HeldBy) == 0 {
		e.Fate = FateWaiting
	}
	return e, nil
}

// repository identifies a row of the table repositories.
type repository struct{ namespace, id int64 }

func findRepository(ctx context.Context, tx pgx.Tx, path string) (r repository, err error) {
	err = tx.QueryRow(ctx, "SELECT top_level_namespace_id, id FROM live_repositories WHERE path = $1", path).Scan(&r.namespace, &r.id)
	if errors.Is(err, pgx.ErrNoRows) {
		return r, catalog.NameUnknown(path)
	}
	return r, err
}

// referenced says whether a tag, an index or an existing subject references the manifest.
func (e *ManifestExplanation) referenced() bool {
	return len(e.Tags.First) > 0 || len(e.Indexes.First) > 0 || e.Subject != nil && e.Subject.Exists
}

// findCircle sets e.Circle if the manifest has no tag and only a cycle without tags keeps
// it. It runs the same check as a review.
func (e *ManifestExplanation) findCircle(ctx context.Context, tx pgx.Tx, r repository, id int64) error {
	if len(e.Tags.First) > 0 || !e.referenced() || len(e.Children.First)+len(e.Referrers.First) == 0 {
		return nil
	}
	var err error
	e.Circle, err = gc.InCycle(ctx, tx, r.namespace, r.id, id)
	return err
}

// findRetention sets e.RetainedBy and e.RetainedUntil if a policy keeps the manifest although
// nothing references it.
func (e *ManifestExplanation) findRetention(ctx context.Context, tx pgx.Tx, c *gc.Collector, r repository, id int64) error {
	if e.referenced() && !e.Circle || e.Review == nil {
		return nil
	}
	kept, until, ok, err := c.Retained(ctx, tx, r.namespace, r.id, id)
	if ok {
		e.RetainedBy, e.RetainedUntil = kept.By, &until
	}
	return err
}

// askHolders adds queries to the batch `b`: for the tags that point to the manifest, and
// for the indexes that list it. "Plans" in the comment of package db says why lookups have
// OFFSET 0.
func askHolders(b *pgx.Batch, e *ManifestExplanation, r repository, id int64) {
	b.Queue(fmt.Sprintf(`
		WITH t AS MATERIALIZED (
			SELECT name FROM tags WHERE top_level_namespace_id = $1 AND repository_id = $2 AND manifest_id = $3 LIMIT %d)
		SELECT (SELECT count(*) FROM t), ARRAY(SELECT name FROM t ORDER BY name LIMIT %d)`,
		explainLimit+1, explainFirst), r.namespace, r.id, id).QueryRow(func(row pgx.Row) error {
		var n int64
		err := row.Scan(&n, &e.Tags.First)
		e.Tags.Total = counted(n)
		return err
	})
	scan := func(row pgx.CollectableRow, total *int64) (i HoldingIndex, err error) {
		var digest []byte
		var n int64
		if err := row.Scan(total, &digest, &n, &i.Tags.First); err != nil {
			return i, err
		}
		i.Tags.Total = counted(n)
		i.Digest, err = oci.DigestFromBytes(digest)
		return i, err
	}
	askSome(b, &e.Indexes, scan, fmt.Sprintf(`
		WITH list AS MATERIALIZED (
			(SELECT parent_id AS id FROM manifest_references
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND child_id = $3
			UNION ALL -- index and manifest pushed at the same moment: the review links them
			SELECT parent_id FROM missing_children
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND child_digest = $4) LIMIT %[1]d)
		SELECT (SELECT count(*) FROM list), m.digest, t.tags, t.names
		FROM (SELECT * FROM list ORDER BY id LIMIT %[2]d) f
		CROSS JOIN LATERAL (
			SELECT digest FROM manifests
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND id BETWEEN f.id AND f.id ORDER BY id LIMIT 1) m
		CROSS JOIN LATERAL (
			WITH t AS MATERIALIZED (
				SELECT name FROM tags WHERE top_level_namespace_id = $1 AND repository_id = $2 AND manifest_id = f.id LIMIT %[1]d)
			SELECT (SELECT count(*) FROM t) AS tags, ARRAY(SELECT name FROM t ORDER BY name LIMIT %[2]d) AS names) t
		ORDER BY f.id`, explainLimit+1, explainFirst), r.namespace, r.id, id, e.Digest.Bytes())
}

// askSubject adds a query to the batch `b` that tells whether the manifest's subject
// exists. If the manifest names no subject, askSubject adds no query.
func askSubject(b *pgx.Batch, e *ManifestExplanation, r repository, subject []byte) error {
	if subject == nil {
		return nil
	}
	d, err := oci.DigestFromBytes(subject)
	if err != nil {
		return err
	}
	e.Subject = &ExplainedSubject{Digest: d}
	askRow(b, []any{&e.Subject.Exists}, `
		SELECT EXISTS (SELECT FROM manifests WHERE top_level_namespace_id = $1 AND repository_id = $2 AND digest = $3)`,
		r.namespace, r.id, subject)
	return nil
}

// askDependents adds queries to the batch `b`: for the manifest's referrers, for its
// children, and for the manifests that it lists and that the repository doesn't have.
func askDependents(b *pgx.Batch, e *ManifestExplanation, r repository, id int64) {
	askSome(b, &e.Referrers, scanDigest, fmt.Sprintf(`
		WITH list AS MATERIALIZED (
			SELECT id, digest FROM manifests
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND subject_digest = $3 LIMIT %d)
		SELECT (SELECT count(*) FROM list), f.digest
		FROM (SELECT * FROM list ORDER BY id LIMIT %d) f
		ORDER BY f.id`, explainLimit+1, explainFirst), r.namespace, r.id, e.Digest.Bytes())
	askSome(b, &e.Children, scanDigest, fmt.Sprintf(`
		WITH list AS MATERIALIZED (
			SELECT child_id AS id FROM manifest_references
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND parent_id = $3 LIMIT %d)
		SELECT (SELECT count(*) FROM list), m.digest
		FROM (SELECT * FROM list ORDER BY id LIMIT %d) f
		CROSS JOIN LATERAL (
			SELECT digest FROM manifests
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND id BETWEEN f.id AND f.id ORDER BY id LIMIT 1) m
		ORDER BY f.id`, explainLimit+1, explainFirst), r.namespace, r.id, id)
	askSome(b, &e.Missing, scanDigest, fmt.Sprintf(`
		WITH list AS MATERIALIZED (
			SELECT parent_id AS id, child_digest FROM missing_children
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND parent_id = $3 LIMIT %d)
		SELECT (SELECT count(*) FROM list), f.child_digest
		FROM (SELECT * FROM list ORDER BY id LIMIT %d) f
		ORDER BY f.id`, explainLimit+1, explainFirst), r.namespace, r.id, id)
}

package catalog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/oci"
)

// RestoreTag points a tag, new or existing, to manifest d of the repository, whether the
// manifest has other tags or not. Errors: NAME_UNKNOWN; MANIFEST_UNKNOWN if the manifest isn't
// in the repository; if the tag points to another manifest, DENIED with status 409 if the tag is
// protected, and DENIED with status 403 with the option KeepTag.
//
// RestoreTag locks the manifest before it writes the tag. If a review of the manifest has the
// lock first and deletes the manifest, the error is MANIFEST_UNKNOWN. A review that comes
// later sees the tag and keeps the manifest.
func (c *Catalog) RestoreTag(ctx context.Context, path, tag string, d oci.Digest, options ...TagOption) error {
	return c.RestoreTagIf(ctx, path, tag, d, Condition{}, options...)
}

// RestoreTagIf is like RestoreTag, but only points the tag to the manifest if the condition on the tag
// holds. Otherwise the error is DENIED with status 412.
func (c *Catalog) RestoreTagIf(ctx context.Context, path, tag string, d oci.Digest, condition Condition, options ...TagOption) error {
	return c.pointTag(ctx, path, tag, d, "revert_tag", condition, options)
}

// PointTag is like RestoreTag, but the audit log records that the tag was created or moved,
// not that it was restored.
func (c *Catalog) PointTag(ctx context.Context, path, tag string, d oci.Digest, options ...TagOption) error {
	return c.PointTagIf(ctx, path, tag, d, Condition{}, options...)
}

// PointTagIf is to PointTag what RestoreTagIf is to RestoreTag.
func (c *Catalog) PointTagIf(ctx context.Context, path, tag string, d oci.Digest, condition Condition, options ...TagOption) error {
	return c.pointTag(ctx, path, tag, d, "create_tag", condition, options)
}

func (c *Catalog) pointTag(ctx context.Context, path, tag string, d oci.Digest, kind string, condition Condition, options []TagOption) error {
	condition.Tag = tag
	p := NewManifest{Repository: path, Digest: d, Condition: condition, KeepTags: slices.Contains(options, KeepTag)}
	rows := manifestColumns{digest: d.Bytes(), tags: []string{tag}}
	if err := c.quotas.AdmitTags(ctx, path, rows.tags); err != nil {
		return err
	}
	return c.write(ctx, write{
		path: path, doing: fmt.Sprintf("pointing tag %s of %s to a manifest", tag, path), drop: c.cache.dropTags,
		run: func(ctx context.Context, r repository) error { return c.putExisting(ctx, r, p, rows, kind) },
		answer: func(ctx context.Context, r repository, why refusal) error {
			switch why {
			case tagProtected:
				return c.moveRefused(ctx, r, p, rows.tags)
			case conditionFails:
				return c.conditionFailed(ctx, path, p.Condition, d)
			case manifestGone:
				return oci.Errorf(oci.ManifestUnknown,
					"manifest %s is not in repository %s: it was never pushed there, or it has been deleted since, and then only a new push brings it back", d, path).
					WithDetail(map[string]string{"name": path, "digest": d.String()})
			default:
				return why
			}
		},
	})
}

// DeletedTag is a tag that was deleted, with the values that RestoreTags needs.
type DeletedTag struct {
	Name    string
	Digest  oci.Digest // of its manifest
	Created time.Time
	Updated time.Time // zero: the tag was never moved or pushed again
	Expires time.Time // zero: the tag had no expiration date
}

// RestoredTag is the result of RestoreTags for one tag.
type RestoredTag struct {
	Name string
	ID   int64 // of the tag's new row; 0 if no row was created
	// Exists says that a client has created a tag of the same name since, and Gone that the
	// manifest doesn't exist any more; in both cases the tag isn't restored.
	Exists, Gone bool
}

// RestoreTags creates the tags again with their old times, and expiration dates that aren't over,
// except tags whose manifest doesn't exist any more, and tags whose name is in use again. It returns
// the result for each tag. The caller has locked the repository, as ChangeTags does, and writes the
// entries of the audit log.
//
// RestoreTags locks the manifests before it creates tags that point to them, in the same way as
// [Catalog.RestoreTag].
func RestoreTags(ctx context.Context, tx pgx.Tx, r Repository, tags []DeletedTag) ([]RestoredTag, error) {
	var digests [][]byte
	var names []string
	var created []time.Time
	var updated, expires []*time.Time
	for i := range tags {
		digests, names = append(digests, tags[i].Digest.Bytes()), append(names, tags[i].Name)
		created = append(created, tags[i].Created)
		if updated = append(updated, nil); !tags[i].Updated.IsZero() {
			updated[i] = &tags[i].Updated
		}
		if expires = append(expires, nil); !tags[i].Expires.IsZero() {
			expires[i] = &tags[i].Expires
		}
	}
	if _, err := tx.Exec(ctx, `
		SELECT FROM (SELECT DISTINCT digest FROM unnest($3::bytea[]) AS digest ORDER BY digest) want
		CROSS JOIN LATERAL (
			SELECT FROM manifests
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND digest BETWEEN want.digest AND want.digest
			ORDER BY digest LIMIT 1 FOR KEY SHARE) m`, r.NamespaceID, r.ID, digests); err != nil {
		return nil, err
	}
	rows, err := tx.Query(ctx, `
		WITH want AS MATERIALIZED (
			SELECT w.*, m.id AS manifest_id
			FROM unnest($3::bytea[], $4::text[], $5::timestamptz[], $6::timestamptz[], $7::timestamptz[]) AS w (digest, name, created, updated, expires)
			LEFT JOIN LATERAL (
				SELECT id FROM manifests
				WHERE top_level_namespace_id = $1 AND repository_id = $2 AND digest BETWEEN w.digest AND w.digest
				ORDER BY digest LIMIT 1) m ON true
		), made AS (
			INSERT INTO tags (top_level_namespace_id, repository_id, name, manifest_id, created_at, updated_at, expires_at)
			SELECT $1, $2, name, manifest_id, created, updated, CASE WHEN expires > now() THEN expires END FROM want WHERE manifest_id IS NOT NULL
			ORDER BY name COLLATE "C"
			ON CONFLICT (repository_id, top_level_namespace_id, name) DO NOTHING
			RETURNING id, name
		)
		SELECT w.name, COALESCE(m.id, 0), m.id IS NULL AND w.manifest_id IS NOT NULL, w.manifest_id IS NULL
		FROM want w LEFT JOIN made m ON m.name = w.name`,
		r.NamespaceID, r.ID, digests, names, created, updated, expires)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[RestoredTag])
}

// UndonePage is how many tags UndoDeletion restores at most.
const UndonePage = 1000

// UndoneDeletion says what UndoDeletion did.
type UndoneDeletion struct {
	Restored int
	// Exists and Gone are the names of tags that weren't restored: there is a tag of the name, or
	// garbage collection has deleted the manifest.
	Exists, Gone []string
	Next         string // the cursor with which UndoDeletion goes on; "": all is done
}

// UndoDeletion restores tags that DeleteTagOf has deleted in the repository under the id `deletion`,
// up to UndonePage of them, with their old times, and expiration dates that aren't over. It
// leaves a tag alone whose name is in use, whatever it points to. `cursor` is "" at first, then Next of
// the call before. Errors: NAME_UNKNOWN if the repository doesn't exist, or has no such deletion that
// the audit log still knows; UNSUPPORTED with status 400 for an invalid cursor; DENIED with status 409
// if the namespace's quota has no room for the tags.
func (c *Catalog) UndoDeletion(ctx context.Context, path string, deletion uuid.UUID, cursor string) (out UndoneDeletion, err error) {
	r, err := c.FindRepository(ctx, path)
	if err != nil {
		return out, err
	}
	filter := audit.Filter{Run: deletion, RepositoryID: r.ID, Kinds: []audit.Kind{audit.DeleteTag}}
	entries, next, err := audit.New(c.db).List(ctx, filter, cursor, UndonePage)
	switch {
	case errors.Is(err, audit.ErrCursor):
		return out, oci.Errorf(oci.Unsupported, "%v", err).WithStatus(400)
	case err != nil:
		return out, err
	case len(entries) == 0 && cursor == "" && next == "":
		return out, oci.Errorf(oci.NameUnknown, "the audit log knows no deletion %s of tags of %s", deletion, path).
			WithStatus(404).WithDetail(map[string]string{"name": path, "deletion": deletion.String()})
	}
	tags, err := deletedTags(entries)
	if err != nil {
		return out, err
	}
	var done []RestoredTag
	err = c.ChangeTags(ctx, r, func(ctx context.Context, tx pgx.Tx) (err error) {
		if done, err = RestoreTags(ctx, tx, r, tags); err != nil {
			return fmt.Errorf("restoring tags of %s: %w", path, err)
		}
		return audit.Append(ctx, tx, revertedTags(r, deletion, tags, done)...)
	})
	if err != nil {
		return out, err
	}
	out.Next = next
	for _, t := range done {
		switch {
		case t.Gone:
			out.Gone = append(out.Gone, t.Name)
		case t.Exists:
			out.Exists = append(out.Exists, t.Name)
		default:
			out.Restored++
		}
	}
	slices.Sort(out.Exists)
	slices.Sort(out.Gone)
	return out, nil
}

// deletedTags returns the tags that the entries of the audit log describe, newest entry first. If
// several are of one name, it uses only the newest.
func deletedTags(entries []audit.Entry) (tags []DeletedTag, err error) {
	seen := make(map[string]bool, len(entries))
	for _, e := range entries {
		if seen[e.Tag] {
			continue
		}
		seen[e.Tag] = true
		var was struct {
			Created time.Time `json:"created_at"`
			Updated time.Time `json:"updated_at"`
			Expires time.Time `json:"expires_at"`
		}
		raw, _ := e.Detail.(json.RawMessage)
		if err := json.Unmarshal(raw, &was); err != nil {
			return nil, fmt.Errorf("entry %d of the audit log: %w", e.ID, err)
		}
		tags = append(tags, DeletedTag{Name: e.Tag, Digest: e.Digest, Created: was.Created, Updated: was.Updated, Expires: was.Expires})
	}
	return tags, nil
}

// revertedTags returns the entries of the audit log about tags that were restored.
func revertedTags(r Repository, deletion uuid.UUID, tags []DeletedTag, done []RestoredTag) (entries []audit.Entry) {
	digests := make(map[string]oci.Digest, len(tags))
	for _, t := range tags {
		digests[t.Name] = t.Digest
	}
	for _, t := range done {
		if t.ID != 0 {
			entries = append(entries, audit.Entry{
				Kind: audit.RevertTag, Repository: r.Path, RepositoryID: r.ID, Tag: t.Name, Digest: digests[t.Name], Run: deletion,
			})
		}
	}
	return entries
}

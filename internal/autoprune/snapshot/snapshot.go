package snapshot

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// TagRow is a tag with the columns that policies and the deletion of the tag need.
type TagRow struct {
	ID, Manifest int64
	Name         string
	// Pushed is when the tag was last pushed: created, moved, or pushed again unchanged.
	Pushed time.Time
	// Subject is the id of the manifest that the tag's manifest names as its subject:
	// judge.MissingImage if that manifest isn't in the repository, 0 if the tag's manifest names
	// no subject.
	Subject int64
	// Immutable says that nobody may delete the tag.
	Immutable bool
}

// Snapshot reads a repository in one REPEATABLE READ transaction, so that all reads see the
// same state. It isn't safe for concurrent use.
//
// The statements leave PostgreSQL only one possible plan, because its statistics can
// mislead it: for a table that was new or empty when they were taken, every database index
// looks equally good, and a wrong index reads the whole repository for each row. Therefore
// the statements select a manifest by id BETWEEN x AND x, or by digest BETWEEN x AND x, and
// order by this column: only the right index yields this order without sorting. They read
// layers in the order of the index on manifest_id for the same reason.
type Snapshot struct {
	// Now is the database's time when the snapshot was taken.
	Now time.Time
	// Tx is the snapshot's transaction, for further reads.
	Tx pgx.Tx
	// Holds says whether any holds are in force in the namespace.
	Holds  bool
	target catalog.Repository
	// subjects says whether any manifest of the repository has a subject. Few repositories
	// have such manifests; in all other repositories, Tags reads only the table tags.
	subjects bool
	// indexes says whether any manifest of the repository lists others. In all other
	// repositories, there is nothing to look for above or below manifests.
	indexes bool
}

// Read calls fn with a snapshot of the repository, which ends when fn returns. Its
// transaction only reads, so it blocks no other transaction. It may be idle while fn
// deletes tags in other transactions.
func Read(ctx context.Context, pool *db.Pool, t catalog.Repository, fn func(s *Snapshot) error) error {
	o := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	return pgx.BeginTxFunc(ctx, pool, o, func(tx pgx.Tx) error {
		s := &Snapshot{Tx: tx, target: t}
		err := tx.QueryRow(ctx, `
			SELECT now(), EXISTS (SELECT FROM manifests
				WHERE top_level_namespace_id = $1 AND repository_id = $2 AND subject_digest IS NOT NULL),
				(SELECT parent_id FROM manifest_references WHERE top_level_namespace_id = $1 AND repository_id = $2 ORDER BY parent_id LIMIT 1) IS NOT NULL,
				purser_any_holds($1),
				set_config('idle_in_transaction_session_timeout', '5min', true),
				(SELECT count(set_config(name, '0', true)) FROM pg_settings WHERE name = 'transaction_timeout') -- only newer servers have this setting`,
			t.NamespaceID, t.ID).Scan(&s.Now, &s.subjects, &s.indexes, &s.Holds, nil, nil)
		if err != nil {
			return fmt.Errorf("reading the tags of %s: %w", t.Path, err)
		}
		return fn(s)
	})
}

// In returns a repository as the statements of the caller's transaction see it. Now and Holds aren't set.
func In(tx pgx.Tx, t catalog.Repository) *Snapshot {
	return &Snapshot{Tx: tx, target: t, subjects: true, indexes: true}
}

// Tags reads up to n tags whose names come after the name `last`, in the order of their
// names, and calls the function `each` for every tag.
func (s *Snapshot) Tags(ctx context.Context, last string, n int, each func(TagRow)) error {
	sql := `
		SELECT id, manifest_id, name, COALESCE(updated_at, created_at), 0::bigint, immutable
		FROM tags WHERE repository_id = $2 AND top_level_namespace_id = $1 AND name > $3
		ORDER BY name LIMIT $4`
	if s.subjects {
		sql = `
		SELECT t.id, t.manifest_id, t.name, t.pushed,
			CASE WHEN m.subject_digest IS NOT NULL THEN COALESCE(subject.id, -1) ELSE 0 END, t.immutable
		FROM (
			SELECT id, manifest_id, name, COALESCE(updated_at, created_at) AS pushed, immutable
			FROM tags WHERE repository_id = $2 AND top_level_namespace_id = $1 AND name > $3
			ORDER BY name LIMIT $4) t
		CROSS JOIN LATERAL (
			SELECT subject_digest FROM manifests
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND id BETWEEN t.manifest_id AND t.manifest_id
			ORDER BY id LIMIT 1) m
		LEFT JOIN LATERAL (
			SELECT id FROM manifests
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND digest BETWEEN m.subject_digest AND m.subject_digest
			ORDER BY digest LIMIT 1) subject ON true
		ORDER BY t.name`
	}
	rows, err := s.Tx.Query(ctx, sql, s.target.NamespaceID, s.target.ID, last, n)
	if err != nil {
		return s.failed(err)
	}
	var t TagRow
	_, err = pgx.ForEachRow(rows, []any{&t.ID, &t.Manifest, &t.Name, &t.Pushed, &t.Subject, &t.Immutable}, func() error {
		each(t)
		return nil
	})
	if err != nil {
		return s.failed(err)
	}
	return nil
}

func (s *Snapshot) failed(err error) error {
	return fmt.Errorf("reading the tags of %s: %w", s.target.Path, err)
}

// Manifests returns, by digest prefix, the ids of the manifests whose digests begin with
// the given prefixes. A prefix without a manifest has no entry in the map.
func (s *Snapshot) Manifests(ctx context.Context, digests []oci.DigestPrefix) (map[oci.DigestPrefix]int64, error) {
	found := make(map[oci.DigestPrefix]int64, len(digests))
	if len(digests) == 0 {
		return found, nil
	}
	first, last := make([][]byte, len(digests)), make([][]byte, len(digests))
	for i, d := range digests {
		first[i], last[i] = d.Range()
	}
	rows, err := s.Tx.Query(ctx, `
		SELECT want.place, m.id FROM unnest($3::bytea[], $4::bytea[]) WITH ORDINALITY AS want (first, last, place)
		CROSS JOIN LATERAL (
			SELECT id FROM manifests
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND digest BETWEEN want.first AND want.last
			ORDER BY digest LIMIT 1) m`,
		s.target.NamespaceID, s.target.ID, first, last)
	if err != nil {
		return nil, s.failed(err)
	}
	var place, id int64
	_, err = pgx.ForEachRow(rows, []any{&place, &id}, func() error {
		found[digests[place-1]] = id
		return nil
	})
	if err != nil {
		return nil, s.failed(err)
	}
	return found, nil
}

// Manifest is a manifest with the properties that selectors of policies need.
type Manifest struct {
	ID                      int64
	MediaType, ArtifactType string
	Size                    int64
}

// sizedChildren is how many manifests of an image index are added up for its size.
const sizedChildren = 1000

// Sizes returns the given manifests with their sizes in bytes, as the management API shows
// them.
func (s *Snapshot) Sizes(ctx context.Context, manifests []int64) (map[int64]Manifest, error) {
	rows, err := s.Tx.Query(ctx, `
		SELECT want.id, m.media_type, COALESCE(m.artifact_type, ''), m.size FROM unnest($3::bigint[]) AS want (id)
		CROSS JOIN LATERAL purser_sized_manifest($1, $2, want.id, $4) m`,
		s.target.NamespaceID, s.target.ID, manifests, sizedChildren)
	if err != nil {
		return nil, s.failed(err)
	}
	found := make(map[int64]Manifest, len(manifests))
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Manifest])
	if err != nil {
		return nil, s.failed(err)
	}
	for _, m := range list {
		found[m.ID] = m
	}
	return found, nil
}

// Link says that the manifest Keeper references the manifest Kept and so keeps it from
// garbage collection. An index keeps the manifests that it lists (its children), and a
// subject keeps the manifests that name it as their subject (its referrers).
type Link struct{ Keeper, Kept int64 }

// Parents returns the links from image indexes to the given manifests. Section "Plans"
// of package db says why the query has OFFSET 0.
func (s *Snapshot) Parents(ctx context.Context, manifests []int64) ([]Link, error) {
	if !s.indexes {
		return nil, nil
	}
	return s.links(ctx, `
		SELECT x.parent_id, x.child_id FROM unnest($3::bigint[]) AS want (id)
		CROSS JOIN LATERAL (
			SELECT parent_id, child_id FROM manifest_references
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND child_id BETWEEN want.id AND want.id
			ORDER BY child_id OFFSET 0) x`, manifests)
}

// children returns, for each of the given manifests that is an image index, the links to
// its children.
func (s *Snapshot) children(ctx context.Context, manifests []int64) ([]Link, error) {
	if !s.indexes {
		return nil, nil
	}
	return s.links(ctx, `
		SELECT x.parent_id, x.child_id FROM unnest($3::bigint[]) AS want (id)
		CROSS JOIN LATERAL (
			SELECT parent_id, child_id FROM manifest_references
			WHERE repository_id = $2 AND top_level_namespace_id = $1 AND parent_id = want.id OFFSET 0) x`, manifests)
}

// Subjects returns the links from existing subjects to the given manifests.
func (s *Snapshot) Subjects(ctx context.Context, manifests []int64) ([]Link, error) {
	if !s.subjects {
		return nil, nil
	}
	return s.links(ctx, `
		SELECT subject.id, want.id FROM unnest($3::bigint[]) AS want (id)
		CROSS JOIN LATERAL (
			SELECT subject_digest FROM manifests
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND id BETWEEN want.id AND want.id
				AND subject_digest IS NOT NULL ORDER BY id LIMIT 1) m
		CROSS JOIN LATERAL (
			SELECT id FROM manifests
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND digest BETWEEN m.subject_digest AND m.subject_digest
			ORDER BY digest LIMIT 1) subject`, manifests)
}

// referrers returns the links from the given manifests to their referrers.
func (s *Snapshot) referrers(ctx context.Context, manifests []int64) ([]Link, error) {
	if !s.subjects {
		return nil, nil
	}
	return s.links(ctx, `
		SELECT want.id, r.id FROM unnest($3::bigint[]) AS want (id)
		CROSS JOIN LATERAL (
			SELECT digest FROM manifests
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND id BETWEEN want.id AND want.id
			ORDER BY id LIMIT 1) m
		CROSS JOIN LATERAL (
			SELECT id FROM manifests
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND subject_digest = m.digest OFFSET 0) r`, manifests)
}

func (s *Snapshot) links(ctx context.Context, sql string, manifests []int64) ([]Link, error) {
	if len(manifests) == 0 {
		return nil, nil
	}
	rows, err := s.Tx.Query(ctx, sql, s.target.NamespaceID, s.target.ID, manifests)
	if err != nil {
		return nil, s.failed(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Link])
	if err != nil {
		return nil, s.failed(err)
	}
	return list, nil
}

// Below returns the links from the given manifests to what they keep: an index to the manifests that it
// lists, a subject to its referrers.
func (s *Snapshot) Below(ctx context.Context, manifests []int64) ([]Link, error) {
	return inParts(ctx, manifests, s.children, s.referrers)
}

// above returns the links to the given manifests from what keeps them.
func (s *Snapshot) above(ctx context.Context, manifests []int64) ([]Link, error) {
	return inParts(ctx, manifests, s.Parents, s.Subjects)
}

// inParts divides the manifests into parts of at most 10,000, calls each of the functions in `asks` with
// each part, and returns all links that these calls return.
func inParts(ctx context.Context, manifests []int64, asks ...func(context.Context, []int64) ([]Link, error)) ([]Link, error) {
	var all []Link
	for part := range slices.Chunk(manifests, 10_000) {
		for _, ask := range asks {
			links, err := ask(ctx, part)
			if err != nil {
				return nil, err
			}
			all = append(all, links...)
		}
	}
	return all, nil
}

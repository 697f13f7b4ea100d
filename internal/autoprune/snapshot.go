package autoprune

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// repositories returns up to n repositories of a namespace whose ids are greater than
// `after`, in the order of their ids.
func (p *Pruner) repositories(ctx context.Context, namespace, after int64, n int) ([]catalog.Repository, error) {
	rows, err := p.opt.Background.Pool.Query(ctx, `
		SELECT top_level_namespace_id, id, path FROM live_repositories
		WHERE top_level_namespace_id = $1 AND id > $2 ORDER BY id LIMIT $3`, namespace, after, n)
	if err != nil {
		return nil, fmt.Errorf("listing the repositories of a namespace: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[catalog.Repository])
	if err != nil {
		return nil, fmt.Errorf("listing the repositories of a namespace: %w", err)
	}
	return list, nil
}

// stillThere returns errGone if the repository was deleted.
func (p *Pruner) stillThere(ctx context.Context, t catalog.Repository) error {
	var lives bool
	err := p.opt.Background.Pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM live_repositories WHERE id = $1)", t.ID).Scan(&lives)
	if err != nil {
		return fmt.Errorf("looking for repository %s: %w", t.Path, err)
	}
	if !lives {
		return errGone
	}
	return nil
}

// tagRow is a tag with the columns that policies and the deletion of the tag need.
type tagRow struct {
	ID, Manifest int64
	Name         string
	// Pushed is when the tag was last pushed: created, moved, or pushed again unchanged.
	Pushed time.Time
	// Subject is the id of the manifest that the tag's manifest names as its subject:
	// MissingImage if that manifest isn't in the repository, 0 if the tag's manifest names
	// no subject.
	Subject int64
	// Immutable says that nobody may delete the tag.
	Immutable bool
}

// snapshot reads a repository in one REPEATABLE READ transaction, so that all reads see the
// same state. It isn't safe for concurrent use.
//
// The statements leave PostgreSQL only one possible plan, because its statistics can
// mislead it: for a table that was new or empty when they were taken, every database index
// looks equally good, and a wrong index reads the whole repository for each row. Therefore
// the statements select a manifest by id BETWEEN x AND x, or by digest BETWEEN x AND x, and
// order by this column: only the right index yields this order without sorting. They read
// layers in the order of the index on manifest_id for the same reason.
type snapshot struct {
	// Now is the database's time when the snapshot was taken.
	Now    time.Time
	tx     pgx.Tx
	target catalog.Repository
	// holds says whether any holds are in force in the namespace.
	holds bool
	// subjects says whether any manifest of the repository has a subject. Few repositories
	// have such manifests; in all other repositories, Tags reads only the table tags.
	subjects bool
	// indexes says whether any manifest of the repository lists others. In all other
	// repositories, there is nothing to look for above or below manifests.
	indexes bool
}

// readSnapshot calls fn with a snapshot of the repository, which ends when fn returns. Its
// transaction only reads, so it blocks no other transaction. It may be idle while fn
// deletes tags in other transactions.
func readSnapshot(ctx context.Context, pool *db.Pool, t catalog.Repository, fn func(s *snapshot) error) error {
	o := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	return pgx.BeginTxFunc(ctx, pool, o, func(tx pgx.Tx) error {
		s := &snapshot{tx: tx, target: t}
		err := tx.QueryRow(ctx, `
			SELECT now(), EXISTS (SELECT FROM manifests
				WHERE top_level_namespace_id = $1 AND repository_id = $2 AND subject_digest IS NOT NULL),
				(SELECT parent_id FROM manifest_references WHERE top_level_namespace_id = $1 AND repository_id = $2 ORDER BY parent_id LIMIT 1) IS NOT NULL,
				purser_any_holds($1),
				set_config('idle_in_transaction_session_timeout', '5min', true),
				(SELECT count(set_config(name, '0', true)) FROM pg_settings WHERE name = 'transaction_timeout') -- only newer servers have this setting`,
			t.NamespaceID, t.ID).Scan(&s.Now, &s.subjects, &s.indexes, &s.holds, nil, nil)
		if err != nil {
			return fmt.Errorf("reading the tags of %s: %w", t.Path, err)
		}
		return fn(s)
	})
}

// Tags reads up to n tags whose names come after the name `last`, in the order of their
// names, and calls the function `each` for every tag.
func (s *snapshot) Tags(ctx context.Context, last string, n int, each func(tagRow)) error {
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
	rows, err := s.tx.Query(ctx, sql, s.target.NamespaceID, s.target.ID, last, n)
	if err != nil {
		return s.failed(err)
	}
	var t tagRow
	_, err = pgx.ForEachRow(rows, []any{&t.ID, &t.Manifest, &t.Name, &t.Pushed, &t.Subject, &t.Immutable}, func() error {
		each(t)
		return nil
	})
	if err != nil {
		return s.failed(err)
	}
	return nil
}

// Query runs a query in the snapshot. Other code uses it to read further tables about the
// repository, such as the exemptions.
func (s *snapshot) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return s.tx.Query(ctx, sql, args...)
}

// QueryRow is like Query, for one row.
func (s *snapshot) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return s.tx.QueryRow(ctx, sql, args...)
}

func (s *snapshot) failed(err error) error {
	return fmt.Errorf("reading the tags of %s: %w", s.target.Path, err)
}

// Manifests returns, by digest prefix, the ids of the manifests whose digests begin with
// the given prefixes. A prefix without a manifest has no entry in the map.
func (s *snapshot) Manifests(ctx context.Context, digests []oci.DigestPrefix) (map[oci.DigestPrefix]int64, error) {
	found := make(map[oci.DigestPrefix]int64, len(digests))
	if len(digests) == 0 {
		return found, nil
	}
	first, last := make([][]byte, len(digests)), make([][]byte, len(digests))
	for i, d := range digests {
		first[i], last[i] = d.Range()
	}
	rows, err := s.tx.Query(ctx, `
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

// manifestRow is a manifest with the properties that selectors of policies need.
type manifestRow struct {
	ID                      int64
	MediaType, ArtifactType string
	Size                    int64
}

// sizedChildren is how many manifests of an image index are added up for its size.
const sizedChildren = 1000

// Sizes returns the given manifests with their sizes in bytes, as the management API shows
// them.
func (s *snapshot) Sizes(ctx context.Context, manifests []int64) (map[int64]manifestRow, error) {
	rows, err := s.tx.Query(ctx, `
		SELECT want.id, m.media_type, COALESCE(m.artifact_type, ''), m.size FROM unnest($3::bigint[]) AS want (id)
		CROSS JOIN LATERAL purser_sized_manifest($1, $2, want.id, $4) m`,
		s.target.NamespaceID, s.target.ID, manifests, sizedChildren)
	if err != nil {
		return nil, s.failed(err)
	}
	found := make(map[int64]manifestRow, len(manifests))
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[manifestRow])
	if err != nil {
		return nil, s.failed(err)
	}
	for _, m := range list {
		found[m.ID] = m
	}
	return found, nil
}

// link says that the manifest Keeper references the manifest Kept and so keeps it from
// garbage collection. An index keeps the manifests that it lists (its children), and a
// subject keeps the manifests that name it as their subject (its referrers).
type link struct{ Keeper, Kept int64 }

// Parents returns the links from image indexes to the given manifests. Section "Plans"
// of package db says why the query has OFFSET 0.
func (s *snapshot) Parents(ctx context.Context, manifests []int64) ([]link, error) {
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

// Children returns, for each of the given manifests that is an image index, the links to
// its children.
func (s *snapshot) Children(ctx context.Context, manifests []int64) ([]link, error) {
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
func (s *snapshot) Subjects(ctx context.Context, manifests []int64) ([]link, error) {
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

// Referrers returns the links from the given manifests to their referrers.
func (s *snapshot) Referrers(ctx context.Context, manifests []int64) ([]link, error) {
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

func (s *snapshot) links(ctx context.Context, sql string, manifests []int64) ([]link, error) {
	if len(manifests) == 0 {
		return nil, nil
	}
	rows, err := s.tx.Query(ctx, sql, s.target.NamespaceID, s.target.ID, manifests)
	if err != nil {
		return nil, s.failed(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[link])
	if err != nil {
		return nil, s.failed(err)
	}
	return list, nil
}

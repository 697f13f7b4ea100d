package catalog

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/pgsession"
)

// PruneTarget is a repository whose tags policies are applied to.
type PruneTarget struct {
	NamespaceID, ID int64
	Path            string
}

// NamespaceID returns the id of a namespace. Error: NAME_UNKNOWN.
func (c *Catalog) NamespaceID(ctx context.Context, name string) (id int64, err error) {
	err = c.db.Pool.QueryRow(ctx, "SELECT id FROM top_level_namespaces WHERE name = $1", name).Scan(&id)
	switch {
	case isNoRows(err):
		return 0, oci.Errorf(oci.NameUnknown, "namespace %s is not known to this registry", name).
			WithDetail(map[string]string{"name": name})
	case err != nil:
		return 0, fmt.Errorf("looking for namespace %s: %w", name, err)
	}
	return id, nil
}

// PruneTarget finds a repository by its name. Error: NAME_UNKNOWN.
func (c *Catalog) PruneTarget(ctx context.Context, path string) (PruneTarget, error) {
	t := PruneTarget{Path: path}
	err := c.db.Pool.QueryRow(ctx, "SELECT top_level_namespace_id, id FROM live_repositories WHERE path = $1", path).
		Scan(&t.NamespaceID, &t.ID)
	switch {
	case isNoRows(err):
		return t, nameUnknown(path)
	case err != nil:
		return t, fmt.Errorf("looking for repository %s: %w", path, err)
	}
	return t, nil
}

// PruneTargets lists up to n repositories of a namespace whose ids are above
// after, in the order of their ids.
func (c *Catalog) PruneTargets(ctx context.Context, namespace, after int64, n int) ([]PruneTarget, error) {
	rows, err := c.opt.Pruning.Pool.Query(ctx, `
		SELECT top_level_namespace_id, id, path FROM live_repositories
		WHERE top_level_namespace_id = $1 AND id > $2 ORDER BY id LIMIT $3`, namespace, after, n)
	if err != nil {
		return nil, fmt.Errorf("listing the repositories of a namespace: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[PruneTarget])
	if err != nil {
		return nil, fmt.Errorf("listing the repositories of a namespace: %w", err)
	}
	return list, nil
}

// PruneTargetLives returns ErrRepositoryGone if the repository was deleted.
func (c *Catalog) PruneTargetLives(ctx context.Context, t PruneTarget) error {
	var lives bool
	err := c.opt.Pruning.Pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM live_repositories WHERE id = $1)", t.ID).Scan(&lives)
	if err != nil {
		return fmt.Errorf("looking for repository %s: %w", t.Path, err)
	}
	if !lives {
		return ErrRepositoryGone
	}
	return nil
}

// PruneTag is a tag with the properties that policies look at.
type PruneTag struct {
	ID, Manifest int64
	Name         string
	// Pushed is when the tag was last pushed: created, moved, or pushed again unchanged.
	Pushed time.Time
	// Subject is the id of the subject of the tag's manifest: SubjectMissing if the subject
	// isn't in the repository, 0 if the manifest names none.
	Subject int64
}

// SubjectMissing is the PruneTag.Subject of a manifest whose subject isn't there.
const SubjectMissing = -1

// PruneSnapshot reads a repository in one snapshot. It isn't safe for concurrent use.
//
// Its statements are written so that only one plan is possible, whatever the statistics say:
// by the statistics of a new or emptied table any index looks as good as the right one, and
// the wrong one reads all of a repository for each row. So a manifest is looked up by a
// range of one id or digest, ordered by it, since only the right index gives that order
// without sorting; layers are read in the order of their index by manifest.
type PruneSnapshot struct {
	// Now is the database's time when the snapshot was taken.
	Now    time.Time
	tx     pgx.Tx
	target PruneTarget
	// subjects says whether any manifest of the repository has a subject. Few repositories
	// have such manifests; for the others tags are read without looking at manifests.
	subjects bool
}

// PruneSnapshot calls fn with a snapshot of the repository, which ends when fn returns. The
// transaction only reads, so it blocks nobody, and it may be idle while the caller deletes
// what it has read.
func (c *Catalog) PruneSnapshot(ctx context.Context, t PruneTarget, fn func(s *PruneSnapshot) error) error {
	return pruneSnapshot(ctx, c.opt.Pruning.Pool, t, fn)
}

// PreviewSnapshot is PruneSnapshot for callers that only read: it doesn't use the few
// connections reserved for pruning.
func (c *Catalog) PreviewSnapshot(ctx context.Context, t PruneTarget, fn func(s *PruneSnapshot) error) error {
	return pruneSnapshot(ctx, c.db.Pool, t, fn)
}

func pruneSnapshot(ctx context.Context, pool *pgxpool.Pool, t PruneTarget, fn func(s *PruneSnapshot) error) error {
	o := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	return pgx.BeginTxFunc(ctx, pool, o, func(tx pgx.Tx) error {
		s := &PruneSnapshot{tx: tx, target: t}
		err := tx.QueryRow(ctx, `
			SELECT now(), EXISTS (SELECT FROM manifests
				WHERE top_level_namespace_id = $1 AND repository_id = $2 AND subject_digest IS NOT NULL),
				set_config('idle_in_transaction_session_timeout', '5min', true), (`+pgsession.LiftTransaction+`)`,
			t.NamespaceID, t.ID).Scan(&s.Now, &s.subjects, nil, nil)
		if err != nil {
			return fmt.Errorf("reading the tags of %s: %w", t.Path, err)
		}
		return fn(s)
	})
}

// Tags calls each with up to n tags after last, in the order of their names.
func (s *PruneSnapshot) Tags(ctx context.Context, last string, n int, each func(PruneTag)) error {
	sql := `
		SELECT id, manifest_id, name, COALESCE(updated_at, created_at), 0::bigint
		FROM tags WHERE repository_id = $2 AND top_level_namespace_id = $1 AND name > $3
		ORDER BY name LIMIT $4`
	if s.subjects {
		sql = `
		SELECT t.id, t.manifest_id, t.name, t.pushed,
			CASE WHEN m.subject_digest IS NOT NULL THEN COALESCE(subject.id, -1) ELSE 0 END
		FROM (
			SELECT id, manifest_id, name, COALESCE(updated_at, created_at) AS pushed
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
	var t PruneTag
	_, err = pgx.ForEachRow(rows, []any{&t.ID, &t.Manifest, &t.Name, &t.Pushed, &t.Subject}, func() error {
		each(t)
		return nil
	})
	if err != nil {
		return s.failed(err)
	}
	return nil
}

// Query lets another package read its own tables about the repository, in the snapshot.
func (s *PruneSnapshot) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return s.tx.Query(ctx, sql, args...)
}

// QueryRow is Query for one row.
func (s *PruneSnapshot) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return s.tx.QueryRow(ctx, sql, args...)
}

func (s *PruneSnapshot) failed(err error) error {
	return fmt.Errorf("reading the tags of %s: %w", s.target.Path, err)
}

// Manifests returns the ids of the manifests that exist, by prefixes of their digests.
func (s *PruneSnapshot) Manifests(ctx context.Context, digests []oci.DigestPrefix) (map[oci.DigestPrefix]int64, error) {
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

// ManifestLink says that one manifest (Keeper) keeps another (Kept): an index its child, or
// a subject its referrer.
type ManifestLink struct{ Keeper, Kept int64 }

// Parents returns the links from indexes to the given manifests.
func (s *PruneSnapshot) Parents(ctx context.Context, manifests []int64) ([]ManifestLink, error) {
	return s.links(ctx, `
		SELECT x.parent_id, x.child_id FROM unnest($3::bigint[]) AS want (id)
		CROSS JOIN LATERAL (
			SELECT parent_id, child_id FROM manifest_references
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND child_id BETWEEN want.id AND want.id
			ORDER BY child_id OFFSET 0) x`, manifests)
}

// Children returns the links from the given manifests to the children that they list as indexes.
func (s *PruneSnapshot) Children(ctx context.Context, manifests []int64) ([]ManifestLink, error) {
	return s.links(ctx, `
		SELECT x.parent_id, x.child_id FROM unnest($3::bigint[]) AS want (id)
		CROSS JOIN LATERAL (
			SELECT parent_id, child_id FROM manifest_references
			WHERE repository_id = $2 AND top_level_namespace_id = $1 AND parent_id = want.id OFFSET 0) x`, manifests)
}

// Subjects returns the links from existing subjects to the given manifests.
func (s *PruneSnapshot) Subjects(ctx context.Context, manifests []int64) ([]ManifestLink, error) {
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
func (s *PruneSnapshot) Referrers(ctx context.Context, manifests []int64) ([]ManifestLink, error) {
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

func (s *PruneSnapshot) links(ctx context.Context, sql string, manifests []int64) ([]ManifestLink, error) {
	if len(manifests) == 0 {
		return nil, nil
	}
	rows, err := s.tx.Query(ctx, sql, s.target.NamespaceID, s.target.ID, manifests)
	if err != nil {
		return nil, s.failed(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[ManifestLink])
	if err != nil {
		return nil, s.failed(err)
	}
	return list, nil
}

// PruneUnused returns the bytes of blobs that only the given manifests use, which may be in
// several repositories: what garbage collection would free if they were deleted now.
func (c *Catalog) PruneUnused(ctx context.Context, repositories []PruneTarget, manifests [][]int64) (bytes int64, err error) {
	var namespaces, ids, list []int64
	for i, t := range repositories {
		for _, m := range manifests[i] {
			namespaces, ids, list = append(namespaces, t.NamespaceID), append(ids, t.ID), append(list, m)
		}
	}
	if len(list) == 0 {
		return 0, nil
	}
	// Manifests' ids are unique in the registry.
	err = c.db.Pool.QueryRow(ctx, `
		WITH going AS MATERIALIZED (
			SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS g (namespace_id, repository_id, id)
		), held AS MATERIALIZED (
			SELECT l.digest FROM going g
			CROSS JOIN LATERAL (
				SELECT digest FROM layers
				WHERE top_level_namespace_id = g.namespace_id AND repository_id = g.repository_id AND manifest_id = g.id
				ORDER BY digest OFFSET 0) l
			UNION
			SELECT m.digest FROM going g
			CROSS JOIN LATERAL (
				SELECT configuration_blob_digest AS digest FROM manifests
				WHERE top_level_namespace_id = g.namespace_id AND repository_id = g.repository_id AND id BETWEEN g.id AND g.id
					AND configuration_blob_digest IS NOT NULL ORDER BY id LIMIT 1) m
		)
		SELECT LEAST(COALESCE(sum(b.size), 0), `+maxBytes+`)::bigint FROM held h
		CROSS JOIN LATERAL (SELECT size FROM blobs WHERE digest = h.digest OFFSET 0) b
		WHERE NOT EXISTS (SELECT FROM layers l WHERE l.digest = h.digest AND l.manifest_id NOT IN (SELECT id FROM going))
			AND NOT EXISTS (SELECT FROM manifests m
				WHERE m.configuration_blob_digest = h.digest AND m.id NOT IN (SELECT id FROM going))`,
		namespaces, ids, list).Scan(&bytes)
	if err != nil {
		return 0, fmt.Errorf("adding up what the manifests of pruned tags hold: %w", err)
	}
	return bytes, nil
}

package browse

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
)

// RepositoryInfo is a repository in a list.
type RepositoryInfo struct {
	ID        int64     `json:"-"`
	Path      string    `json:"path"`
	CreatedAt time.Time `json:"created_at"`
	// PushedAt is the time of the latest push to any of the repository's existing tags, nil if
	// the repository has no tags.
	PushedAt   *time.Time    `json:"pushed_at"`
	Tags       catalog.Count `json:"tags"`       // counted up to 1000
	Visibility string        `json:"visibility"` // Public or Private
	Starred    bool          `json:"starred"`
}

// RepositoryQuery asks for a page of repositories.
type RepositoryQuery struct {
	NameFilter
	Namespace  string // "": all
	Visibility string // "": any
	Starred    bool   // only those with a star
	ByCreation bool   // in the order of creation, not of names
	Descending bool
	After      *RepositoryPlace // nil: from the beginning
	Limit      int
}

// RepositoryPlace is the position of a repository in a list.
type RepositoryPlace struct {
	Path string `json:"p,omitempty"`
	ID   int64  `json:"i,omitempty"`
}

// foundRepository is a repository that a query found for a page of a list of repositories.
type foundRepository struct {
	RepositoryPlace
	IsPublic bool
	Starred  bool
}

func (q RepositoryQuery) takes(r foundRepository) bool {
	return q.selects(r.Path) && (q.Visibility == "" || q.Visibility == visibility(r.IsPublic)) && (!q.Starred || r.Starred)
}

// Repositories lists the repositories that the viewer may read, one page at a time. `next`
// is the value of q.After for the next page, nil if there is no next page. The query for a page
// reads a bounded number of names. So with Contains, Visibility or Starred, or with Prefix in
// the order of creation, a page may have fewer than Limit repositories although there is a next
// page. Error: NAME_UNKNOWN if q.Namespace doesn't exist, or is hidden from the viewer.
func (b *Browser) Repositories(ctx context.Context, v Viewer, q RepositoryQuery) (list []RepositoryInfo, next *RepositoryPlace, err error) {
	limit := bound(0, q.Limit, q.Contains == "" && q.Visibility == "" && !q.Starred && (!q.ByCreation || q.Prefix == ""))
	var namespace foundNamespace
	if q.Namespace != "" {
		if namespace, err = b.namespaceFor(ctx, v, q.Namespace); err != nil {
			return nil, nil, err
		}
	}
	find := b.readableByName
	switch all := namespace.whole || v.Unlimited(); {
	case all && q.ByCreation:
		find = b.repositoriesByCreation
	case all:
		find = b.repositoriesByName
	case q.ByCreation:
		find = b.readableByCreation
	}
	found, err := find(ctx, v, q, namespace.id, limit)
	if err != nil {
		return nil, nil, fmt.Errorf("listing repositories: %w", err)
	}
	page, last := pick(found, q.takes, 0, q.Limit, limit)
	if list, err = b.repositoryInfos(ctx, page); err != nil {
		return nil, nil, fmt.Errorf("listing repositories: %w", err)
	}
	if last != nil {
		next = &last.RepositoryPlace
	}
	return list, next, nil
}

// repositoriesByName reads up to limit repositories in the order of their names. The
// repositories of a namespace "a" are the repository "a", if it exists, and those whose names
// begin with "a/"; each half of the UNION finds one of these two groups. OFFSET 0 in its SQL
// makes PostgreSQL look rows up by an index: see "Plans" in package db.
func (b *Browser) repositoriesByName(ctx context.Context, v Viewer, q RepositoryQuery, _ int64, limit int) ([]foundRepository, error) {
	from, to := q.Prefix, q.Prefix+afterNames
	if q.Namespace != "" {
		from, to = max(from, q.Namespace+"/"), min(to, q.Namespace+"0") // 0 comes after /
	}
	compare, order, after := ">", "ASC", ""
	if q.Descending {
		compare, order, after = "<", "DESC", afterNames
	}
	if q.After != nil {
		after = q.After.Path
	}
	rows, err := b.db.Pool.Query(ctx, fmt.Sprintf(`
		SELECT path, f.id, COALESCE(s.is_public, @public_by_default), CASE WHEN @account::bigint = 0 THEN s.starred_at IS NOT NULL
			ELSE f.id IN (SELECT repository_id FROM stars WHERE account_id = @account) END
		FROM (
			(SELECT path, id FROM live_repositories WHERE path = @namespace AND path %[1]s @after)
			UNION ALL
			(SELECT path, id FROM live_repositories WHERE path %[1]s @after AND path >= @from AND path < @to
			 ORDER BY path %[2]s LIMIT @limit)) f
		CROSS JOIN LATERAL (SELECT is_public, starred_at FROM repositories WHERE id = f.id OFFSET 0) s
		ORDER BY path %[2]s LIMIT @limit`, compare, order),
		v.args(db.SharedArgs{"namespace": q.Namespace, "after": after, "from": from, "to": to, "limit": limit}))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[foundRepository])
}

func (b *Browser) repositoriesByCreation(ctx context.Context, v Viewer, q RepositoryQuery, namespace int64, limit int) ([]foundRepository, error) {
	compare, order, after := ">", "ASC", int64(0)
	if q.Descending {
		compare, order, after = "<", "DESC", math.MaxInt64
	}
	if q.After != nil {
		after = q.After.ID
	}
	where := ""
	if q.Namespace != "" {
		where = "AND top_level_namespace_id = @namespace"
	}
	rows, err := b.db.Pool.Query(ctx, fmt.Sprintf(`
		SELECT path, f.id, COALESCE(s.is_public, @public_by_default), CASE WHEN @account::bigint = 0 THEN s.starred_at IS NOT NULL
			ELSE f.id IN (SELECT repository_id FROM stars WHERE account_id = @account) END
		FROM (SELECT path, id FROM live_repositories WHERE id %s @after %s ORDER BY id %s LIMIT @limit) f
		CROSS JOIN LATERAL (SELECT is_public, starred_at FROM repositories WHERE id = f.id OFFSET 0) s
		ORDER BY f.id %[3]s`, compare, where, order), v.args(db.SharedArgs{"after": after, "namespace": namespace, "limit": limit}))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[foundRepository])
}

// firstPush and lastPush enclose the times of all pushes. A statement that reads the latest push of
// a repository asks for a time between them, as parameters. With this condition the planner chooses
// the index in the order of pushes. Without it, it expects so few tags in a repository that it would
// rather read all by the index of names, and sort them.
var (
	firstPush = pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}
	lastPush  = pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}
)

// repositoryInfos returns the details of repositories, and leaves out deleted ones.
func (b *Browser) repositoryInfos(ctx context.Context, places []foundRepository) ([]RepositoryInfo, error) {
	ids := make([]int64, len(places))
	for i, p := range places {
		ids[i] = p.ID
	}
	rows, err := b.db.Pool.Query(ctx, `
		SELECT r.id, r.path, r.created_at, t.tags, p.pushed
		FROM unnest($1::bigint[]) WITH ORDINALITY AS want (id, nth)
		JOIN live_repositories r ON r.id = want.id
		CROSS JOIN LATERAL (
			SELECT count(*) AS tags FROM (
				SELECT FROM tags
				WHERE repository_id = r.id AND top_level_namespace_id = r.top_level_namespace_id
				ORDER BY name LIMIT $2) counted) t -- ordered as an index is, else the planner may read the table
		LEFT JOIN LATERAL (
			SELECT COALESCE(updated_at, created_at) AS pushed FROM tags
			WHERE repository_id = r.id AND top_level_namespace_id = r.top_level_namespace_id
				AND COALESCE(updated_at, created_at) BETWEEN $3::timestamptz AND $4::timestamptz -- see firstPush
			ORDER BY COALESCE(updated_at, created_at) DESC, name DESC LIMIT 1) p ON true
		ORDER BY want.nth`, ids, catalog.MostCounted+1, firstPush, lastPush)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (i RepositoryInfo, err error) {
		var tags int64
		err = row.Scan(&i.ID, &i.Path, &i.CreatedAt, &tags, &i.PushedAt)
		i.CreatedAt, i.PushedAt, i.Tags = i.CreatedAt.UTC(), utc(i.PushedAt), catalog.CountedUpTo(tags)
		place := slices.IndexFunc(places, func(f foundRepository) bool { return f.ID == i.ID })
		i.Visibility, i.Starred = visibility(places[place].IsPublic), places[place].Starred
		return i, err
	})
}

func utc(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	u := t.UTC()
	return &u
}

// RepositoryDetails describes one repository.
type RepositoryDetails struct {
	ID         int64      `json:"-"`
	Namespace  string     `json:"-"`
	Path       string     `json:"path"`
	CreatedAt  time.Time  `json:"created_at"`
	PushedAt   *time.Time `json:"pushed_at"`
	Tags       int64      `json:"tags"`
	Manifests  int64      `json:"manifests"`
	Size       Size       `json:"size"`
	Visibility string     `json:"visibility"` // Public or Private
	Starred    bool       `json:"starred"`
}

// DescribeRepository returns the details of a repository, which the viewer may read. For its size,
// at most `links` links to blobs are read; 0: 50,000. Error: NAME_UNKNOWN.
func (b *Browser) DescribeRepository(ctx context.Context, v Viewer, path string, links int) (d RepositoryDetails, err error) {
	d.Path = path
	d.Namespace, _, _ = strings.Cut(path, "/")
	var namespace int64
	var public bool
	err = b.db.Pool.QueryRow(ctx, `
		SELECT r.top_level_namespace_id, r.id, r.created_at, p.pushed,
			(SELECT count(*) FROM tags
			 WHERE repository_id = r.id AND top_level_namespace_id = r.top_level_namespace_id),
			(SELECT count(*) FROM manifests
			 WHERE repository_id = r.id AND top_level_namespace_id = r.top_level_namespace_id),
			COALESCE(s.is_public, $2), CASE WHEN $3::bigint = 0 THEN s.starred_at IS NOT NULL
				ELSE EXISTS (SELECT FROM stars WHERE account_id = $3 AND repository_id = r.id) END
		FROM live_repositories r CROSS JOIN LATERAL (SELECT * FROM repositories WHERE id = r.id OFFSET 0) s
		LEFT JOIN LATERAL (
			SELECT COALESCE(updated_at, created_at) AS pushed FROM tags
			WHERE repository_id = r.id AND top_level_namespace_id = r.top_level_namespace_id
				AND COALESCE(updated_at, created_at) BETWEEN $4::timestamptz AND $5::timestamptz -- see firstPush
			ORDER BY COALESCE(updated_at, created_at) DESC, name DESC LIMIT 1) p ON true
		WHERE r.path = $1`, path, v.PublicByDefault, v.Account, firstPush, lastPush).
		Scan(&namespace, &d.ID, &d.CreatedAt, &d.PushedAt, &d.Tags, &d.Manifests, &public, &d.Starred)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return d, catalog.NameUnknown(path)
	case err != nil:
		return d, fmt.Errorf("describing repository %s: %w", path, err)
	}
	d.CreatedAt, d.PushedAt, d.Visibility = d.CreatedAt.UTC(), utc(d.PushedAt), visibility(public)
	d.Size, err = b.size(ctx, `
		WITH links AS MATERIALIZED (
			SELECT blob_digest FROM repository_blobs
			WHERE repository_id = $2 AND top_level_namespace_id = $1 LIMIT $3)
		SELECT count(*), LEAST(COALESCE(sum(b.size), 0), 9223372036854775807)::bigint,
			CASE WHEN $4 THEN LEAST(COALESCE(sum(b.size) FILTER (WHERE $4 AND NOT EXISTS (
				SELECT FROM repository_blobs o
				WHERE o.blob_digest = l.blob_digest AND o.repository_id <> $2)), 0), 9223372036854775807)::bigint END,
			count(*) < $3
		FROM links l
		CROSS JOIN LATERAL (SELECT size FROM blobs WHERE digest = l.blob_digest OFFSET 0) b`,
		namespace, d.ID, cmp.Or(links, defaultLinks)+1, v.Unlimited())
	if err != nil {
		return d, fmt.Errorf("adding up the blobs of repository %s: %w", path, err)
	}
	return d, nil
}

// RepositoryID returns the identifier of a repository. Error: NAME_UNKNOWN.
func (b *Browser) RepositoryID(ctx context.Context, path string) (int64, error) {
	r, err := b.lookUp(ctx, path)
	return r.id, err
}

// lookUp returns the ids of a repository whose tags are to be listed, read from the database
// and not from a cache. Error: NAME_UNKNOWN.
func (b *Browser) lookUp(ctx context.Context, path string) (r repository, err error) {
	err = b.db.Pool.QueryRow(ctx, "SELECT top_level_namespace_id, id FROM live_repositories WHERE path = $1", path).
		Scan(&r.namespace, &r.id)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return r, catalog.NameUnknown(path)
	case err != nil:
		return r, fmt.Errorf("listing tags of %s: %w", path, err)
	}
	return r, nil
}

// listedBlobs is how many blobs are added up for the sizes of the repositories on a page of a list.
const listedBlobs = 10_000

// NamedRepositories describes those of the repositories with the given paths that exist and that
// the viewer may read, in the order of the paths. OFFSET 0 in its SQL makes PostgreSQL look rows
// up by an index: see "Plans" in package db.
func (b *Browser) NamedRepositories(ctx context.Context, v Viewer, paths []string) ([]RepositoryInfo, error) {
	rows, err := b.db.Pool.Query(ctx, `
		SELECT r.path, r.id, COALESCE(s.is_public, @public_by_default), CASE WHEN @account::bigint = 0 THEN s.starred_at IS NOT NULL
			ELSE r.id IN (SELECT repository_id FROM stars WHERE account_id = @account) END
		FROM unnest(@paths::text[]) WITH ORDINALITY AS want (path, nth)
		CROSS JOIN LATERAL (SELECT path, id, top_level_namespace_id, is_public FROM live_repositories WHERE path = want.path OFFSET 0) r
		CROSS JOIN LATERAL (SELECT is_public, starred_at FROM repositories WHERE id = r.id OFFSET 0) s
		WHERE (@all OR r.top_level_namespace_id = ANY (@namespaces::bigint[]) OR r.id = ANY (@repositories::bigint[])
				OR @public AND COALESCE(r.is_public, @public_by_default))
			AND (@patterns::text[] IS NULL OR r.path ~ ANY (@patterns::text[]))
		ORDER BY want.nth`, v.args(db.SharedArgs{"paths": paths}))
	if err != nil {
		return nil, fmt.Errorf("looking up repositories: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[foundRepository])
	if err != nil {
		return nil, fmt.Errorf("looking up repositories: %w", err)
	}
	list, err := b.repositoryInfos(ctx, found)
	if err != nil {
		return nil, fmt.Errorf("looking up repositories: %w", err)
	}
	return list, nil
}

// SizesOfRepositories returns the sizes of the repositories with the given ids, without OwnBytes,
// by their ids. Deleted repositories are left out. It adds up about listedBlobs blobs in all, the
// same number for each repository at most. Of a repository with more blobs only these are counted,
// and Exact is false; DescribeRepository counts more. OFFSET 0 in its SQL makes PostgreSQL look
// rows up by an index: see "Plans" in package db.
func (b *Browser) SizesOfRepositories(ctx context.Context, ids []int64) (map[int64]Size, error) {
	most := min(max(listedBlobs/max(len(ids), 1), 100), catalog.MostCounted)
	rows, err := b.db.Pool.Query(ctx, `
		SELECT r.id, l.blobs, l.bytes, l.blobs <= $2
		FROM unnest($1::bigint[]) AS want (id)
		CROSS JOIN LATERAL (SELECT id, top_level_namespace_id FROM live_repositories WHERE id = want.id OFFSET 0) r
		CROSS JOIN LATERAL (
			SELECT count(*) AS blobs, LEAST(COALESCE(sum(b.size), 0), 9223372036854775807)::bigint AS bytes
			FROM (
				SELECT blob_digest FROM repository_blobs
				WHERE repository_id = r.id AND top_level_namespace_id = r.top_level_namespace_id
				ORDER BY blob_digest LIMIT $2 + 1) k -- ordered as an index is, else the planner may read the table
			CROSS JOIN LATERAL (SELECT size FROM blobs WHERE digest = k.blob_digest OFFSET 0) b) l`, ids, most)
	if err != nil {
		return nil, fmt.Errorf("adding up the blobs of repositories: %w", err)
	}
	sizes := make(map[int64]Size, len(ids))
	var id int64
	var s Size
	if _, err := pgx.ForEachRow(rows, []any{&id, &s.Blobs, &s.Bytes, &s.Exact}, func() error {
		sizes[id] = s
		return nil
	}); err != nil {
		return nil, fmt.Errorf("adding up the blobs of repositories: %w", err)
	}
	return sizes, nil
}

// RepositoryPaths lists up to n repositories that the viewer may read and whose names come after
// the name `last`, in byte order. `more` says whether there are further repositories.
func (b *Browser) RepositoryPaths(ctx context.Context, v Viewer, last string, n int) (paths []string, more bool, err error) {
	if v.Unlimited() {
		var rows pgx.Rows
		if rows, err = b.db.Pool.Query(ctx, "SELECT path FROM live_repositories WHERE path > $1 ORDER BY path LIMIT $2", last, n+1); err == nil {
			paths, err = pgx.CollectRows(rows, pgx.RowTo[string])
		}
	} else {
		var found []foundRepository
		found, err = b.readableByName(ctx, v, RepositoryQuery{After: &RepositoryPlace{Path: last}}, 0, n+1)
		for _, r := range found {
			paths = append(paths, r.Path)
		}
	}
	if err != nil {
		return nil, false, fmt.Errorf("listing repositories: %w", err)
	}
	if len(paths) > n {
		return paths[:n], true, nil
	}
	return paths, false, nil
}

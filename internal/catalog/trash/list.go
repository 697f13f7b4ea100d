package trash

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/catalog"
)

// Conflict is a reason why something in the trash can't be restored now.
type Conflict struct {
	Name string `json:"name"`
	Why  string `json:"why"`
}

// Trashed is a repository or a namespace in the trash.
type Trashed struct {
	ID        string        `json:"id"`
	Kind      string        `json:"kind" enum:"repository,namespace"`
	Name      string        `json:"name" doc:"The name that it had"`
	Namespace string        `json:"namespace" doc:"The namespace that it was in, or its own name"`
	DeletedAt time.Time     `json:"deleted_at"`
	ExpiresAt time.Time     `json:"expires_at" doc:"From then on it may be purged at any moment"`
	DeletedBy string        `json:"deleted_by,omitempty"`
	Tags      catalog.Count `json:"tags" doc:"Counted up to 1000; of a namespace 0"`
	Manifests catalog.Count `json:"manifests" doc:"Counted up to 1000; of a namespace 0"`
	Repos     catalog.Count `json:"repositories" doc:"Of a namespace, counted up to 1000"`
	Conflicts []Conflict    `json:"conflicts" doc:"Why it can't be restored under its name now"`

	// NamespaceID is the id of the namespace's row, which may be in the trash itself
	// (NamespaceDeleted). RepositoryID is the id of the repository's row, 0 for a namespace.
	NamespaceID      int64 `json:"-"`
	RepositoryID     int64 `json:"-"`
	NamespaceDeleted bool  `json:"-"`
}

// IsNamespace says whether the item is a namespace.
func (t Trashed) IsNamespace() bool { return t.Kind == string(namespaceKey) }

// List lists up to n items of the trash after the id `after`: first the namespaces, then the
// repositories, each in the order of their ids. If namespace isn't empty, it lists only the deleted
// namespaces that had this name, and repositories of the namespace that has it now. Error:
// NAME_UNKNOWN for an `after` that can't be an id.
func (c *Can) List(ctx context.Context, namespace, after string, n int) (list []Trashed, next string, err error) {
	k := key{namespaceKey, 0}
	if after != "" {
		if k, err = parseKey(after); err != nil {
			return nil, "", err
		}
	}
	if k.kind == namespaceKey {
		if list, err = c.trashedNamespaces(ctx, namespace, k.id, math.MaxInt64, n+1); err != nil {
			return nil, "", fmt.Errorf("listing the trash: %w", err)
		}
		k = key{repositoryKey, 0}
	}
	if len(list) <= n {
		repositories, err := c.trashedRepositories(ctx, namespace, k.id, math.MaxInt64, n+1-len(list))
		if err != nil {
			return nil, "", fmt.Errorf("listing the trash: %w", err)
		}
		list = append(list, repositories...)
	}
	if len(list) > n {
		list = list[:n]
		next = list[n-1].ID
	}
	return list, next, nil
}

// Item returns something in the trash. Error: NAME_UNKNOWN.
func (c *Can) Item(ctx context.Context, id string) (Trashed, error) {
	k, err := parseKey(id)
	if err != nil {
		return Trashed{}, err
	}
	var list []Trashed
	if k.kind == namespaceKey {
		list, err = c.trashedNamespaces(ctx, "", k.id-1, k.id, 1)
	} else {
		list, err = c.trashedRepositories(ctx, "", k.id-1, k.id, 1)
	}
	switch {
	case err != nil:
		return Trashed{}, fmt.Errorf("looking for %s in the trash: %w", id, err)
	case len(list) == 0:
		return Trashed{}, Unknown(id)
	}
	return list[0], nil
}

// trashedRepositories reads up to n repositories in the trash, with ids above `after` and up to
// `last`.
func (c *Can) trashedRepositories(ctx context.Context, namespace string, after, last int64, n int) ([]Trashed, error) {
	rows, err := c.db.Pool.Query(ctx, `
		SELECT r.id, r.deleted_path, n.id, COALESCE(n.deleted_name, n.name), n.deleted_at IS NOT NULL, r.deleted_at, r.purge_after,
			COALESCE(r.deleted_by, ''), t.tags, m.manifests,
			EXISTS (
				SELECT FROM repositories o
				WHERE o.top_level_namespace_id = n.id AND o.path = r.deleted_path AND o.deleted_at IS NULL OFFSET 0)
		FROM (
			SELECT * FROM repositories
			WHERE deleted_at IS NOT NULL AND id > $2 AND id <= $3
				AND ($1 = '' OR top_level_namespace_id = (SELECT id FROM live_namespaces WHERE name = $1))
			ORDER BY id LIMIT $4) r
		JOIN top_level_namespaces n ON n.id = r.top_level_namespace_id
		CROSS JOIN LATERAL (
			SELECT count(*) AS tags FROM (
				SELECT FROM tags
				WHERE repository_id = r.id AND top_level_namespace_id = r.top_level_namespace_id
				ORDER BY name LIMIT $5) counted) t
		CROSS JOIN LATERAL (
			SELECT count(*) AS manifests FROM (
				SELECT FROM manifests
				WHERE repository_id = r.id AND top_level_namespace_id = r.top_level_namespace_id
				ORDER BY id LIMIT $5) counted) m
		ORDER BY r.id`, namespace, after, last, n, catalog.MostCounted+1)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (t Trashed, err error) {
		var tags, manifests int64
		var taken bool
		err = row.Scan(&t.RepositoryID, &t.Name, &t.NamespaceID, &t.Namespace, &t.NamespaceDeleted, &t.DeletedAt, &t.ExpiresAt, &t.DeletedBy, &tags, &manifests, &taken)
		t.ID, t.Kind, t.Tags, t.Manifests = key{repositoryKey, t.RepositoryID}.String(), string(repositoryKey), catalog.CountedUpTo(tags), catalog.CountedUpTo(manifests)
		t.Repos, t.Conflicts = catalog.CountedUpTo(1), []Conflict{}
		t.DeletedAt, t.ExpiresAt = t.DeletedAt.UTC(), t.ExpiresAt.UTC()
		switch {
		case t.NamespaceDeleted:
			t.Conflicts = append(t.Conflicts, Conflict{t.Namespace, "the namespace is in the trash: restore " + key{namespaceKey, t.NamespaceID}.String() + " first"})
		case taken:
			t.Conflicts = append(t.Conflicts, Conflict{t.Name, "the name is in use; restore it under another one"})
		}
		return t, err
	})
}

// trashedNamespaces is like trashedRepositories, for namespaces.
func (c *Can) trashedNamespaces(ctx context.Context, name string, after, last int64, n int) ([]Trashed, error) {
	rows, err := c.db.Pool.Query(ctx, `
		SELECT n.id, n.deleted_name, n.deleted_at, n.purge_after, COALESCE(n.deleted_by, ''), r.repositories,
			EXISTS (SELECT FROM live_namespaces o WHERE o.name = n.deleted_name)
		FROM (
			SELECT * FROM top_level_namespaces
			WHERE deleted_at IS NOT NULL AND id > $1 AND id <= $2 AND ($5 = '' OR deleted_name = $5)
			ORDER BY id LIMIT $3) n
		CROSS JOIN LATERAL (
			SELECT count(*) AS repositories FROM (
				SELECT FROM repositories r WHERE r.top_level_namespace_id = n.id AND r.deleted_at IS NULL
				ORDER BY r.id LIMIT $4) counted) r
		ORDER BY n.id`, after, last, n, catalog.MostCounted+1, name)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (t Trashed, err error) {
		var repositories int64
		var taken bool
		err = row.Scan(&t.NamespaceID, &t.Name, &t.DeletedAt, &t.ExpiresAt, &t.DeletedBy, &repositories, &taken)
		t.ID, t.Kind, t.Namespace, t.NamespaceDeleted = key{namespaceKey, t.NamespaceID}.String(), string(namespaceKey), t.Name, true
		t.Repos, t.Conflicts = catalog.CountedUpTo(repositories), []Conflict{}
		t.DeletedAt, t.ExpiresAt = t.DeletedAt.UTC(), t.ExpiresAt.UTC()
		if taken {
			t.Conflicts = append(t.Conflicts, Conflict{t.Name, "the name is in use; restore it under another one"})
		}
		return t, err
	})
}

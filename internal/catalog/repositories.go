package catalog

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// repository identifies a repository's row.
type repository struct {
	namespace, id int64
}

// lookUp returns an existing repository. Error: NAME_UNKNOWN.
func (c *Catalog) lookUp(ctx context.Context, path string) (repository, error) {
	fresh := c.cache.fresh(ctx)
	gen := c.cache.content(path)
	if r, ok := get(c.cache, fresh, c.cache.repositories, pathKey(path), gen); ok {
		return r, nil
	}
	var r repository
	err := c.db.Pool.QueryRow(ctx,
		"SELECT top_level_namespace_id, id FROM live_repositories WHERE path = $1", path).Scan(&r.namespace, &r.id)
	switch {
	case isNoRows(err):
		return r, NameUnknown(path)
	case err != nil:
		return r, fmt.Errorf("looking for repository %s: %w", path, err)
	}
	keep(c.cache, c.cache.repositories, pathKey(path), r, gen)
	return r, nil
}

// HasRepository returns whether there is a repository of that name.
func (c *Catalog) HasRepository(ctx context.Context, path string) (bool, error) {
	_, err := c.lookUp(ctx, path)
	if oci.CodeOf(err) == oci.NameUnknown {
		return false, nil
	}
	return err == nil, err
}

// Repository identifies a repository's row.
type Repository struct {
	NamespaceID, ID int64
	Path            string
}

// FindRepository reads a repository's ids by its name, from the database and not from a cache.
// Error: NAME_UNKNOWN.
func (c *Catalog) FindRepository(ctx context.Context, path string) (Repository, error) {
	r := Repository{Path: path}
	err := c.db.Pool.QueryRow(ctx, "SELECT top_level_namespace_id, id FROM live_repositories WHERE path = $1", path).
		Scan(&r.NamespaceID, &r.ID)
	switch {
	case isNoRows(err):
		return r, NameUnknown(path)
	case err != nil:
		return r, fmt.Errorf("looking for repository %s: %w", path, err)
	}
	return r, nil
}

// RepositoryByID is like FindRepository, for a repository's id.
func (c *Catalog) RepositoryByID(ctx context.Context, id int64) (Repository, error) {
	r := Repository{ID: id}
	err := c.db.Pool.QueryRow(ctx, "SELECT top_level_namespace_id, path FROM live_repositories WHERE id = $1", id).
		Scan(&r.NamespaceID, &r.Path)
	switch {
	case isNoRows(err):
		return r, NameUnknown(fmt.Sprintf("with id %d", id))
	case err != nil:
		return r, fmt.Errorf("looking for repository %d: %w", id, err)
	}
	return r, nil
}

// InTrash returns the path that a repository had before it, or its namespace, was put into the
// trash. It returns "" if the repository isn't there.
func (c *Catalog) InTrash(ctx context.Context, id int64) (path string, err error) {
	err = c.db.Pool.QueryRow(ctx, "SELECT path FROM named_repositories WHERE id = $1 AND in_trash", id).Scan(&path)
	if err != nil && !isNoRows(err) {
		return "", fmt.Errorf("looking for repository %d in the trash: %w", id, err)
	}
	return path, nil
}

// NamespaceRow returns the id of the namespace that has the name now, and when it was made. The id
// tells it from others that have had the name before, and were deleted. Error: NAME_UNKNOWN.
func (c *Catalog) NamespaceRow(ctx context.Context, name string) (id int64, born time.Time, err error) {
	err = c.db.Pool.QueryRow(ctx, "SELECT id, created_at FROM live_namespaces WHERE name = $1", name).Scan(&id, &born)
	if isNoRows(err) {
		return 0, born, NamespaceUnknown(name)
	}
	if err != nil {
		return 0, born, fmt.Errorf("looking for namespace %s: %w", name, err)
	}
	return id, born, nil
}

// AliveRepositories returns those of the `ids` whose repositories exist, sorted, and locks
// these repositories against deletion until the transaction ends. The recorder of pulls calls
// it, because it writes audit entries some time after the pulls, when a repository may have
// been deleted. A repository in the trash exists: the pulls were before, and it may come back.
func AliveRepositories(ctx context.Context, tx pgx.Tx, ids []int64) ([]int64, error) {
	rows, err := tx.Query(ctx, "SELECT id FROM repositories WHERE id = ANY ($1) ORDER BY id FOR KEY SHARE", ids)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[int64])
}

// LivingNamespaces returns, for those of the `ids` whose repositories exist, the ids of their
// namespaces, and locks these repositories against deletion until the transaction ends. The
// statistics of pulls call it for the same reason as [AliveRepositories]. It leaves out
// repositories whose namespace is deleted, which are about to be deleted too.
func LivingNamespaces(ctx context.Context, tx pgx.Tx, ids []int64) (map[int64]int64, error) {
	rows, err := tx.Query(ctx, `
		SELECT r.id, r.top_level_namespace_id FROM repositories r
		WHERE r.id = ANY ($1) AND EXISTS (SELECT FROM top_level_namespaces n WHERE n.id = r.top_level_namespace_id OFFSET 0)
		ORDER BY r.id FOR KEY SHARE OF r`, ids)
	if err != nil {
		return nil, err
	}
	namespaces := make(map[int64]int64, len(ids))
	var id, namespace int64
	_, err = pgx.ForEachRow(rows, []any{&id, &namespace}, func() error {
		namespaces[id] = namespace
		return nil
	})
	return namespaces, err
}

// create makes a repository, and its namespace if that doesn't exist. If the repository
// exists, create does nothing and `made` is false. Rows that deleted repositories and namespaces
// of these names have left are in nobody's way: those in the trash have other names (see
// package trash), and a path is unique only among the repositories of one namespace's row.
func (c *Catalog) create(ctx context.Context, path string) (made bool, err error) {
	namespace, _, _ := strings.Cut(path, "/")
	err = db.Retry(ctx, func() error {
		b := new(batch)
		b.Exec("INSERT INTO top_level_namespaces (name) VALUES ($1) ON CONFLICT DO NOTHING", namespace)
		b.Row([]any{&made}, `
			WITH made AS (
				INSERT INTO repositories (top_level_namespace_id, path)
				SELECT id, $2 FROM live_namespaces WHERE name = $1 FOR KEY SHARE
				ON CONFLICT DO NOTHING RETURNING 1)
			SELECT EXISTS (SELECT FROM made)`, namespace, path)
		// xmin is the id of the transaction that inserted a row. So this statement writes an
		// audit entry only for a namespace and a repository that this transaction made.
		b.Exec(`
			INSERT INTO auditlog (kind, actor, address, user_agent, request_id, namespace, repository, repository_id)
			SELECT 'org_create', @actor, @address, @user_agent, @request_id, name, NULL, NULL::bigint
			FROM top_level_namespaces WHERE name = @namespace AND xmin = pg_current_xact_id()::xid
			UNION ALL
			SELECT 'create_repo', @actor, @address, @user_agent, @request_id, @namespace, path, id
			FROM repositories WHERE path = @path AND deleted_at IS NULL AND xmin = pg_current_xact_id()::xid`,
			audit.Args(ctx, db.Args{"namespace": namespace, "path": path}))
		return b.Send(ctx, c.db.Pool)
	})
	if err = c.quotas.Refusal(ctx, path, err); err != nil {
		if oci.IsClientError(err) {
			return false, err
		}
		return false, fmt.Errorf("creating repository %s: %w", path, err)
	}
	return made, nil
}

// CreateNamespace makes an empty namespace. The name must be valid as the first part of a
// repository's name. Error: UNSUPPORTED with status 400 if the namespace exists.
func (c *Catalog) CreateNamespace(ctx context.Context, name string) error {
	var made bool
	err := db.Retry(ctx, func() error {
		return c.db.Pool.QueryRow(ctx, `
			WITH made AS (
				INSERT INTO top_level_namespaces (name) VALUES (@name) ON CONFLICT DO NOTHING RETURNING name
			), logged AS (
				INSERT INTO auditlog (kind, actor, address, user_agent, request_id, namespace)
				SELECT 'org_create', @actor, @address, @user_agent, @request_id, name FROM made
			)
			SELECT EXISTS (SELECT FROM made)`, audit.Args(ctx, db.Args{"name": name})).Scan(&made)
	})
	switch {
	case err != nil:
		return fmt.Errorf("creating namespace %s: %w", name, err)
	case !made:
		return exists("namespace", name)
	}
	return nil
}

// CreateRepository makes an empty repository, and its namespace if that doesn't exist. `path`
// must be a valid name of a repository. Error: UNSUPPORTED with status 400 if the repository
// exists.
func (c *Catalog) CreateRepository(ctx context.Context, path string) error {
	for range writeAttempts {
		// A quota is looked at first only so that its refusal isn't an error in PostgreSQL's log.
		if known, err := c.HasRepository(ctx, path); err != nil {
			return err
		} else if !known {
			if err := c.quotas.AdmitRepository(ctx, path); err != nil {
				return err
			}
		}
		made, err := c.create(ctx, path)
		if err != nil || made {
			return err
		}
		// create made nothing: either the repository exists, or its namespace was deleted
		// during the statement.
		var found bool
		err = c.db.Pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM live_repositories WHERE path = $1)", path).Scan(&found)
		switch {
		case err != nil:
			return fmt.Errorf("creating repository %s: %w", path, err)
		case found:
			return exists("repository", path)
		}
	}
	return fmt.Errorf("repository %s was deleted each time that this request created it: try again", path)
}

func exists(what, name string) error {
	return oci.Errorf(oci.Unsupported, "%s %s exists already", what, name).WithStatus(http.StatusBadRequest).
		WithDetail(map[string]string{"name": name})
}

// NameUnknown returns the client's error for a repository that doesn't exist.
func NameUnknown(path string) error {
	return oci.Errorf(oci.NameUnknown, "repository %s is not known to this registry", path).
		WithDetail(map[string]string{"name": path})
}

// NamespaceUnknown returns the client's error for a namespace that doesn't exist.
func NamespaceUnknown(name string) error {
	return oci.Errorf(oci.NameUnknown, "namespace %s is not known to this registry", name).
		WithDetail(map[string]string{"name": name})
}

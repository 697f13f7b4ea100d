package catalog

import (
	"context"
	"fmt"
	"net/http"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

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
			if err := c.admitRepository(ctx, path); err != nil {
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

package catalog

import (
	"context"
	"fmt"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/db"
)

// DeleteRepository deletes a repository of any size by one short statement that deletes the
// repository's row. From then on nothing in the repository can be read, listed or pushed to,
// and a repository that is made under the same name is new and empty. The worker of loose
// foreign keys later deletes the tags, manifests and other rows that belonged to the
// repository. A concurrent push either commits before the deletion, or finds the repository
// gone and makes a new one. Error: NAME_UNKNOWN.
func (c *Catalog) DeleteRepository(ctx context.Context, path string) error {
	err := c.change(ctx, path, c.cache.dropAll, func(ctx context.Context) error {
		return db.Retry(ctx, func() error {
			var n int
			err := c.db.Pool.QueryRow(ctx, `
				WITH gone AS (
					DELETE FROM repositories r USING top_level_namespaces n
					WHERE r.path = @path AND n.id = r.top_level_namespace_id
					RETURNING r.path, n.name
				), logged AS (
					INSERT INTO auditlog (kind, actor, address, user_agent, request_id, namespace, repository)
					SELECT 'delete_repo', @actor, @address, @user_agent, @request_id, name, path FROM gone
				)
				SELECT count(*) FROM gone`, audit.Args(ctx, db.Args{"path": path})).Scan(&n)
			if err == nil && n == 0 {
				return nameUnknown(path)
			}
			return err
		})
	})
	if err != nil && !isClientError(err) {
		return fmt.Errorf("deleting repository %s: %w", path, err)
	}
	return err
}

// DeleteNamespace deletes a top-level namespace with all its repositories in the same way
// as DeleteRepository. Error: NAME_UNKNOWN.
func (c *Catalog) DeleteNamespace(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	c.cache.dropEverything()
	err := db.Retry(ctx, func() error {
		var n int
		err := c.db.Pool.QueryRow(ctx, `
			WITH gone AS (
				DELETE FROM top_level_namespaces WHERE name = @name RETURNING name
			), logged AS (
				INSERT INTO auditlog (kind, actor, address, user_agent, request_id, namespace)
				SELECT 'org_delete', @actor, @address, @user_agent, @request_id, name FROM gone
			)
			SELECT count(*) FROM gone`, audit.Args(ctx, db.Args{"name": name})).Scan(&n)
		if err == nil && n == 0 {
			return namespaceUnknown(name)
		}
		return err
	})
	if err != nil && !isClientError(err) && db.Code(err) == "" {
		c.cache.distrustEverything() // see change
	}
	c.cache.dropEverything()
	if err != nil && !isClientError(err) {
		return fmt.Errorf("deleting namespace %s: %w", name, err)
	}
	return err
}

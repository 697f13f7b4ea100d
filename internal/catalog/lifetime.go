package catalog

import (
	"context"
	"fmt"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// DeleteRepository deletes a repository, however large, in one short statement:
// its row. From then on nothing in it can be read, listed or pushed to, and one of
// the same name is new and empty. What hung on it is drained later, by loose
// foreign keys. A push in flight has its transaction finished first, or finds the
// repository gone and makes a new one. Error: NAME_UNKNOWN.
func (c *Catalog) DeleteRepository(ctx context.Context, path string) error {
	err := c.change(ctx, path, c.cache.dropAll, func(ctx context.Context) error {
		return db.Retry(ctx, func() error {
			done, err := c.db.Pool.Exec(ctx, `
				DELETE FROM repositories r USING top_level_namespaces n
				WHERE r.path = $1 AND n.id = r.top_level_namespace_id`, path)
			if err == nil && done.RowsAffected() == 0 {
				return nameUnknown(path)
			}
			return err
		})
	})
	if err != nil && !isAnswer(err) {
		return fmt.Errorf("deleting repository %s: %w", path, err)
	}
	return err
}

// DeleteNamespace deletes a top-level namespace with all its repositories,
// however many, as DeleteRepository does one. Error: NAME_UNKNOWN.
func (c *Catalog) DeleteNamespace(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	c.cache.dropEverything()
	err := db.Retry(ctx, func() error {
		done, err := c.db.Pool.Exec(ctx, "DELETE FROM top_level_namespaces WHERE name = $1", name)
		if err == nil && done.RowsAffected() == 0 {
			return oci.Errorf(oci.NameUnknown, "namespace %s is not known to this registry", name).
				WithDetail(map[string]string{"name": name})
		}
		return err
	})
	if err != nil && !isAnswer(err) && db.Code(err) == "" {
		c.cache.doubtEverything() // see change
	}
	c.cache.dropEverything()
	if err != nil && !isAnswer(err) {
		return fmt.Errorf("deleting namespace %s: %w", name, err)
	}
	return err
}

package catalog

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/hold"
)

// RemoveRepository deletes a repository of any size by one short statement that changes the
// repository's row only. From then on nothing in the repository can be read, listed or pushed to,
// and a repository that is made under the same name is new and empty. A concurrent push either
// commits before the deletion, or finds the repository gone and makes a new one.
//
// If Options.TrashKeep isn't 0, the repository is put into the trash (see trash.go), and `trashed`
// is its id there. With the option PurgeAtOnce, or without a trash, its row is deleted and
// `trashed` is empty. The worker of loose foreign keys later deletes the tags, manifests and other
// rows that belonged to a deleted row. Until then, uploads know by the ids of their rows that they
// belong to nothing any more; only those that were saved before the repository was made know no id,
// and are cancelled at once.
//
// Errors: NAME_UNKNOWN; DENIED with status 409 if a reporter holds a manifest of the repository.
//
// The row is locked by a statement of its own before the lock of deletions is taken: see "Order
// of locks" in package hold.
func (c *Catalog) RemoveRepository(ctx context.Context, path string, options ...TagOption) (trashed string, err error) {
	err = c.change(ctx, path, c.cache.dropAll, func(ctx context.Context) error {
		return db.Retry(ctx, func() error {
			return c.txOrAnswer(ctx, func(tx pgx.Tx) (err error) {
				trashed, err = c.deleteRepository(ctx, tx, path, options)
				return err
			})
		})
	})
	if err != nil && !isClientError(err) {
		return "", fmt.Errorf("deleting repository %s: %w", path, err)
	}
	return trashed, err
}

// DeleteRepository is like RemoveRepository, for callers that don't need the id in the trash.
func (c *Catalog) DeleteRepository(ctx context.Context, path string, options ...TagOption) error {
	_, err := c.RemoveRepository(ctx, path, options...)
	return err
}

func (c *Catalog) deleteRepository(ctx context.Context, tx pgx.Tx, path string, options []TagOption) (trashed string, err error) {
	var r repository
	b := new(batch)
	b.row([]any{&r.namespace, &r.id}, `
		SELECT n.id, r.id FROM repositories r JOIN top_level_namespaces n ON n.id = r.top_level_namespace_id
		WHERE r.path = $1 AND r.deleted_at IS NULL AND n.deleted_at IS NULL FOR UPDATE OF r`, path)
	b.lockHolds()
	if err := b.send(ctx, tx); isNoRows(err) {
		return "", nameUnknown(path)
	} else if err != nil {
		return "", err
	}
	override := slices.Contains(options, OverrideHolds)
	by, err := refuseHeld(ctx, tx, "repository "+path, path, override, func(ctx context.Context, q db.Querier) ([]hold.Holder, error) {
		return hold.InRepository(ctx, q, r.namespace, r.id)
	})
	if err != nil {
		return "", err
	}
	// Uploads that were last saved before the repository was made know only its path.
	if _, err := tx.Exec(ctx, `
		UPDATE uploads SET status = 2
		WHERE repository = $1 AND repository <> '' AND repository_id IS NULL AND status = 1`, path); err != nil {
		return "", err
	}
	if c.opt.TrashKeep > 0 && !slices.Contains(options, PurgeAtOnce) {
		return trashKey{trashedRepository, r.id}.String(), c.trashRepository(ctx, tx, r, sortedNames(by))
	}
	_, err = tx.Exec(ctx, `
		WITH gone AS (
			DELETE FROM repositories WHERE id = @repository RETURNING path
		), logged AS (
			INSERT INTO auditlog (kind, actor, address, user_agent, request_id, namespace, repository, detail)
			SELECT 'delete_repo', @actor, @address, @user_agent, @request_id, split_part(path, '/', 1), path,
				CASE WHEN @held_by::text[] IS NOT NULL THEN jsonb_build_object('holds', 'overridden', 'held_by', @held_by) END
			FROM gone
		)
		SELECT FROM gone`, audit.Args(ctx, db.Args{"repository": r.id, "held_by": sortedNames(by)}))
	return "", err
}

// sortedNames returns the names in order and each once, or nil if names is nil.
func sortedNames(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}

// RemoveNamespace deletes a top-level namespace with all its repositories in the same way
// as RemoveRepository, and with the same errors.
func (c *Catalog) RemoveNamespace(ctx context.Context, name string, options ...TagOption) (trashed string, err error) {
	err = c.changeEverything(ctx, func(tx pgx.Tx) (err error) {
		trashed, err = c.deleteNamespace(ctx, tx, name, options)
		return err
	})
	if err != nil && !isClientError(err) {
		return "", fmt.Errorf("deleting namespace %s: %w", name, err)
	}
	return trashed, err
}

// DeleteNamespace is like RemoveNamespace, for callers that don't need the id in the trash.
func (c *Catalog) DeleteNamespace(ctx context.Context, name string, options ...TagOption) error {
	_, err := c.RemoveNamespace(ctx, name, options...)
	return err
}

// changeEverything runs fn in a transaction, and invalidates everything that is cached before and
// after it, as change does for one repository.
func (c *Catalog) changeEverything(ctx context.Context, fn func(tx pgx.Tx) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	c.cache.dropEverything()
	err := db.Retry(ctx, func() error { return c.txOrAnswer(ctx, fn) })
	if err != nil && !isClientError(err) && db.Code(err) == "" {
		c.cache.distrustEverything() // see change
	}
	c.cache.dropEverything()
	return err
}

func (c *Catalog) deleteNamespace(ctx context.Context, tx pgx.Tx, name string, options []TagOption) (trashed string, err error) {
	var id int64
	b := new(batch)
	b.row([]any{&id}, "SELECT id FROM live_namespaces WHERE name = $1 FOR UPDATE", name)
	b.lockHolds()
	if err := b.send(ctx, tx); isNoRows(err) {
		return "", namespaceUnknown(name)
	} else if err != nil {
		return "", err
	}
	override := slices.Contains(options, OverrideHolds)
	by, err := refuseHeld(ctx, tx, "namespace "+name, name, override, func(ctx context.Context, q db.Querier) ([]hold.Holder, error) {
		return hold.InNamespace(ctx, q, id)
	})
	if err != nil {
		return "", err
	}
	// Uploads that were last saved before their repository was made know only its path; "0" follows "/".
	if _, err := tx.Exec(ctx, `
		UPDATE uploads SET status = 2
		WHERE (repository = $1 OR repository > $1 || '/' AND repository < $1 || '0')
			AND repository <> '' AND repository_id IS NULL AND status = 1`, name); err != nil {
		return "", err
	}
	// The open uploads of its robots, in whatever namespace, don't count for the next robots of these names.
	_, err = tx.Exec(ctx, `
		UPDATE uploads SET account = NULL
		WHERE account IN (SELECT name FROM accounts WHERE top_level_namespace_id = $1 AND deleted_name IS NULL)`, id)
	if err != nil {
		return "", err
	}
	if c.opt.TrashKeep > 0 && !slices.Contains(options, PurgeAtOnce) {
		return trashKey{trashedNamespace, id}.String(), c.trashNamespace(ctx, tx, id, sortedNames(by))
	}
	_, err = tx.Exec(ctx, `
		WITH gone AS (
			DELETE FROM top_level_namespaces WHERE id = @namespace RETURNING name
		), logged AS (
			INSERT INTO auditlog (kind, actor, address, user_agent, request_id, namespace, namespace_id, detail)
			SELECT 'org_delete', @actor, @address, @user_agent, @request_id, name, @namespace,
				CASE WHEN @held_by::text[] IS NOT NULL THEN jsonb_build_object('holds', 'overridden', 'held_by', @held_by) END
			FROM gone
		)
		SELECT FROM gone`, audit.Args(ctx, db.Args{"namespace": id, "held_by": sortedNames(by)}))
	return "", err
}

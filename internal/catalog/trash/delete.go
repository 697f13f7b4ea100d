package trash

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/hold"
	"github.com/purser-registry/purser/internal/oci"
)

// Option changes what RemoveRepository and RemoveNamespace do.
type Option int

const (
	// OverrideHolds deletes what a reporter holds (see package hold).
	OverrideHolds Option = 1
	// PurgeAtOnce deletes for good.
	PurgeAtOnce Option = 2
)

// RemoveRepository deletes a repository of any size by one short statement that changes the
// repository's row only. From then on nothing in the repository can be read, listed or pushed to,
// and a repository that is made under the same name is new and empty. A concurrent push either
// commits before the deletion, or finds the repository gone and makes a new one.
//
// If Options.Keep isn't 0, the repository is put into the trash, and `trashed`
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
func (c *Can) RemoveRepository(ctx context.Context, path string, options ...Option) (trashed string, err error) {
	err = c.catalog.ChangeRepository(ctx, path, func(ctx context.Context, tx pgx.Tx) (err error) {
		trashed, err = c.deleteRepository(ctx, tx, path, options)
		return err
	})
	if err != nil && !oci.IsClientError(err) {
		return "", fmt.Errorf("deleting repository %s: %w", path, err)
	}
	return trashed, err
}

// DeleteRepository is like RemoveRepository, for callers that don't need the id in the trash.
func (c *Can) DeleteRepository(ctx context.Context, path string, options ...Option) error {
	_, err := c.RemoveRepository(ctx, path, options...)
	return err
}

func (c *Can) deleteRepository(ctx context.Context, tx pgx.Tx, path string, options []Option) (trashed string, err error) {
	var namespace, id int64
	b := new(db.Batch)
	b.Row([]any{&namespace, &id}, `
		SELECT n.id, r.id FROM repositories r JOIN top_level_namespaces n ON n.id = r.top_level_namespace_id
		WHERE r.path = $1 AND r.deleted_at IS NULL AND n.deleted_at IS NULL FOR UPDATE OF r`, path)
	b.Exec("SELECT purser_holds_lock()")
	if err := b.Send(ctx, tx); errors.Is(err, pgx.ErrNoRows) {
		return "", catalog.NameUnknown(path)
	} else if err != nil {
		return "", err
	}
	override := slices.Contains(options, OverrideHolds)
	by, err := refuseHeld(ctx, tx, "repository "+path, path, override, func(ctx context.Context, q db.Querier) ([]hold.Holder, error) {
		return hold.InRepository(ctx, q, namespace, id)
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
	if c.opt.Keep > 0 && !slices.Contains(options, PurgeAtOnce) {
		return key{repositoryKey, id}.String(), c.trashRepository(ctx, tx, id, sortedNames(by))
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
		SELECT FROM gone`, audit.Args(ctx, db.Args{"repository": id, "held_by": sortedNames(by)}))
	return "", err
}

// sortedNames returns the names in order and each once, or nil if names is nil.
func sortedNames(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}

// RemoveNamespace deletes a top-level namespace with all its repositories in the same way
// as RemoveRepository, and with the same errors.
func (c *Can) RemoveNamespace(ctx context.Context, name string, options ...Option) (trashed string, err error) {
	err = c.catalog.ChangeEverything(ctx, func(tx pgx.Tx) (err error) {
		trashed, err = c.deleteNamespace(ctx, tx, name, options)
		return err
	})
	if err != nil && !oci.IsClientError(err) {
		return "", fmt.Errorf("deleting namespace %s: %w", name, err)
	}
	return trashed, err
}

// DeleteNamespace is like RemoveNamespace, for callers that don't need the id in the trash.
func (c *Can) DeleteNamespace(ctx context.Context, name string, options ...Option) error {
	_, err := c.RemoveNamespace(ctx, name, options...)
	return err
}

func (c *Can) deleteNamespace(ctx context.Context, tx pgx.Tx, name string, options []Option) (trashed string, err error) {
	var id int64
	b := new(db.Batch)
	b.Row([]any{&id}, "SELECT id FROM live_namespaces WHERE name = $1 FOR UPDATE", name)
	b.Exec("SELECT purser_holds_lock()")
	if err := b.Send(ctx, tx); errors.Is(err, pgx.ErrNoRows) {
		return "", catalog.NamespaceUnknown(name)
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
	if c.opt.Keep > 0 && !slices.Contains(options, PurgeAtOnce) {
		return key{namespaceKey, id}.String(), c.trashNamespace(ctx, tx, id, sortedNames(by))
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

// trashRepository puts a locked repository into the trash. Its uploads are cancelled, as those of
// a deleted repository are.
func (c *Can) trashRepository(ctx context.Context, tx pgx.Tx, id int64, heldBy []string) error {
	b := new(db.Batch)
	b.Exec("UPDATE uploads SET status = 2 WHERE repository_id = $1 AND status = 1", id)
	b.Exec(`
		WITH gone AS (
			UPDATE repositories SET path = '#' || id || '/' || path, deleted_path = path, deleted_at = now(),
				purge_after = purser_time() + @keep::interval, deleted_by = @actor
			WHERE id = @repository AND deleted_at IS NULL RETURNING deleted_path AS path
		)
		INSERT INTO auditlog (kind, actor, address, user_agent, request_id, namespace, repository, repository_id, detail)
		SELECT 'delete_repo', @actor, @address, @user_agent, @request_id, split_part(path, '/', 1), path, @repository,
			jsonb_strip_nulls(jsonb_build_object('trash', @trash::text, 'held_by', @held_by::text[],
				'holds', CASE WHEN @held_by::text[] IS NOT NULL THEN 'overridden' END))
		FROM gone`, audit.Args(ctx, db.Args{"repository": id, "keep": c.opt.Keep, "held_by": heldBy,
		"trash": key{repositoryKey, id}.String()}))
	return b.Send(ctx, tx)
}

// trashNamespace puts a locked namespace into the trash. Its repositories stay as they are, since
// the namespace's row hides them. Its robots get names that nobody can use, so that a new
// namespace of this name may have robots of the same names.
func (c *Can) trashNamespace(ctx context.Context, tx pgx.Tx, id int64, heldBy []string) error {
	b := new(db.Batch)
	b.Exec(`
		UPDATE uploads SET status = 2
		WHERE status = 1 AND repository_id IN (SELECT r.id FROM repositories r WHERE r.top_level_namespace_id = $1 AND r.deleted_at IS NULL)`, id)
	b.Exec(`
		UPDATE accounts SET name = '#' || top_level_namespace_id || '/' || name, deleted_name = name
		WHERE top_level_namespace_id = $1 AND deleted_name IS NULL`, id)
	b.Exec(`
		WITH gone AS (
			UPDATE top_level_namespaces SET name = '#' || id || '/' || name, deleted_name = name, deleted_at = now(),
				purge_after = purser_time() + @keep::interval, deleted_by = @actor
			WHERE id = @namespace AND deleted_at IS NULL RETURNING deleted_name AS name
		)
		INSERT INTO auditlog (kind, actor, address, user_agent, request_id, namespace, namespace_id, detail)
		SELECT 'org_delete', @actor, @address, @user_agent, @request_id, name, @namespace,
			jsonb_strip_nulls(jsonb_build_object('trash', @trash::text, 'held_by', @held_by::text[],
				'holds', CASE WHEN @held_by::text[] IS NOT NULL THEN 'overridden' END))
		FROM gone`, audit.Args(ctx, db.Args{"namespace": id, "keep": c.opt.Keep, "held_by": heldBy,
		"trash": key{namespaceKey, id}.String()}))
	return b.Send(ctx, tx)
}

// lookTime limits how long the deletion of a repository or a namespace looks for holds.
const lookTime = "5s"

// refuseHeld returns the client's error if `look` finds holds, or if it takes too long, unless
// overridden. It returns the reporters' names for the audit log: nil if nobody holds anything,
// empty if the look took too long and is overridden.
func refuseHeld(ctx context.Context, tx pgx.Tx, what, name string, overridden bool, look func(ctx context.Context, q db.Querier) ([]hold.Holder, error)) (by []string, err error) {
	var holders []hold.Holder
	err = pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { // a savepoint, since a statement that is ended aborts the transaction
		var before string // DEFAULT would be what the role or the database imposes
		if err := tx.QueryRow(ctx, `
			WITH before AS MATERIALIZED (SELECT current_setting('statement_timeout') AS value)
			SELECT value, set_config('statement_timeout', $1, true) FROM before`, lookTime).Scan(&before, nil); err != nil {
			return err
		}
		if holders, err = look(ctx, tx); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "SELECT set_config('statement_timeout', $1, true)", before)
		return err
	})
	switch {
	case db.Code(err) == db.CodeQueryCanceled && overridden:
		return []string{}, nil
	case db.Code(err) == db.CodeQueryCanceled:
		return nil, oci.Errorf(oci.Denied, "%s is so large that it could not be told in %s whether something in it is deployed; override_holds deletes it all the same", what, lookTime).
			WithStatus(http.StatusConflict).WithDetail(map[string]string{"name": name})
	case err != nil:
		return nil, err
	case len(holders) > 0 && !overridden:
		return nil, catalog.Held(what, catalog.HeldDetail{Name: name, HeldBy: holders})
	}
	for _, h := range holders {
		by = append(by, h.Reporter)
	}
	return by, nil
}

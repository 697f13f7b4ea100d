package trash

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/clock"
	"github.com/purser-registry/purser/internal/db"
)

// Purge deletes something in the trash for good. Error: NAME_UNKNOWN if it isn't in the
// trash (any more).
func (c *Can) Purge(ctx context.Context, id string) error {
	k, err := parseKey(id)
	if err != nil {
		return err
	}
	var n int64
	err = db.Retry(ctx, func() error {
		if k.kind == namespaceKey {
			n, err = purgeNamespaces(ctx, c.db.Pool, &k.id, 1)
		} else {
			n, err = purgeRepositories(ctx, c.db.Pool, &k.id, 1)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("purging %s: %w", id, err)
	}
	if n == 0 {
		return Unknown(id)
	}
	return nil
}

const (
	// purgePage bounds the repositories that one transaction of PurgeExpired deletes.
	purgePage = 100
	// purgeNamespacesPage bounds the namespaces: each takes its robots, rights and policies along.
	purgeNamespacesPage = 5
)

// PurgeExpired deletes for good what was in the trash for as long as it was to be kept: a page of
// repositories and one of namespaces. `more` says that there may be others. Any number of
// processes may call it at once.
func (c *Can) PurgeExpired(ctx context.Context) (more bool, err error) {
	var repositories, namespaces int64
	err = clock.Tx(ctx, c.opt.Background, c.opt.CheckTime, func(tx pgx.Tx) (err error) {
		repositories, err = purgeRepositories(ctx, tx, nil, purgePage)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("purging repositories in the trash: %w", err)
	}
	err = clock.Tx(ctx, c.opt.Background, c.opt.CheckTime, func(tx pgx.Tx) (err error) {
		namespaces, err = purgeNamespaces(ctx, tx, nil, purgeNamespacesPage)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("purging namespaces in the trash: %w", err)
	}
	return repositories == purgePage || namespaces == purgeNamespacesPage, nil
}

// purgeRepositories deletes up to n repositories in the trash: the one with the id, or if that is
// nil those that are due. Those that another transaction has locked are left out, if they are
// only due: somebody is restoring or purging them.
func purgeRepositories(ctx context.Context, q db.Querier, id *int64, n int) (purged int64, err error) {
	if id != nil {
		err = q.QueryRow(ctx, `
			WITH gone AS (
				DELETE FROM repositories WHERE id = @id AND deleted_at IS NOT NULL RETURNING top_level_namespace_id AS namespace, deleted_path AS path
			), logged AS (
				INSERT INTO auditlog (kind, actor, address, user_agent, request_id, namespace, namespace_id, repository, detail)
				SELECT 'purge_repo', @actor, @address, @user_agent, @request_id, split_part(path, '/', 1), namespace, path, jsonb_build_object('trash', 'repository-' || @id)
				FROM gone
			)
			SELECT count(*) FROM gone`, audit.Args(ctx, db.Args{"id": *id})).Scan(&purged)
		return purged, err
	}
	err = q.QueryRow(ctx, `
		WITH due AS MATERIALIZED (
			SELECT id FROM repositories WHERE deleted_at IS NOT NULL AND purge_after <= now()
			ORDER BY purge_after LIMIT @n FOR UPDATE SKIP LOCKED
		), gone AS (
			DELETE FROM repositories WHERE id IN (SELECT id FROM due) AND deleted_at IS NOT NULL RETURNING id, top_level_namespace_id AS namespace, deleted_path AS path
		), logged AS (
			INSERT INTO auditlog (kind, actor, address, user_agent, request_id, namespace, namespace_id, repository, detail)
			SELECT 'purge_repo', @actor, @address, @user_agent, @request_id, split_part(path, '/', 1), namespace, path, jsonb_build_object('trash', 'repository-' || id)
			FROM gone
		)
		SELECT count(*) FROM gone`, audit.Args(ctx, db.Args{"n": n})).Scan(&purged)
	return purged, err
}

// purgeNamespaces is like purgeRepositories, for namespaces.
func purgeNamespaces(ctx context.Context, q db.Querier, id *int64, n int) (purged int64, err error) {
	if id != nil {
		err = q.QueryRow(ctx, `
			WITH gone AS (
				DELETE FROM top_level_namespaces WHERE id = @id AND deleted_at IS NOT NULL RETURNING deleted_name AS name
			), logged AS (
				INSERT INTO auditlog (kind, actor, address, user_agent, request_id, namespace, namespace_id, detail)
				SELECT 'org_purge', @actor, @address, @user_agent, @request_id, name, @id, jsonb_build_object('trash', 'namespace-' || @id)
				FROM gone
			)
			SELECT count(*) FROM gone`, audit.Args(ctx, db.Args{"id": *id})).Scan(&purged)
		return purged, err
	}
	err = q.QueryRow(ctx, `
		WITH due AS MATERIALIZED (
			SELECT id FROM top_level_namespaces WHERE deleted_at IS NOT NULL AND purge_after <= now()
			ORDER BY purge_after LIMIT @n FOR UPDATE SKIP LOCKED
		), gone AS (
			DELETE FROM top_level_namespaces WHERE id IN (SELECT id FROM due) AND deleted_at IS NOT NULL RETURNING id, deleted_name AS name
		), logged AS (
			INSERT INTO auditlog (kind, actor, address, user_agent, request_id, namespace, namespace_id, detail)
			SELECT 'org_purge', @actor, @address, @user_agent, @request_id, name, id, jsonb_build_object('trash', 'namespace-' || id)
			FROM gone
		)
		SELECT count(*) FROM gone`, audit.Args(ctx, db.Args{"n": n})).Scan(&purged)
	return purged, err
}

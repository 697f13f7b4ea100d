package catalog

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// The trash has repositories and namespaces that were deleted and can be brought back.
//
// Deleting one changes its row only: the row gets a name that nobody can ask for, and is marked.
// Everything below the row stays as it is, with its ids: tags, manifests, policies, rules, grants,
// robots, statistics. Bringing it back gives the row its name again.
//
//   - A push has locked the repository's row and its namespace's row with KEY SHARE (lockRepository).
//     The deletion locks the row FOR UPDATE, so it waits for pushes in flight; a push that comes
//     later finds the mark and is refused, and then makes a new, empty repository of that name.
//   - All code finds repositories and namespaces by the views live_repositories and
//     live_namespaces, or says why it doesn't. A test checks this of every statement.
//   - Garbage collection deletes no manifest of a repository in the trash: reviews are postponed
//     (package gc). Manifests keep their blobs, as always.
//   - Purging deletes the row, which starts what deletion without a trash starts. Restoring and
//     purging both lock the row first, so one of them finds that the other has won.
//   - What is in the trash counts for the namespace's quota until it is purged. So restoring needs
//     no look at the quota.
//   - A repository keeps its namespace's id, by which its content is partitioned. So it comes back
//     in its namespace only.

// trashKind is the first part of an id in the trash.
type trashKind string

const (
	trashedRepository trashKind = "repository"
	trashedNamespace  trashKind = "namespace"
)

// trashKey identifies something in the trash by the id of its row.
type trashKey struct {
	kind trashKind
	id   int64
}

func (k trashKey) String() string { return fmt.Sprintf("%s-%d", k.kind, k.id) }

// parseTrashKey is the inverse of String. Error: NAME_UNKNOWN.
func parseTrashKey(id string) (trashKey, error) {
	kind, number, _ := strings.Cut(id, "-")
	n, err := strconv.ParseInt(number, 10, 64)
	k := trashKey{trashKind(kind), n}
	if err != nil || k.String() != id || k.kind != trashedRepository && k.kind != trashedNamespace {
		return k, TrashUnknown(id)
	}
	return k, nil
}

// TrashUnknown returns the client's error for an id that isn't in the trash.
func TrashUnknown(id string) error {
	return oci.Errorf(oci.NameUnknown, "%.80s is not in the trash: it was restored or purged, or was never there", id).
		WithDetail(map[string]string{"id": id})
}

// trashConflict returns the client's error for something that can't be restored as it is.
func trashConflict(name, why string) error {
	return oci.Errorf(oci.Denied, "%s can't be restored: %s", name, why).WithStatus(http.StatusConflict).
		WithDetail(map[string]any{"conflicts": []Conflict{{Name: name, Why: why}}})
}

// trashRepository puts a locked repository into the trash. Its uploads are cancelled, as those of
// a deleted repository are.
func (c *Catalog) trashRepository(ctx context.Context, tx pgx.Tx, r repository, heldBy []string) error {
	b := new(batch)
	b.exec("UPDATE uploads SET status = 2 WHERE repository_id = $1 AND status = 1", r.id)
	b.exec(`
		WITH gone AS (
			UPDATE repositories SET path = '#' || id || '/' || path, deleted_path = path, deleted_at = now(),
				purge_after = purser_time() + @keep::interval, deleted_by = @actor
			WHERE id = @repository AND deleted_at IS NULL RETURNING deleted_path AS path
		)
		INSERT INTO auditlog (kind, actor, address, user_agent, request_id, namespace, repository, repository_id, detail)
		SELECT 'delete_repo', @actor, @address, @user_agent, @request_id, split_part(path, '/', 1), path, @repository,
			jsonb_strip_nulls(jsonb_build_object('trash', @trash::text, 'held_by', @held_by::text[],
				'holds', CASE WHEN @held_by::text[] IS NOT NULL THEN 'overridden' END))
		FROM gone`, audit.Args(ctx, db.Args{"repository": r.id, "keep": c.opt.TrashKeep, "held_by": heldBy,
		"trash": trashKey{trashedRepository, r.id}.String()}))
	return b.send(ctx, tx)
}

// trashNamespace puts a locked namespace into the trash. Its repositories stay as they are, since
// the namespace's row hides them. Its robots get names that nobody can use, so that a new
// namespace of this name may have robots of the same names.
func (c *Catalog) trashNamespace(ctx context.Context, tx pgx.Tx, id int64, heldBy []string) error {
	b := new(batch)
	b.exec(`
		UPDATE uploads SET status = 2
		WHERE status = 1 AND repository_id IN (SELECT r.id FROM repositories r WHERE r.top_level_namespace_id = $1 AND r.deleted_at IS NULL)`, id)
	b.exec(`
		UPDATE accounts SET name = '#' || top_level_namespace_id || '/' || name, deleted_name = name
		WHERE top_level_namespace_id = $1 AND deleted_name IS NULL`, id)
	b.exec(`
		WITH gone AS (
			UPDATE top_level_namespaces SET name = '#' || id || '/' || name, deleted_name = name, deleted_at = now(),
				purge_after = purser_time() + @keep::interval, deleted_by = @actor
			WHERE id = @namespace AND deleted_at IS NULL RETURNING deleted_name AS name
		)
		INSERT INTO auditlog (kind, actor, address, user_agent, request_id, namespace, namespace_id, detail)
		SELECT 'org_delete', @actor, @address, @user_agent, @request_id, name, @namespace,
			jsonb_strip_nulls(jsonb_build_object('trash', @trash::text, 'held_by', @held_by::text[],
				'holds', CASE WHEN @held_by::text[] IS NOT NULL THEN 'overridden' END))
		FROM gone`, audit.Args(ctx, db.Args{"namespace": id, "keep": c.opt.TrashKeep, "held_by": heldBy,
		"trash": trashKey{trashedNamespace, id}.String()}))
	return b.send(ctx, tx)
}

// RestoreTrashed brings a repository or a namespace back from the trash under the name that it
// had, or under the name `as` if that isn't empty. The caller has checked that `as` is a valid
// name. It returns the name. Errors: NAME_UNKNOWN if it isn't in the trash (any more); DENIED
// with status 409 if the name is taken, or the repository's namespace is in the trash;
// UNSUPPORTED with status 400 for an `as` in another namespace.
func (c *Catalog) RestoreTrashed(ctx context.Context, id, as string) (name string, err error) {
	k, err := parseTrashKey(id)
	if err != nil {
		return "", err
	}
	if k.kind == trashedNamespace {
		err = c.changeEverything(ctx, func(tx pgx.Tx) (err error) {
			name, err = restoreNamespace(ctx, tx, k, as)
			return err
		})
	} else if name = as; name == "" {
		var item Trashed
		item, err = c.TrashedItem(ctx, id)
		name = item.Name
	}
	if k.kind == trashedRepository && err == nil {
		err = c.change(ctx, name, c.cache.dropAll, func(ctx context.Context) error {
			return db.Retry(ctx, func() error {
				return c.txOrAnswer(ctx, func(tx pgx.Tx) error { return restoreRepository(ctx, tx, k, name) })
			})
		})
	}
	switch {
	case db.Code(err) == db.CodeUniqueViolation: // it was made in the same moment
		return "", trashConflict(name, "the name is in use")
	case err != nil && !isClientError(err):
		return "", fmt.Errorf("restoring %s: %w", id, err)
	}
	return name, err
}

// restoreRepository locks the repository against purging and its namespace against deletion, and
// gives the repository the name `path`. The trigger on the row tells other processes of the old
// name only, so the last statement tells them of the new one.
func restoreRepository(ctx context.Context, tx pgx.Tx, k trashKey, path string) error {
	var old, namespace string
	var deleted *string
	var namespaceID int64
	err := tx.QueryRow(ctx, `
		SELECT r.deleted_path, n.id, n.name, n.deleted_name
		FROM repositories r JOIN top_level_namespaces n ON n.id = r.top_level_namespace_id
		WHERE r.id = $1 AND r.deleted_at IS NOT NULL
		FOR UPDATE OF r FOR KEY SHARE OF n`, k.id).Scan(&old, &namespaceID, &namespace, &deleted)
	switch {
	case isNoRows(err):
		return TrashUnknown(k.String())
	case err != nil:
		return err
	case deleted != nil:
		return trashConflict(old, fmt.Sprintf("its namespace %s is in the trash: restore %s first", *deleted, trashKey{trashedNamespace, namespaceID}))
	}
	// The namespace may have got another name since the caller read the repository's.
	if path != namespace && !strings.HasPrefix(path, namespace+"/") {
		return oci.Errorf(oci.Unsupported, "repository %s can be restored in namespace %s only, and not as %s", old, namespace, path).
			WithStatus(http.StatusBadRequest).WithDetail(map[string]string{"field": "as"})
	}
	var back bool
	err = tx.QueryRow(ctx, `
		WITH back AS (
			UPDATE repositories SET path = @path, deleted_at = NULL, deleted_path = NULL, deleted_by = NULL, purge_after = NULL
			WHERE id = @repository AND deleted_at IS NOT NULL
				AND NOT EXISTS (SELECT FROM repositories o WHERE o.top_level_namespace_id = @namespace AND o.path = @path AND o.deleted_at IS NULL)
			RETURNING id, path
		), told AS MATERIALIZED (
			SELECT id, path, CASE WHEN purser_others_listen() THEN purser_notify_paths('a', ARRAY[path]) END FROM back
		), logged AS (
			INSERT INTO auditlog (kind, actor, address, user_agent, request_id, namespace, repository, repository_id, detail)
			SELECT 'restore_repo', @actor, @address, @user_agent, @request_id, split_part(path, '/', 1), path, id, jsonb_build_object('trash', @trash::text)
			FROM told
		)
		SELECT EXISTS (SELECT FROM told)`, audit.Args(ctx, db.Args{
		"repository": k.id, "namespace": namespaceID, "path": path, "trash": k.String()})).Scan(&back)
	if err == nil && !back {
		err = trashConflict(path, "the name is in use; restore it under another one")
	}
	return err
}

// restoreNamespace locks the namespace against purging and gives it its name again. Under a
// new name, its repositories and robots are renamed before, while nobody can see them.
func restoreNamespace(ctx context.Context, tx pgx.Tx, k trashKey, as string) (string, error) {
	var name string
	var taken bool
	err := tx.QueryRow(ctx, `
		SELECT n.deleted_name, EXISTS (SELECT FROM live_namespaces o WHERE o.name = COALESCE(NULLIF($2, ''), n.deleted_name))
		FROM top_level_namespaces n WHERE n.id = $1 AND n.deleted_at IS NOT NULL FOR UPDATE OF n`, k.id, as).Scan(&name, &taken)
	old := name
	if as != "" {
		name = as
	}
	switch {
	case isNoRows(err):
		return "", TrashUnknown(k.String())
	case err != nil:
		return "", err
	case taken:
		return "", trashConflict(name, "the name is in use; restore it under another one")
	}
	b := new(batch)
	if name != old {
		if err := checkLengths(ctx, tx, k.id, old, name); err != nil {
			return "", err
		}
		b.exec(`
			UPDATE repositories SET
				path = CASE WHEN deleted_at IS NULL THEN $2 || substr(path, $3) ELSE path END,
				deleted_path = $2 || substr(deleted_path, $3)
			WHERE top_level_namespace_id = $1`, k.id, name, len(old)+1)
	}
	b.exec(`
		UPDATE accounts SET name = $2 || substr(deleted_name, $3), deleted_name = NULL
		WHERE top_level_namespace_id = $1 AND deleted_name IS NOT NULL`, k.id, name, len(old)+1)
	b.exec(`
		WITH back AS (
			UPDATE top_level_namespaces SET name = @name, deleted_at = NULL, deleted_name = NULL, deleted_by = NULL, purge_after = NULL
			WHERE id = @namespace AND deleted_at IS NOT NULL RETURNING name
		)
		INSERT INTO auditlog (kind, actor, address, user_agent, request_id, namespace, namespace_id, detail)
		SELECT 'org_restore', @actor, @address, @user_agent, @request_id, name, @namespace, jsonb_build_object('trash', @trash::text)
		FROM back`, audit.Args(ctx, db.Args{"namespace": k.id, "name": name, "trash": k.String()}))
	return name, b.send(ctx, tx)
}

// checkLengths returns an error, with status 400, if a repository of the namespace that had the
// name `old` would get a path longer than allowed under the name `as`: nobody could ask for it.
func checkLengths(ctx context.Context, tx pgx.Tx, namespace int64, old, as string) error {
	var path string
	err := tx.QueryRow(ctx, `
		SELECT COALESCE(deleted_path, path) FROM repositories
		WHERE top_level_namespace_id = $1
		ORDER BY length(COALESCE(deleted_path, path)) DESC LIMIT 1`, namespace).Scan(&path)
	if isNoRows(err) || err == nil && len(path)-len(old)+len(as) <= oci.MaxNameLength {
		return nil
	}
	if err != nil {
		return err
	}
	return oci.Errorf(oci.Unsupported, "namespace %s can't be restored as %s: the name of %s would have more than %d bytes", old, as, path, oci.MaxNameLength).
		WithStatus(http.StatusBadRequest).WithDetail(map[string]string{"field": "as"})
}

// PurgeTrashed deletes something in the trash for good. Error: NAME_UNKNOWN if it isn't in the
// trash (any more).
func (c *Catalog) PurgeTrashed(ctx context.Context, id string) error {
	k, err := parseTrashKey(id)
	if err != nil {
		return err
	}
	var n int64
	err = db.Retry(ctx, func() error {
		if k.kind == trashedNamespace {
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
		return TrashUnknown(id)
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
func (c *Catalog) PurgeExpired(ctx context.Context) (more bool, err error) {
	var repositories, namespaces int64
	err = c.txByClock(ctx, c.opt.Background, func(tx pgx.Tx) (err error) {
		repositories, err = purgeRepositories(ctx, tx, nil, purgePage)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("purging repositories in the trash: %w", err)
	}
	err = c.txByClock(ctx, c.opt.Background, func(tx pgx.Tx) (err error) {
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

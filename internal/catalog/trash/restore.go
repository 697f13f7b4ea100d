package trash

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// Restore brings a repository or a namespace back from the trash under the name that it
// had, or under the name `as` if that isn't empty. The caller has checked that `as` is a valid
// name. It returns the name. Errors: NAME_UNKNOWN if it isn't in the trash (any more); DENIED
// with status 409 if the name is taken, or the repository's namespace is in the trash;
// UNSUPPORTED with status 400 for an `as` in another namespace.
func (c *Can) Restore(ctx context.Context, id, as string) (name string, err error) {
	k, err := parseKey(id)
	if err != nil {
		return "", err
	}
	if k.kind == namespaceKey {
		err = c.catalog.ChangeEverything(ctx, func(tx pgx.Tx) (err error) {
			name, err = restoreNamespace(ctx, tx, k, as)
			return err
		})
	} else if name = as; name == "" {
		var item Trashed
		item, err = c.Item(ctx, id)
		name = item.Name
	}
	if k.kind == repositoryKey && err == nil {
		err = c.catalog.ChangeRepository(ctx, name, func(ctx context.Context, tx pgx.Tx) error { return restoreRepository(ctx, tx, k, name) })
	}
	switch {
	case db.Code(err) == db.CodeUniqueViolation: // it was made in the same moment
		return "", conflict(name, "the name is in use")
	case err != nil && !oci.IsClientError(err):
		return "", fmt.Errorf("restoring %s: %w", id, err)
	}
	return name, err
}

// restoreRepository locks the repository against purging and its namespace against deletion, and
// gives the repository the name `path`. The trigger on the row tells other processes of the old
// name only, so the last statement tells them of the new one.
func restoreRepository(ctx context.Context, tx pgx.Tx, k key, path string) error {
	var old, namespace string
	var deleted *string
	var namespaceID int64
	err := tx.QueryRow(ctx, `
		SELECT r.deleted_path, n.id, n.name, n.deleted_name
		FROM repositories r JOIN top_level_namespaces n ON n.id = r.top_level_namespace_id
		WHERE r.id = $1 AND r.deleted_at IS NOT NULL
		FOR UPDATE OF r FOR KEY SHARE OF n`, k.id).Scan(&old, &namespaceID, &namespace, &deleted)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return Unknown(k.String())
	case err != nil:
		return err
	case deleted != nil:
		return conflict(old, fmt.Sprintf("its namespace %s is in the trash: restore %s first", *deleted, key{namespaceKey, namespaceID}))
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
		err = conflict(path, "the name is in use; restore it under another one")
	}
	return err
}

// restoreNamespace locks the namespace against purging and gives it its name again. Under a
// new name, its repositories and robots are renamed before, while nobody can see them.
func restoreNamespace(ctx context.Context, tx pgx.Tx, k key, as string) (string, error) {
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
	case errors.Is(err, pgx.ErrNoRows):
		return "", Unknown(k.String())
	case err != nil:
		return "", err
	case taken:
		return "", conflict(name, "the name is in use; restore it under another one")
	}
	b := new(db.Batch)
	if name != old {
		if err := checkLengths(ctx, tx, k.id, old, name); err != nil {
			return "", err
		}
		b.Exec(`
			UPDATE repositories SET
				path = CASE WHEN deleted_at IS NULL THEN $2 || substr(path, $3) ELSE path END,
				deleted_path = $2 || substr(deleted_path, $3)
			WHERE top_level_namespace_id = $1`, k.id, name, len(old)+1)
	}
	b.Exec(`
		UPDATE accounts SET name = $2 || substr(deleted_name, $3), deleted_name = NULL
		WHERE top_level_namespace_id = $1 AND deleted_name IS NOT NULL`, k.id, name, len(old)+1)
	b.Exec(`
		WITH back AS (
			UPDATE top_level_namespaces SET name = @name, deleted_at = NULL, deleted_name = NULL, deleted_by = NULL, purge_after = NULL
			WHERE id = @namespace AND deleted_at IS NOT NULL RETURNING name
		)
		INSERT INTO auditlog (kind, actor, address, user_agent, request_id, namespace, namespace_id, detail)
		SELECT 'org_restore', @actor, @address, @user_agent, @request_id, name, @namespace, jsonb_build_object('trash', @trash::text)
		FROM back`, audit.Args(ctx, db.Args{"namespace": k.id, "name": name, "trash": k.String()}))
	return name, b.Send(ctx, tx)
}

// checkLengths returns an error, with status 400, if a repository of the namespace that had the
// name `old` would get a path longer than allowed under the name `as`: nobody could ask for it.
func checkLengths(ctx context.Context, tx pgx.Tx, namespace int64, old, as string) error {
	var path string
	err := tx.QueryRow(ctx, `
		SELECT COALESCE(deleted_path, path) FROM repositories
		WHERE top_level_namespace_id = $1
		ORDER BY length(COALESCE(deleted_path, path)) DESC LIMIT 1`, namespace).Scan(&path)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && len(path)-len(old)+len(as) <= oci.MaxNameLength {
		return nil
	}
	if err != nil {
		return err
	}
	return oci.Errorf(oci.Unsupported, "namespace %s can't be restored as %s: the name of %s would have more than %d bytes", old, as, path, oci.MaxNameLength).
		WithStatus(http.StatusBadRequest).WithDetail(map[string]string{"field": "as"})
}

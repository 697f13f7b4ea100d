package explain

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/oci"
)

// inTrash is a repository in the trash.
type inTrash struct {
	Repository string    `json:"repository"` // the path that it had
	ID         string    `json:"id"`         // of what was deleted, the repository or its namespace: see "purser trash"
	Until      time.Time `json:"until"`      // from then on it may be purged
}

func (t inTrash) String() string {
	return fmt.Sprintf("%s (in the trash as %s until %s)", t.Repository, t.ID, when(t.Until))
}

func scanInTrash(row pgx.CollectableRow) (t inTrash, err error) {
	err = row.Scan(&t.Repository, &t.ID, &t.Until)
	t.Until = t.Until.UTC()
	return t, err
}

// joined returns the repositories as a list for people.
func joined(list []inTrash) string {
	parts := make([]string, len(list))
	for i, t := range list {
		parts[i] = t.String()
	}
	return strings.Join(parts, ", ")
}

// Conditions by which a repository t of the trash has the manifest with the digest $3, or the tag $3.
const (
	hasManifest = `EXISTS (SELECT FROM manifests m WHERE m.top_level_namespace_id = t.top_level_namespace_id AND m.repository_id = t.id AND m.digest = $3 OFFSET 0)`
	hasTag      = `EXISTS (SELECT FROM tags g WHERE g.top_level_namespace_id = t.top_level_namespace_id AND g.repository_id = t.id AND g.name = $3 OFFSET 0)`
)

// lookInTrash returns the error `unknown`, which says that the repository at `path` doesn't exist. If
// repositories of that path in the trash have `value`, the error names them: garbage collection keeps
// their manifests. `has` is hasManifest or hasTag.
//
// The error tells the administrator of a namespace, or the reader of a repository, nothing of another one
// that had the same name before.
func lookInTrash(ctx context.Context, tx pgx.Tx, unknown error, path, has string, value any) error {
	e, ok := errors.AsType[*oci.Error](unknown)
	if !ok {
		return unknown
	}
	namespace, _, _ := strings.Cut(path, "/")
	rows, err := tx.Query(ctx, fmt.Sprintf(`
		SELECT t.path, t.item, t.purge_after FROM purser_trashed_repositories() t
		WHERE t.path = $1 AND %s AND (t.top_level_namespace_id = (SELECT id FROM live_namespaces WHERE name = $2)
			OR NOT EXISTS (SELECT FROM live_namespaces WHERE name = $2))
		ORDER BY t.purge_after DESC, t.item LIMIT %d`, has, explainFirst), path, namespace, value)
	if err != nil {
		return err
	}
	list, err := pgx.CollectRows(rows, scanInTrash)
	switch {
	case err != nil:
		return err
	case len(list) == 0:
		return unknown
	}
	return oci.Errorf(e.Code, "%s; garbage collection keeps what was deleted: %s", e.Message, joined(list)).WithDetail(e.Detail)
}

// manifestInTrash returns repositories in the trash that have the manifest, and how many were searched.
func manifestInTrash(ctx context.Context, tx pgx.Tx, d oci.Digest) (list []inTrash, looked int64, err error) {
	if err := tx.QueryRow(ctx, fmt.Sprintf("SELECT count(*) FROM (SELECT FROM purser_trashed_repositories() LIMIT %d) t", searched)).Scan(&looked); err != nil {
		return nil, 0, err
	}
	rows, err := tx.Query(ctx, fmt.Sprintf(`
		WITH t AS MATERIALIZED (SELECT * FROM purser_trashed_repositories() LIMIT %d)
		SELECT t.path, t.item, t.purge_after FROM t CROSS JOIN LATERAL (
			SELECT FROM manifests
			WHERE top_level_namespace_id = t.top_level_namespace_id AND repository_id = t.id AND digest = $1 OFFSET 0) m
		LIMIT %d`, searched, explainFirst), d.Bytes())
	if err != nil {
		return nil, 0, err
	}
	list, err = pgx.CollectRows(rows, scanInTrash)
	return list, looked, err
}

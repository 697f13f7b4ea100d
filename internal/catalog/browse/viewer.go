package browse

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
)

// Viewer is the client for which a list or a description is made. Lists show only
// what the viewer may read. The zero value may read nothing.
type Viewer struct {
	All    bool // every repository
	Public bool // public ones
	// PublicByDefault says whether a repository without a visibility of its own is public. It
	// also decides what a description calls public, so it is needed even if All is set.
	PublicByDefault bool
	// Namespaces and Repositories are the ids of whole namespaces and of single repositories.
	Namespaces, Repositories []int64
	// Patterns are POSIX regular expressions, of which the path of a repository must match
	// one, whatever the members above allow. Nil: no such limit.
	Patterns []string
	// Account is the account whose stars are shown. 0: the stars that all clients without an
	// account share.
	Account int64
}

// Everyone is the viewer for whom nothing is hidden: any client of a registry without access
// control, and an operator who works on the database.
var Everyone = Viewer{All: true, PublicByDefault: true}

// Unlimited says whether the viewer may read every repository.
func (v Viewer) Unlimited() bool { return v.All && v.Patterns == nil }

// args returns the arguments by which a statement selects what the viewer may read, and `more`.
// Of these only patterns may be NULL.
func (v Viewer) args(more db.SharedArgs) db.SharedArgs {
	args := db.SharedArgs{
		"all": v.All, "public": v.Public, "public_by_default": v.PublicByDefault, "account": v.Account,
		"namespaces": append([]int64{}, v.Namespaces...), "repositories": append([]int64{}, v.Repositories...), "patterns": v.Patterns,
	}
	maps.Copy(args, more)
	return args
}

// visibility returns the name of a visibility.
func visibility(public bool) string {
	if public {
		return catalog.Public
	}
	return catalog.Private
}

// foundNamespace is a namespace in which the viewer may read something.
type foundNamespace struct {
	id      int64
	created time.Time
	// whole says that the viewer may read all of its repositories.
	whole bool
}

// NamespaceID returns the id of a namespace. Error: NAME_UNKNOWN, also if the viewer has no role
// in the namespace and may read none of its repositories.
func (b *Browser) NamespaceID(ctx context.Context, v Viewer, name string) (int64, error) {
	n, err := b.namespaceFor(ctx, v, name)
	return n.id, err
}

// ReadablePaths returns, for those of the repositories `ids` that exist and that the viewer may
// read, their paths by their ids. OFFSET 0 in its SQL makes PostgreSQL look rows up by an index:
// see "Plans" in package db.
func (b *Browser) ReadablePaths(ctx context.Context, v Viewer, ids []int64) (map[int64]string, error) {
	rows, err := b.db.Pool.Query(ctx, `
		SELECT r.id, r.path FROM unnest(@ids::bigint[]) AS want (id)
		CROSS JOIN LATERAL (SELECT id, path, top_level_namespace_id, is_public FROM live_repositories WHERE id = want.id OFFSET 0) r
		WHERE (@all OR r.top_level_namespace_id = ANY (@namespaces::bigint[]) OR r.id = ANY (@repositories::bigint[])
				OR @public AND COALESCE(r.is_public, @public_by_default))
			AND (@patterns::text[] IS NULL OR r.path ~ ANY (@patterns::text[]))`, v.args(db.SharedArgs{"ids": ids}))
	if err != nil {
		return nil, fmt.Errorf("looking up repositories: %w", err)
	}
	paths := make(map[int64]string, len(ids))
	var id int64
	var path string
	if _, err := pgx.ForEachRow(rows, []any{&id, &path}, func() error {
		paths[id] = path
		return nil
	}); err != nil {
		return nil, fmt.Errorf("looking up repositories: %w", err)
	}
	return paths, nil
}

// namespaceFor returns the namespace with the given name. Error: NAME_UNKNOWN, also if the
// viewer has no role in the namespace and may read none of its repositories. OFFSET 0 in its
// SQL makes PostgreSQL look rows up by an index: see "Plans" in package db.
func (b *Browser) namespaceFor(ctx context.Context, v Viewer, name string) (n foundNamespace, err error) {
	var shown bool
	err = b.db.Pool.QueryRow(ctx, `
		SELECT n.id, n.created_at,
			(@all OR n.id = ANY (@namespaces::bigint[])) AND (@patterns::text[] IS NULL OR EXISTS (
				SELECT FROM repositories r WHERE r.top_level_namespace_id = n.id AND r.deleted_at IS NULL AND r.path ~ ANY (@patterns::text[]) OFFSET 0))
			OR EXISTS (
				SELECT FROM unnest(@repositories::bigint[]) AS own (id)
				CROSS JOIN LATERAL (SELECT top_level_namespace_id, path FROM live_repositories WHERE id = own.id OFFSET 0) r
				WHERE r.top_level_namespace_id = n.id AND (@patterns::text[] IS NULL OR r.path ~ ANY (@patterns::text[])) OFFSET 0)
			OR @public AND EXISTS (
				SELECT FROM repositories r WHERE r.top_level_namespace_id = n.id AND r.deleted_at IS NULL AND r.is_public
					AND (@patterns::text[] IS NULL OR r.path ~ ANY (@patterns::text[])) OFFSET 0)
			OR @public AND @public_by_default AND EXISTS (
				SELECT FROM repositories r WHERE r.top_level_namespace_id = n.id AND r.deleted_at IS NULL AND r.is_public IS NULL
					AND (@patterns::text[] IS NULL OR r.path ~ ANY (@patterns::text[])) OFFSET 0)
		FROM live_namespaces n WHERE n.name = @name`, v.args(db.SharedArgs{"name": name})).Scan(&n.id, &n.created, &shown)
	switch {
	case errors.Is(err, pgx.ErrNoRows) || err == nil && !shown:
		return n, catalog.NamespaceUnknown(name)
	case err != nil:
		return n, fmt.Errorf("looking for namespace %s: %w", name, err)
	}
	n.whole = v.Patterns == nil && (v.All || slices.Contains(v.Namespaces, n.id))
	return n, nil
}

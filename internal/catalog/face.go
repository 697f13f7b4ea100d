package catalog

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
)

// The functions in this file are for the packages gc, autoprune and check, which have SQL of
// their own and follow this package's rules on locks and caches.

// DB returns the database, for statements that clients wait for.
func (c *Catalog) DB() *db.DB { return c.db }

// Repository identifies a repository's row.
type Repository struct {
	NamespaceID, ID int64
	Path            string
}

// FindRepository reads a repository's ids by its name, from the database and not from a cache.
// Error: NAME_UNKNOWN.
func (c *Catalog) FindRepository(ctx context.Context, path string) (Repository, error) {
	r := Repository{Path: path}
	err := c.db.Pool.QueryRow(ctx, "SELECT top_level_namespace_id, id FROM live_repositories WHERE path = $1", path).
		Scan(&r.NamespaceID, &r.ID)
	switch {
	case isNoRows(err):
		return r, nameUnknown(path)
	case err != nil:
		return r, fmt.Errorf("looking for repository %s: %w", path, err)
	}
	return r, nil
}

// RepositoryByID is like FindRepository, for a repository's id.
func (c *Catalog) RepositoryByID(ctx context.Context, id int64) (Repository, error) {
	r := Repository{ID: id}
	err := c.db.Pool.QueryRow(ctx, "SELECT top_level_namespace_id, path FROM live_repositories WHERE id = $1", id).
		Scan(&r.NamespaceID, &r.Path)
	switch {
	case isNoRows(err):
		return r, nameUnknown(fmt.Sprintf("with id %d", id))
	case err != nil:
		return r, fmt.Errorf("looking for repository %d: %w", id, err)
	}
	return r, nil
}

// InTrash returns the path that a repository had before it, or its namespace, was put into the
// trash. It returns "" if the repository isn't there.
func (c *Catalog) InTrash(ctx context.Context, id int64) (path string, err error) {
	err = c.db.Pool.QueryRow(ctx, "SELECT path FROM named_repositories WHERE id = $1 AND in_trash", id).Scan(&path)
	if err != nil && !isNoRows(err) {
		return "", fmt.Errorf("looking for repository %d in the trash: %w", id, err)
	}
	return path, nil
}

// ChangeTags calls `change` in a transaction that has locked the repository against deletion,
// and invalidates the cached results about the repository's tags. If the transaction loses a
// race, ChangeTags calls `change` again in another transaction. Error: NAME_UNKNOWN if the
// repository was deleted, even if another repository has its name now.
func (c *Catalog) ChangeTags(ctx context.Context, r Repository, change func(ctx context.Context, tx pgx.Tx) error) error {
	err := c.write(ctx, write{
		path: r.Path, in: repository{r.NamespaceID, r.ID}, doing: "changing tags of " + r.Path, drop: c.cache.dropTags,
		run: func(ctx context.Context, in repository) error {
			return c.txOrAnswer(ctx, func(tx pgx.Tx) error {
				b := new(batch)
				b.lockRepository(in, r.Path)
				if err := b.send(ctx, tx); err != nil {
					return err
				}
				return change(ctx, tx)
			})
		},
	})
	if errors.Is(err, repositoryGone) {
		return nameUnknown(r.Path)
	}
	return err
}

// NameUnknown returns the client's error for a repository that doesn't exist.
func NameUnknown(path string) error { return nameUnknown(path) }

// ManifestUnknown returns the client's error for a manifest, named by a tag or digest, that
// its repository doesn't have.
func ManifestUnknown(path, reference string) error { return manifestUnknown(path, reference) }

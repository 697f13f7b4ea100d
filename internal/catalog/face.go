package catalog

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
)

// The functions in this file let packages above write SQL of their own under this package's
// rules: garbage collection, auto-pruning, the comparison with the store.

// DB returns the database, for statements that clients wait for.
func (c *Catalog) DB() *db.DB { return c.db }

// Repository identifies a repository's row.
type Repository struct {
	NamespaceID, ID int64
	Path            string
}

// FindRepository finds a repository by its name, in the database and not in a cache. Error:
// NAME_UNKNOWN.
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

// ChangeTags calls change in a transaction that has locked the repository against deletion,
// and drops what the caches hold of its tags. The transaction may run again. Error:
// NAME_UNKNOWN if the repository was deleted, even if another repository has its name now.
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

// NameUnknown returns the error for a request that names a repository which doesn't exist.
func NameUnknown(path string) error { return nameUnknown(path) }

// ManifestUnknown returns the error for a request that names a manifest, by tag or digest,
// which its repository doesn't have.
func ManifestUnknown(path, reference string) error { return manifestUnknown(path, reference) }

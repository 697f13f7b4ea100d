package catalog

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// The functions in this file are for the packages gc, autoprune, check and trash, which have SQL of
// their own and follow this package's rules on locks and caches.

// DB returns the database, for statements that clients wait for.
func (c *Catalog) DB() *db.DB { return c.db }

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
				if err := b.Send(ctx, tx); err != nil {
					return err
				}
				return change(ctx, tx)
			})
		},
	})
	if errors.Is(err, repositoryGone) {
		return NameUnknown(r.Path)
	}
	return err
}

// ChangeRepository runs fn in a transaction, again if it loses a race, and invalidates all that is
// cached of the repository path before and after it. Package trash, which changes the rows of
// repositories, calls it. It goes on when the client disconnects (see change).
func (c *Catalog) ChangeRepository(ctx context.Context, path string, fn func(ctx context.Context, tx pgx.Tx) error) error {
	return c.change(ctx, path, c.cache.dropAll, func(ctx context.Context) error {
		return db.Retry(ctx, func() error {
			return c.txOrAnswer(ctx, func(tx pgx.Tx) error { return fn(ctx, tx) })
		})
	})
}

// ChangeEverything runs fn in a transaction, and invalidates everything that is cached before and
// after it, as ChangeRepository does for one repository.
func (c *Catalog) ChangeEverything(ctx context.Context, fn func(tx pgx.Tx) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	c.cache.dropEverything()
	err := db.Retry(ctx, func() error { return c.txOrAnswer(ctx, fn) })
	if err != nil && !oci.IsClientError(err) && db.Code(err) == "" {
		c.cache.distrustEverything() // see change
	}
	c.cache.dropEverything()
	return err
}

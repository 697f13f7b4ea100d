package catalog

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/db"
)

// Public and Private are the visibilities of a repository. In a registry with access control,
// everybody may pull from a public repository. Without, everybody may pull from every
// repository, and the visibility is only stored and shown.
const (
	Public  = "public"
	Private = "private"
)

// SetVisibility stores a repository's visibility, Public or Private. Error: NAME_UNKNOWN.
func (c *Catalog) SetVisibility(ctx context.Context, path, visibility string) error {
	return c.setting(ctx, path, "changing the visibility", func(tx pgx.Tx, r repository) error {
		_, err := tx.Exec(ctx, `
			WITH changed AS (
				UPDATE repositories SET is_public = @visibility::text = 'public'
				WHERE id = @repository AND is_public IS DISTINCT FROM (@visibility::text = 'public') RETURNING id
			), logged AS (
				INSERT INTO auditlog (kind, actor, address, user_agent, request_id, namespace, repository, repository_id, detail)
				SELECT 'change_repo_visibility', @actor, @address, @user_agent, @request_id, split_part(@path::text, '/', 1), @path, id,
					jsonb_build_object('visibility', @visibility::text)
				FROM changed
			)
			SELECT FROM changed`, audit.Args(ctx, db.Args{"repository": r.id, "path": path, "visibility": visibility}))
		return err
	})
}

// SetStar sets or removes an account's star of a repository. All clients without an account
// (0) share one star per repository. Error: NAME_UNKNOWN.
func (c *Catalog) SetStar(ctx context.Context, account int64, path string, on bool) error {
	return c.setting(ctx, path, "changing the star", func(tx pgx.Tx, r repository) (err error) {
		switch {
		case account != 0 && on: // nothing if the account was deleted meanwhile
			_, err = tx.Exec(ctx, `
				INSERT INTO stars (account_id, repository_id)
				SELECT id, $2 FROM accounts WHERE id = $1 FOR KEY SHARE ON CONFLICT DO NOTHING`, account, r.id)
			return err
		case account != 0:
			_, err = tx.Exec(ctx, "DELETE FROM stars WHERE account_id = $1 AND repository_id = $2", account, r.id)
			return err
		}
		_, err = tx.Exec(ctx, "UPDATE repositories SET starred_at = CASE WHEN $2 THEN COALESCE(starred_at, now()) END WHERE id = $1", r.id, on)
		return err
	})
}

// setting runs fn in a transaction that has locked the repository against deletion. `doing`
// describes the change in error messages.
func (c *Catalog) setting(ctx context.Context, path, doing string, fn func(tx pgx.Tx, r repository) error) error {
	return c.write(ctx, write{path: path, doing: doing + " of repository " + path, run: func(ctx context.Context, r repository) error {
		return c.txOrAnswer(ctx, func(tx pgx.Tx) error {
			b := new(batch)
			b.lockRepository(r, path)
			if err := b.Send(ctx, tx); err != nil {
				return err
			}
			return fn(tx, r)
		})
	}})
}

package catalog

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// repositoriesAtOnce is how many repositories a statement of MendPushTimes looks at.
const repositoriesAtOnce = 1000

// MendPushTimes makes tags that were pushed in the future, by a clock that was ahead, pushed now. Each
// repository keeps their order, and they stay newer than its other tags. Otherwise nothing that is pushed
// to such a repository would age before that time, since a push comes after all others
// (purser_push_time). It is called when somebody has said that the clock is right.
func (c *Catalog) MendPushTimes(ctx context.Context) (tags int64, err error) {
	type place struct{ ID, Namespace int64 }
	for last := int64(-1); ; {
		rows, err := c.db.Pool.Query(ctx, `
			SELECT r.id, CASE WHEN f.found THEN r.top_level_namespace_id ELSE -1 END
			FROM (SELECT id, top_level_namespace_id FROM repositories WHERE id > $1 ORDER BY id LIMIT $2) r
			CROSS JOIN LATERAL (
				SELECT EXISTS (
					SELECT FROM tags
					WHERE top_level_namespace_id = r.top_level_namespace_id AND repository_id = r.id
						AND COALESCE(updated_at, created_at) > now() + interval '1 minute' OFFSET 0) AS found) f
			ORDER BY r.id`, last, repositoriesAtOnce)
		if err != nil {
			return tags, err
		}
		places, err := pgx.CollectRows(rows, pgx.RowToStructByPos[place])
		if err != nil {
			return tags, fmt.Errorf("looking for tags of the future: %w", err)
		}
		for _, p := range places {
			if p.Namespace == -1 {
				continue
			}
			n, err := c.mendPushTimes(ctx, p.Namespace, p.ID)
			if err != nil {
				return tags, fmt.Errorf("mending the push times of a repository: %w", err)
			}
			tags += n
		}
		if len(places) < repositoriesAtOnce {
			return tags, nil
		}
		last = places[len(places)-1].ID
	}
}

// mendPushTimes locks the repository against pushes: one that comes meanwhile would go behind the tags
// of the future.
func (c *Catalog) mendPushTimes(ctx context.Context, namespace, repository int64) (tags int64, err error) {
	err = c.db.Tx(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT FROM repositories WHERE id = $1 FOR UPDATE", repository); err != nil {
			return err
		}
		t, err := tx.Exec(ctx, `
			WITH wrong AS MATERIALIZED (
				SELECT name, now() + dense_rank() OVER (ORDER BY COALESCE(updated_at, created_at)) * interval '1 microsecond' AS pushed
				FROM tags
				WHERE top_level_namespace_id = $1 AND repository_id = $2 AND COALESCE(updated_at, created_at) > now()
			)
			UPDATE tags t SET created_at = LEAST(t.created_at, w.pushed), updated_at = CASE WHEN t.updated_at IS NOT NULL THEN w.pushed END
			FROM wrong w WHERE t.top_level_namespace_id = $1 AND t.repository_id = $2 AND t.name = w.name`, namespace, repository)
		tags = t.RowsAffected()
		return err
	})
	return tags, err
}

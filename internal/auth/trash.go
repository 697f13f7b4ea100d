package auth

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Deleted is a repository or a namespace in the trash. Its grants are still there.
type Deleted struct {
	// Namespace is the id of the namespace's row, which needn't be in the trash itself.
	Namespace int64
	// Repository is the id of the repository's row, 0 for the namespace.
	Repository int64
	// Resource has the name that it had.
	Resource Resource
}

// AllowsDeleted says of each of the places in the trash whether the principal has the access to it,
// which is Delete or another one that a role gives. Nothing is cached.
func (c *Control) AllowsDeleted(ctx context.Context, p *Principal, a Access, places []Deleted) ([]bool, error) {
	allowed := make([]bool, len(places))
	ask := false
	namespaces, repositories := make([]int64, len(places)), make([]int64, len(places))
	for i, d := range places {
		within := p.ID != 0 && p.token == nil && a.Role() != NoRole && p.limits.Allow(a.action(), d.Resource)
		allowed[i] = p.open || within && p.Superuser
		if within && !p.Superuser { // else the id 0 finds no role
			namespaces[i], repositories[i], ask = d.Namespace, d.Repository, true
		}
	}
	if !ask {
		return allowed, nil
	}
	rows, err := c.db.Pool.Query(ctx, `
		WITH mine AS MATERIALIZED (
			SELECT team_id FROM teammembers WHERE account_id = $1
		)
		SELECT COALESCE((SELECT max(array_position(ARRAY['reader', 'writer', 'maintainer', 'administrator'], role)) FROM (
			SELECT role FROM grants
			WHERE account_id = $1 AND top_level_namespace_id = p.namespace
				AND (repository_id IS NULL OR repository_id = p.repository)
			UNION ALL
			SELECT g.role FROM mine m CROSS JOIN LATERAL (
				SELECT role FROM grants
				WHERE team_id = m.team_id AND top_level_namespace_id = p.namespace
					AND (repository_id IS NULL OR repository_id = p.repository) OFFSET 0) g
			UNION ALL
			SELECT t.role FROM mine m CROSS JOIN LATERAL (
				SELECT role FROM teams WHERE id = m.team_id AND top_level_namespace_id = p.namespace OFFSET 0) t
		) roles), 0)
		FROM unnest($2::bigint[], $3::bigint[]) WITH ORDINALITY AS p (namespace, repository, i)
		ORDER BY p.i`, p.ID, namespaces, repositories)
	if err != nil {
		return nil, err
	}
	i, role := 0, 0
	_, err = pgx.ForEachRow(rows, []any{&role}, func() error {
		allowed[i] = allowed[i] || role >= int(a.Role())
		i++
		return nil
	})
	return allowed, err
}

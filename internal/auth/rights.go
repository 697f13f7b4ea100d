package auth

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
)

const (
	// rightsAge is how long a cached right, account or secret is used. A change by another
	// process takes effect after that at the latest.
	rightsAge = 10 * time.Second
	// rightsMax limits the number of entries of each cache.
	rightsMax = 50_000
)

// rightKey identifies a cached right.
type rightKey struct {
	account  int64 // 0: nobody
	resource Resource
}

// right is what an account may do in a resource.
type right struct {
	role Role
	// public says whether the resource is a repository that is public.
	public bool
	// namespace is the id of the resource's namespace, 0 if there is none.
	namespace int64
}

// right returns what an account may do in a namespace or a repository, from the cache or by one
// query.
func (c *Control) right(ctx context.Context, account int64, r Resource) (right, error) {
	return cached(c, c.rights, rightKey{account, r}, func() (right, error) {
		found, err := c.Store.readRights(ctx, account, []Resource{r}, c.opt.PublicByDefault)
		if err != nil {
			return right{}, err
		}
		return found[0], nil
	})
}

// namespaceKey identifies what is cached about a namespace for the registry tokens that were granted in
// the namespace of this id. Nobody asks with the id before that namespace exists, so an answer can't be
// of an earlier one that had the name.
type namespaceKey struct {
	name    string
	granted int64
}

// presentNamespace returns the id of the namespace that has the name now, 0 if there is none, from the
// cache or by one query. `granted` is the id that a token has.
func (c *Control) presentNamespace(ctx context.Context, name string, granted int64) (int64, error) {
	return cached(c, c.namespaces, namespaceKey{name, granted}, func() (id int64, err error) {
		err = c.db.Pool.QueryRow(ctx, "SELECT COALESCE((SELECT id FROM live_namespaces WHERE name = $1), 0)", name).Scan(&id)
		return id, err
	})
}

// rightsIn is right for many resources. It reads those that aren't in the cache by one query.
func (c *Control) rightsIn(ctx context.Context, account int64, list []Resource) (map[Resource]right, error) {
	found := make(map[Resource]right, len(list))
	var unknown []Resource
	now, generation := time.Now(), c.generation.Load()
	for _, r := range list {
		if _, ok := found[r]; ok || slices.Contains(unknown, r) {
			continue
		}
		known, ok := c.rights.Get(rightKey{account, r})
		if !ok || known.generation != generation || now.Sub(known.read) >= rightsAge {
			unknown = append(unknown, r)
			continue
		}
		found[r] = known.value
	}
	if len(unknown) == 0 {
		return found, nil
	}
	read, err := c.Store.readRights(ctx, account, unknown, c.opt.PublicByDefault)
	if err != nil {
		return nil, err
	}
	for i, r := range unknown {
		found[r] = read[i]
		c.rights.Set(rightKey{account, r}, entry[right]{value: read[i], read: now, generation: generation})
	}
	return found, nil
}

// readRights reads rights from the database, in the order of the resources. A resource that
// doesn't exist has the rights of its namespace; a repository that doesn't exist isn't public.
func (s *Store) readRights(ctx context.Context, account int64, list []Resource, publicByDefault bool) ([]right, error) {
	namespaces, repositories := make([]string, len(list)), make([]string, len(list))
	for i, r := range list {
		namespaces[i], repositories[i] = r.Namespace, r.Repository
	}
	rows, err := s.db.Pool.Query(ctx, `
		WITH place AS MATERIALIZED (
			SELECT asked.nr, n.id AS namespace, r.id AS repository, r.is_public
			FROM unnest($2::text[], $3::text[]) WITH ORDINALITY asked (namespace, repository, nr)
			LEFT JOIN LATERAL (SELECT id FROM live_namespaces WHERE name = asked.namespace OFFSET 0) n ON true
			LEFT JOIN LATERAL (SELECT id, is_public FROM repositories
				WHERE path = asked.repository AND top_level_namespace_id = n.id AND deleted_at IS NULL OFFSET 0) r ON true
		), mine AS MATERIALIZED (
			SELECT team_id FROM teammembers WHERE account_id = $1
		)
		SELECT COALESCE(p.repository IS NOT NULL AND COALESCE(p.is_public, $4), false),
			COALESCE((SELECT max(array_position(ARRAY['reader', 'writer', 'maintainer', 'administrator'], role)) FROM (
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
			) roles), 0), COALESCE(p.namespace, 0)
		FROM place p ORDER BY p.nr`, account, namespaces, repositories, publicByDefault)
	if err != nil {
		return nil, err
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (f right, err error) {
		var role int
		err = row.Scan(&f.public, &role, &f.namespace)
		f.role = Role(role) //nolint:gosec // an index into roleNames
		return f, err
	})
	if err == nil && len(found) != len(list) {
		err = fmt.Errorf("%d rights were read of %d resources", len(found), len(list))
	}
	return found, err
}

// Readable says which repositories a list may show.
type Readable struct {
	All    bool // every repository that Patterns allow
	Public bool // public ones
	// PublicByDefault says whether a repository without a visibility of its own is public.
	PublicByDefault bool
	// Namespaces and Repositories are the ids of namespaces and single repositories in which
	// the principal has a role.
	Namespaces, Repositories []int64
	// Patterns are POSIX regular expressions, of which a repository's path must match one. Nil:
	// no such limit.
	Patterns []string
}

// Readable returns which repositories the principal may see in lists.
func (c *Control) Readable(ctx context.Context, p *Principal) (Readable, error) {
	superuser := p.Superuser
	switch {
	case p.open:
		return Readable{All: true}, nil
	case !p.limits.Allow(ActionPull, Registry):
		return Readable{}, nil
	case p.token != nil && p.ID != 0: // tokens don't say who administers the registry
		a, err := c.accountByID(ctx, p.ID)
		if err != nil && !errors.Is(err, ErrUnknown) {
			return Readable{}, err
		}
		superuser = a.Superuser && !a.Disabled
	}
	if superuser && p.limits.Repositories == nil {
		return Readable{All: true}, nil
	}
	r := Readable{Public: p.ID != 0 || c.opt.AnonymousPull, PublicByDefault: c.opt.PublicByDefault}
	if p.limits.Repositories != nil {
		r.Patterns = []string{}
		if len(p.limits.Repositories) > 0 {
			r.Patterns = append(r.Patterns, patternsRegexp(p.limits.Repositories))
		}
	}
	switch {
	case p.ID == 0:
		return r, nil
	case superuser:
		return Readable{All: true, Patterns: r.Patterns}, nil
	}
	err := c.db.Pool.QueryRow(ctx, `
		WITH mine AS MATERIALIZED (
			SELECT team_id FROM teammembers WHERE account_id = $1
		), found AS MATERIALIZED (
			SELECT top_level_namespace_id, repository_id FROM grants WHERE account_id = $1
			UNION
			SELECT g.top_level_namespace_id, g.repository_id FROM mine m CROSS JOIN LATERAL (
				SELECT top_level_namespace_id, repository_id FROM grants WHERE team_id = m.team_id OFFSET 0) g
			UNION
			SELECT t.top_level_namespace_id, NULL FROM mine m CROSS JOIN LATERAL (
				SELECT top_level_namespace_id FROM teams WHERE id = m.team_id AND role IS NOT NULL OFFSET 0) t
		)
		SELECT COALESCE(array_agg(DISTINCT top_level_namespace_id) FILTER (WHERE repository_id IS NULL), '{}'),
			COALESCE(array_agg(DISTINCT repository_id) FILTER (WHERE repository_id IS NOT NULL), '{}')
		FROM found`, p.ID).Scan(&r.Namespaces, &r.Repositories)
	return r, err
}

// RoleInNamespace is a namespace in which an account has a role.
type RoleInNamespace struct {
	Name string
	ID   int64
	Made time.Time
	// Role is the greatest role in the whole namespace: NoRole if the account has roles in single
	// repositories only.
	Role Role
}

// Namespaces lists up to n namespaces in which an account has a role of its own or through a team,
// in the order of their names, after the name `after`: with NoRole all of them, else those in which its role
// is at least that. It says whether there are more.
func (s *Store) Namespaces(ctx context.Context, account int64, least Role, after string, n int) (list []RoleInNamespace, more bool, err error) {
	rows, err := s.db.Pool.Query(ctx, `
		WITH mine AS MATERIALIZED (
			SELECT team_id FROM teammembers WHERE account_id = $1
		), found AS MATERIALIZED (
			SELECT top_level_namespace_id, CASE WHEN repository_id IS NULL THEN role END AS role FROM grants WHERE account_id = $1
			UNION ALL
			SELECT g.top_level_namespace_id, g.role FROM mine m CROSS JOIN LATERAL (
				SELECT top_level_namespace_id, CASE WHEN repository_id IS NULL THEN role END AS role FROM grants
				WHERE team_id = m.team_id OFFSET 0) g
			UNION ALL
			SELECT t.top_level_namespace_id, t.role FROM mine m CROSS JOIN LATERAL (
				SELECT top_level_namespace_id, role FROM teams WHERE id = m.team_id OFFSET 0) t
		)
		SELECT n.name, n.id, n.created_at, r.role FROM (
			SELECT top_level_namespace_id AS id, COALESCE(max(array_position(ARRAY['reader', 'writer', 'maintainer', 'administrator'], role)), 0) AS role
			FROM found GROUP BY top_level_namespace_id) r
		JOIN live_namespaces n ON n.id = r.id
		WHERE n.name > $2 AND r.role >= $4
		ORDER BY n.name LIMIT $3`, account, after, n+1, int(least))
	return db.Page(rows, err, n, func(row pgx.CollectableRow) (in RoleInNamespace, err error) {
		var role int
		err = row.Scan(&in.Name, &in.ID, &in.Made, &role)
		in.Role = Role(role) //nolint:gosec // an index into roleNames
		return in, err
	})
}

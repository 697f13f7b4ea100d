package auth

import (
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"
)

// CheckNamespace returns an error, with status 404, unless the namespace exists.
func (s *Store) CheckNamespace(ctx context.Context, name string) error {
	var found bool
	err := s.db.Pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM live_namespaces WHERE name = $1)", name).Scan(&found)
	if err == nil && !found {
		err = unknown("namespace %s is not known to this registry", short(name))
	}
	return err
}

// Robot returns the robot with a name. Error: 404.
func (s *Store) Robot(ctx context.Context, name string) (Account, error) {
	a, err := s.Account(ctx, name)
	if err == nil && !a.Robot || errors.Is(err, ErrUnknown) {
		return Account{}, unknownRobot(name)
	}
	return a, err
}

// Person returns the person's account with a name. Error: 404.
func (s *Store) Person(ctx context.Context, name string) (Account, error) {
	a, err := s.Account(ctx, name)
	if err == nil && a.Robot {
		return Account{}, unknownAccount(name)
	}
	return a, err
}

// Team returns a team of a namespace. Error: 404.
func (s *Store) Team(ctx context.Context, namespace, name string) (Team, error) {
	list, err := s.Teams(ctx, namespace)
	if err != nil {
		return Team{}, err
	}
	i := slices.IndexFunc(list, func(t Team) bool { return t.Name == name })
	if i < 0 {
		return Team{}, unknownTeam(namespace, name)
	}
	return list[i], nil
}

// Grant returns the role of an account or a team (exactly one is not "") in a resource itself.
// Error: 404 if there is none.
func (s *Store) Grant(ctx context.Context, r Resource, account, team string) (Grant, error) {
	list, err := s.Grants(ctx, r)
	if err != nil {
		return Grant{}, err
	}
	i := slices.IndexFunc(list, func(g Grant) bool { return g.Account == account && g.Team == team })
	if i < 0 {
		return Grant{}, unknown("%s has no role of its own there", short(account+team))
	}
	return list[i], nil
}

// GrantOf is a role of one account or team.
type GrantOf struct {
	Repository string // "": the whole namespace
	Role       Role
	Public     *bool // of the repository; nil: as the default says
}

// GrantsOf lists the roles of an account or a team (exactly one is not "") in a namespace and its
// repositories, in the order of the repositories' names. For something unknown the list is
// empty.
func (s *Store) GrantsOf(ctx context.Context, namespace, account, team string) ([]GrantOf, error) {
	rows, err := s.db.Pool.Query(ctx, `
		SELECT COALESCE(r.path, ''), g.role, r.is_public
		FROM live_namespaces n
		JOIN grants g ON g.top_level_namespace_id = n.id
		LEFT JOIN repositories r ON r.id = g.repository_id AND r.top_level_namespace_id = n.id
		WHERE n.name = $1 AND r.deleted_at IS NULL AND (
			g.account_id = (SELECT id FROM accounts WHERE name = $2) OR
			g.team_id = (SELECT id FROM teams WHERE top_level_namespace_id = n.id AND name = $3))
		ORDER BY r.path NULLS FIRST`, namespace, account, team)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (g GrantOf, err error) {
		var role string
		if err = row.Scan(&g.Repository, &role, &g.Public); err == nil {
			g.Role, err = ParseRole(role)
		}
		return g, err
	})
}

// NamespaceMember is a person who has rights in a namespace.
type NamespaceMember struct {
	Account string
	Role    Role     // the person's own in the whole namespace, NoRole if there is none
	Teams   []string // in the order of their names
	// Repositories are the paths of the repositories in which the person has a role of its own.
	Repositories []string
}

// NamespaceMembers lists the people who have rights in a namespace, in the order of their names.
// For an unknown namespace the list is empty.
func (s *Store) NamespaceMembers(ctx context.Context, namespace string) ([]NamespaceMember, error) {
	rows, err := s.db.Pool.Query(ctx, `
		WITH place AS MATERIALIZED (
			SELECT id FROM live_namespaces WHERE name = $1
		), found AS MATERIALIZED (
			SELECT m.account_id, t.name AS team, NULL::text AS repository, NULL::text AS role
			FROM place n JOIN teams t ON t.top_level_namespace_id = n.id JOIN teammembers m ON m.team_id = t.id
			UNION ALL
			SELECT g.account_id, NULL, r.path, CASE WHEN g.repository_id IS NULL THEN g.role END
			FROM place n JOIN grants g ON g.top_level_namespace_id = n.id
			LEFT JOIN repositories r ON r.id = g.repository_id AND r.top_level_namespace_id = n.id
			WHERE g.account_id IS NOT NULL AND r.deleted_at IS NULL
		)
		SELECT a.name, COALESCE(max(array_position(ARRAY['reader', 'writer', 'maintainer', 'administrator'], f.role)), 0),
			COALESCE(array_agg(DISTINCT f.team) FILTER (WHERE f.team IS NOT NULL), '{}'),
			COALESCE(array_agg(DISTINCT f.repository) FILTER (WHERE f.repository IS NOT NULL), '{}')
		FROM found f JOIN accounts a ON a.id = f.account_id
		WHERE a.kind = 'user'
		GROUP BY a.name ORDER BY a.name LIMIT $2`, namespace, maxMembers)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (m NamespaceMember, err error) {
		var role int
		err = row.Scan(&m.Account, &role, &m.Teams, &m.Repositories)
		m.Role = Role(role) //nolint:gosec // an index into roleNames
		return m, err
	})
}

// RoleIn returns the greatest role that an account has in a resource by whatever way, but for the
// right to administer the registry: administrators of a namespace needn't know who has that.
// Error: 404 for an unknown account.
func (s *Store) RoleIn(ctx context.Context, account string, r Resource) (Role, error) {
	a, err := s.Account(ctx, account)
	if err != nil {
		return NoRole, err
	}
	found, err := s.readRights(ctx, a.ID, []Resource{r}, false)
	if err != nil {
		return NoRole, err
	}
	return found[0].role, nil
}

package auth

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
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

// GrantOf is a role of one account or team in a repository.
type GrantOf struct {
	Repository string
	Role       Role
	Public     *bool // of the repository; nil: as the default says
}

// GrantsOf lists up to n roles of an account or a team (exactly one is not "") in repositories of a
// namespace, in the order of their paths, after the path `after`. It says whether there are more.
// For something unknown the list is empty.
func (s *Store) GrantsOf(ctx context.Context, namespace, account, team, after string, n int) (list []GrantOf, more bool, err error) {
	rows, err := s.db.Pool.Query(ctx, `
		SELECT r.path, g.role, r.is_public
		FROM live_namespaces n
		JOIN grants g ON g.top_level_namespace_id = n.id
		JOIN repositories r ON r.id = g.repository_id AND r.top_level_namespace_id = n.id
		WHERE n.name = $1 AND r.deleted_at IS NULL AND r.path > $4 AND (
			g.account_id = (SELECT id FROM accounts WHERE name = $2) OR
			g.team_id = (SELECT id FROM teams WHERE top_level_namespace_id = n.id AND name = $3))
		ORDER BY r.path LIMIT $5`, namespace, account, team, after, n+1)
	return db.Page(rows, err, n, func(row pgx.CollectableRow) (g GrantOf, err error) {
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
	Teams   []string // in the order of their names, up to MostOfMember
	// Repositories are the paths of the repositories in which the person has a role of its own,
	// up to MostOfMember.
	Repositories []string
	// MoreTeams and MoreRepositories say that there are more of them.
	MoreTeams, MoreRepositories bool
}

// MostOfMember is how many teams and repositories a NamespaceMember has at most.
const MostOfMember = 100

// NamespaceMembers lists up to n people who have rights in a namespace, in the order of their
// names, after the name `after`: those who are in a team or have a role in the whole namespace, or
// with `collaborators` those who only have roles in repositories. It says whether there are more.
// For an unknown namespace the list is empty.
func (s *Store) NamespaceMembers(ctx context.Context, namespace string, collaborators bool, after string, n int) (list []NamespaceMember, more bool, err error) {
	rows, err := s.db.Pool.Query(ctx, `
		WITH place AS MATERIALIZED (
			SELECT id FROM live_namespaces WHERE name = $1
		), members AS MATERIALIZED ( -- their numbers alone, of which one team may have thousands
			SELECT m.account_id FROM place n JOIN teams t ON t.top_level_namespace_id = n.id JOIN teammembers m ON m.team_id = t.id
			UNION
			SELECT g.account_id FROM place n JOIN grants g ON g.top_level_namespace_id = n.id
			WHERE g.account_id IS NOT NULL AND g.repository_id IS NULL
		), others AS MATERIALIZED (
			SELECT DISTINCT g.account_id
			FROM place n JOIN grants g ON g.top_level_namespace_id = n.id
			JOIN repositories r ON r.id = g.repository_id AND r.top_level_namespace_id = n.id
			WHERE $4 AND g.account_id IS NOT NULL AND r.deleted_at IS NULL
				AND g.account_id NOT IN (SELECT account_id FROM members)
		), shown AS MATERIALIZED (
			SELECT a.id, a.name FROM (
				SELECT account_id FROM members WHERE NOT $4 UNION ALL SELECT account_id FROM others) f
			JOIN accounts a ON a.id = f.account_id
			WHERE a.kind = 'user' AND a.name > $2 ORDER BY a.name LIMIT $3
		)
		SELECT s.name,
			COALESCE((
				SELECT array_position(ARRAY['reader', 'writer', 'maintainer', 'administrator'], g.role) FROM place n
				JOIN grants g ON g.account_id = s.id AND g.top_level_namespace_id = n.id AND g.repository_id IS NULL), 0),
			ARRAY(
				SELECT t.name FROM place n JOIN teams t ON t.top_level_namespace_id = n.id
				JOIN teammembers m ON m.team_id = t.id AND m.account_id = s.id ORDER BY t.name LIMIT $5),
			ARRAY(
				SELECT r.path FROM place n JOIN grants g ON g.account_id = s.id AND g.top_level_namespace_id = n.id
				JOIN repositories r ON r.id = g.repository_id AND r.top_level_namespace_id = n.id AND r.deleted_at IS NULL
				ORDER BY r.path LIMIT $5)
		FROM shown s ORDER BY s.name`, namespace, after, n+1, collaborators, MostOfMember+1)
	return db.Page(rows, err, n, func(row pgx.CollectableRow) (m NamespaceMember, err error) {
		var role int
		err = row.Scan(&m.Account, &role, &m.Teams, &m.Repositories)
		m.Role = Role(role) //nolint:gosec // an index into roleNames
		if m.MoreTeams = len(m.Teams) > MostOfMember; m.MoreTeams {
			m.Teams = m.Teams[:MostOfMember]
		}
		if m.MoreRepositories = len(m.Repositories) > MostOfMember; m.MoreRepositories {
			m.Repositories = m.Repositories[:MostOfMember]
		}
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

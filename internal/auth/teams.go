package auth

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/auth/identity"
	"github.com/purser-registry/purser/internal/db"
)

// Team is a group of accounts in a namespace.
type Team struct {
	ID          int64
	Namespace   string
	Name        string
	Role        Role // of its members in the namespace
	Description string
	Members     int  // counted up to countedMembers
	Synced      bool // a group of OpenID Connect or LDAP decides who its members are
}

// TeamGroup is a group at a provider whose members become members of a team when they log in.
type TeamGroup struct {
	Source string // SourceOIDC or SourceLDAP
	Name   string
}

// countedMembers is up to how many members of a team are counted.
const countedMembers = 100_000

// Teams lists up to n teams of a namespace whose names contain a text, in the order of their
// names, after the name `after`. It says whether there are more. For an unknown namespace the list
// is empty.
func (s *Store) Teams(ctx context.Context, namespace, contains, after string, n int) (list []Team, more bool, err error) {
	rows, err := s.db.Pool.Query(ctx, `
		SELECT t.id, n.name, t.name, t.role, t.description,
			(SELECT count(*) FROM (SELECT FROM teammembers WHERE team_id = t.id LIMIT $5) counted)::int,
			EXISTS (SELECT FROM teamgroups WHERE team_id = t.id)
		FROM live_namespaces n CROSS JOIN LATERAL (
			SELECT * FROM teams
			WHERE top_level_namespace_id = n.id AND name > $2 AND position($3 IN name) > 0 ORDER BY name LIMIT $4) t
		WHERE n.name = $1 ORDER BY t.name`, namespace, after, contains, n+1, countedMembers)
	return db.Page(rows, err, n, scanTeam)
}

// Team returns a team of a namespace. Error: 404.
func (s *Store) Team(ctx context.Context, namespace, name string) (Team, error) {
	rows, err := s.db.Pool.Query(ctx, `
		SELECT t.id, n.name, t.name, t.role, t.description,
			(SELECT count(*) FROM (SELECT FROM teammembers WHERE team_id = t.id LIMIT $3) counted)::int,
			EXISTS (SELECT FROM teamgroups WHERE team_id = t.id)
		FROM live_namespaces n JOIN teams t ON t.top_level_namespace_id = n.id
		WHERE n.name = $1 AND t.name = $2`, namespace, name, countedMembers)
	if err != nil {
		return Team{}, err
	}
	t, err := pgx.CollectExactlyOneRow(rows, scanTeam)
	if errors.Is(err, pgx.ErrNoRows) {
		err = unknownTeam(namespace, name)
	}
	return t, err
}

func scanTeam(row pgx.CollectableRow) (t Team, err error) {
	var role *string
	if err = row.Scan(&t.ID, &t.Namespace, &t.Name, &role, &t.Description, &t.Members, &t.Synced); err == nil && role != nil {
		t.Role, err = ParseRole(*role)
	}
	return t, err
}

// PutTeam creates a team, or changes its role and description. `created` says which. A nil
// description stays as it is. Errors: 404 if the namespace doesn't exist, 400 for an invalid
// name.
func (s *Store) PutTeam(ctx context.Context, namespace, name string, role Role, description *string) (created bool, err error) {
	if err := checkShortName("team", name); err != nil {
		return false, err
	}
	if description != nil {
		if err := checkText("description", *description, maxDescription); err != nil {
			return false, err
		}
	}
	err = s.change(ctx, "changing team "+name, func(tx pgx.Tx) error {
		id, err := namespaceID(ctx, tx, namespace)
		if err != nil {
			return err
		}
		if err := countAlone(ctx, tx, id); err != nil {
			return err
		}
		err = tx.QueryRow(ctx, `
			INSERT INTO teams (top_level_namespace_id, name, role, description) VALUES (@id, @name, @role, COALESCE(@description, ''))
			ON CONFLICT (top_level_namespace_id, name) DO UPDATE SET role = @role, description = COALESCE(@description, teams.description)
			RETURNING xmax = 0`, db.Args{"id": id, "name": name, "role": orNull(role.String()), "description": description}).Scan(&created)
		if err != nil {
			return err
		}
		if created {
			const count = "SELECT count(*) FROM (SELECT FROM teams WHERE top_level_namespace_id = $1 LIMIT $2) counted"
			if ok, err := underLimit(ctx, tx, count, id, s.most.Teams); !ok || err != nil {
				return cmp.Or(err, tooManyTeams(namespace, s.most.Teams))
			}
		}
		kind := audit.ChangeTeamRole
		if created {
			kind = audit.CreateTeam
		}
		return audit.Append(ctx, tx, teamEntry(kind, namespace, name, map[string]any{"role": role.String()}))
	})
	return created, err
}

func teamEntry(kind audit.Kind, namespace, team string, detail map[string]any) audit.Entry {
	if detail == nil {
		detail = map[string]any{}
	}
	detail["team"] = team
	return audit.Entry{Kind: kind, Namespace: namespace, Detail: detail}
}

// DeleteTeam deletes a team with its grants. Error: 404.
func (s *Store) DeleteTeam(ctx context.Context, namespace, name string) error {
	return s.change(ctx, "deleting team "+name, func(tx pgx.Tx) error {
		id, err := lockTeam(ctx, tx, namespace, name)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "DELETE FROM teams WHERE id = $1", id); err != nil {
			return err
		}
		return audit.Append(ctx, tx, teamEntry(audit.DeleteTeam, namespace, name, nil))
	})
}

func unknownTeam(namespace, name string) error {
	return unknown("namespace %s has no team %s", short(namespace), short(name))
}

func lockTeam(ctx context.Context, tx pgx.Tx, namespace, name string) (id int64, err error) {
	err = tx.QueryRow(ctx, `
		SELECT t.id FROM live_namespaces n JOIN teams t ON t.top_level_namespace_id = n.id
		WHERE n.name = $1 AND t.name = $2 FOR UPDATE OF t`, namespace, name).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		err = unknownTeam(namespace, name)
	}
	return id, err
}

// Member is a member of a team.
type Member struct {
	Account string
	Robot   bool
	Synced  bool // by a group of OpenID Connect or LDAP
}

// Members lists up to n members of a team in the order of their names, after the name `after`. It
// says whether there are more. Error: 404.
func (s *Store) Members(ctx context.Context, namespace, team, after string, n int) (list []Member, more bool, err error) {
	rows, err := s.db.Pool.Query(ctx, `
		SELECT a.name, a.kind = 'robot', m.synced
		FROM live_namespaces n JOIN teams t ON t.top_level_namespace_id = n.id
		JOIN teammembers m ON m.team_id = t.id JOIN accounts a ON a.id = m.account_id
		WHERE n.name = $1 AND t.name = $2 AND a.name > $3 ORDER BY a.name LIMIT $4`, namespace, team, after, n+1)
	list, more, err = db.Page(rows, err, n, pgx.RowToStructByPos[Member])
	if err != nil || len(list) > 0 {
		return list, more, err
	}
	var found bool
	err = s.db.Pool.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM live_namespaces n JOIN teams t ON t.top_level_namespace_id = n.id
			WHERE n.name = $1 AND t.name = $2)`, namespace, team).Scan(&found)
	if err == nil && !found {
		err = unknownTeam(namespace, team)
	}
	return list, false, err
}

// AddMember makes an account a member of a team. A robot can be a member only of teams of its
// own namespace. Error: 404, 400.
func (s *Store) AddMember(ctx context.Context, namespace, team, account string) error {
	return s.change(ctx, "adding a member to team "+team, func(tx pgx.Tx) error {
		id, err := lockTeam(ctx, tx, namespace, team)
		if err != nil {
			return err
		}
		member, err := grantee(ctx, tx, namespace, account)
		if err != nil {
			return err
		}
		var added bool
		err = tx.QueryRow(ctx, `
			INSERT INTO teammembers (team_id, account_id) VALUES ($1, $2)
			ON CONFLICT (team_id, account_id) DO UPDATE SET synced = false WHERE teammembers.synced
			RETURNING true`, id, member).Scan(&added)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) { // none: it is one already
			return err
		}
		if added {
			const count = "SELECT count(*) FROM (SELECT FROM teammembers WHERE team_id = $1 AND NOT synced LIMIT $2) counted"
			if ok, err := underLimit(ctx, tx, count, id, s.most.TeamMembers); !ok || err != nil {
				return cmp.Or(err, tooManyMembers(team, s.most.TeamMembers))
			}
		}
		return audit.Append(ctx, tx, teamEntry(audit.AddTeamMember, namespace, team, map[string]any{"member": account}))
	})
}

// grantee returns the id of an account that is to get a role or a membership in a namespace. A
// robot must belong to the namespace.
func grantee(ctx context.Context, tx pgx.Tx, namespace, account string) (id int64, err error) {
	// The name says to which namespace a robot belongs. The error is the same whether there is
	// such a robot, since other namespaces needn't know.
	if of, _, robot := strings.Cut(account, "+"); robot && of != namespace {
		return 0, invalid("robot %s would belong to namespace %s, and can't get rights in another one", short(account), short(of))
	}
	err = tx.QueryRow(ctx, "SELECT id FROM accounts WHERE name = $1 AND deleted_name IS NULL FOR KEY SHARE", account).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, unknownAccount(account)
	}
	return id, err
}

// RemoveMember ends an account's membership in a team. Error: 404.
func (s *Store) RemoveMember(ctx context.Context, namespace, team, account string) error {
	return s.change(ctx, "removing a member of team "+team, func(tx pgx.Tx) error {
		id, err := lockTeam(ctx, tx, namespace, team)
		if err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, "DELETE FROM teammembers m USING accounts a WHERE a.id = m.account_id AND m.team_id = $1 AND a.name = $2", id, account)
		if err == nil && tag.RowsAffected() == 0 {
			return unknown("%s is not a member of team %s", short(account), team)
		}
		if err != nil {
			return err
		}
		return audit.Append(ctx, tx, teamEntry(audit.RemoveTeamMember, namespace, team, map[string]any{"member": account}))
	})
}

// TeamGroups lists the groups whose members become members of a team. Error: none for an
// unknown team; the list is empty.
func (s *Store) TeamGroups(ctx context.Context, namespace, team string) ([]TeamGroup, error) {
	rows, err := s.db.Pool.Query(ctx, `
		SELECT g.source, g.group_name
		FROM live_namespaces n JOIN teams t ON t.top_level_namespace_id = n.id JOIN teamgroups g ON g.team_id = t.id
		WHERE n.name = $1 AND t.name = $2 ORDER BY g.source, g.group_name`, namespace, team)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[TeamGroup])
}

// mostTeamsOfGroup is how many teams of a namespace may have the same group. A log-in of somebody in
// the group locks them all, and whoever administers a namespace may name everybody's group.
const mostTeamsOfGroup = 20

// SetTeamGroups replaces the groups whose members become members of a team. Memberships by
// groups end; accounts get them again when they log in. Errors: 404; 400 for a group that
// mostTeamsOfGroup other teams of the namespace have.
func (s *Store) SetTeamGroups(ctx context.Context, namespace, team string, groups []TeamGroup) error {
	for _, g := range groups {
		if g.Source != SourceOIDC && g.Source != SourceLDAP || g.Name == "" || len(g.Name) > 1024 {
			return invalid("a group needs a name and the source %s or %s", SourceOIDC, SourceLDAP)
		}
	}
	return s.change(ctx, "changing the groups of team "+team, func(tx pgx.Tx) error {
		of, err := namespaceID(ctx, tx, namespace)
		if err != nil {
			return err
		}
		if err := countAlone(ctx, tx, of); err != nil {
			return err
		}
		id, err := lockTeam(ctx, tx, namespace, team)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `
			WITH members AS (DELETE FROM teammembers WHERE team_id = $1 AND synced)
			DELETE FROM teamgroups WHERE team_id = $1`, id)
		if err != nil {
			return err
		}
		kind := audit.DisableTeamSync
		for _, g := range groups {
			kind = audit.EnableTeamSync
			if g.Source == SourceLDAP {
				g.Name = identity.FoldGroup(g.Name)
			}
			if _, err := tx.Exec(ctx, "INSERT INTO teamgroups (team_id, source, group_name) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING", id, g.Source, g.Name); err != nil {
				return err
			}
			if err := checkTeamsOfGroup(ctx, tx, of, namespace, g); err != nil {
				return err
			}
		}
		return audit.Append(ctx, tx, teamEntry(kind, namespace, team, map[string]any{"groups": len(groups)}))
	})
}

// checkTeamsOfGroup returns an error if more teams of a namespace have a group than mostTeamsOfGroup. The
// transaction must have called countAlone before.
func checkTeamsOfGroup(ctx context.Context, tx pgx.Tx, namespace int64, name string, g TeamGroup) error {
	var n int
	err := tx.QueryRow(ctx, `
		SELECT count(*) FROM teams t WHERE t.top_level_namespace_id = $1
			AND EXISTS (SELECT FROM teamgroups WHERE source = $2 AND group_name = $3 AND team_id = t.id)`, namespace, g.Source, g.Name).Scan(&n)
	if err == nil && n > mostTeamsOfGroup {
		err = invalid("%d teams of namespace %s have the group %s already, and no more may: give another role to one of them instead",
			mostTeamsOfGroup, short(name), short(g.Name))
	}
	return err
}

// syncTeams makes an account a member of exactly those synced teams whose groups it is in, and
// writes an audit entry of each change. `changed` says whether there was one.
func syncTeams(ctx context.Context, tx pgx.Tx, account int64, name, source string, groups []string) (changed bool, err error) {
	// The lock makes a change of a team's groups, which ends memberships by the old ones, come before or
	// after this. The next statement sees what has come before.
	rows, err := tx.Query(ctx, `
		SELECT id FROM teams WHERE id IN (SELECT team_id FROM teamgroups WHERE source = $1 AND group_name = ANY($2::text[]))
		ORDER BY id FOR KEY SHARE`, source, groups)
	if err != nil {
		return false, err
	}
	locked, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return false, err
	}
	rows, err = tx.Query(ctx, `
		WITH wanted AS MATERIALIZED (
			SELECT DISTINCT team_id FROM teamgroups WHERE source = $2 AND group_name = ANY($3::text[])
		), gone AS (
			DELETE FROM teammembers WHERE account_id = $1 AND synced AND team_id NOT IN (SELECT team_id FROM wanted)
			RETURNING team_id
		), new AS (
			INSERT INTO teammembers (team_id, account_id, synced)
			SELECT team_id, $1, true FROM wanted WHERE team_id = ANY($4) ORDER BY team_id ON CONFLICT DO NOTHING
			RETURNING team_id
		)
		SELECT c.added, n.name, t.name
		FROM (SELECT team_id, false AS added FROM gone UNION ALL SELECT team_id, true FROM new) c
		CROSS JOIN LATERAL (SELECT top_level_namespace_id, name FROM teams WHERE id = c.team_id OFFSET 0) t
		CROSS JOIN LATERAL (SELECT name FROM live_namespaces WHERE id = t.top_level_namespace_id OFFSET 0) n
		ORDER BY n.name, t.name`, account, source, groups, locked)
	if err != nil {
		return false, err
	}
	entries, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (audit.Entry, error) {
		var added bool
		var namespace, team string
		err := row.Scan(&added, &namespace, &team)
		kind := audit.RemoveTeamMember
		if added {
			kind = audit.AddTeamMember
		}
		return teamEntry(kind, namespace, team, map[string]any{"member": name, "source": source}), err
	})
	if err != nil {
		return false, err
	}
	return len(entries) > 0, audit.Append(ctx, tx, entries...)
}

// Grant is a role of an account or a team in a namespace or a repository.
type Grant struct {
	Resource Resource
	Account  string // "" for a team
	Robot    bool
	Team     string // "" for an account
	Role     Role
	Created  time.Time
	// Member says whether the account is in a team of the namespace, or a robot of it.
	Member bool
}

// grantsQuery finds grants in the namespace $1 or the repository $2, with the condition `where`.
func grantsQuery(where string) string {
	return `
		SELECT COALESCE(a.name, ''), COALESCE(a.kind = 'robot', false), COALESCE(t.name, ''), g.role, g.created_at,
			COALESCE(a.top_level_namespace_id = n.id, false) OR EXISTS (
				SELECT FROM teammembers m JOIN teams mt ON mt.id = m.team_id
				WHERE m.account_id = g.account_id AND mt.top_level_namespace_id = n.id)
		FROM live_namespaces n
		LEFT JOIN repositories r ON r.path = $2 AND r.top_level_namespace_id = n.id AND r.deleted_at IS NULL
		JOIN grants g ON g.top_level_namespace_id = n.id AND g.repository_id IS NOT DISTINCT FROM r.id
		LEFT JOIN accounts a ON a.id = g.account_id LEFT JOIN teams t ON t.id = g.team_id
		WHERE n.name = $1 AND ($2 = '' OR r.id IS NOT NULL) AND ` + where
}

// scanGrant reads the columns of grantsQuery.
func scanGrant(r Resource) pgx.RowToFunc[Grant] {
	return func(row pgx.CollectableRow) (g Grant, err error) {
		g.Resource = r
		var role string
		if err = row.Scan(&g.Account, &g.Robot, &g.Team, &role, &g.Created, &g.Member); err == nil {
			g.Role, err = ParseRole(role)
		}
		return g, err
	}
}

// Grants lists up to n grants of accounts, or of teams, in a namespace or a repository: of a
// namespace, those in the whole namespace. They are those whose accounts' or teams' names contain a
// text, in the order of the names, after the name `after`. It says whether there are more.
func (s *Store) Grants(ctx context.Context, r Resource, teams bool, contains, after string, n int) (list []Grant, more bool, err error) {
	query := grantsQuery("a.name > $3 AND position($4 IN a.name) > 0 ORDER BY a.name LIMIT $5")
	if teams {
		query = grantsQuery("t.name > $3 AND position($4 IN t.name) > 0 ORDER BY t.name LIMIT $5")
	}
	rows, err := s.db.Pool.Query(ctx, query, r.Namespace, r.Repository, after, contains, n+1)
	return db.Page(rows, err, n, scanGrant(r))
}

// Grant returns the role of an account or a team (exactly one is not "") in a resource itself.
// Error: 404 if there is none.
func (s *Store) Grant(ctx context.Context, r Resource, account, team string) (Grant, error) {
	rows, err := s.db.Pool.Query(ctx, grantsQuery("COALESCE(a.name, '') = $3 AND COALESCE(t.name, '') = $4"), r.Namespace, r.Repository, account, team)
	if err != nil {
		return Grant{}, err
	}
	g, err := pgx.CollectExactlyOneRow(rows, scanGrant(r))
	if errors.Is(err, pgx.ErrNoRows) {
		err = unknown("%s has no role of its own there", short(account+team))
	}
	return g, err
}

// SetGrant gives an account or a team (exactly one is not "") a role in a resource, instead of
// the role that it has there. NoRole takes the role away. Errors: 404 if something is unknown,
// or the role to be taken away isn't there; 400 for a robot of another namespace, and for too many
// roles.
func (s *Store) SetGrant(ctx context.Context, r Resource, account, team string, role Role) error {
	return s.change(ctx, "changing a role", func(tx pgx.Tx) error {
		namespace, repository, err := place(ctx, tx, r)
		if err != nil {
			return err
		}
		if role != NoRole {
			if err := countAlone(ctx, tx, namespace); err != nil {
				return err
			}
		}
		var accountID, teamID *int64
		if team != "" {
			id, err := lockTeam(ctx, tx, r.Namespace, team)
			if err != nil {
				return err
			}
			teamID = &id
		} else {
			id, err := grantee(ctx, tx, r.Namespace, account)
			if err != nil {
				return err
			}
			accountID = &id
		}
		entry := audit.Entry{Kind: audit.ChangePermission, Namespace: r.Namespace, Repository: r.Repository,
			Detail: map[string]any{"account": account, "team": team, "role": role.String()}}
		if role == NoRole {
			entry.Kind = audit.DeletePermission
			tag, err := tx.Exec(ctx, `
				DELETE FROM grants WHERE top_level_namespace_id = $1 AND repository_id IS NOT DISTINCT FROM $2
					AND account_id IS NOT DISTINCT FROM $3 AND team_id IS NOT DISTINCT FROM $4`, namespace, repository, accountID, teamID)
			if err == nil && tag.RowsAffected() == 0 {
				return unknown("%s has no role of its own there", short(account+team))
			}
			if err != nil {
				return err
			}
			return audit.Append(ctx, tx, entry)
		}
		var created bool
		err = tx.QueryRow(ctx, `
			INSERT INTO grants (top_level_namespace_id, repository_id, account_id, team_id, role) VALUES ($1, $2, $3, $4, $5)
			ON CONFLICT (top_level_namespace_id, repository_id, account_id, team_id) DO UPDATE SET role = excluded.role
			RETURNING xmax = 0`, namespace, repository, accountID, teamID, role.String()).Scan(&created)
		if err != nil {
			return err
		}
		if created {
			entry.Kind = audit.AddPermission
			if err := s.checkPermissions(ctx, tx, r, namespace, repository, accountID, teamID); err != nil {
				return err
			}
		}
		return audit.Append(ctx, tx, entry)
	})
}

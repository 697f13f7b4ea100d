package auth

import (
	"cmp"
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// Most says how many things there may be. What is more already stays, but no more are made. Zero
// fields have the defaults.
type Most struct {
	Robots          int // of a namespace; default 10,000
	Teams           int // of a namespace; default 1,000
	TeamMembers     int // of a team, without those whom a group has made members; default 10,000
	Tokens          int // personal tokens of an account, secrets of a robot; default 100
	RefreshTokens   int // of an account, a further one ends the oldest of the client with most; default 100
	FederatedTokens int // of a robot, a further one ends the oldest of the pipeline with most; default 2000
	FederationRules int // of a robot; default 50
	// Permissions is how many roles accounts and teams may have in a repository, and how many in a
	// whole namespace. A namespace with its repositories may have a hundred times as many, an
	// account or a team in such a namespace ten times; these two limits refuse no role in the
	// namespace itself, so that who administers a repository can't exhaust the namespace's. Default 1000.
	Permissions int
}

const (
	permissionsOfNamespace = 100
	permissionsOfGrantee   = 10
)

func (m Most) withDefaults() Most {
	return Most{
		Robots: cmp.Or(m.Robots, 10_000), Teams: cmp.Or(m.Teams, 1000), TeamMembers: cmp.Or(m.TeamMembers, 10_000),
		Tokens: cmp.Or(m.Tokens, 100), FederationRules: cmp.Or(m.FederationRules, 50),
		RefreshTokens: cmp.Or(m.RefreshTokens, 100), FederatedTokens: cmp.Or(m.FederatedTokens, 2000),
		Permissions: cmp.Or(m.Permissions, 1000),
	}
}

func tooManyRobots(namespace string, most int) error {
	return exists("%s", oci.LimitText("namespace "+namespace, most, "robots", "limits.robots", "delete one that isn't used"))
}

func tooManyTeams(namespace string, most int) error {
	return invalid("%s", oci.LimitText("namespace "+namespace, most, "teams", "limits.teams", "delete one that isn't used"))
}

func tooManyMembers(team string, most int) error {
	return invalid("%s", oci.LimitText("team "+team, most, "members", "limits.team_members", "remove one, or make another team"))
}

func tooManyTokens(most int) error {
	return invalid("%s", oci.LimitText("the account", most, "of these", "limits.tokens", "revoke some first"))
}

func tooManyRules(robot string, most int) error {
	return invalid("%s", oci.LimitText("robot "+robot, most, "rules of federation", "limits.federation_rules", "leave some out"))
}

func tooManyPermissions(of string, most int) error {
	return invalid("%s", oci.LimitText(of, most, "roles", "limits.permissions", "give the role to a team, or take one away that isn't used"))
}

// checkPermissions returns an error if there are too many grants where the transaction has just
// made one for an account or a team. It must have called countAlone before.
func (s *Store) checkPermissions(ctx context.Context, tx pgx.Tx, r Resource, namespace int64, repository, account, team *int64) error {
	most := s.most.Permissions
	var place, own, all int
	err := tx.QueryRow(ctx, `
		SELECT (SELECT count(*) FROM (SELECT FROM grants WHERE top_level_namespace_id = @namespace
				AND (@repository::bigint IS NULL AND repository_id IS NULL OR repository_id = @repository) LIMIT @most + 1) counted),
			(SELECT count(*) FROM (SELECT FROM grants WHERE top_level_namespace_id = @namespace AND (account_id = @account OR team_id = @team) LIMIT @own + 1) counted),
			(SELECT count(*) FROM (SELECT FROM grants WHERE top_level_namespace_id = @namespace LIMIT @all + 1) counted)`,
		db.Args{"namespace": namespace, "repository": repository, "account": account, "team": team,
			"most": most, "own": permissionsOfGrantee * most, "all": permissionsOfNamespace * most}).Scan(&place, &own, &all)
	switch {
	case err != nil:
		return err
	case place > most:
		return tooManyPermissions(cmp.Or(r.Repository, "namespace "+r.Namespace), most)
	case repository == nil:
		return nil
	case own > permissionsOfGrantee*most:
		return tooManyPermissions("an account or a team, in a namespace with its repositories,", permissionsOfGrantee*most)
	case all > permissionsOfNamespace*most:
		return tooManyPermissions("namespace "+r.Namespace+" with its repositories", permissionsOfNamespace*most)
	}
	return nil
}

// mostFederations is how many rules of a robot are read, whatever the setting was when they were made.
const mostFederations = 1000

// countAlone lets the transactions that make robots, teams or grants of a namespace count one after the
// other. Each of them locks the namespace's row before, and what it makes after this lock.
func countAlone(ctx context.Context, tx pgx.Tx, namespace int64) error {
	_, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(1886745449, hashint8($1))", namespace)
	return err
}

// underLimit says whether a query counts at most `most` rows. Its parameters are an id, and up to
// how many rows it counts.
func underLimit(ctx context.Context, tx pgx.Tx, query string, id int64, most int) (bool, error) {
	var n int
	err := tx.QueryRow(ctx, query, id, most+1).Scan(&n)
	return n <= most, err
}

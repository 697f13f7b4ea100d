package policies

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/policy"
)

// Saved is a policy as it is stored.
type Saved struct {
	ID      string
	Policy  policy.Policy
	Version int64 // counts how often it was saved
	rule    int64 // the version since which it selects what it selects
	Created time.Time
	Updated time.Time
	// ActiveFrom is when the policy's grace period ends; nil: it has none.
	ActiveFrom *time.Time
	// Setting says that this is the default policy of the configuration (Options.Default),
	// which applies in every namespace except those that refuse the defaults.
	Setting bool
	// Confirmed are the codes of the warnings that were confirmed when it was saved; none if Setting is
	// set, since the configuration confirms nothing.
	Confirmed []policy.WarningCode
	// Problem says why this version of the program can't read the stored policy, which a
	// newer version or a person with psql wrote. Policy is then the zero value, and Stored
	// is the text from the database. Counts says that the unreadable policy is certainly a
	// number_of_tags or max_bytes policy, and MayKeep that it may have keep rules (see Applied).
	Problem, Stored string
	Counts, MayKeep bool
}

// policyTable describes the table that has the policies of a scope.
type policyTable struct {
	table, column                 string // column of the owner, "" for the defaults
	owned                         string // SQL condition: the policy is of the owner with the id $1
	setting                       string // SQL expression: the policy was written in the configuration
	created, updated, deletedKind audit.Kind
}

var policyTables = map[policy.Scope]policyTable{
	policy.DefaultScope:    {"defaultautoprunepolicy", "", "$1::bigint = 0", "setting", audit.ChangeDefault, audit.ChangeDefault, audit.ChangeDefault},
	policy.NamespaceScope:  {"namespaceautoprunepolicy", "namespace_id", "namespace_id = $1", "false", audit.CreateNamespacePolicy, audit.UpdateNamespacePolicy, audit.DeleteNamespacePolicy},
	policy.RepositoryScope: {"repositoryautoprunepolicy", "repository_id", "repository_id = $1", "false", audit.CreateRepositoryPolicy, audit.UpdateRepositoryPolicy, audit.DeleteRepositoryPolicy},
}

// list returns a SELECT of the owner's policies, oldest first, with the columns that
// scanPolicy reads. Its only parameter is the owner's id.
func (s policyTable) list() string {
	return "SELECT uuid, policy, version, rule_version, created_at, updated_at, active_from, confirmed, " + s.setting + " FROM " + s.table +
		" WHERE " + s.owned + " ORDER BY created_at, uuid"
}

func listPolicies(ctx context.Context, q db.Querier, scope policy.Scope, o Owner) ([]Saved, error) {
	rows, err := q.Query(ctx, policyTables[scope].list(), o.id())
	if err != nil {
		return nil, fmt.Errorf("listing auto-prune policies: %w", err)
	}
	list, err := pgx.CollectRows(rows, scanPolicy)
	if err != nil {
		return nil, fmt.Errorf("listing auto-prune policies: %w", err)
	}
	return list, nil
}

func scanPolicy(row pgx.CollectableRow) (s Saved, err error) {
	var text string
	if err = row.Scan(&s.ID, &text, &s.Version, &s.rule, &s.Created, &s.Updated, &s.ActiveFrom, &s.Confirmed, &s.Setting); err != nil {
		return s, err
	}
	s.read(text)
	return s, nil
}

// read reads a policy as it is stored.
func (s *Saved) read(text string) {
	parsed, err := policy.Parse([]byte(text))
	if err == nil {
		s.Policy, s.Problem, s.Stored, s.Counts, s.MayKeep = parsed, "", "", false, false
		return
	}
	s.Policy, s.Problem, s.Stored = policy.Policy{}, err.Error(), text
	s.Counts, s.MayKeep = policy.CertainlyCounts([]byte(text)), policy.MayKeep([]byte(text))
}

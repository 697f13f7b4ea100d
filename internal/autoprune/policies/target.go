package policies

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/policy"
)

// Target names the owner of a policy: the whole registry (the zero value), a namespace, or
// a repository.
type Target struct {
	Namespace  string
	Repository string // path; Namespace is empty then
}

// Scope is the target's.
func (t Target) Scope() policy.Scope {
	switch {
	case t.Repository != "":
		return policy.RepositoryScope
	case t.Namespace != "":
		return policy.NamespaceScope
	}
	return policy.DefaultScope
}

// String names the target for people.
func (t Target) String() string {
	switch t.Scope() {
	case policy.RepositoryScope:
		return "repository " + t.Repository
	case policy.NamespaceScope:
		return "namespace " + t.Namespace
	default:
		return "the registry's defaults"
	}
}

// Owner is the namespace or repository to which a policy belongs. A transaction that adds a
// policy locks the owner's row, so that the owner can't be deleted meanwhile.
type Owner struct {
	Namespace  int64 // 0 for the registry's defaults
	Repository int64 // 0 unless it is a repository
	Name       string
}

func (o Owner) id() int64 {
	if o.Repository != 0 {
		return o.Repository
	}
	return o.Namespace
}

// Find returns the ids of a target's namespace and repository (0 if the target has none).
// If `lock` is set, it also locks their rows against deletion until the transaction ends;
// transactions that add a policy need this lock.
func (t Target) Find(ctx context.Context, q db.Querier, lock bool) (Owner, error) {
	o := Owner{Name: t.Namespace}
	clause := ""
	if lock {
		clause = "FOR KEY SHARE"
	}
	var err error
	switch t.Scope() {
	case policy.NamespaceScope:
		err = q.QueryRow(ctx, "SELECT id FROM live_namespaces WHERE name = $1 "+clause, t.Namespace).Scan(&o.Namespace)
		if errors.Is(err, pgx.ErrNoRows) {
			return o, UnknownNamespace(t.Namespace)
		}
	case policy.RepositoryScope:
		o.Name = t.Repository
		err = q.QueryRow(ctx, `SELECT n.id, r.id FROM live_namespaces n JOIN repositories r ON r.top_level_namespace_id = n.id
			WHERE r.path = $1 AND r.deleted_at IS NULL `+clause, t.Repository).Scan(&o.Namespace, &o.Repository)
		if errors.Is(err, pgx.ErrNoRows) {
			return o, oci.Errorf(oci.NameUnknown, "repository %s is not known to this registry", t.Repository).
				WithDetail(map[string]string{"name": t.Repository})
		}
	case policy.DefaultScope:
	}
	if err != nil {
		return o, fmt.Errorf("looking for %s: %w", t, err)
	}
	return o, nil
}

// UnknownNamespace returns the error NAME_UNKNOWN for a namespace that doesn't exist.
func UnknownNamespace(name string) *oci.Error {
	return oci.Errorf(oci.NameUnknown, "namespace %s is not known to this registry", name).
		WithDetail(map[string]string{"name": name})
}

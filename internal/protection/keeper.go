package protection

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// Options configure a Keeper.
type Options struct {
	DB *db.DB // required
	// Most is how many rules a repository, a namespace or the registry may have. Default MaxRules.
	Most int
}

// Keeper changes and lists the rules. Its methods may be called concurrently, by any number of
// processes on one database.
type Keeper struct {
	db  *db.DB
	opt Options
}

// New makes a keeper.
func New(o Options) *Keeper {
	o.Most = cmp.Or(o.Most, MaxRules)
	return &Keeper{db: o.DB, opt: o}
}

// MaxRules is how many rules one scope (a repository, a namespace or the registry) may have by
// default. A namespace with its repositories may have rulesOfNamespace times as many, since each
// process keeps all rules in memory.
const MaxRules, rulesOfNamespace = 100, 10

// Place is the place of a rule in a list.
type Place struct {
	Created time.Time
	ID      uuid.UUID
}

// List lists up to n rules of exactly this scope, oldest first, after the place `after`, whose zero
// value is before the first. It says whether there are more. For a repository it leaves out the rules
// of the repository's namespace and of the registry; for a namespace it leaves out the rules of its
// repositories and of the registry. Error: NAME_UNKNOWN.
func (k *Keeper) List(ctx context.Context, s Scope, after Place, n int) (list []Rule, more bool, err error) {
	err = pgx.BeginFunc(ctx, k.db.Pool, func(tx pgx.Tx) error {
		namespace, repository, err := lockScope(ctx, tx, s)
		if err != nil {
			return err
		}
		list, more, err = rulesOf(ctx, tx, s, namespace, repository, after, n)
		return err
	})
	if err != nil && !oci.IsClientError(err) {
		return nil, false, fmt.Errorf("listing the rules that protect tags of %s: %w", s, err)
	}
	return list, more, err
}

// Of reads the rules that are in force and returns the first one that protects the tag, whether the tag
// exists or not; nil if no rule does. Error: NAME_UNKNOWN.
func (k *Keeper) Of(ctx context.Context, path, tag string) (*Rule, error) {
	rows, err := k.db.Pool.Query(ctx, `
		SELECT p.uuid, COALESCE(p.pattern, ''), COALESCE(p.created_at, 'epoch'),
			CASE WHEN p.repository_id IS NULL AND p.namespace_id IS NOT NULL THEN n.name ELSE '' END,
			CASE WHEN p.repository_id IS NOT NULL THEN r.path ELSE '' END
		FROM live_repositories r JOIN live_namespaces n ON n.id = r.top_level_namespace_id
		LEFT JOIN tagprotectionrules p ON (p.namespace_id IS NULL OR p.namespace_id = n.id)
			AND (p.repository_id IS NULL OR p.repository_id = r.id)
		WHERE r.path = $1 ORDER BY p.created_at, p.uuid`, path)
	if err != nil {
		return nil, fmt.Errorf("reading the rules that protect tags of %s: %w", path, err)
	}
	var r Rule
	var id *uuid.UUID
	var pattern string
	var found *Rule
	known := false
	_, err = pgx.ForEachRow(rows, []any{&id, &pattern, &r.Created, &r.Scope.Namespace, &r.Scope.Repository}, func() error {
		if known = true; id == nil || found != nil {
			return nil
		}
		r.ID = *id
		if r.read(pattern); r.Pattern.Match(tag) {
			first := r
			found = &first
		}
		return nil
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading the rules that protect tags of %s: %w", path, err)
	case !known:
		return nil, nameUnknown(path)
	}
	return found, nil
}

func rulesOf(ctx context.Context, tx pgx.Tx, s Scope, namespace, repository *int64, after Place, n int) ([]Rule, bool, error) {
	rows, err := tx.Query(ctx, `
		SELECT uuid, pattern, created_at FROM tagprotectionrules
		WHERE namespace_id IS NOT DISTINCT FROM $1 AND repository_id IS NOT DISTINCT FROM $2 AND (created_at, uuid) > ($3, $4)
		ORDER BY created_at, uuid LIMIT $5`, namespace, repository, after.Created, after.ID, n+1)
	return db.Page(rows, err, n, func(row pgx.CollectableRow) (Rule, error) {
		r := Rule{Scope: s}
		var pattern string
		err := row.Scan(&r.ID, &pattern, &r.Created)
		r.read(pattern)
		return r, err
	})
}

// admitRule returns an error if the scope has the rule already, or may have no further one.
func (k *Keeper) admitRule(ctx context.Context, tx pgx.Tx, s Scope, pattern oci.TagPattern, namespace, repository *int64) error {
	var same *uuid.UUID
	var own, all int
	err := tx.QueryRow(ctx, `
		SELECT (SELECT uuid FROM tagprotectionrules
				WHERE namespace_id IS NOT DISTINCT FROM $1 AND repository_id IS NOT DISTINCT FROM $2 AND pattern = $3 LIMIT 1),
			(SELECT count(*) FROM tagprotectionrules
				WHERE namespace_id IS NOT DISTINCT FROM $1 AND repository_id IS NOT DISTINCT FROM $2),
			(SELECT count(*) FROM tagprotectionrules WHERE namespace_id = $1)`, namespace, repository, pattern.String()).Scan(&same, &own, &all)
	most := k.opt.Most
	const wayOut = "join patterns with |, or remove some"
	switch {
	case err != nil:
		return err
	case same != nil:
		return oci.Errorf(oci.Unsupported, "%s has the rule %q already: it is %s", s, pattern, same).
			WithStatus(http.StatusBadRequest).WithDetail(map[string]string{"uuid": same.String()})
	case own >= most:
		return oci.Errorf(oci.Unsupported, "%s", oci.LimitText(s.String(), most, "rules", "limits.protection_rules", wayOut)).WithStatus(http.StatusBadRequest)
	case all >= rulesOfNamespace*most:
		return oci.Errorf(oci.Unsupported, "%s", oci.LimitText("a namespace with its repositories", rulesOfNamespace*most, "rules", "limits.protection_rules", wayOut)).
			WithStatus(http.StatusBadRequest)
	}
	return nil
}

// lockScope locks the scope's namespace or repository against deletion and returns their ids.
// An id is nil if the scope isn't limited to a namespace or repository. Error: NAME_UNKNOWN.
func lockScope(ctx context.Context, tx pgx.Tx, s Scope) (namespace, repository *int64, err error) {
	switch {
	case s.Repository != "":
		err = tx.QueryRow(ctx, `
			SELECT n.id, r.id FROM repositories r JOIN live_namespaces n ON n.id = r.top_level_namespace_id
			WHERE r.path = $1 AND r.deleted_at IS NULL FOR KEY SHARE`, s.Repository).Scan(&namespace, &repository)
		if errors.Is(err, pgx.ErrNoRows) {
			err = nameUnknown(s.Repository)
		}
	case s.Namespace != "":
		err = tx.QueryRow(ctx, "SELECT id FROM live_namespaces WHERE name = $1 FOR KEY SHARE", s.Namespace).Scan(&namespace)
		if errors.Is(err, pgx.ErrNoRows) {
			err = namespaceUnknown(s.Namespace)
		}
	}
	return namespace, repository, err
}

// Create makes a rule. From then on no client can move or delete a tag that matches, whether the tag
// existed before or not. Errors: NAME_UNKNOWN; UNSUPPORTED with status 400 if the scope has the same
// rule already, or as many as it may have.
func (k *Keeper) Create(ctx context.Context, s Scope, pattern oci.TagPattern) (Rule, error) {
	rule := Rule{ID: uuid.New(), Scope: s, Pattern: pattern}
	err := k.changeRules(ctx, s, func(tx pgx.Tx, namespace, repository *int64) error {
		if err := k.admitRule(ctx, tx, s, pattern, namespace, repository); err != nil {
			return err
		}
		err := tx.QueryRow(ctx, `
			INSERT INTO tagprotectionrules (uuid, namespace_id, repository_id, pattern) VALUES ($1, $2, $3, $4)
			RETURNING created_at`, rule.ID, namespace, repository, pattern.String()).Scan(&rule.Created)
		if err != nil {
			return err
		}
		return logRule(ctx, tx, rule, repository, "create")
	})
	if err != nil && !oci.IsClientError(err) {
		return rule, fmt.Errorf("protecting tags of %s: %w", s, err)
	}
	return rule, err
}

// Delete deletes a rule of the scope. It returns NAME_UNKNOWN if the scope's namespace or repository
// doesn't exist, if the rule doesn't exist, or if the rule belongs to another scope.
func (k *Keeper) Delete(ctx context.Context, s Scope, id uuid.UUID) error {
	err := k.changeRules(ctx, s, func(tx pgx.Tx, namespace, repository *int64) error {
		var pattern string
		err := tx.QueryRow(ctx, `
			DELETE FROM tagprotectionrules
			WHERE uuid = $1 AND namespace_id IS NOT DISTINCT FROM $2 AND repository_id IS NOT DISTINCT FROM $3
			RETURNING pattern`, id, namespace, repository).Scan(&pattern)
		if errors.Is(err, pgx.ErrNoRows) {
			return oci.Errorf(oci.NameUnknown, "%s has no rule %s that protects tags", s, id)
		}
		if err != nil {
			return err
		}
		rule := Rule{ID: id, Scope: s}
		rule.read(pattern)
		return logRule(ctx, tx, rule, repository, "delete")
	})
	if err != nil && !oci.IsClientError(err) {
		return fmt.Errorf("removing the protection of tags of %s: %w", s, err)
	}
	return err
}

// changeRules runs change in a transaction that first raises the version of the rules. The row
// lock on the version lets only one transaction change rules at a time. Its parameters
// `namespace` and `repository` are the ids of the scope, nil if the scope doesn't name a
// namespace or repository.
func (k *Keeper) changeRules(ctx context.Context, s Scope, change func(tx pgx.Tx, namespace, repository *int64) error) error {
	return k.db.Tx(ctx, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "UPDATE settings SET value = (value::bigint + 1)::text WHERE name = 'tag_protection_version'")
		if err != nil {
			return err
		}
		namespace, repository, err := lockScope(ctx, tx, s)
		if err != nil {
			return err
		}
		return change(tx, namespace, repository)
	})
}

func logRule(ctx context.Context, tx pgx.Tx, rule Rule, repository *int64, change string) error {
	e := audit.Entry{Kind: audit.ChangeProtection, Namespace: rule.Scope.Namespace, Repository: rule.Scope.Repository,
		Detail: map[string]any{"change": change, "rule": rule.ID, "pattern": rule.Pattern.String()}}
	if repository != nil {
		e.RepositoryID = *repository
	}
	return audit.Append(ctx, tx, e)
}

// nameUnknown returns the client's error for a repository that doesn't exist.
func nameUnknown(path string) error {
	return oci.Errorf(oci.NameUnknown, "repository %s is not known to this registry", path).
		WithDetail(map[string]string{"name": path})
}

// namespaceUnknown returns the client's error for a namespace that doesn't exist.
func namespaceUnknown(name string) error {
	return oci.Errorf(oci.NameUnknown, "namespace %s is not known to this registry", name).
		WithDetail(map[string]string{"name": name})
}

package catalog

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// MaxProtectionRules is how many rules one scope (a repository, a namespace or the registry)
// may have by default. A namespace with its repositories may have rulesOfNamespace times as many,
// since each process keeps all rules in memory.
const MaxProtectionRules, rulesOfNamespace = 100, 10

// ProtectionScope says to which tags a rule applies: to the tags of one repository, of one
// namespace or, for the zero value, of the whole registry.
type ProtectionScope struct {
	Namespace  string
	Repository string // path; Namespace is empty then
}

// String returns the scope as messages show it.
func (s ProtectionScope) String() string {
	switch {
	case s.Repository != "":
		return "repository " + s.Repository
	case s.Namespace != "":
		return "namespace " + s.Namespace
	}
	return "the registry"
}

// ProtectionRule protects the tags whose names its pattern matches. Clients may create such a
// tag, but then neither move it to another manifest nor delete it. They may still delete the
// whole repository or namespace.
type ProtectionRule struct {
	ID      uuid.UUID
	Scope   ProtectionScope
	Pattern oci.TagPattern
	Created time.Time
	// Problem is the reason why this version of Purser can't parse the pattern, "" if it can.
	// A rule whose pattern can't be parsed protects every tag in its scope, since it may be
	// meant for any.
	Problem string

	namespace, repository int64 // 0: any
}

// Each process caches all rules in memory, with a version number: the setting
// tag_protection_version, which each change of the rules raises. A write that moves or deletes
// tags uses the cached rules to decide which tags are protected. The write's last statement
// compares the cached version with the version in the database, and the tags for which the
// write has made its decision with the tags that it has locked. If the version has changed,
// the process reads the rules again and the write runs again. If the write has locked a tag
// for which it has made no decision, it runs again too. So every write follows the
// current rules, however many processes there are, without an extra round trip.

// protection holds all rules of one version.
type protection struct {
	version string
	rules   []ProtectionRule
	labels  map[int64]TagLabels // namespaces that let labels of images decide about tags
}

// rules returns the cached rules. Until this process first reads the rules from the database,
// it returns an empty list with version 0, which is the version in a new registry. A registry
// in which rules were made has a higher version, so the first write finds that the versions
// differ, and reads the rules.
func (c *Catalog) rules() *protection {
	if p := c.protection.Load(); p != nil {
		return p
	}
	return &protection{version: "0"}
}

// reloadRules reads all rules from the database into the cache, and returns them. Who needs them as
// they are now uses what is returned: a read that began earlier may replace it in the cache at any
// moment. Writes find that by the version.
func (c *Catalog) reloadRules(ctx context.Context) (*protection, error) {
	rows, err := c.db.Pool.Query(ctx, `
		SELECT s.value, p.uuid, COALESCE(p.pattern, ''), COALESCE(p.created_at, 'epoch'),
			COALESCE(p.namespace_id, 0), COALESCE(p.repository_id, 0),
			CASE WHEN p.repository_id IS NULL THEN COALESCE(n.deleted_name, n.name, '') ELSE '' END, COALESCE(r.deleted_path, r.path, '')
		FROM settings s
		LEFT JOIN tagprotectionrules p ON true
		LEFT JOIN top_level_namespaces n ON n.id = p.namespace_id -- the trash too: a rule's scope is its id, and the name is for messages
		LEFT JOIN repositories r ON r.id = p.repository_id
		WHERE s.name = 'tag_protection_version' ORDER BY p.created_at, p.uuid`)
	if err != nil {
		return nil, fmt.Errorf("reading the rules that protect tags: %w", err)
	}
	out := new(protection)
	var r ProtectionRule
	var id *uuid.UUID
	var pattern string
	_, err = pgx.ForEachRow(rows, []any{&out.version, &id, &pattern, &r.Created, &r.namespace, &r.repository,
		&r.Scope.Namespace, &r.Scope.Repository}, func() error {
		if id == nil {
			return nil
		}
		r.ID = *id
		r.read(pattern)
		out.rules = append(out.rules, r)
		return nil
	})
	if err == nil { // after the version: a change in between has a higher one
		out.labels, err = labelsAllowed(ctx, c.db.Pool)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the rules that protect tags: %w", err)
	}
	c.protection.Store(out)
	return out, nil
}

// read parses a rule's stored pattern.
func (r *ProtectionRule) read(pattern string) {
	var err error
	r.Pattern, err = oci.ParseTagPattern(pattern)
	if r.Problem = ""; err != nil {
		r.Pattern, r.Problem = oci.EveryTag(pattern), fmt.Sprintf("it can't be read by this version: %v", err)
	}
}

// of returns the first rule that protects the tag in repository r, or nil if no rule protects
// it.
func (p *protection) of(r repository, tag string) *ProtectionRule {
	for i := range p.rules {
		if rule := &p.rules[i]; rule.holds(r) && rule.Pattern.Match(tag) {
			return rule
		}
	}
	return nil
}

func (r *ProtectionRule) holds(in repository) bool {
	return (r.namespace == 0 || r.namespace == in.namespace) && (r.repository == 0 || r.repository == in.id)
}

// in says whether any rule may protect tags of the repository.
func (p *protection) in(r repository) bool {
	return slices.ContainsFunc(p.rules, func(rule ProtectionRule) bool { return rule.holds(r) })
}

// protected returns those of the tags that a rule protects.
func (p *protection) protected(r repository, tags []string) []string {
	out := []string{}
	for _, tag := range tags {
		if p.of(r, tag) != nil {
			out = append(out, tag)
		}
	}
	return out
}

// refusal returns the error for a client that tried to move or delete a protected tag. In its
// message, `what` says what can't be done with the tag ("deleted"), and `wayOut` says what the
// client can do instead. The status is 409, not 401 or 403, since logging in wouldn't help.
func (r *ProtectionRule) refusal(path, tag, what, wayOut string) error {
	why := ""
	if r.Problem != "" {
		why = ", which protects every tag because this version can't read it"
	}
	return oci.Errorf(oci.Denied, "tag %s of %s can't be %s: it is protected by the rule %q of %s%s; %s, or remove the rule",
		tag, path, what, r.Pattern, r.Scope, why, wayOut).
		WithStatus(http.StatusConflict).
		WithDetail(map[string]string{"name": path, "tag": tag, "rule": r.ID.String(), "pattern": r.Pattern.String()})
}

// moveRefused returns the error for a client whose put would have moved a protected tag, or with
// p.KeepTags any tag, to another manifest. It returns nil if none of these tags points to
// another manifest any more. OFFSET 0 in its SQL makes PostgreSQL look rows up by an index: see
// "Plans" in package db.
func (c *Catalog) moveRefused(ctx context.Context, r repository, p NewManifest, tags []string) error {
	rules := c.rules()
	kept := tags
	if !p.KeepTags {
		kept = rules.protected(r, tags)
	}
	var tag string
	var immutable bool
	err := c.db.Pool.QueryRow(ctx, `
		SELECT want.name, t.immutable FROM unnest($3::text[]) AS want (name)
		CROSS JOIN LATERAL (
			SELECT manifest_id, immutable FROM tags
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND name = want.name OFFSET 0) t
		CROSS JOIN LATERAL (
			SELECT digest FROM manifests
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND id = t.manifest_id OFFSET 0) m
		WHERE m.digest <> $4 AND (t.immutable OR want.name = ANY ($5::text[])) ORDER BY want.name LIMIT 1`,
		r.namespace, r.id, tags, p.Digest.Bytes(), kept).Scan(&tag, &immutable)
	switch {
	case isNoRows(err):
		return nil
	case err != nil:
		return fmt.Errorf("looking for the protected tag: %w", err)
	}
	if rule := rules.of(r, tag); rule != nil {
		return rule.refusal(p.Repository, tag, "moved to another manifest", "push under another tag")
	}
	if immutable {
		return immutableRefusal(p.Repository, tag, "moved to another manifest", "push under another tag")
	}
	return oci.Errorf(oci.Denied, "tag %s of %s exists, and these credentials may not move tags to other manifests: "+
		"push under another tag, or use credentials with the action overwrite", tag, p.Repository).
		WithDetail(map[string]string{"name": p.Repository, "tag": tag})
}

// ProtectionIn reads the current rules and returns those that apply in the namespace or in any
// of its repositories. ProtectionRule.HoldsIn tells which of them apply in a given repository.
func (c *Catalog) ProtectionIn(ctx context.Context, namespace int64) ([]ProtectionRule, error) {
	now, err := c.reloadRules(ctx)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(now.rules), func(rule ProtectionRule) bool {
		return rule.namespace != 0 && rule.namespace != namespace
	}), nil
}

// ProtectionOf reads the current rules and returns the first rule that protects the tag, whether
// the tag exists or not; nil if no rule does. Error: NAME_UNKNOWN.
func (c *Catalog) ProtectionOf(ctx context.Context, path, tag string) (*ProtectionRule, error) {
	r, err := c.browsed(ctx, path)
	if err != nil {
		return nil, err
	}
	now, err := c.reloadRules(ctx)
	if err != nil {
		return nil, err
	}
	return now.of(r, tag), nil
}

// HoldsIn says whether the rule applies in a repository.
func (r *ProtectionRule) HoldsIn(t Repository) bool { return r.holds(repository{t.NamespaceID, t.ID}) }

// RulePlace is the place of a rule in the list.
type RulePlace struct {
	Created time.Time
	ID      uuid.UUID
}

// ProtectionRules lists up to n rules of exactly this scope, oldest first, after the place `after`,
// whose zero value is before the first. It says whether there are more. For a repository it leaves
// out the rules of the repository's namespace and of the registry; for a namespace it leaves out the
// rules of its repositories and of the registry. Error: NAME_UNKNOWN.
func (c *Catalog) ProtectionRules(ctx context.Context, s ProtectionScope, after RulePlace, n int) (list []ProtectionRule, more bool, err error) {
	err = pgx.BeginFunc(ctx, c.db.Pool, func(tx pgx.Tx) error {
		namespace, repository, err := lockScope(ctx, tx, s)
		if err != nil {
			return err
		}
		list, more, err = rulesOf(ctx, tx, s, namespace, repository, after, n)
		return err
	})
	if err != nil && !isClientError(err) {
		return nil, false, fmt.Errorf("listing the rules that protect tags of %s: %w", s, err)
	}
	return list, more, err
}

func rulesOf(ctx context.Context, tx pgx.Tx, s ProtectionScope, namespace, repository *int64, after RulePlace, n int) ([]ProtectionRule, bool, error) {
	rows, err := tx.Query(ctx, `
		SELECT uuid, pattern, created_at FROM tagprotectionrules
		WHERE namespace_id IS NOT DISTINCT FROM $1 AND repository_id IS NOT DISTINCT FROM $2 AND (created_at, uuid) > ($3, $4)
		ORDER BY created_at, uuid LIMIT $5`, namespace, repository, after.Created, after.ID, n+1)
	return db.Page(rows, err, n, func(row pgx.CollectableRow) (ProtectionRule, error) {
		r := ProtectionRule{Scope: s}
		var pattern string
		err := row.Scan(&r.ID, &pattern, &r.Created)
		r.read(pattern)
		return r, err
	})
}

// admitRule returns an error if the scope has the rule already, or may have no further one.
func (c *Catalog) admitRule(ctx context.Context, tx pgx.Tx, s ProtectionScope, pattern oci.TagPattern, namespace, repository *int64) error {
	var same *uuid.UUID
	var own, all int
	err := tx.QueryRow(ctx, `
		SELECT (SELECT uuid FROM tagprotectionrules
				WHERE namespace_id IS NOT DISTINCT FROM $1 AND repository_id IS NOT DISTINCT FROM $2 AND pattern = $3 LIMIT 1),
			(SELECT count(*) FROM tagprotectionrules
				WHERE namespace_id IS NOT DISTINCT FROM $1 AND repository_id IS NOT DISTINCT FROM $2),
			(SELECT count(*) FROM tagprotectionrules WHERE namespace_id = $1)`, namespace, repository, pattern.String()).Scan(&same, &own, &all)
	most := c.opt.MostProtectionRules
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
func lockScope(ctx context.Context, tx pgx.Tx, s ProtectionScope) (namespace, repository *int64, err error) {
	switch {
	case s.Repository != "":
		err = tx.QueryRow(ctx, `
			SELECT n.id, r.id FROM repositories r JOIN live_namespaces n ON n.id = r.top_level_namespace_id
			WHERE r.path = $1 AND r.deleted_at IS NULL FOR KEY SHARE`, s.Repository).Scan(&namespace, &repository)
		if isNoRows(err) {
			err = nameUnknown(s.Repository)
		}
	case s.Namespace != "":
		err = tx.QueryRow(ctx, "SELECT id FROM live_namespaces WHERE name = $1 FOR KEY SHARE", s.Namespace).Scan(&namespace)
		if isNoRows(err) {
			err = namespaceUnknown(s.Namespace)
		}
	}
	return namespace, repository, err
}

func namespaceUnknown(name string) error {
	return oci.Errorf(oci.NameUnknown, "namespace %s is not known to this registry", name).
		WithDetail(map[string]string{"name": name})
}

// CreateProtectionRule makes a rule. From then on no client can move or delete a tag that
// matches, whether the tag existed before or not. Errors: NAME_UNKNOWN; UNSUPPORTED with
// status 400 if the scope has the same rule already, or as many as it may have.
func (c *Catalog) CreateProtectionRule(ctx context.Context, s ProtectionScope, pattern oci.TagPattern) (ProtectionRule, error) {
	rule := ProtectionRule{ID: uuid.New(), Scope: s, Pattern: pattern}
	err := c.changeRules(ctx, s, func(tx pgx.Tx, namespace, repository *int64) error {
		if err := c.admitRule(ctx, tx, s, pattern, namespace, repository); err != nil {
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
	if err != nil && !isClientError(err) {
		return rule, fmt.Errorf("protecting tags of %s: %w", s, err)
	}
	return rule, err
}

// DeleteProtectionRule deletes a rule of the scope. It returns NAME_UNKNOWN if the scope's
// namespace or repository doesn't exist, if the rule doesn't exist, or if the rule belongs
// to another scope.
func (c *Catalog) DeleteProtectionRule(ctx context.Context, s ProtectionScope, id uuid.UUID) error {
	err := c.changeRules(ctx, s, func(tx pgx.Tx, namespace, repository *int64) error {
		var pattern string
		err := tx.QueryRow(ctx, `
			DELETE FROM tagprotectionrules
			WHERE uuid = $1 AND namespace_id IS NOT DISTINCT FROM $2 AND repository_id IS NOT DISTINCT FROM $3
			RETURNING pattern`, id, namespace, repository).Scan(&pattern)
		if isNoRows(err) {
			return oci.Errorf(oci.NameUnknown, "%s has no rule %s that protects tags", s, id)
		}
		if err != nil {
			return err
		}
		rule := ProtectionRule{ID: id, Scope: s}
		rule.read(pattern)
		return logRule(ctx, tx, rule, repository, "delete")
	})
	if err != nil && !isClientError(err) {
		return fmt.Errorf("removing the protection of tags of %s: %w", s, err)
	}
	return err
}

// changeRules runs change in a transaction that first raises the version of the rules. The row
// lock on the version lets only one transaction change rules at a time. Its parameters
// `namespace` and `repository` are the ids of the scope, nil if the scope doesn't name a
// namespace or repository.
func (c *Catalog) changeRules(ctx context.Context, s ProtectionScope, change func(tx pgx.Tx, namespace, repository *int64) error) error {
	return c.db.Tx(ctx, func(tx pgx.Tx) error {
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

func logRule(ctx context.Context, tx pgx.Tx, rule ProtectionRule, repository *int64, change string) error {
	e := audit.Entry{Kind: audit.ChangeProtection, Namespace: rule.Scope.Namespace, Repository: rule.Scope.Repository,
		Detail: map[string]any{"change": change, "rule": rule.ID, "pattern": rule.Pattern.String()}}
	if repository != nil {
		e.RepositoryID = *repository
	}
	return audit.Append(ctx, tx, e)
}

// Package protection has the rules that protect tags, and the setting by which labels of images decide
// about tags. A rule is of a repository, of a namespace or of the whole registry. Clients may create a
// tag that a rule matches, but then neither move it to another manifest nor delete it.
//
// Every write follows the rules that are in force, however many processes there are, without an extra
// round trip. Each process caches all rules in memory, with a version number: the setting
// tag_protection_version, which each change of the rules raises. A write that moves or deletes tags
// uses the cached rules to decide which tags are protected. The write's last statement compares the
// cached version with the version in the database, and the tags for which the write has made its
// decision with the tags that it has locked. If the version has changed, the process reads the rules
// again and the write runs again. If the write has locked a tag for which it has made no decision, it
// runs again too. Those writes, and the cache, are in package catalog, which is above this one.
package protection

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// Scope says to which tags a rule applies: to the tags of one repository, of one namespace or, for
// the zero value, of the whole registry.
type Scope struct {
	Namespace  string
	Repository string // path; Namespace is empty then
}

// String returns the scope as messages show it.
func (s Scope) String() string {
	switch {
	case s.Repository != "":
		return "repository " + s.Repository
	case s.Namespace != "":
		return "namespace " + s.Namespace
	}
	return "the registry"
}

// Rule protects the tags whose names its pattern matches. Clients may create such a tag, but then
// neither move it to another manifest nor delete it. They may still delete the whole repository or
// namespace.
type Rule struct {
	ID      uuid.UUID
	Scope   Scope
	Pattern oci.TagPattern
	Created time.Time
	// Problem is the reason why this version of Purser can't parse the pattern, "" if it can.
	// A rule whose pattern can't be parsed protects every tag in its scope, since it may be
	// meant for any.
	Problem string

	namespace, repository int64 // 0: any
}

// Rules are all rules of one version, and which labels count. The version of a new registry, which has
// none, is "0".
type Rules struct {
	Version string
	list    []Rule
	labels  map[int64]TagLabels // namespaces that let labels of images decide about tags
}

// Read reads all rules.
func Read(ctx context.Context, q db.Querier) (*Rules, error) {
	rows, err := q.Query(ctx, `
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
	out := new(Rules)
	var r Rule
	var id *uuid.UUID
	var pattern string
	_, err = pgx.ForEachRow(rows, []any{&out.Version, &id, &pattern, &r.Created, &r.namespace, &r.repository,
		&r.Scope.Namespace, &r.Scope.Repository}, func() error {
		if id == nil {
			return nil
		}
		r.ID = *id
		r.read(pattern)
		out.list = append(out.list, r)
		return nil
	})
	if err == nil { // after the version: a change in between has a higher one
		out.labels, err = labelsAllowed(ctx, q)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the rules that protect tags: %w", err)
	}
	return out, nil
}

// read parses a rule's stored pattern.
func (r *Rule) read(pattern string) {
	var err error
	r.Pattern, err = oci.ParseTagPattern(pattern)
	if r.Problem = ""; err != nil {
		r.Pattern, r.Problem = oci.EveryTag(pattern), fmt.Sprintf("it can't be read by this version: %v", err)
	}
}

// Of returns the first rule that protects the tag in a repository, or nil if no rule protects it.
func (p *Rules) Of(namespace, repository int64, tag string) *Rule {
	for i := range p.list {
		if rule := &p.list[i]; rule.HoldsIn(namespace, repository) && rule.Pattern.Match(tag) {
			return rule
		}
	}
	return nil
}

// HoldsIn says whether the rule applies in a repository.
func (r *Rule) HoldsIn(namespace, repository int64) bool {
	return (r.namespace == 0 || r.namespace == namespace) && (r.repository == 0 || r.repository == repository)
}

// Apply says whether any rule may protect tags of a repository.
func (p *Rules) Apply(namespace, repository int64) bool {
	return slices.ContainsFunc(p.list, func(rule Rule) bool { return rule.HoldsIn(namespace, repository) })
}

// Protected returns those of the tags of a repository that a rule protects.
func (p *Rules) Protected(namespace, repository int64, tags []string) []string {
	out := []string{}
	for _, tag := range tags {
		if p.Of(namespace, repository, tag) != nil {
			out = append(out, tag)
		}
	}
	return out
}

// Refusal returns the error for a client that tried to move or delete a protected tag. In its
// message, `what` says what can't be done with the tag ("deleted"), and `wayOut` says what the
// client can do instead. The status is 409, not 401 or 403, since logging in wouldn't help.
func (r *Rule) Refusal(path, tag, what, wayOut string) error {
	why := ""
	if r.Problem != "" {
		why = ", which protects every tag because this version can't read it"
	}
	return oci.Errorf(oci.Denied, "tag %s of %s can't be %s: it is protected by the rule %q of %s%s; %s, or remove the rule",
		tag, path, what, r.Pattern, r.Scope, why, wayOut).
		WithStatus(http.StatusConflict).
		WithDetail(map[string]string{"name": path, "tag": tag, "rule": r.ID.String(), "pattern": r.Pattern.String()})
}

// In reads the current rules and returns those that apply in the namespace or in any of its
// repositories. Rule.HoldsIn tells which of them apply in a given repository.
func In(ctx context.Context, q db.Querier, namespace int64) ([]Rule, error) {
	now, err := Read(ctx, q)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(now.list, func(rule Rule) bool { return rule.namespace != 0 && rule.namespace != namespace }), nil
}

// Labels returns which labels of images decide about the tags of a namespace.
func (p *Rules) Labels(namespace int64) TagLabels { return p.labels[namespace] }

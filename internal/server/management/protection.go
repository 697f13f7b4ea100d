package management

import (
	"context"
	"net/http"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
)

// addProtection binds the operations on the rules that protect tags.
func (a *API) addProtection() {
	serve(a, api.ListProtection, a.listProtection)
	serve(a, api.CreateProtection, a.createProtection)
	serve(a, api.DeleteProtection, func(ctx context.Context, in *api.ProtectionItem) (*api.None, error) {
		id, err := pathUUID(in.UUID)
		if err != nil {
			return nil, err
		}
		return nil, a.catalog.DeleteProtectionRule(ctx, protectionScope(in.At), id)
	})
}

func protectionScope(at api.At) catalog.ProtectionScope {
	return catalog.ProtectionScope{Repository: at.Repository, Namespace: at.Namespace}
}

func (a *API) listProtection(ctx context.Context, in *api.ProtectionQuery) (*api.ProtectionList, error) {
	var after catalog.RulePlace
	if _, err := parseCursor(in.NextPage, "rule", &after); err != nil {
		return nil, err
	}
	rules, more, err := a.catalog.ProtectionRules(ctx, protectionScope(in.At), after, in.Most())
	out := &api.ProtectionList{Rules: []api.ProtectionRule{}}
	for _, r := range rules {
		out.Rules = append(out.Rules, api.ProtectionRule{
			UUID: r.ID.String(), Pattern: r.Pattern.String(), Warnings: r.Pattern.Warnings(), Problem: r.Problem, CreatedAt: r.Created.UTC(),
		})
	}
	if more {
		last := rules[len(rules)-1]
		out.NextPage = cursor("rule", catalog.RulePlace{Created: last.Created, ID: last.ID})
	}
	return out, err
}

func (a *API) createProtection(ctx context.Context, in *api.ProtectionNew) (*api.CreatedRule, error) {
	pattern, err := oci.ParseTagPattern(in.Body.Pattern)
	if err != nil {
		return nil, server.Refusal(http.StatusBadRequest, "pattern: %v", err).WithDetail(map[string]string{"field": "pattern"})
	}
	rule, err := a.catalog.CreateProtectionRule(ctx, protectionScope(in.At), pattern)
	return &api.CreatedRule{UUID: rule.ID.String(), Warnings: pattern.Warnings()}, err
}

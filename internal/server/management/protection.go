package management

import (
	"context"
	"net/http"

	"github.com/purser-registry/purser/internal/api"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
)

type protectionList struct {
	Rules    []api.ProtectionRule `json:"rules" nullable:"false" doc:"Oldest first"`
	NextPage string               `json:"next_page,omitempty" doc:"Where the next page begins; missing on the last page"`
}

// newProtectionRule is the body of a request to protect tags.
type newProtectionRule struct {
	Pattern string `json:"pattern" doc:"Regular expression (RE2) that is searched for in a tag's name: anchor it with ^ and $" example:"^v[0-9.]+$"`
}

// TransformSchema adds the read-only members of a rule.
func (newProtectionRule) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return readOnly(s, "uuid", "warnings", "problem", "created_at")
}

type createdRule struct {
	UUID     string   `json:"uuid" format:"uuid"`
	Warnings []string `json:"warnings,omitempty" doc:"Unintended tags that the pattern may protect"`
}

// ScopeOfRepository and ScopeOfNamespace are inputs of operations that concern one repository or
// one namespace, which the path parameter names. The types are exported because huma finds
// parameters only in exported types.
type (
	ScopeOfRepository struct {
		Repository string `path:"repository" doc:"Name of the repository" example:"library/alpine"`
	}
	ScopeOfNamespace struct {
		Namespace string `path:"orgname" doc:"Name of the namespace" example:"library"`
	}
)

func (a *API) addProtection() {
	type repoCreate struct {
		ScopeOfRepository
		Body newProtectionRule
	}
	type repoDelete struct {
		ScopeOfRepository
		UUID string `path:"uuid" doc:"Identifier of the rule"`
	}
	repository := func(in ScopeOfRepository) catalog.ProtectionScope {
		return catalog.ProtectionScope{Repository: in.Repository}
	}
	type repoList struct {
		ScopeOfRepository
		Paging
	}
	addProtection(a, protectionTexts{"Repo", "/repository/{repository}", "a repository"},
		func(in *repoList) (catalog.ProtectionScope, Paging) {
			return repository(in.ScopeOfRepository), in.Paging
		},
		func(in *repoCreate) (catalog.ProtectionScope, string) {
			return repository(in.ScopeOfRepository), in.Body.Pattern
		},
		func(in *repoDelete) (catalog.ProtectionScope, string) {
			return repository(in.ScopeOfRepository), in.UUID
		})
	type orgCreate struct {
		ScopeOfNamespace
		Body newProtectionRule
	}
	type orgDelete struct {
		ScopeOfNamespace
		UUID string `path:"uuid" doc:"Identifier of the rule"`
	}
	namespace := func(in ScopeOfNamespace) catalog.ProtectionScope {
		return catalog.ProtectionScope{Namespace: in.Namespace}
	}
	type orgList struct {
		ScopeOfNamespace
		Paging
	}
	addProtection(a, protectionTexts{"Org", "/organization/{orgname}", "all repositories of a namespace"},
		func(in *orgList) (catalog.ProtectionScope, Paging) { return namespace(in.ScopeOfNamespace), in.Paging },
		func(in *orgCreate) (catalog.ProtectionScope, string) {
			return namespace(in.ScopeOfNamespace), in.Body.Pattern
		},
		func(in *orgDelete) (catalog.ProtectionScope, string) { return namespace(in.ScopeOfNamespace), in.UUID })
	type allCreate struct{ Body newProtectionRule }
	type allDelete struct {
		UUID string `path:"uuid" doc:"Identifier of the rule"`
	}
	addProtection(a, protectionTexts{"All", "", "all repositories"},
		func(in *Paging) (none catalog.ProtectionScope, page Paging) { return none, *in },
		func(in *allCreate) (none catalog.ProtectionScope, pattern string) { return none, in.Body.Pattern },
		func(in *allDelete) (none catalog.ProtectionScope, id string) { return none, in.UUID })
}

// protectionTexts has the texts that differ between the operations on the tag protection rules
// of a repository, a namespace and the whole registry: the operation's name, its path, and the
// words for its description.
type protectionTexts struct{ name, path, of string }

// addProtection adds the operations on the tag protection rules of one scope: a repository, a
// namespace or the whole registry. The type parameters are the inputs for listing (L), creating
// (C) and deleting (D) rules. From such an input, `ofList` returns the scope and the page, `ofCreate` the
// scope and the pattern of the new rule, and `ofDelete` the scope and the id of the rule to
// delete.
func addProtection[L, C, D any](a *API, text protectionTexts, ofList func(*L) (catalog.ProtectionScope, Paging),
	ofCreate func(*C) (catalog.ProtectionScope, string), ofDelete func(*D) (catalog.ProtectionScope, string),
) {
	c, path, tags := a.catalog, text.path+"/tagprotection", []string{"tagprotection"}
	type listOutput struct{ Body protectionList }
	add(a, auth.Maintain, huma.Operation{
		OperationID: "list" + text.name + "TagProtection", Method: http.MethodGet, Path: path, Tags: tags,
		Summary:     "List the rules that protect tags of " + text.of,
		Description: "Lists the rules of exactly this scope, without those of larger or smaller scopes that hold here too.",
		Errors:      []int{http.StatusNotFound},
	}, func(ctx context.Context, in *L) (*listOutput, error) {
		scope, page := ofList(in)
		var after catalog.RulePlace
		if _, err := parseCursor(page.NextPage, "rule", &after); err != nil {
			return nil, err
		}
		rules, more, err := c.ProtectionRules(ctx, scope, after, page.most())
		out := &listOutput{protectionList{Rules: []api.ProtectionRule{}}}
		for _, r := range rules {
			out.Body.Rules = append(out.Body.Rules, api.ProtectionRule{
				UUID: r.ID.String(), Pattern: r.Pattern.String(), Warnings: r.Pattern.Warnings(), Problem: r.Problem, CreatedAt: r.Created.UTC(),
			})
		}
		if more {
			last := rules[len(rules)-1]
			out.Body.NextPage = cursor("rule", catalog.RulePlace{Created: last.Created, ID: last.ID})
		}
		return out, err
	})
	type createOutput struct{ Body createdRule }
	add(a, auth.Maintain, huma.Operation{
		OperationID: "create" + text.name + "TagProtection", Method: http.MethodPost, Path: path, Tags: tags,
		Summary: "Protect tags of " + text.of,
		Description: "A tag that the pattern matches may be made, and from then on neither be moved to another manifest nor " +
			"be deleted, by clients or by policies. Existing tags are protected as they are. The whole repository or " +
			"namespace may still be deleted.",
		DefaultStatus: http.StatusCreated,
		Errors:        []int{http.StatusNotFound, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType},
	}, func(ctx context.Context, in *C) (*createOutput, error) {
		scope, text := ofCreate(in)
		pattern, err := oci.ParseTagPattern(text)
		if err != nil {
			return nil, server.Refusal(http.StatusBadRequest, "pattern: %v", err).WithDetail(map[string]string{"field": "pattern"})
		}
		rule, err := c.CreateProtectionRule(ctx, scope, pattern)
		return &createOutput{createdRule{rule.ID.String(), pattern.Warnings()}}, err
	})
	add(a, auth.Maintain, huma.Operation{
		OperationID: "delete" + text.name + "TagProtection", Method: http.MethodDelete, Path: path + "/{uuid}", Tags: tags,
		Summary: "Remove a rule that protects tags of " + text.of, DefaultStatus: http.StatusNoContent,
		Errors: []int{http.StatusNotFound},
	}, func(ctx context.Context, in *D) (*struct{}, error) {
		scope, text := ofDelete(in)
		id, err := uuid.Parse(text)
		if err != nil {
			return nil, server.Refusal(http.StatusBadRequest, "%q is not a UUID", text)
		}
		return nil, c.DeleteProtectionRule(ctx, scope, id)
	})
}

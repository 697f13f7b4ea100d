package api

import (
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/auth"
)

// ProtectionRule is a tag protection rule in answers.
type ProtectionRule struct {
	UUID      string    `json:"uuid" format:"uuid"`
	Pattern   string    `json:"pattern" doc:"The tags that are protected" example:"^v[0-9.]+$"`
	Warnings  []string  `json:"warnings,omitempty" doc:"Unintended tags that the pattern may protect"`
	Problem   string    `json:"problem,omitempty" doc:"Why this version can't read the rule, which protects every tag then"`
	CreatedAt time.Time `json:"created_at"`
}

// ProtectionList is a page of rules.
type ProtectionList struct {
	Rules    []ProtectionRule `json:"rules" nullable:"false" doc:"Oldest first"`
	NextPage string           `json:"next_page,omitempty" doc:"Where the next page begins; missing on the last page"`
}

// Entries implements Page.
func (l ProtectionList) Entries() ([]ProtectionRule, string) { return l.Rules, l.NextPage }

// NewProtectionRule is the body of a request to protect tags.
type NewProtectionRule struct {
	Pattern string `json:"pattern" doc:"Regular expression (RE2) that is searched for in a tag's name: anchor it with ^ and $" example:"^v[0-9.]+$"`
}

// TransformSchema adds the read-only members of a rule.
func (NewProtectionRule) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return ReadOnly(s, "uuid", "warnings", "problem", "created_at")
}

// CreatedRule is the answer to the creation of a rule.
type CreatedRule struct {
	UUID     string   `json:"uuid" format:"uuid"`
	Warnings []string `json:"warnings,omitempty" doc:"Unintended tags that the pattern may protect"`
}

// Inputs of the operations on rules.
type (
	ProtectionQuery struct {
		At
		Paging
	}
	ProtectionNew struct {
		At
		Body NewProtectionRule
	}
	ProtectionItem struct {
		At
		UUID string `path:"uuid" doc:"Identifier of the rule"`
	}
)

// protectedPlaces are where rules hold.
var protectedPlaces = []Place{
	{"Repo", OfRepository, "a repository"}, {"Org", OfNamespace, "all repositories of a namespace"}, {"All", OfRegistry, "all repositories"},
}

// The operations on the rules that protect tags.
var (
	ListProtection = Operation[ProtectionQuery, ProtectionList]{
		ID: "list{Place}TagProtection", Method: http.MethodGet, Path: "{place}/tagprotection", Places: protectedPlaces,
		Tag: "tagprotection", Access: auth.Maintain, Summary: "List the rules that protect tags of {place}",
		Description: "Lists the rules of exactly this scope, without those of larger or smaller scopes that hold here too.",
		Errors:      []int{http.StatusNotFound},
	}
	CreateProtection = Operation[ProtectionNew, CreatedRule]{
		ID: "create{Place}TagProtection", Method: http.MethodPost, Path: "{place}/tagprotection", Places: protectedPlaces,
		Tag: "tagprotection", Access: auth.Maintain, Summary: "Protect tags of {place}", Status: http.StatusCreated,
		Description: "A tag that the pattern matches may be made, and from then on neither be moved to another manifest nor " +
			"be deleted, by clients or by policies. Existing tags are protected as they are. The whole repository or " +
			"namespace may still be deleted.",
		Errors: []int{http.StatusNotFound, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType},
	}
	DeleteProtection = Operation[ProtectionItem, None]{
		ID: "delete{Place}TagProtection", Method: http.MethodDelete, Path: "{place}/tagprotection/{uuid}", Places: protectedPlaces,
		Tag: "tagprotection", Access: auth.Maintain, Summary: "Remove a rule that protects tags of {place}", Status: http.StatusNoContent,
		Errors: []int{http.StatusNotFound},
	}
)

package api

import (
	"bytes"
	"net/http"
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/forecast"
	"github.com/purser-registry/purser/internal/policy"
)

// PolicyView is an auto-prune policy as answers of the API show it. The members that Quay's API
// has too come first, then Purser's own.
type PolicyView struct {
	UUID   string `json:"uuid"`
	Method string `json:"method" doc:"How tags are selected; empty for a policy with a problem"`
	Value  any    `json:"value" doc:"What the method takes: olderThan, numTags or maxBytes"`
	policy.Counting
	TagPattern        *string `json:"tagPattern" doc:"Null: all tags"`
	TagPatternMatches bool    `json:"tagPatternMatches"`
	RemoveOrphans     bool    `json:"removeOrphans" doc:"Whether it deletes attached tags whose image isn't in their repository"`
	policy.Selectors
	policy.Safeguards
	Keep       []policy.KeepRule `json:"keep,omitempty" doc:"Keep rules: the tags that stay, whatever policies select them. Absent: none"`
	Warnings   []string          `json:"warnings,omitempty" doc:"Unintended tags that the pattern may select"`
	Problem    string            `json:"problem,omitempty" doc:"Why this version can't read the policy, which selects nothing then"`
	Stored     string            `json:"stored,omitempty" doc:"The stored text of a policy with a problem"`
	ActiveFrom *time.Time        `json:"active_from,omitempty" doc:"When the policy's grace period ends. Absent: it has none"`
	Setting    string            `json:"setting,omitempty" doc:"The setting that defines the policy. Such a policy can be changed only there, and applies in every namespace beside the namespace's own policies" example:"autoprune.default_policy"`
	Version    int64             `json:"version" doc:"Each saving of the policy raises it"`
	CreatedAt  time.Time         `json:"created_at"`
	UpdatedAt  time.Time         `json:"updated_at" doc:"When the policy was last saved"`
}

// PolicyList has the policies of a place.
type PolicyList struct {
	Policies []PolicyView `json:"policies" nullable:"false"`
}

// ReadOnlyOfPolicies are the members of PolicyView that a request can't set. Requests may contain
// them, since some clients send back a whole policy as they read it; the registry ignores them.
var ReadOnlyOfPolicies = []string{"uuid", "warnings", "problem", "stored", "setting", "active_from", "version", "created_at", "updated_at"}

// PolicyForm describes a policy in requests.
type PolicyForm struct {
	policy.Policy
	Value any `json:"value,omitempty" doc:"Another name for olderThan, numTags or maxBytes, in place of it; for the first two it is Quay's"`
}

// TransformSchema adds the read-only members of a policy.
func (PolicyForm) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return ReadOnly(s, ReadOnlyOfPolicies...)
}

// PolicyText is a policy as the JSON text that a client wrote, which PolicyForm describes. Package
// autoprune parses it, since its errors say more than those that huma derives from a schema.
type PolicyText []byte

// MarshalJSON returns the text.
func (p PolicyText) MarshalJSON() ([]byte, error) { return p, nil }

// UnmarshalJSON keeps the text.
func (p *PolicyText) UnmarshalJSON(b []byte) error {
	*p = bytes.Clone(b)
	return nil
}

// Schema describes the policy.
func (PolicyText) Schema(r huma.Registry) *huma.Schema {
	return r.Schema(reflect.TypeFor[PolicyForm](), true, "")
}

// PolicyIDBody is the answer to the creation or the deletion of a policy.
type PolicyIDBody struct {
	UUID     string           `json:"uuid" doc:"Identifier of the policy"`
	Warnings []string         `json:"warnings,omitempty" doc:"What the policy surely wasn't meant to do, as sentences"`
	Found    []policy.Warning `json:"found,omitempty" doc:"The same with codes, numbers and examples; of a deletion, what other policies would delete without the policy"`
}

// JudgedPreview is a preview with the warnings about the policy that is tried out.
type JudgedPreview struct {
	autoprune.Preview
	Found []policy.Warning `json:"found,omitempty" doc:"What the policy in the body surely wasn't meant to do, by the tags that there are"`
}

// MaxPreviewed is the most tags of each list of a preview.
const MaxPreviewed = 10_000

// PolicyAt is At for policies.
type PolicyAt struct {
	Repository string `path:"repository" required:"false" doc:"Name of the repository" example:"library/alpine"`
	Namespace  string `path:"orgname" required:"false" doc:"Name of the namespace: the first part of its repositories' names" example:"library"`
}

// Resource returns the place.
func (a PolicyAt) Resource() auth.Resource { return At(a).Resource() }

func (a PolicyAt) place() string { return At(a).place() }

// PolicyConfirmation is the part of an input by which a client says that somebody has seen what a
// policy surely wasn't meant to do.
type PolicyConfirmation struct {
	Confirm string `query:"confirm" doc:"none: refuse with 409 what has warnings, which are in details. all: do it all the same. Codes of warnings with commas between them: do it if there are no others. Absent: do it, as Quay does, and tell the warnings; for the registry's default policies, none" example:"none"`
}

// Inputs of the operations on policies.
type (
	PolicyNew struct {
		PolicyAt
		PolicyConfirmation
		Body PolicyText
	}
	PolicyItem struct {
		PolicyAt
		UUID string `path:"policy_uuid" doc:"Identifier of the policy" example:"f6d1a7b0-9a8c-4a7e-9b0e-3a4f6f1c2d3e"`
	}
	PolicyChange struct {
		PolicyItem
		Version int64 `query:"version" minimum:"0" doc:"Version of the policy as it was read. 409: it was saved since. Absent or 0: change any version"`
		PolicyConfirmation
		Body PolicyText
	}
	PolicyRemoval struct {
		PolicyItem
		PolicyConfirmation
	}
	PreviewInput struct {
		PolicyAt
		Limit    int         `query:"limit" minimum:"1" default:"100" doc:"Most tags of each list: tags that would be deleted, and tags that would stay. More than 10000 counts as 10000; the lists are shorter, but not below 100, if there is too little memory"`
		TagsOnly bool        `query:"tags_only" doc:"Leave out bytes_freed: to add up the bytes takes most of the time that a preview of many tags takes"`
		Body     *PolicyText `required:"false"`
	}
	ForecastInput struct {
		PolicyAt
		Days     int         `query:"days" minimum:"1" default:"90" doc:"Number of days that end now. More than 365 counts as 365; the audit log may not reach back so far"`
		Settings []string    `query:"settings" doc:"Ages, numbers or sizes, separated by commas, that the policy in the body might have instead of its own: for each, the answer says what would be stored now. At most 16"`
		Body     *PolicyText `required:"false"`
	}
)

// policyPlaces are where policies belong to, first those where they can be tried out.
var policyPlaces = []Place{
	{"Organization", OfNamespace, "a namespace"}, {"Repository", OfRepository, "a repository"},
	{"Default", OfRegistry, "the registry's defaults"}, {"User", OfOwn, ownNamespace},
}

// policyOperation describes an operation on the policies of a place, at a path below theirs.
func policyOperation[I, O any](id, method, path, summary, description string, status int, errors ...int) Operation[I, O] {
	op := Operation[I, O]{
		ID: id, Method: method, Path: "{place}/autoprunepolicy" + path, Places: policyPlaces, Tag: "autoprune", Access: auth.Maintain,
		Summary: summary, Description: description, Status: status, Errors: append(errors, http.StatusNotFound),
	}
	if method == http.MethodPost || method == http.MethodPut {
		op.OwnBody, op.Errors = true, append(op.Errors, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType)
	}
	return op
}

// trial describes an operation that tells what policies would do, or would have done.
func trial[I, O any](name, summary, description string) Operation[I, O] {
	op := policyOperation[I, O](name+"{Place}AutoPrunePolicy", http.MethodPost, "/"+name, summary, description, 0)
	op.Places = policyPlaces[:2]
	op.OwnMemory = name == "preview"
	return op
}

// The operations on policies.
var (
	ListPolicies = policyOperation[PolicyAt, PolicyList]("list{Place}AutoPrunePolicies", http.MethodGet, "", "List the auto-prune policies of {place}", "", 0)
	CreatePolicy = policyOperation[PolicyNew, PolicyIDBody]("create{Place}AutoPrunePolicy", http.MethodPost, "", "Create an auto-prune policy of {place}",
		"The policy is applied within autoprune.interval. Preview it first. 409: what it surely wasn't meant to do wasn't confirmed.",
		http.StatusCreated, http.StatusConflict)
	GetPolicy    = policyOperation[PolicyItem, PolicyView]("get{Place}AutoPrunePolicy", http.MethodGet, "/{policy_uuid}", "Get an auto-prune policy of {place}", "", 0)
	UpdatePolicy = policyOperation[PolicyChange, None]("update{Place}AutoPrunePolicy", http.MethodPut, "/{policy_uuid}", "Replace an auto-prune policy of {place}",
		"Tags that an undo has exempted from the policy aren't exempt any more if it has another rule: method, value, pattern or selectors. "+
			"The body may be what was read: read-only members are ignored, but the uuid of another policy is refused. "+
			"With version, a policy that somebody else has saved since is left as it is: 409.",
		http.StatusNoContent, http.StatusConflict)
	DeletePolicy = policyOperation[PolicyRemoval, PolicyIDBody]("delete{Place}AutoPrunePolicy", http.MethodDelete, "/{policy_uuid}", "Delete an auto-prune policy of {place}",
		"After the answer the policy deletes nothing any more. What it kept from other policies stays for its grace period. "+
			"409: the policy belongs to a setting, or what other policies would delete without it wasn't confirmed.",
		0, http.StatusConflict)

	PreviewPolicy = trial[PreviewInput, JudgedPreview]("preview", "Tell what auto-pruning would delete in {place}",
		"With a policy as the body: what that policy alone would delete. Without a body: what all policies "+
			"that apply now would. Nothing is changed. The judgement is the run's own; it is given up after a minute, "+
			"and complete is false then. Ask with tags_only=true first to show the tags at once, and then for the bytes.")
	ForecastPolicy = trial[ForecastInput, forecast.Forecast]("forecast", "Tell what auto-pruning would have deleted in {place} in the past, day by day",
		"With a policy as the body: what that policy alone would have deleted. Without a body: what all policies "+
			"that apply now would have, also those that only observe or wait. The tags of the past come from the audit log. "+
			"Nothing is changed. The forecast is given up after a minute, and complete is false then. What it couldn't know is in notes.")
)

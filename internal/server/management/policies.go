package management

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"reflect"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/server"
)

// PolicyOfRegistry, PolicyOfNamespace and PolicyOfRepository are the inputs of operations on
// the auto-prune policies of the registry, a namespace or a repository. PolicyOfNamespace and
// PolicyOfRepository have the path parameter that names the namespace or repository. The types
// are exported because huma reads only exported fields.
type PolicyOfRegistry struct{}

// PolicyOfNamespace is described with PolicyOfRegistry.
type PolicyOfNamespace struct {
	Namespace string `path:"orgname" doc:"Name of the namespace: the first part of its repositories' names" example:"library"`
}

// PolicyOfRepository is described with PolicyOfRegistry.
type PolicyOfRepository struct {
	Repository string `path:"repository" doc:"Name of the repository" example:"library/alpine"`
}

func (PolicyOfRegistry) target() autoprune.Target { return autoprune.Target{} }
func (p PolicyOfNamespace) target() autoprune.Target {
	return autoprune.Target{Namespace: p.Namespace}
}
func (p PolicyOfRepository) target() autoprune.Target {
	return autoprune.Target{Repository: p.Repository}
}

// PolicyItem is the part of a path that identifies a policy.
type PolicyItem struct {
	Policy string `path:"policy_uuid" doc:"Identifier of the policy" example:"f6d1a7b0-9a8c-4a7e-9b0e-3a4f6f1c2d3e"`
}

func (i PolicyItem) item() string { return i.Policy }

// PolicyBody is a request body that consists of a policy.
type PolicyBody struct{ Body policyText }

func (b PolicyBody) text() policyText { return b.Body }

// PolicyVersion is the query parameter of a change to a policy that was read before.
type PolicyVersion struct {
	Version int64 `query:"version" minimum:"0" doc:"Version of the policy as it was read. 409: it was saved since. Absent or 0: change any version"`
}

func (v PolicyVersion) version() int64 { return v.Version }

// policyText is an auto-prune policy as the JSON text that the client sent. Package autoprune
// parses this text instead of huma, because autoprune's errors are more specific than those
// that huma derives from a schema.
type policyText []byte

// UnmarshalJSON keeps the text.
func (p *policyText) UnmarshalJSON(b []byte) error {
	*p = bytes.Clone(b)
	return nil
}

// Schema describes the policy.
func (policyText) Schema(r huma.Registry) *huma.Schema {
	return r.Schema(reflect.TypeFor[PolicyForm](), true, "")
}

// readOnlyOfPolicies are the members of api.PolicyView that a request can't set. Requests may
// contain them, since some clients send back a whole policy as they read it; the registry
// ignores them.
var readOnlyOfPolicies = []string{"uuid", "warnings", "problem", "stored", "setting", "active_from", "version", "created_at", "updated_at"}

// parse parses the policy. `id` is the policy's id in the request's path, "" for a new policy.
// parse returns an error if the body has the id of a different policy, because the client
// probably meant to change that policy.
func (p policyText) parse(id string) (autoprune.Policy, error) {
	var members struct {
		UUID json.RawMessage `json:"uuid"`
	}
	if id != "" && json.Unmarshal(p, &members) == nil && members.UUID != nil {
		var given string
		if err := json.Unmarshal(members.UUID, &given); err != nil || given != id {
			return autoprune.Policy{}, server.Refusal(http.StatusBadRequest, "uuid: the body is of policy %s and the path of policy %s", members.UUID, id)
		}
	}
	policy, err := autoprune.ParsePolicy(p, readOnlyOfPolicies...)
	if field, ok := errors.AsType[*autoprune.FieldError](err); ok {
		return policy, server.Refusal(http.StatusBadRequest, "%s", field.Error()).WithDetail(map[string]string{"field": field.Field})
	}
	return policy, err
}

// PolicyForm describes a policy in requests. It is exported because huma makes JSON schemas
// only of exported types.
type PolicyForm struct {
	Method    string `json:"method" enum:"creation_date,number_of_tags,last_pulled,max_bytes,untagged" doc:"How tags are selected"`
	OlderThan string `json:"olderThan,omitempty" doc:"For creation_date, last_pulled and untagged: digits and one of s, m, h, d, w, y" example:"2w"`
	NumTags   int    `json:"numTags,omitempty" minimum:"1" doc:"For number_of_tags: how many of the newest tags stay" example:"100"`
	autoprune.CountingForm
	MaxBytes          string  `json:"maxBytes,omitempty" doc:"For max_bytes: how much the most recently used tags of a repository, which stay, may store" example:"50GiB"`
	Value             any     `json:"value,omitempty" doc:"Another name for olderThan, numTags or maxBytes, in place of it; for the first two it is Quay's"`
	TagPattern        *string `json:"tagPattern,omitempty" maxLength:"256" doc:"Regular expression (RE2) that is searched for in a tag's name: anchor it with ^ and $. Absent: all tags"`
	TagPatternMatches *bool   `json:"tagPatternMatches,omitempty" doc:"False: select the tags that don't match the pattern. Default true"`
	RemoveOrphans     *bool   `json:"removeOrphans,omitempty" doc:"True: also delete attached tags, such as signatures, that the pattern selects, that are a day old, and whose image isn't in the repository. Default false: such tags are treated as any other"`
	autoprune.SelectorForm
	autoprune.SafeguardForm
	Keep []autoprune.KeepForm `json:"keep,omitempty" maxItems:"16" doc:"Keep rules: the tags that stay, whatever policies of the repository select them. Only tags that tagPattern selects"`
}

// TransformSchema adds the read-only members of a policy.
func (PolicyForm) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return api.ReadOnly(s, readOnlyOfPolicies...)
}

func viewPolicy(s autoprune.Saved) api.PolicyView {
	v := api.PolicyView{
		UUID: s.ID, Method: string(s.Policy.Method()), Value: s.Policy.Value(), CountingForm: s.Policy.Counting(), RemoveOrphans: s.Policy.RemovesOrphans(), SelectorForm: s.Policy.Selectors(),
		SafeguardForm: s.Policy.Safeguards(), Keep: s.Policy.Keep(),
		Warnings: s.Policy.Warnings(), Problem: s.Problem, Stored: s.Stored, Version: s.Version, CreatedAt: s.Created.UTC(), UpdatedAt: s.Updated.UTC(),
	}
	if s.ActiveFrom != nil {
		at := s.ActiveFrom.UTC()
		v.ActiveFrom = &at
	}
	if s.Setting {
		v.Setting = autoprune.SettingName
	}
	pattern, matches := s.Policy.Pattern()
	if !pattern.IsZero() {
		text := pattern.String()
		v.TagPattern = &text
	}
	v.TagPatternMatches = matches
	return v
}

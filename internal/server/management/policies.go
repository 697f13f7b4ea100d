package management

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/policy"
	"github.com/purser-registry/purser/internal/server"
)

// targetOf returns whose policies an operation is about: the registry's, a namespace's or a repository's.
func targetOf(at api.PolicyAt) autoprune.Target {
	return autoprune.Target{Namespace: at.Namespace, Repository: at.Repository}
}

// parsePolicy parses a policy. `id` is the policy's id in the request's path, "" for a new policy.
// parsePolicy returns an error if the body has the id of a different policy, because the client
// probably meant to change that policy.
func parsePolicy(p api.PolicyText, id string) (policy.Policy, error) {
	var members struct {
		UUID json.RawMessage `json:"uuid"`
	}
	if id != "" && json.Unmarshal(p, &members) == nil && members.UUID != nil {
		var given string
		if err := json.Unmarshal(members.UUID, &given); err != nil || given != id {
			return policy.Policy{}, server.Refusal(http.StatusBadRequest, "uuid: the body is of policy %s and the path of policy %s", members.UUID, id)
		}
	}
	parsed, err := policy.Parse(p, api.ReadOnlyOfPolicies...)
	if field, ok := errors.AsType[*policy.FieldError](err); ok {
		return parsed, server.Refusal(http.StatusBadRequest, "%s", field.Error()).WithDetail(map[string]string{"field": field.Field})
	}
	return parsed, err
}

// triedPolicy parses the policy that a request tries out; nil: it names none.
func triedPolicy(p *api.PolicyText) (*policy.Policy, error) {
	if p == nil || len(*p) == 0 {
		return nil, nil
	}
	parsed, err := parsePolicy(*p, "")
	return &parsed, err
}

func viewPolicy(s autoprune.Saved) api.PolicyView {
	v := api.PolicyView{
		UUID: s.ID, Method: string(s.Policy.Method), Value: s.Policy.Value(), Counting: s.Policy.Counting, RemoveOrphans: s.Policy.RemoveOrphans, Selectors: s.Policy.Selectors,
		Safeguards: s.Policy.Safeguards, Keep: s.Policy.Keep, TagPatternMatches: !s.Policy.Excludes(),
		Warnings: s.Policy.Warnings(), Problem: s.Problem, Stored: s.Stored, Version: s.Version, CreatedAt: s.Created.UTC(), UpdatedAt: s.Updated.UTC(),
	}
	if s.ActiveFrom != nil {
		at := s.ActiveFrom.UTC()
		v.ActiveFrom = &at
	}
	if s.Setting {
		v.Setting = autoprune.SettingName
	}
	if pattern := s.Policy.TagPattern; !pattern.IsZero() {
		text := pattern.String()
		v.TagPattern = &text
	}
	return v
}

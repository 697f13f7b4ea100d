package management

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/autoprune/warnings"
	"github.com/purser-registry/purser/internal/policy"
	"github.com/purser-registry/purser/internal/server"
)

// targetOf returns whose policies an operation is about: the registry's, a namespace's or a repository's.
func targetOf(at api.PolicyAt) policies.Target {
	return policies.Target{Namespace: at.Namespace, Repository: at.Repository}
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

func viewPolicy(s policies.Saved) api.PolicyView {
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
		v.Setting = policies.SettingName
	}
	if pattern := s.Policy.TagPattern; !pattern.IsZero() {
		text := pattern.String()
		v.TagPattern = &text
	}
	return v
}

// consent judges a change of policies, and returns what the client says to its warnings. It returns
// an error, with status 409, if the client hasn't confirmed them.
func (a *API) consent(ctx context.Context, t policies.Target, c warnings.Change, confirm string) (policies.Consent, error) {
	done, err := a.turn(ctx)
	if err != nil {
		return policies.Consent{}, err
	}
	defer done()
	found, err := a.opt.Autoprune.Warnings.OfChange(ctx, t, c)
	if err != nil {
		return policies.Consent{}, err
	}
	out := policies.Consent{Warnings: found}
	if confirm == "" && t.Scope() != policy.DefaultScope && c.Defaults == nil { // Quay has no defaults
		return out, nil
	}
	known, err := a.confirmedBefore(ctx, t, c)
	if err != nil {
		return out, err
	}
	out.Confirmed = slices.Concat(known, policy.Codes(found))
	if slices.Contains(known, policies.Everything) && len(known) == 1 {
		out.Confirmed = known
	}
	slices.Sort(out.Confirmed)
	if out.Confirmed = slices.Compact(out.Confirmed); out.Confirmed == nil {
		out.Confirmed = []policy.WarningCode{}
	}
	if confirm != "all" {
		for code := range strings.SplitSeq(confirm, ",") {
			known = append(known, policy.WarningCode(code))
		}
		if left := policies.Unconfirmed(found, known); len(left) > 0 {
			return out, server.Refusal(http.StatusConflict, "nothing was changed, since somebody must confirm this first: %s", strings.Join(policy.Sentences(left), "; ")).
				WithDetail(map[string]any{"warnings": left})
		}
	}
	return out, nil
}

// confirmedBefore returns the codes that were confirmed when the policy was saved, if the change
// leaves it as it is.
func (a *API) confirmedBefore(ctx context.Context, t policies.Target, c warnings.Change) ([]policy.WarningCode, error) {
	if c.ID == "" || c.Policy == nil {
		return nil, nil
	}
	s, err := a.opt.Autoprune.Policies.Get(ctx, t, c.ID)
	if err != nil || s.Problem != "" || !s.Policy.Equal(*c.Policy) {
		return nil, err
	}
	return slices.Clone(s.Confirmed), nil
}

// policyUpdated is the answer to the update of a policy.
type policyUpdated struct {
	Warning []string `header:"Warning" doc:"What the policy surely wasn't meant to do, as 299 - \"…\""`
}

// addPolicies binds the operations on the auto-prune policies of the registry, of namespaces and of
// repositories.
func (a *API) addPolicies() {
	if a.opt.Autoprune == nil {
		return
	}
	serve(a, api.ListPolicies, func(ctx context.Context, in *api.PolicyAt) (*api.PolicyList, error) {
		list, err := a.opt.Autoprune.Policies.List(ctx, targetOf(*in))
		out := &api.PolicyList{Policies: make([]api.PolicyView, len(list))}
		for i, s := range list {
			out.Policies[i] = viewPolicy(s)
		}
		return out, err
	})
	serve(a, api.CreatePolicy, a.createPolicy)
	serve(a, api.GetPolicy, func(ctx context.Context, in *api.PolicyItem) (*api.PolicyView, error) {
		s, err := a.opt.Autoprune.Policies.Get(ctx, targetOf(in.PolicyAt), in.UUID)
		if err != nil {
			return nil, err
		}
		v := viewPolicy(s)
		return &v, nil
	})
	serveAnswer(a, api.UpdatePolicy, a.updatePolicy, nil)
	serve(a, api.DeletePolicy, a.deletePolicy)
	serve(a, api.PreviewPolicy, a.previewPolicy)
	if a.opt.Forecasts != nil {
		serve(a, api.ForecastPolicy, a.forecastPolicy)
	}
}

func (a *API) createPolicy(ctx context.Context, in *api.PolicyNew) (*api.PolicyIDBody, error) {
	wanted, err := parsePolicy(in.Body, "")
	if err != nil {
		return nil, err
	}
	untagged, err := a.opt.Autoprune.Policies.UntaggedWarnings(ctx, wanted)
	if err != nil {
		return nil, err
	}
	target := targetOf(in.PolicyAt)
	consent, err := a.consent(ctx, target, warnings.Change{Policy: &wanted}, in.Confirm)
	if err != nil {
		return nil, err
	}
	id, err := a.opt.Autoprune.Policies.CreateConfirmed(ctx, target, wanted, consent)
	return &api.PolicyIDBody{UUID: id, Warnings: append(policy.Sentences(consent.Warnings), untagged...), Found: consent.Warnings}, err
}

func (a *API) updatePolicy(ctx context.Context, in *api.PolicyChange) (*policyUpdated, error) {
	prune, id := a.opt.Autoprune, in.UUID
	wanted, err := parsePolicy(in.Body, id)
	if err != nil {
		return nil, err
	}
	untagged, err := prune.Policies.UntaggedWarnings(ctx, wanted)
	if err != nil {
		return nil, err
	}
	target, version := targetOf(in.PolicyAt), in.Version
	if s, err := prune.Policies.Get(ctx, target, id); err == nil && version != 0 && s.Version != version {
		return nil, prune.Policies.UpdateVersion(ctx, target, id, wanted, version) // says that somebody has saved it
	}
	consent, err := a.consent(ctx, target, warnings.Change{ID: id, Policy: &wanted}, in.Confirm)
	if err != nil {
		return nil, err
	}
	return &policyUpdated{warningHeaders(append(policy.Sentences(consent.Warnings), untagged...))},
		prune.Policies.UpdateConfirmed(ctx, target, id, wanted, version, consent)
}

func (a *API) deletePolicy(ctx context.Context, in *api.PolicyRemoval) (*api.PolicyIDBody, error) {
	id, target := in.UUID, targetOf(in.PolicyAt)
	consent, err := a.consent(ctx, target, warnings.Change{ID: id}, in.Confirm)
	if err != nil {
		return nil, err
	}
	return &api.PolicyIDBody{UUID: id, Found: consent.Warnings}, a.opt.Autoprune.Policies.DeleteConfirmed(ctx, target, id, consent)
}

// warningHeaders formats each warning as a value of the answer's Warning header (OCI
// Distribution Specification, "Warnings").
func warningHeaders(texts []string) []string {
	headers := make([]string, len(texts))
	for i, text := range texts {
		headers[i] = "299 - " + strconv.QuoteToASCII(text)
	}
	return headers
}

// previewMemory is how many bytes of memory a preview takes for each tag of the limit: it has four lists,
// and an entry with long names takes 2 KiB as it is read and as it is sent.
const previewMemory = 8 << 10

// takePreview takes memory for a preview that lists up to `limit` tags in each list. It returns how many
// the preview lists: fewer, but not fewer than 100, if there isn't enough memory now.
func takePreview(ctx context.Context, limit int) (int, error) {
	lease := server.Observed(ctx).Lease
	for ; limit > 100; limit = max(limit/2, 100) {
		if lease.TryStream(int64(limit) * previewMemory) {
			return limit, nil
		}
	}
	_, err := lease.Take(ctx, int64(limit)*previewMemory)
	return limit, err
}

// previewPolicy tells what policies would delete.
func (a *API) previewPolicy(ctx context.Context, in *api.PreviewInput) (*api.JudgedPreview, error) {
	policy, err := triedPolicy(in.Body)
	if err != nil {
		return nil, err
	}
	viewer, err := a.server.Viewer(ctx)
	if err != nil {
		return nil, err
	}
	o, t := autoprune.PreviewOptions{Policy: policy, HideBytes: in.TagsOnly || !viewer.Unlimited()}, targetOf(in.PolicyAt)
	if o.Limit, err = takePreview(ctx, min(in.Limit, api.MaxPreviewed)); err != nil {
		return nil, err
	}
	done, err := a.turn(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	p, err := a.opt.Autoprune.Preview(ctx, t, o)
	if err != nil {
		return nil, err
	}
	out := &api.JudgedPreview{Preview: *p}
	if policy != nil {
		out.Found, err = a.opt.Autoprune.Warnings.OfChange(ctx, t, warnings.Change{Policy: policy})
	}
	return out, err
}

package management

import (
	"context"
	"strconv"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/policy"
)

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
		list, err := a.opt.Autoprune.List(ctx, targetOf(*in))
		out := &api.PolicyList{Policies: make([]api.PolicyView, len(list))}
		for i, s := range list {
			out.Policies[i] = viewPolicy(s)
		}
		return out, err
	})
	serve(a, api.CreatePolicy, a.createPolicy)
	serve(a, api.GetPolicy, func(ctx context.Context, in *api.PolicyItem) (*api.PolicyView, error) {
		s, err := a.opt.Autoprune.Get(ctx, targetOf(in.PolicyAt), in.UUID)
		if err != nil {
			return nil, err
		}
		v := viewPolicy(s)
		return &v, nil
	})
	serveAnswer(a, api.UpdatePolicy, a.updatePolicy, nil)
	serve(a, api.DeletePolicy, a.deletePolicy)
	serve(a, api.PreviewPolicy, a.previewPolicy)
	serve(a, api.ForecastPolicy, a.forecastPolicy)
}

func (a *API) createPolicy(ctx context.Context, in *api.PolicyNew) (*api.PolicyIDBody, error) {
	wanted, err := parsePolicy(in.Body, "")
	if err != nil {
		return nil, err
	}
	warnings, err := a.opt.Autoprune.UntaggedWarnings(ctx, wanted)
	if err != nil {
		return nil, err
	}
	target := targetOf(in.PolicyAt)
	consent, err := a.consent(ctx, target, autoprune.Change{Policy: &wanted}, in.Confirm)
	if err != nil {
		return nil, err
	}
	id, err := a.opt.Autoprune.CreateConfirmed(ctx, target, wanted, consent)
	return &api.PolicyIDBody{UUID: id, Warnings: append(policy.Sentences(consent.Warnings), warnings...), Found: consent.Warnings}, err
}

func (a *API) updatePolicy(ctx context.Context, in *api.PolicyChange) (*policyUpdated, error) {
	prune, id := a.opt.Autoprune, in.UUID
	wanted, err := parsePolicy(in.Body, id)
	if err != nil {
		return nil, err
	}
	warnings, err := prune.UntaggedWarnings(ctx, wanted)
	if err != nil {
		return nil, err
	}
	target, version := targetOf(in.PolicyAt), in.Version
	if s, err := prune.Get(ctx, target, id); err == nil && version != 0 && s.Version != version {
		return nil, prune.UpdateVersion(ctx, target, id, wanted, version) // says that somebody has saved it
	}
	consent, err := a.consent(ctx, target, autoprune.Change{ID: id, Policy: &wanted}, in.Confirm)
	if err != nil {
		return nil, err
	}
	return &policyUpdated{warningHeaders(append(policy.Sentences(consent.Warnings), warnings...))},
		prune.UpdateConfirmed(ctx, target, id, wanted, version, consent)
}

func (a *API) deletePolicy(ctx context.Context, in *api.PolicyRemoval) (*api.PolicyIDBody, error) {
	id, target := in.UUID, targetOf(in.PolicyAt)
	consent, err := a.consent(ctx, target, autoprune.Change{ID: id}, in.Confirm)
	if err != nil {
		return nil, err
	}
	return &api.PolicyIDBody{UUID: id, Found: consent.Warnings}, a.opt.Autoprune.DeleteConfirmed(ctx, target, id, consent)
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

package management

import (
	"context"
	"net/http"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/autoprune"
)

type (
	policyIDBody struct {
		UUID     string              `json:"uuid" doc:"Identifier of the policy"`
		Warnings []string            `json:"warnings,omitempty" doc:"What the policy surely wasn't meant to do, as sentences"`
		Found    []autoprune.Warning `json:"found,omitempty" doc:"The same with codes, numbers and examples; of a deletion, what other policies would delete without the policy"`
	}
	policyCreated struct{ Body policyIDBody }
	policyUpdated struct {
		Warning []string `header:"Warning" doc:"What the policy surely wasn't meant to do, as 299 - \"…\""`
	}
	policyListed struct {
		Body struct {
			Policies []api.PolicyView `json:"policies" nullable:"false"`
		}
	}
	policyTold struct{ Body api.PolicyView }
)

// addPolicies adds the operations on the auto-prune policies of the registry, of namespaces
// and of repositories.
func (a *API) addPolicies() {
	if a.opt.Autoprune == nil {
		return
	}
	addPoliciesOf[PolicyOfNamespace, struct {
		PolicyOfNamespace
		PolicyConfirmation
		PolicyBody
	}, struct {
		PolicyOfNamespace
		PolicyItem
	}, struct {
		PolicyOfNamespace
		PolicyItem
		PolicyVersion
		PolicyConfirmation
		PolicyBody
	}, struct {
		PolicyOfNamespace
		PolicyItem
		PolicyConfirmation
	}](a, "/organization/{orgname}/autoprunepolicy", "Organization", "a namespace")
	addPoliciesOf[PolicyOfRepository, struct {
		PolicyOfRepository
		PolicyConfirmation
		PolicyBody
	}, struct {
		PolicyOfRepository
		PolicyItem
	}, struct {
		PolicyOfRepository
		PolicyItem
		PolicyVersion
		PolicyConfirmation
		PolicyBody
	}, struct {
		PolicyOfRepository
		PolicyItem
		PolicyConfirmation
	}](a, "/repository/{repository}/autoprunepolicy", "Repository", "a repository")
	addPoliciesOf[PolicyOfRegistry, struct {
		PolicyOfRegistry
		PolicyConfirmation
		PolicyBody
	}, struct {
		PolicyOfRegistry
		PolicyItem
	}, struct {
		PolicyOfRegistry
		PolicyItem
		PolicyVersion
		PolicyConfirmation
		PolicyBody
	}, struct {
		PolicyOfRegistry
		PolicyItem
		PolicyConfirmation
	}](a, "/autoprunepolicy", "Default", "the registry's defaults")
	a.addUserPolicies()
	a.addPreviews()
	a.addForecasts()
}

// The inputs of the operations on policies implement these interfaces. target returns the scope
// of the policies: the registry, a namespace or a repository. item returns the policy's id,
// text the policy in the body, and version the version that the client wants to change.
type (
	targeted  interface{ target() autoprune.Target }
	named     interface{ item() string }
	written   interface{ text() policyText }
	versioned interface{ version() int64 }
)

// addPoliciesOf adds the operations on the policies of one scope: the registry, a namespace or
// a repository. The type parameters are the inputs of these operations: L for listing policies,
// C for creating a policy, I for getting and D for deleting a policy, and U for updating a policy.
func addPoliciesOf[L, C, I, U, D any](a *API, path, name, of string) {
	tags := []string{"autoprune"}
	bad := []int{http.StatusNotFound, http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType}
	add(a, auth.Maintain, huma.Operation{
		OperationID: "list" + name + "AutoPrunePolicies", Method: http.MethodGet, Path: path, Tags: tags,
		Summary: "List the auto-prune policies of " + of, Errors: []int{http.StatusNotFound},
	}, func(ctx context.Context, in *L) (*policyListed, error) {
		return a.listPolicies(ctx, any(in).(targeted))
	})
	add(a, auth.Maintain, huma.Operation{
		OperationID: "create" + name + "AutoPrunePolicy", Method: http.MethodPost, Path: path, Tags: tags,
		Summary:       "Create an auto-prune policy of " + of,
		Description:   "The policy is applied within autoprune.interval. Preview it first. 409: what it surely wasn't meant to do wasn't confirmed.",
		DefaultStatus: http.StatusCreated, Errors: bad, SkipValidateBody: true,
	}, func(ctx context.Context, in *C) (*policyCreated, error) {
		return a.createPolicy(ctx, any(in).(policyCreation))
	})
	path += "/{policy_uuid}"
	add(a, auth.Maintain, huma.Operation{
		OperationID: "get" + name + "AutoPrunePolicy", Method: http.MethodGet, Path: path, Tags: tags,
		Summary: "Get an auto-prune policy of " + of, Errors: []int{http.StatusNotFound},
	}, func(ctx context.Context, in *I) (*policyTold, error) {
		return a.getPolicy(ctx, any(in).(policySelection))
	})
	add(a, auth.Maintain, huma.Operation{
		OperationID: "update" + name + "AutoPrunePolicy", Method: http.MethodPut, Path: path, Tags: tags,
		Summary: "Replace an auto-prune policy of " + of,
		Description: "Tags that an undo has exempted from the policy aren't exempt any more if it has another rule: method, value, pattern or selectors. " +
			"The body may be what was read: read-only members are ignored, but the uuid of another policy is refused. " +
			"With version, a policy that somebody else has saved since is left as it is: 409.",
		DefaultStatus: http.StatusNoContent, Errors: bad, SkipValidateBody: true,
	}, func(ctx context.Context, in *U) (*policyUpdated, error) {
		return a.updatePolicy(ctx, any(in).(policyUpdate))
	})
	add(a, auth.Maintain, huma.Operation{
		OperationID: "delete" + name + "AutoPrunePolicy", Method: http.MethodDelete, Path: path, Tags: tags,
		Summary: "Delete an auto-prune policy of " + of, Description: "After the answer the policy deletes nothing any more. What it kept from other policies stays for its grace period. " +
			"409: the policy belongs to a setting, or what other policies would delete without it wasn't confirmed.",
		Errors: []int{http.StatusNotFound, http.StatusConflict},
	}, func(ctx context.Context, in *D) (*policyCreated, error) {
		return a.deletePolicy(ctx, any(in).(policyDeletion))
	})
}

// The inputs of the handlers that follow.
type (
	policySelection interface {
		targeted
		named
	}
	policyCreation interface {
		targeted
		written
		confirming
	}
	policyUpdate interface {
		policySelection
		written
		versioned
		confirming
	}
	policyDeletion interface {
		policySelection
		confirming
	}
)

func (a *API) listPolicies(ctx context.Context, in targeted) (*policyListed, error) {
	list, err := a.opt.Autoprune.List(ctx, in.target())
	out := new(policyListed)
	out.Body.Policies = make([]api.PolicyView, len(list))
	for i, s := range list {
		out.Body.Policies[i] = viewPolicy(s)
	}
	return out, err
}

func (a *API) createPolicy(ctx context.Context, in policyCreation) (*policyCreated, error) {
	policy, err := in.text().parse("")
	if err != nil {
		return nil, err
	}
	warnings, err := a.opt.Autoprune.UntaggedWarnings(ctx, policy)
	if err != nil {
		return nil, err
	}
	target := in.target()
	consent, err := a.consent(ctx, target, autoprune.Change{Policy: &policy}, in.confirm())
	if err != nil {
		return nil, err
	}
	id, err := a.opt.Autoprune.CreateConfirmed(ctx, target, policy, consent)
	return &policyCreated{policyIDBody{id, append(autoprune.Sentences(consent.Warnings), warnings...), consent.Warnings}}, err
}

func (a *API) getPolicy(ctx context.Context, in policySelection) (*policyTold, error) {
	s, err := a.opt.Autoprune.Get(ctx, in.target(), in.item())
	if err != nil {
		return nil, err
	}
	return &policyTold{viewPolicy(s)}, nil
}

func (a *API) updatePolicy(ctx context.Context, in policyUpdate) (*policyUpdated, error) {
	prune, id := a.opt.Autoprune, in.item()
	policy, err := in.text().parse(id)
	if err != nil {
		return nil, err
	}
	warnings, err := prune.UntaggedWarnings(ctx, policy)
	if err != nil {
		return nil, err
	}
	target, version := in.target(), in.version()
	if s, err := prune.Get(ctx, target, id); err == nil && version != 0 && s.Version != version {
		return nil, prune.UpdateVersion(ctx, target, id, policy, version) // says that somebody has saved it
	}
	consent, err := a.consent(ctx, target, autoprune.Change{ID: id, Policy: &policy}, in.confirm())
	if err != nil {
		return nil, err
	}
	return &policyUpdated{warningHeaders(append(autoprune.Sentences(consent.Warnings), warnings...))},
		prune.UpdateConfirmed(ctx, target, id, policy, version, consent)
}

func (a *API) deletePolicy(ctx context.Context, in policyDeletion) (*policyCreated, error) {
	id, target := in.item(), in.target()
	consent, err := a.consent(ctx, target, autoprune.Change{ID: id}, in.confirm())
	if err != nil {
		return nil, err
	}
	return &policyCreated{policyIDBody{UUID: id, Found: consent.Warnings}}, a.opt.Autoprune.DeleteConfirmed(ctx, target, id, consent)
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

package management

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"reflect"
	"strconv"

	"github.com/purser-registry/purser/internal/api"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/auth"
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
	prune, tags := a.opt.Autoprune, []string{"autoprune"}
	bad := []int{http.StatusNotFound, http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType}
	add(a, auth.Maintain, huma.Operation{
		OperationID: "list" + name + "AutoPrunePolicies", Method: http.MethodGet, Path: path, Tags: tags,
		Summary: "List the auto-prune policies of " + of, Errors: []int{http.StatusNotFound},
	}, func(ctx context.Context, in *L) (*policyListed, error) {
		list, err := prune.List(ctx, any(in).(targeted).target())
		out := new(policyListed)
		out.Body.Policies = make([]api.PolicyView, len(list))
		for i, s := range list {
			out.Body.Policies[i] = viewPolicy(s)
		}
		return out, err
	})
	add(a, auth.Maintain, huma.Operation{
		OperationID: "create" + name + "AutoPrunePolicy", Method: http.MethodPost, Path: path, Tags: tags,
		Summary:       "Create an auto-prune policy of " + of,
		Description:   "The policy is applied within autoprune.interval. Preview it first. 409: what it surely wasn't meant to do wasn't confirmed.",
		DefaultStatus: http.StatusCreated, Errors: bad, SkipValidateBody: true,
	}, func(ctx context.Context, in *C) (*policyCreated, error) {
		policy, err := any(in).(written).text().parse("")
		if err != nil {
			return nil, err
		}
		warnings, err := prune.UntaggedWarnings(ctx, policy)
		if err != nil {
			return nil, err
		}
		target := any(in).(targeted).target()
		consent, err := a.consent(ctx, target, autoprune.Change{Policy: &policy}, any(in).(confirming).confirm())
		if err != nil {
			return nil, err
		}
		id, err := prune.CreateConfirmed(ctx, target, policy, consent)
		return &policyCreated{policyIDBody{id, append(autoprune.Sentences(consent.Warnings), warnings...), consent.Warnings}}, err
	})
	path += "/{policy_uuid}"
	add(a, auth.Maintain, huma.Operation{
		OperationID: "get" + name + "AutoPrunePolicy", Method: http.MethodGet, Path: path, Tags: tags,
		Summary: "Get an auto-prune policy of " + of, Errors: []int{http.StatusNotFound},
	}, func(ctx context.Context, in *I) (*policyTold, error) {
		s, err := prune.Get(ctx, any(in).(targeted).target(), any(in).(named).item())
		if err != nil {
			return nil, err
		}
		return &policyTold{viewPolicy(s)}, nil
	})
	add(a, auth.Maintain, huma.Operation{
		OperationID: "update" + name + "AutoPrunePolicy", Method: http.MethodPut, Path: path, Tags: tags,
		Summary: "Replace an auto-prune policy of " + of,
		Description: "Tags that an undo has exempted from the policy aren't exempt any more if it has another rule: method, value, pattern or selectors. " +
			"The body may be what was read: read-only members are ignored, but the uuid of another policy is refused. " +
			"With version, a policy that somebody else has saved since is left as it is: 409.",
		DefaultStatus: http.StatusNoContent, Errors: bad, SkipValidateBody: true,
	}, func(ctx context.Context, in *U) (*policyUpdated, error) {
		id := any(in).(named).item()
		policy, err := any(in).(written).text().parse(id)
		if err != nil {
			return nil, err
		}
		warnings, err := prune.UntaggedWarnings(ctx, policy)
		if err != nil {
			return nil, err
		}
		target, version := any(in).(targeted).target(), any(in).(versioned).version()
		if s, err := prune.Get(ctx, target, id); err == nil && version != 0 && s.Version != version {
			return nil, prune.UpdateVersion(ctx, target, id, policy, version) // says that somebody has saved it
		}
		consent, err := a.consent(ctx, target, autoprune.Change{ID: id, Policy: &policy}, any(in).(confirming).confirm())
		if err != nil {
			return nil, err
		}
		return &policyUpdated{warningHeaders(append(autoprune.Sentences(consent.Warnings), warnings...))},
			prune.UpdateConfirmed(ctx, target, id, policy, version, consent)
	})
	add(a, auth.Maintain, huma.Operation{
		OperationID: "delete" + name + "AutoPrunePolicy", Method: http.MethodDelete, Path: path, Tags: tags,
		Summary: "Delete an auto-prune policy of " + of, Description: "After the answer the policy deletes nothing any more. What it kept from other policies stays for its grace period. " +
			"409: the policy belongs to a setting, or what other policies would delete without it wasn't confirmed.",
		Errors: []int{http.StatusNotFound, http.StatusConflict},
	}, func(ctx context.Context, in *D) (*policyCreated, error) {
		id, target := any(in).(named).item(), any(in).(targeted).target()
		consent, err := a.consent(ctx, target, autoprune.Change{ID: id}, any(in).(confirming).confirm())
		if err != nil {
			return nil, err
		}
		return &policyCreated{policyIDBody{UUID: id, Found: consent.Warnings}}, prune.DeleteConfirmed(ctx, target, id, consent)
	})
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

// previewMemory is how many bytes of memory the tags of a preview take for each tag of the limit.
const previewMemory = 3 << 10

// addPreviews adds the operations that show what policies would delete.
func (a *API) addPreviews() {
	type namespaceInput struct {
		PolicyOfNamespace
		Limit    int         `query:"limit" minimum:"1" default:"100" doc:"Most tags of each list: tags that would be deleted, and tags that would stay. More than 10000 counts as 10000"`
		TagsOnly bool        `query:"tags_only" doc:"Leave out bytes_freed: to add up the bytes takes most of the time that a preview of many tags takes"`
		Body     *policyText `required:"false"`
	}
	type repositoryInput struct {
		PolicyOfRepository
		Limit    int         `query:"limit" minimum:"1" default:"100" doc:"Most tags of each list: tags that would be deleted, and tags that would stay. More than 10000 counts as 10000"`
		TagsOnly bool        `query:"tags_only" doc:"Leave out bytes_freed: to add up the bytes takes most of the time that a preview of many tags takes"`
		Body     *policyText `required:"false"`
	}
	type output struct{ Body judgedPreview }
	preview := func(ctx context.Context, t autoprune.Target, text *policyText, limit int, tagsOnly bool) (*output, error) {
		o := autoprune.PreviewOptions{Limit: limit}
		if text != nil && len(*text) > 0 {
			policy, err := text.parse("")
			if err != nil {
				return nil, err
			}
			o.Policy = &policy
		}
		viewer, err := a.server.Viewer(ctx)
		if err != nil {
			return nil, err
		}
		o.HideBytes = tagsOnly || !viewer.Unlimited()
		if _, err := server.Observed(ctx).Lease.Take(ctx, int64(limit)*previewMemory); err != nil {
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
		out := judgedPreview{Preview: *p}
		if o.Policy != nil {
			out.Found, err = a.opt.Autoprune.Judge(ctx, t, autoprune.Change{Policy: o.Policy})
		}
		return &output{out}, err
	}
	operation := func(of, name, path string) huma.Operation {
		return huma.Operation{
			OperationID: "preview" + name + "AutoPrunePolicy", Method: http.MethodPost, Path: path + "/autoprunepolicy/preview",
			Tags: []string{"autoprune"}, Summary: "Tell what auto-pruning would delete in " + of,
			Description: "With a policy as the body: what that policy alone would delete. Without a body: what all policies " +
				"that apply now would. Nothing is changed. The judgement is the run's own; it is given up after a minute, " +
				"and complete is false then. Ask with tags_only=true first to show the tags at once, and then for the bytes.",
			Errors: []int{http.StatusNotFound, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType}, SkipValidateBody: true,
		}
	}
	add(a, auth.Maintain, operation("a namespace", "Organization", "/organization/{orgname}"), func(ctx context.Context, in *namespaceInput) (*output, error) {
		return preview(ctx, in.target(), in.Body, min(in.Limit, 10_000), in.TagsOnly)
	})
	add(a, auth.Maintain, operation("a repository", "Repository", "/repository/{repository}"), func(ctx context.Context, in *repositoryInput) (*output, error) {
		return preview(ctx, in.target(), in.Body, min(in.Limit, 10_000), in.TagsOnly)
	})
}

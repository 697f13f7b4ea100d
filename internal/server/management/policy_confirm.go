package management

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/server"
)

// PolicyConfirmation is the query parameter by which a client says that somebody has seen what a
// policy surely wasn't meant to do. It is exported because huma reads only exported fields.
type PolicyConfirmation struct {
	Confirm string `query:"confirm" doc:"none: refuse with 409 what has warnings, which are in details. all: do it all the same. Codes of warnings with commas between them: do it if there are no others. Absent: do it, as Quay does, and tell the warnings; for the registry's default policies, none" example:"none"`
}

func (c PolicyConfirmation) confirm() string { return c.Confirm }

type confirming interface{ confirm() string }

// consent judges a change of policies, and returns what the client says to its warnings. It returns
// an error, with status 409, if the client hasn't confirmed them.
func (a *API) consent(ctx context.Context, t autoprune.Target, c autoprune.Change, confirm string) (autoprune.Consent, error) {
	done, err := a.turn(ctx)
	if err != nil {
		return autoprune.Consent{}, err
	}
	defer done()
	found, err := a.opt.Autoprune.Judge(ctx, t, c)
	if err != nil {
		return autoprune.Consent{}, err
	}
	out := autoprune.Consent{Warnings: found}
	if confirm == "" && t.Scope() != autoprune.DefaultScope {
		return out, nil
	}
	known, err := a.confirmedBefore(ctx, t, c)
	if err != nil {
		return out, err
	}
	out.Confirmed = slices.Concat(known, autoprune.Codes(found))
	if slices.Contains(known, autoprune.Everything) && len(known) == 1 {
		out.Confirmed = known
	}
	slices.Sort(out.Confirmed)
	if out.Confirmed = slices.Compact(out.Confirmed); out.Confirmed == nil {
		out.Confirmed = []autoprune.WarningCode{}
	}
	if confirm != "all" {
		for code := range strings.SplitSeq(confirm, ",") {
			known = append(known, autoprune.WarningCode(code))
		}
		if left := autoprune.Unconfirmed(found, known); len(left) > 0 {
			return out, server.Refusal(http.StatusConflict, "nothing was changed, since somebody must confirm this first: %s", strings.Join(autoprune.Sentences(left), "; ")).
				WithDetail(map[string]any{"warnings": left})
		}
	}
	return out, nil
}

// confirmedBefore returns the codes that were confirmed when the policy was saved, if the change
// leaves it as it is.
func (a *API) confirmedBefore(ctx context.Context, t autoprune.Target, c autoprune.Change) ([]autoprune.WarningCode, error) {
	if c.ID == "" || c.Policy == nil {
		return nil, nil
	}
	s, err := a.opt.Autoprune.Get(ctx, t, c.ID)
	if err != nil || s.Problem != "" || !s.Policy.Equal(*c.Policy) {
		return nil, err
	}
	return slices.Clone(s.Confirmed), nil
}

// judgedPreview is a preview with the warnings about the policy that is tried out.
type judgedPreview struct {
	autoprune.Preview
	Found []autoprune.Warning `json:"found,omitempty" doc:"What the policy in the body surely wasn't meant to do, by the tags that there are"`
}

// restConfirmation is the body of a request that confirms the warnings of a policy that rests.
type restConfirmation struct {
	Version int64                   `json:"version" minimum:"1" doc:"Version of the policy"`
	Codes   []autoprune.WarningCode `json:"codes" nullable:"false" maxItems:"32" doc:"Codes of the warnings: all for which the policy rests"`
}

// addRests adds the operation that lets a policy delete that rests until its warnings are confirmed.
func (a *API) addRests() {
	type input struct {
		PolicyOfNamespace
		PolicyItem
		Body restConfirmation
	}
	add(a, auth.Maintain, huma.Operation{
		OperationID: "confirmAutoPruneRest", Method: http.MethodPost, Path: "/organization/{orgname}/autoprune/rests/{policy_uuid}/confirm", Tags: []string{"autoprune"},
		Summary: "Let a policy that rests in a namespace delete what it surely wasn't meant to delete",
		Description: "The state of auto-pruning in the namespace lists the policies that rest, with their warnings. The namespace is put at the head of the queue. " +
			"409: the policy has another version, or rests for a warning whose code isn't in the body.",
		DefaultStatus: http.StatusNoContent,
		Errors:        []int{http.StatusNotFound, http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType},
	}, func(ctx context.Context, in *input) (*struct{}, error) {
		return nil, a.opt.Autoprune.ConfirmRest(ctx, in.Namespace, in.Policy, in.Body.Version, in.Body.Codes)
	})
}

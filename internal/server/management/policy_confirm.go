package management

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/policy"
	"github.com/purser-registry/purser/internal/server"
)

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
	if confirm == "" && t.Scope() != policy.DefaultScope && c.Defaults == nil { // Quay has no defaults
		return out, nil
	}
	known, err := a.confirmedBefore(ctx, t, c)
	if err != nil {
		return out, err
	}
	out.Confirmed = slices.Concat(known, policy.Codes(found))
	if slices.Contains(known, autoprune.Everything) && len(known) == 1 {
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
		if left := autoprune.Unconfirmed(found, known); len(left) > 0 {
			return out, server.Refusal(http.StatusConflict, "nothing was changed, since somebody must confirm this first: %s", strings.Join(policy.Sentences(left), "; ")).
				WithDetail(map[string]any{"warnings": left})
		}
	}
	return out, nil
}

// confirmedBefore returns the codes that were confirmed when the policy was saved, if the change
// leaves it as it is.
func (a *API) confirmedBefore(ctx context.Context, t autoprune.Target, c autoprune.Change) ([]policy.WarningCode, error) {
	if c.ID == "" || c.Policy == nil {
		return nil, nil
	}
	s, err := a.opt.Autoprune.Get(ctx, t, c.ID)
	if err != nil || s.Problem != "" || !s.Policy.Equal(*c.Policy) {
		return nil, err
	}
	return slices.Clone(s.Confirmed), nil
}

package management

import (
	"context"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/autoprune"
)

// addExemptions binds the operations that list the tags that undos have exempted from policies, and
// end that.
func (a *API) addExemptions() {
	prune := a.opt.Autoprune
	serve(a, api.ListExemptions, func(ctx context.Context, in *api.ExemptionQuery) (*api.ExemptionList, error) {
		var after autoprune.ExemptionPlace
		if _, err := parseCursor(in.NextPage, "exemption", &after); err != nil {
			return nil, err
		}
		list, more, err := prune.Exemptions(ctx, in.Repository, after, in.Most())
		out := &api.ExemptionList{Exemptions: list}
		if more {
			last := list[len(list)-1]
			out.NextPage = cursor("exemption", autoprune.ExemptionPlace{Tag: last.Tag, Policy: last.Policy})
		}
		return out, err
	})
	serve(a, api.EndExemptions, func(ctx context.Context, in *api.ExemptionEnd) (*api.EndedExemptions, error) {
		ended, err := prune.EndExemptions(ctx, in.Repository, in.Tag)
		return &api.EndedExemptions{Ended: ended}, err
	})
}

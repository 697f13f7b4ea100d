package management

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/autoprune"
)

// addExemptions adds the operations that list the tags that undos have exempted from policies, and
// end that.
func (a *API) addExemptions() {
	prune, tags := a.opt.Autoprune, []string{"autoprune"}
	const path = "/repository/{repository}/autoprune/exemptions"
	type exemptionsInput struct {
		PolicyOfRepository
		api.Paging
	}
	type exemptionsOutput struct {
		Body struct {
			Exemptions []autoprune.Exemption `json:"exemptions" nullable:"false"`
			NextPage   string                `json:"next_page,omitempty" doc:"Where the next page begins; missing on the last page"`
		}
	}
	add(a, auth.Maintain, huma.Operation{
		OperationID: "listAutoPruneExemptions", Method: http.MethodGet, Path: path, Tags: tags,
		Summary:     "List the tags of a repository that undos have exempted from policies",
		Description: "An exemption lasts until it is ended, the tag is deleted, or the policy gets another rule.",
		Errors:      []int{http.StatusNotFound},
	}, func(ctx context.Context, in *exemptionsInput) (*exemptionsOutput, error) {
		var after autoprune.ExemptionPlace
		if _, err := parseCursor(in.NextPage, "exemption", &after); err != nil {
			return nil, err
		}
		list, more, err := prune.Exemptions(ctx, in.Repository, after, in.Most())
		out := new(exemptionsOutput)
		out.Body.Exemptions = list
		if more {
			last := list[len(list)-1]
			out.Body.NextPage = cursor("exemption", autoprune.ExemptionPlace{Tag: last.Tag, Policy: last.Policy})
		}
		return out, err
	})
	type endExemptionsInput struct {
		PolicyOfRepository
		Tag string `query:"tag" doc:"Only the exemptions of this tag. Absent: of all tags"`
	}
	type endExemptionsOutput struct {
		Body struct {
			Ended int64 `json:"ended" doc:"How many exemptions there were"`
		}
	}
	add(a, auth.Maintain, huma.Operation{
		OperationID: "endAutoPruneExemptions", Method: http.MethodDelete, Path: path, Tags: tags,
		Summary:     "Let policies select the tags again that undos have exempted from them",
		Description: "The next run may delete these tags.",
		Errors:      []int{http.StatusNotFound}, DefaultStatus: http.StatusOK,
	}, func(ctx context.Context, in *endExemptionsInput) (*endExemptionsOutput, error) {
		out := new(endExemptionsOutput)
		var err error
		out.Body.Ended, err = prune.EndExemptions(ctx, in.Repository, in.Tag)
		return out, err
	})
}

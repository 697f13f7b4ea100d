package management

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/autoprune"
)

// exceptionList is a page of a list of exceptions.
type exceptionList struct {
	Exceptions []autoprune.Exception `json:"exceptions" nullable:"false"`
	NextPage   string                `json:"next_page,omitempty" doc:"Where the next page begins; missing on the last page"`
}

// newException is the body of a request to make a repository an exception.
type newException struct {
	Until *time.Time `json:"until,omitempty" doc:"When it ends. Absent: when somebody ends it" example:"2030-01-02T15:04:05Z"`
}

// endedException says whether there was an exception to end.
type endedException struct {
	Ended bool `json:"ended" doc:"Whether it was an exception"`
}

// addExceptions adds the operations that make repositories exceptions, in which the policies of the
// namespace and of the registry delete nothing.
func (a *API) addExceptions() {
	prune, tags := a.opt.Autoprune, []string{"autoprune"}
	const path = "/repository/{repository}/autoprune/exception"
	type output struct{ Body exceptionList }
	list := func(ctx context.Context, t autoprune.Target, page api.Paging) (*output, error) {
		var after string
		if _, err := parseCursor(page.NextPage, "exception", &after); err != nil {
			return nil, err
		}
		found, more, err := prune.Exceptions(ctx, t, after, page.Most())
		out := new(output)
		if out.Body.Exceptions = found; found == nil {
			out.Body.Exceptions = []autoprune.Exception{}
		}
		if more {
			out.Body.NextPage = cursor("exception", found[len(found)-1].Repository)
		}
		return out, err
	}
	type ofNamespace struct {
		PolicyOfNamespace
		api.Paging
	}
	add(a, auth.Maintain, huma.Operation{
		OperationID: "listAutoPruneExceptions", Method: http.MethodGet, Path: "/organization/{orgname}/autoprune/exceptions", Tags: tags,
		Summary: "List the repositories in which the policies of the namespace and of the registry delete nothing", Errors: []int{http.StatusNotFound},
	}, func(ctx context.Context, in *ofNamespace) (*output, error) {
		return list(ctx, autoprune.Target{Namespace: in.Namespace}, in.Paging)
	})
	add(a, auth.Maintain, huma.Operation{
		OperationID: "getAutoPruneException", Method: http.MethodGet, Path: path, Tags: tags,
		Summary: "Ask whether a repository is an exception, in which only its own policies delete", Errors: []int{http.StatusNotFound},
	}, func(ctx context.Context, in *PolicyOfRepository) (*output, error) {
		return list(ctx, autoprune.Target{Repository: in.Repository}, api.Paging{})
	})
	type makeInput struct {
		PolicyOfRepository
		Body newException
	}
	add(a, auth.Maintain, huma.Operation{
		OperationID: "makeAutoPruneException", Method: http.MethodPut, Path: path, Tags: tags,
		Summary: "Make a repository an exception, in which only its own policies delete",
		Description: "After the answer, no policy of the namespace or of the registry deletes a tag of the repository. Their keep rules go on to keep tags. " +
			"A repository without policies of its own keeps every tag.",
		DefaultStatus: http.StatusNoContent,
		Errors:        []int{http.StatusNotFound, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType},
	}, func(ctx context.Context, in *makeInput) (*struct{}, error) {
		return nil, prune.Except(ctx, in.Repository, in.Body.Until)
	})
	type endOutput struct{ Body endedException }
	add(a, auth.Maintain, huma.Operation{
		OperationID: "endAutoPruneException", Method: http.MethodDelete, Path: path, Tags: tags,
		Summary: "Let the policies of the namespace and of the registry apply in a repository again", Description: "The next run may delete tags of it.",
		DefaultStatus: http.StatusOK, Errors: []int{http.StatusNotFound},
	}, func(ctx context.Context, in *PolicyOfRepository) (*endOutput, error) {
		out := new(endOutput)
		var err error
		out.Body.Ended, err = prune.EndException(ctx, in.Repository)
		return out, err
	})
}

package management

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/server"
	"github.com/purser-registry/purser/internal/server/runs"
)

// maxFindings limits how many findings of one run are remembered.
const maxFindings = 1000

// runTexts has the names and descriptions by which addRuns registers the operations on one kind
// of run.
type runTexts struct {
	name, path, tag               string
	start, startMore, ask, cancel string
	what                          string // for the list
}

// addRuns adds the operations that start, show and cancel runs of one kind. B is the body,
// which may be missing, of the request that starts a run. V is the body of an answer about a
// run; `view` makes it. `start` gets the context of the request, which may end before the run
// does.
func addRuns[B, R, V any](a *API, rs *runs.List[R], text runTexts, start func(context.Context, B) (*runs.Run[R], error), view func(runs.RunStatus, R) V) {
	type startInput struct{ Body *B }
	type startOutput struct {
		Location string `header:"Location" doc:"Where to ask for the run"`
		Body     V
	}
	type input struct {
		ID string `path:"id" doc:"Identifier of the run"`
	}
	type output struct{ Body V }
	add(a, auth.Operate, huma.Operation{
		OperationID: "start" + text.name, Method: http.MethodPost, Path: text.path, Tags: []string{text.tag},
		Summary: text.start, Description: text.startMore + " It runs in the replica that answers, one at a time: " +
			"409 names the run that is under way there.",
		DefaultStatus: http.StatusAccepted,
		Errors:        []int{http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType},
	}, func(ctx context.Context, in *startInput) (*startOutput, error) {
		var b B
		if in.Body != nil {
			b = *in.Body
		}
		r, err := start(ctx, b)
		if err != nil {
			return nil, err
		}
		status, report := r.View()
		return &startOutput{server.Observed(ctx).Base + apiRoot + text.path + "/" + status.ID, view(status, report)}, nil
	})
	type listBody struct {
		Runs []runs.RunStatus `json:"runs" nullable:"false" doc:"Newest first"`
	}
	type listOutput struct{ Body listBody }
	add(a, auth.Operate, huma.Operation{
		OperationID: "list" + text.name + "s", Method: http.MethodGet, Path: text.path, Tags: []string{text.tag},
		Summary: "List the runs of " + text.what, Description: "The last 10 that were started in the replica that answers.",
	}, func(context.Context, *struct{}) (*listOutput, error) { return &listOutput{listBody{rs.Newest()}}, nil })
	add(a, auth.Operate, huma.Operation{
		OperationID: "get" + text.name, Method: http.MethodGet, Path: text.path + "/{id}", Tags: []string{text.tag},
		Summary: text.ask, Description: "A replica knows the last 10 runs that were started in it.",
		Errors: []int{http.StatusNotFound},
	}, func(_ context.Context, in *input) (*output, error) {
		r, err := rs.Find(in.ID)
		if err != nil {
			return nil, err
		}
		return &output{view(r.View())}, nil
	})
	add(a, auth.Operate, huma.Operation{
		OperationID: "cancel" + text.name, Method: http.MethodDelete, Path: text.path + "/{id}", Tags: []string{text.tag},
		Summary: text.cancel, Description: "The run ends soon, and what it has done stays done. A run that has ended stays as it is.",
		DefaultStatus: http.StatusAccepted, Errors: []int{http.StatusNotFound},
	}, func(_ context.Context, in *input) (*output, error) {
		r, err := rs.Find(in.ID)
		if err != nil {
			return nil, err
		}
		r.Cancel()
		return &output{view(r.View())}, nil
	})
}

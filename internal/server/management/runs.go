package management

import (
	"context"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/server"
	"github.com/purser-registry/purser/internal/server/runs"
)

// maxFindings limits how many findings of one run are remembered.
const maxFindings = 1000

// startedRun is the answer to a request that starts a run.
type startedRun[V any] struct {
	Location string `header:"Location" doc:"Where to ask for the run"`
	Body     V
}

// serveRuns binds the operations on runs of one kind. `view` makes the answer about a run. `start`
// gets the context of the request, which may end before the run does.
func serveRuns[B, R, V any](a *API, ops api.RunOperations[B, V], rs *runs.List[R], start func(context.Context, B) (*runs.Run[R], error), view func(api.RunStatus, R) V) {
	serveAnswer(a, ops.Start, func(ctx context.Context, in *api.RunStart[B]) (*startedRun[V], error) {
		var b B
		if in.Body != nil {
			b = *in.Body
		}
		r, err := start(ctx, b)
		if err != nil {
			return nil, err
		}
		status, report := r.View()
		return &startedRun[V]{server.Observed(ctx).Base + apiRoot + ops.Start.Path + "/" + status.ID, view(status, report)}, nil
	}, func(out *startedRun[V]) *V { return &out.Body })
	serve(a, ops.List, func(context.Context, *struct{}) (*api.RunList, error) { return &api.RunList{Runs: rs.Newest()}, nil })
	serve(a, ops.Get, func(_ context.Context, in *api.RunItem) (*V, error) {
		r, err := rs.Find(in.ID)
		if err != nil {
			return nil, err
		}
		v := view(r.View())
		return &v, nil
	})
	serve(a, ops.Cancel, func(_ context.Context, in *api.RunItem) (*V, error) {
		r, err := rs.Find(in.ID)
		if err != nil {
			return nil, err
		}
		r.Cancel()
		v := view(r.View())
		return &v, nil
	})
}

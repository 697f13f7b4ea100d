package management

import (
	"context"
	"errors"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/clock"
)

// addClock adds the operations that show whether the clocks are fit to delete by, and confirm the
// database's clock.
func (a *API) addClock() {
	type output struct{ Body api.Clock }
	add(a, auth.Operate, huma.Operation{
		OperationID: "getClock", Method: http.MethodGet, Path: "/clock", Tags: []string{"system"},
		Summary:     "Get whether the clocks are fit to delete by",
		Description: "While clocks disagree, or the database's clock is in doubt, nothing is deleted for its age. The answer is about the replica that answers the request.",
	}, func(ctx context.Context, _ *struct{}) (*output, error) {
		state, err := a.clock(ctx)
		return &output{state}, err
	})
	type confirmed struct{ Body api.ClockConfirmed }
	add(a, auth.Operate, huma.Operation{
		OperationID: "confirmClock", Method: http.MethodPost, Path: "/clock/confirm", Tags: []string{"system"},
		Summary:     "Say that the database's clock is right",
		Description: "Ends the doubt about the database's clock, so that what is old by it is deleted again. It doesn't help where two clocks differ: one of them must be set.",
	}, func(ctx context.Context, _ *struct{}) (*confirmed, error) {
		if a.opt.Clocks == nil {
			state, err := a.clock(ctx)
			return &confirmed{api.ClockConfirmed{Clock: state}}, err
		}
		if err := a.logAct(ctx, audit.ChangeMaintenance, map[string]any{"confirm": "the database's clock"}); err != nil {
			return nil, err
		}
		doubt, err := a.opt.Clocks.Confirm(ctx)
		if err != nil {
			return nil, err
		}
		state, err := a.clock(ctx)
		return &confirmed{api.ClockConfirmed{Confirmed: doubt, Clock: state}}, err
	})
}

func (a *API) clock(ctx context.Context) (state api.Clock, err error) {
	if a.opt.Clocks == nil {
		return api.Clock{Deletes: true}, nil
	}
	offset, err := a.opt.Clocks.Offset(ctx)
	state.Offset = offset.Seconds()
	if d, ok := errors.AsType[*clock.Disagreement](err); ok {
		state.Problem, state.Doubt = d.Text, d.Doubt
		return state, nil
	}
	state.Deletes = err == nil
	return state, err
}

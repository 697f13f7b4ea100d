package management

import (
	"context"
	"errors"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/clock"
)

// addClock binds the operations that show whether the clocks are fit to delete by, and confirm the
// database's clock.
func (a *API) addClock() {
	serve(a, api.GetClock, func(ctx context.Context, _ *struct{}) (*api.Clock, error) {
		state, err := a.clock(ctx)
		return &state, err
	})
	serve(a, api.ConfirmClock, func(ctx context.Context, _ *struct{}) (*api.ClockConfirmed, error) {
		if a.opt.Clocks == nil {
			state, err := a.clock(ctx)
			return &api.ClockConfirmed{Clock: state}, err
		}
		if err := a.logAct(ctx, audit.ChangeMaintenance, map[string]any{"confirm": "the database's clock"}); err != nil {
			return nil, err
		}
		doubt, err := a.opt.Clocks.Confirm(ctx)
		if err != nil {
			return nil, err
		}
		if _, err := a.opt.Catalog.MendPushTimes(ctx); err != nil {
			return nil, err
		}
		state, err := a.clock(ctx)
		return &api.ClockConfirmed{Confirmed: doubt, Clock: state}, err
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

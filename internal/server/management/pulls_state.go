package management

import (
	"context"
	"net/http"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/hold"
	"github.com/purser-registry/purser/internal/pullstats"
	"github.com/purser-registry/purser/internal/server"
)

func newRedisPulls(s pullstats.RedisStatus) *api.RedisPulls {
	r := &api.RedisPulls{
		Address: s.Address, Reachable: s.Reachable, Memory: s.Memory, MaxMemory: s.MaxMemory, Status: s.State, Error: s.Error,
		Processed: optional(s.Processed), Keys: s.Keys, Problems: append([]string{}, s.Problems...),
	}
	if r.Processed != nil {
		behind := s.Behind.Seconds()
		r.Behind = &behind
	}
	return r
}

func (a *API) pullState(ctx context.Context) (*api.PullState, error) {
	if err := a.pullsOff(); err != nil {
		return nil, err
	}
	s, err := a.opt.PullStats.Status(ctx)
	if err != nil {
		return nil, a.pullsFailed(ctx, err)
	}
	out := &api.PullState{
		RecordedSince: s.Counts, UsedSince: s.Since, CheckedSince: s.Checks, CountedBy: a.opt.Recorder.CountedBy(),
		Behind: s.Behind.Seconds(), Counted: s.Counted, Last: optional(s.Last),
		LastID: s.Read.ID, LastXID: s.Read.XID, Checked: s.Checked,
	}
	if s.Unseen {
		out.Unseen = pullstats.ErrUnseen.Error()
	}
	if s.Foreign {
		out.Problem = pullstats.ErrForeignLog.Error()
	}
	if a.opt.RedisPulls != nil {
		r, err := a.opt.RedisPulls.Status(ctx)
		if err != nil {
			return nil, a.pullsFailed(ctx, err)
		}
		out.Redis = newRedisPulls(r)
	}
	return out, nil
}

// flushPulls counts all pulls that the audit log and Redis have recorded and that aren't
// counted yet. Its error is meant for the client.
func (a *API) flushPulls(ctx context.Context) error {
	if err := a.opt.PullStats.Sync(ctx); err != nil {
		return a.pullsFailed(ctx, err)
	}
	if a.opt.RedisPulls == nil {
		return nil
	}
	if err := a.opt.RedisPulls.Flush(ctx); err != nil {
		a.server.Warn(ctx, "flushing pulls in Redis failed", err)
		return server.Refusal(http.StatusServiceUnavailable, "pulls in Redis can't be counted now: %v", err)
	}
	return nil
}

// abandonRedis gives up pulls that were counted in a Redis server which the registry doesn't
// use any more, and that never reached the statistics in the database. It returns an error if
// this process still uses a Redis server.
func (a *API) abandonRedis(ctx context.Context) error {
	if a.opt.RedisPulls != nil {
		return server.Refusal(http.StatusConflict, "this process has a Redis, whose pulls are counted by \"purser pulls flush\"")
	}
	if err := a.logAct(ctx, audit.ChangeMaintenance, map[string]any{"reset": "pull statistics", "redis": true}); err != nil {
		return err
	}
	if err := a.opt.PullStats.AbandonRedis(ctx); err != nil {
		return a.pullsFailed(ctx, err)
	}
	return nil
}

// addPullState binds the operations on the state of counting.
func (a *API) addPullState() {
	serve(a, api.GetPullState, func(ctx context.Context, _ *struct{}) (*api.PullState, error) { return a.pullState(ctx) })
	serve(a, api.FlushPulls, func(ctx context.Context, _ *struct{}) (*api.PullState, error) {
		s, err := a.pullState(ctx)
		if err != nil {
			return nil, err
		}
		if s.Problem != "" {
			return nil, server.Refusal(http.StatusConflict, "%s", s.Problem)
		}
		if err := a.flushPulls(ctx); err != nil {
			return nil, err
		}
		return a.pullState(ctx)
	})
	serve(a, api.ResetPullCounts, func(ctx context.Context, in *api.PullsReset) (*api.ResetPulls, error) {
		if err := a.pullsOff(); err != nil {
			return nil, err
		}
		if in.Redis {
			return new(api.ResetPulls), a.abandonRedis(ctx)
		}
		if err := a.logAct(ctx, audit.ChangeMaintenance, map[string]any{"reset": "pull statistics"}); err != nil {
			return nil, err
		}
		unread, err := a.resetPulls(ctx, in.NothingLost)
		if err != nil {
			return nil, a.pullsFailed(ctx, err)
		}
		return &api.ResetPulls{Unread: unread}, nil
	})
}

// resetPulls goes on counting on a database that was moved or set back. Unless nothing was lost, reports of
// holds are as unknown as pulls of the time that was lost.
func (a *API) resetPulls(ctx context.Context, nothingLost bool) (unread int64, err error) {
	if nothingLost {
		return a.opt.PullStats.Reset(ctx)
	}
	if err := hold.Unreported(ctx, a.catalog.DB()); err != nil {
		return 0, err
	}
	return a.opt.PullStats.Recover(ctx)
}

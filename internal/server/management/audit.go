package management

import (
	"context"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/server/runs"
)

// logAct writes an audit entry for an operator's action. The caller does the action afterwards,
// and only if logAct returns no error. If the registry has no audit log, logAct does nothing.
func (a *API) logAct(ctx context.Context, kind audit.Kind, detail map[string]any) error {
	if a.opt.Audit == nil {
		return nil
	}
	return a.opt.Audit.Append(ctx, audit.Entry{Kind: kind, Detail: detail})
}

// logRun returns a function that writes an audit entry for a run and then calls `work`. If the
// entry can't be written, the function returns the error and doesn't call `work`. `ctx` is the
// context of the request that started the run: the audit entry names this request's client.
// `work` gets the context of the run.
func logRun[R any](ctx context.Context, a *API, kind audit.Kind, detail map[string]any,
	work func(ctx context.Context, r *runs.Run[R]) error,
) func(ctx context.Context, r *runs.Run[R]) error {
	from := audit.SourceOf(ctx)
	return func(ctx context.Context, r *runs.Run[R]) error {
		status, _ := r.View()
		detail["task"] = status.ID
		if err := a.logAct(audit.WithSource(ctx, from), kind, detail); err != nil {
			return err
		}
		return work(ctx, r)
	}
}

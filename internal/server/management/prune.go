package management

import (
	"cmp"
	"context"
	"time"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/oci"
)

// addPruning binds the operations that show the state of auto-pruning in a namespace, let it delete, and
// start, list and undo runs of it.
func (a *API) addPruning() {
	prune := a.opt.Autoprune
	if prune == nil {
		return
	}
	serve(a, api.GetPruneState, a.pruneState)
	serve(a, api.SetPruneState, func(ctx context.Context, in *api.PruneStateChange) (*api.None, error) {
		on := in.Body.UsesDefaults
		consent, err := a.consent(ctx, autoprune.Target{Namespace: in.Namespace}, autoprune.Change{Defaults: &on}, in.Confirm)
		if err != nil {
			return nil, err
		}
		return nil, prune.UseDefaultsConfirmed(ctx, in.Namespace, on, consent)
	})
	serve(a, api.PruneNow, func(ctx context.Context, in *api.PruneNamespace) (*api.PruneState, error) {
		if err := prune.RunNow(ctx, in.Namespace); err != nil {
			return nil, err
		}
		return a.pruneState(ctx, in)
	})
	serve(a, api.ListAsks, a.asks)
	serve(a, api.ListWaitingAsks, a.waitingAsks)
	serve(a, api.ApproveAsk, func(ctx context.Context, in *api.AskApproval) (*autoprune.Ask, error) {
		ask, err := prune.Approve(ctx, in.Namespace, in.Policy, in.Body.Version, in.Body.Tags)
		return &ask, err
	})
	serve(a, api.ConfirmRest, func(ctx context.Context, in *api.RestApproval) (*api.None, error) {
		return nil, prune.ConfirmRest(ctx, in.Namespace, in.Policy, in.Body.Version, in.Body.Codes)
	})
	a.addExemptions()
	a.addExceptions()
	serve(a, api.FreeBytes, a.free)
	a.addPruneRuns()
}

func (a *API) pruneState(ctx context.Context, in *api.PruneNamespace) (*api.PruneState, error) {
	prune := a.opt.Autoprune
	on, err := prune.UsesDefaults(ctx, in.Namespace)
	if err != nil {
		return nil, err
	}
	task, err := prune.Task(ctx, in.Namespace)
	if err != nil {
		return nil, err
	}
	reported, err := prune.Reported(ctx, in.Namespace)
	return &api.PruneState{UsesDefaults: on, Reported: reported, Task: task}, err
}

// asks lists a page of the policies that ask in a namespace.
func (a *API) asks(ctx context.Context, in *api.AskQuery) (*api.AskList, error) {
	var begin int // they have the order in which policies apply, which nothing names
	if _, err := parseCursor(in.NextPage, "ask", &begin); err != nil {
		return nil, err
	}
	list, err := a.opt.Autoprune.Asks(ctx, in.Namespace)
	begin = min(max(begin, 0), len(list))
	end := min(begin+in.Most(), len(list))
	out := &api.AskList{Asks: list[begin:end]}
	if end < len(list) {
		out.NextPage = cursor("ask", end)
	}
	return out, err
}

// waitingAsks lists a page of the namespaces in which policies ask.
func (a *API) waitingAsks(ctx context.Context, in *api.WaitingQuery) (*api.WaitingAsks, error) {
	var after autoprune.AsksPlace
	if _, err := parseCursor(in.NextPage, "asks", &after); err != nil {
		return nil, err
	}
	list, more, err := a.opt.Autoprune.WaitingAsks(ctx, after, min(in.Limit, 500))
	out := &api.WaitingAsks{Namespaces: list}
	if more {
		last := list[len(list)-1]
		out.NextPage = cursor("asks", autoprune.AsksPlace{Asked: last.Asked, Namespace: last.Namespace})
	}
	return out, err
}

// undoTime limits how long one request to undo a run of auto-pruning works. If not all tags are
// restored by then, the answer says where the client's next request is to continue.
const undoTime = 20 * time.Second

// addPruneRuns binds the operations on runs.
func (a *API) addPruneRuns() {
	serve(a, api.ListPruneRuns, a.pruneRuns)
	serve(a, api.GetPruneRun, func(ctx context.Context, in *api.PruneRunItem) (*autoprune.RunDetails, error) {
		d, err := a.pruneRun(ctx, in.Run)
		return &d, err
	})
	serve(a, api.UndoPruneRun, func(ctx context.Context, in *api.PruneRunUndo) (*autoprune.Undone, error) {
		if _, err := a.pruneRun(ctx, in.Run); err != nil {
			return nil, err
		}
		done, err := a.opt.Autoprune.Undo(ctx, in.Run, in.Cursor, undoTime)
		return &done, err
	})
}

// pruneRuns lists a page of the runs of a namespace, or of the registry.
func (a *API) pruneRuns(ctx context.Context, in *api.PruneRunQuery) (*api.PruneRunList, error) {
	access, of := auth.Operate, auth.Registry
	if in.Namespace != "" {
		access, of = auth.Maintain, auth.OfNamespace(in.Namespace)
	}
	if err := a.server.Authorize(ctx, access, of); err != nil {
		return nil, err
	}
	var id int64
	if in.Namespace != "" {
		var err error
		if id, _, err = a.seen(ctx, in.Namespace); err != nil {
			return nil, err
		}
	}
	list, next, err := a.opt.Autoprune.RunsOf(ctx, in.Namespace, id, in.Cursor, min(in.Limit, 500))
	return &api.PruneRunList{Runs: append([]autoprune.RunSummary{}, list...), Next: next}, err
}

// pruneRun returns a run of a namespace in which the client has the access maintain. The error
// for another run is the same as for a run that doesn't exist.
func (a *API) pruneRun(ctx context.Context, id string) (autoprune.RunDetails, error) {
	d, err := a.opt.Autoprune.GetRun(ctx, id)
	if err != nil {
		return d, err
	}
	name := cmp.Or(d.NamespaceNow, d.Namespace)
	err = a.server.Authorize(ctx, auth.Maintain, auth.OfNamespace(name))
	if err == nil {
		var seen int64
		if seen, _, err = a.seen(ctx, name); err == nil && seen != 0 && seen != d.NamespaceID {
			err = autoprune.RunUnknown(id) // of a namespace that had the name before
		}
	}
	if oci.CodeOf(err) == oci.Denied {
		err = autoprune.RunUnknown(id)
	}
	if err != nil {
		return autoprune.RunDetails{}, err
	}
	return d, nil
}

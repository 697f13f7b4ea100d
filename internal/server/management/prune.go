package management

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/forecast"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/autoprune/warnings"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
	"github.com/purser-registry/purser/internal/server/runs"
	"github.com/purser-registry/purser/internal/worker"
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
		consent, err := a.consent(ctx, policies.Target{Namespace: in.Namespace}, warnings.Change{Defaults: &on}, in.Confirm)
		if err != nil {
			return nil, err
		}
		return nil, prune.Policies.UseDefaultsConfirmed(ctx, in.Namespace, on, consent)
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
	on, err := prune.Policies.UsesDefaults(ctx, in.Namespace)
	if err != nil {
		return nil, err
	}
	task, err := prune.Task(ctx, in.Namespace)
	if err != nil {
		return nil, err
	}
	reported, err := prune.Policies.Reported(ctx, in.Namespace)
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

// forecastPolicy tells what policies would have deleted in the past.
func (a *API) forecastPolicy(ctx context.Context, in *api.ForecastInput) (*forecast.Forecast, error) {
	policy, err := triedPolicy(in.Body)
	if err != nil {
		return nil, err
	}
	done, err := a.turn(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	return a.opt.Forecasts.Forecast(ctx, targetOf(in.PolicyAt), forecast.Options{
		Days: min(in.Days, forecast.MaxDays), Settings: in.Settings, Policy: policy,
	})
}

// freeWithin is how long a plan may take.
const freeWithin = 50 * time.Second

// free plans to free bytes, or carries out a plan, in a namespace or the registry.
func (a *API) free(ctx context.Context, input *api.FreeInput) (*api.FreeAnswer, error) {
	namespace, in, out := input.Namespace, input.Body, new(api.FreeAnswer)
	if in.Plan == "" {
		done, err := a.turn(ctx)
		if err != nil {
			return nil, err
		}
		defer done()
		out.Plan, err = a.opt.Autoprune.PlanFree(ctx, namespace, autoprune.FreeOptions{Bytes: in.Bytes, UnusedFor: in.UnusedFor, Within: freeWithin})
		if errors.Is(err, worker.ErrRest) {
			err = oci.Errorf(oci.Unsupported, "nothing may be deleted for its age now: %v", err).WithStatus(http.StatusConflict)
		}
		return out, err
	}
	if in.Bytes != 0 || in.UnusedFor != "" {
		return nil, server.Refusal(http.StatusBadRequest, "give a plan, or bytes and unused_for")
	}
	request, err := autoprune.ParseFreeRequest(in.Plan)
	if err != nil {
		return nil, err
	}
	if namespace != "" && !slices.Equal(request.Namespaces, []string{namespace}) {
		return nil, server.Refusal(http.StatusBadRequest, "plan: it is of another namespace")
	}
	started, err := a.opt.Autoprune.Free(ctx, request)
	out.Started = &started
	return out, err
}

// addExceptions binds the operations that make repositories exceptions, in which the policies of the
// namespace and of the registry delete nothing.
func (a *API) addExceptions() {
	prune := a.opt.Autoprune
	serve(a, api.ListExceptions, func(ctx context.Context, in *api.ExceptionQuery) (*api.ExceptionList, error) {
		return a.exceptions(ctx, policies.Target{Namespace: in.Namespace}, in.Paging)
	})
	serve(a, api.GetException, func(ctx context.Context, in *api.InRepository) (*api.ExceptionList, error) {
		return a.exceptions(ctx, policies.Target{Repository: in.Repository}, api.Paging{})
	})
	serve(a, api.MakeException, func(ctx context.Context, in *api.ExceptionNew) (*api.None, error) {
		return nil, prune.Policies.Except(ctx, in.Repository, in.Body.Until)
	})
	serve(a, api.EndException, func(ctx context.Context, in *api.InRepository) (*api.EndedException, error) {
		ended, err := prune.Policies.EndException(ctx, in.Repository)
		return &api.EndedException{Ended: ended}, err
	})
}

// exceptions lists a page of the exceptions of a namespace or a repository.
func (a *API) exceptions(ctx context.Context, t policies.Target, page api.Paging) (*api.ExceptionList, error) {
	after, err := pageAfter(page, "exception")
	if err != nil {
		return nil, err
	}
	found, more, err := a.opt.Autoprune.Policies.Exceptions(ctx, t, after, page.Most())
	out := &api.ExceptionList{Exceptions: append([]policies.Exception{}, found...)}
	if more {
		out.NextPage = cursor("exception", found[len(found)-1].Repository)
	}
	return out, err
}

// addExemptions binds the operations that list the tags that undos have exempted from policies, and
// end that.
func (a *API) addExemptions() {
	prune := a.opt.Autoprune
	serve(a, api.ListExemptions, func(ctx context.Context, in *api.ExemptionQuery) (*api.ExemptionList, error) {
		var after policies.ExemptionPlace
		if _, err := parseCursor(in.NextPage, "exemption", &after); err != nil {
			return nil, err
		}
		list, more, err := prune.Policies.Exemptions(ctx, in.Repository, after, in.Most())
		out := &api.ExemptionList{Exemptions: list}
		if more {
			last := list[len(list)-1]
			out.NextPage = cursor("exemption", policies.ExemptionPlace{Tag: last.Tag, Policy: last.Policy})
		}
		return out, err
	})
	serve(a, api.EndExemptions, func(ctx context.Context, in *api.ExemptionEnd) (*api.EndedExemptions, error) {
		ended, err := prune.Policies.EndExemptions(ctx, in.Repository, in.Tag)
		return &api.EndedExemptions{Ended: ended}, err
	})
}

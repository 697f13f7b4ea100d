package management

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
)

const (
	// keptRuns limits how many runs of a kind are remembered.
	keptRuns = 10
	// maxFindings limits how many findings of one run are remembered.
	maxFindings = 1000
)

// RunState is the state of a run.
type RunState string

// States of a run.
const (
	RunRunning   RunState = "running"
	RunSucceeded RunState = "succeeded"
	RunFailed    RunState = "failed"
	RunCancelled RunState = "cancelled"
)

// RunStatus has the members that answers about runs of all kinds share. It is exported because
// huma makes JSON schemas only of exported types.
type RunStatus struct {
	ID        string     `json:"id" doc:"Identifier of the run"`
	State     RunState   `json:"state" enum:"running,succeeded,failed,cancelled"`
	StartedAt time.Time  `json:"started_at"`
	EndedAt   *time.Time `json:"ended_at" doc:"Null while it runs"`
	Error     string     `json:"error,omitempty" doc:"Why it failed"`
}

// runs has the last keptRuns runs of one kind, such as garbage collection, that operators have
// started in this process. At most one of them is under way at a time. R is the type of a run's
// report.
type runs[R any] struct {
	what    string // for people
	log     *slog.Logger
	working sync.WaitGroup

	mu     sync.Mutex
	list   []*run[R] // oldest first; only the last one can still be running
	closed bool
}

// run is one task that an operator has started.
type run[R any] struct {
	cancel context.CancelFunc

	mu     sync.Mutex
	status RunStatus
	report R // copied for each reader: data that it points to may be appended to, but not changed
}

func newRuns[R any](what string, log *slog.Logger) *runs[R] { return &runs[R]{what: what, log: log} }

// start starts a run whose report is initially `report`, and returns the run at once. `work`
// does the run in the background; it must stop when its context ends. If another run of this
// kind is under way, start returns an error with status 409 that names the other run.
func (rs *runs[R]) start(report R, work func(ctx context.Context, r *run[R]) error) (*run[R], error) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.closed {
		return nil, oci.Errorf(oci.Unavailable, "the registry is stopping")
	}
	if n := len(rs.list); n > 0 {
		if status, _ := rs.list[n-1].view(); status.State == RunRunning {
			return nil, server.Refusal(http.StatusConflict, "%s is already running here, as %s", rs.what, status.ID).
				WithDetail(map[string]string{"run": status.ID})
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &run[R]{cancel: cancel, report: report, status: RunStatus{
		ID: uuid.NewString(), State: RunRunning, StartedAt: time.Now().UTC(),
	}}
	rs.list = append(rs.list[max(0, len(rs.list)-keptRuns+1):], r)
	rs.log.Info("an operator has started "+rs.what, "run", r.status.ID)
	rs.working.Go(func() {
		defer cancel()
		r.end(ctx, rs.call(ctx, r, work))
		status, _ := r.view()
		rs.log.Info("ended what an operator had started: "+rs.what, "run", status.ID, "state", status.State, "error", status.Error)
	})
	return r, nil
}

// call calls work and turns a panic into an error.
func (rs *runs[R]) call(ctx context.Context, r *run[R], work func(ctx context.Context, r *run[R]) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			rs.log.Error("panic", "run", r.status.ID, "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return work(ctx, r)
}

// find returns the run with the given id. It returns an error with status 404 if another
// process started the run, or if at least keptRuns newer runs of this kind have been started.
func (rs *runs[R]) find(id string) (*run[R], error) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for _, r := range rs.list {
		if r.status.ID == id { // never changes
			return r, nil
		}
	}
	return nil, server.Refusal(http.StatusNotFound, "no run here is called %q: it was started in another replica or before the last "+
		"start, or there have been %d since", id, keptRuns)
}

// newest returns the states of the runs that find finds, the newest first.
func (rs *runs[R]) newest() []RunStatus {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	list := make([]RunStatus, 0, len(rs.list))
	for _, r := range slices.Backward(rs.list) {
		status, _ := r.view()
		list = append(list, status)
	}
	return list
}

// close cancels the run that is under way, makes start refuse further runs, and waits until the
// cancelled run has ended or `ctx` ends.
func (rs *runs[R]) close(ctx context.Context) {
	rs.mu.Lock()
	rs.closed = true
	for _, r := range rs.list {
		r.cancel()
	}
	rs.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		rs.working.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
	}
}

// update changes the run's report.
func (r *run[R]) update(change func(report *R)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.report)
}

func (r *run[R]) view() (RunStatus, R) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status, r.report
}

func (r *run[R]) end(ctx context.Context, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now().UTC()
	r.status.EndedAt = &now
	switch {
	case err == nil:
		r.status.State = RunSucceeded
	case ctx.Err() != nil:
		r.status.State = RunCancelled
	default:
		r.status.State, r.status.Error = RunFailed, err.Error()
	}
}

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
func addRuns[B, R, V any](a *API, rs *runs[R], text runTexts, start func(context.Context, B) (*run[R], error), view func(RunStatus, R) V) {
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
		status, report := r.view()
		return &startOutput{server.Observed(ctx).Base + apiRoot + text.path + "/" + status.ID, view(status, report)}, nil
	})
	type listBody struct {
		Runs []RunStatus `json:"runs" nullable:"false" doc:"Newest first"`
	}
	type listOutput struct{ Body listBody }
	add(a, auth.Operate, huma.Operation{
		OperationID: "list" + text.name + "s", Method: http.MethodGet, Path: text.path, Tags: []string{text.tag},
		Summary: "List the runs of " + text.what, Description: "The last 10 that were started in the replica that answers.",
	}, func(context.Context, *struct{}) (*listOutput, error) { return &listOutput{listBody{rs.newest()}}, nil })
	add(a, auth.Operate, huma.Operation{
		OperationID: "get" + text.name, Method: http.MethodGet, Path: text.path + "/{id}", Tags: []string{text.tag},
		Summary: text.ask, Description: "A replica knows the last 10 runs that were started in it.",
		Errors: []int{http.StatusNotFound},
	}, func(_ context.Context, in *input) (*output, error) {
		r, err := rs.find(in.ID)
		if err != nil {
			return nil, err
		}
		return &output{view(r.view())}, nil
	})
	add(a, auth.Operate, huma.Operation{
		OperationID: "cancel" + text.name, Method: http.MethodDelete, Path: text.path + "/{id}", Tags: []string{text.tag},
		Summary: text.cancel, Description: "The run ends soon, and what it has done stays done. A run that has ended stays as it is.",
		DefaultStatus: http.StatusAccepted, Errors: []int{http.StatusNotFound},
	}, func(_ context.Context, in *input) (*output, error) {
		r, err := rs.find(in.ID)
		if err != nil {
			return nil, err
		}
		r.cancel()
		return &output{view(r.view())}, nil
	})
}

// Package runs keeps what operators have started in this process on demand, such as garbage
// collection: at most one run of a kind is under way, and the last ones are remembered with what
// they report.
package runs

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
)

// Kept is how many runs of a kind are remembered.
const Kept = 10

// List has the last Kept runs of one kind, such as garbage collection, that operators have
// started in this process. At most one of them is under way at a time. R is the type of a run's
// report.
type List[R any] struct {
	what    string // for people
	log     *slog.Logger
	working sync.WaitGroup

	mu     sync.Mutex
	list   []*Run[R] // oldest first; only the last one can still be running
	closed bool
}

// Run is one task that an operator has started.
type Run[R any] struct {
	cancel context.CancelFunc

	mu     sync.Mutex
	status api.RunStatus
	report R // copied for each reader: data that it points to may be appended to, but not changed
}

// New makes a list of runs of one kind; `what` names the kind for people.
func New[R any](what string, log *slog.Logger) *List[R] { return &List[R]{what: what, log: log} }

// Start starts a run whose report is initially `report`, and returns the run at once. `work`
// does the run in the background; it must stop when its context ends. If another run of this
// kind is under way, Start returns an error with status 409 that names the other run.
func (rs *List[R]) Start(report R, work func(ctx context.Context, r *Run[R]) error) (*Run[R], error) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.closed {
		return nil, oci.Errorf(oci.Unavailable, "the registry is stopping")
	}
	if n := len(rs.list); n > 0 {
		if status, _ := rs.list[n-1].View(); status.State == api.RunRunning {
			return nil, server.Refusal(http.StatusConflict, "%s is already running here, as %s", rs.what, status.ID).
				WithDetail(map[string]string{"run": status.ID})
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &Run[R]{cancel: cancel, report: report, status: api.RunStatus{
		ID: uuid.NewString(), State: api.RunRunning, StartedAt: time.Now().UTC(),
	}}
	rs.list = append(rs.list[max(0, len(rs.list)-Kept+1):], r)
	rs.log.Info("an operator has started "+rs.what, "run", r.status.ID)
	rs.working.Go(func() {
		defer cancel()
		r.end(ctx, rs.call(ctx, r, work))
		status, _ := r.View()
		rs.log.Info("ended what an operator had started: "+rs.what, "run", status.ID, "state", status.State, "error", status.Error)
	})
	return r, nil
}

// call calls work and turns a panic into an error.
func (rs *List[R]) call(ctx context.Context, r *Run[R], work func(ctx context.Context, r *Run[R]) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			rs.log.Error("panic", "run", r.status.ID, "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return work(ctx, r)
}

// Find returns the run with the given id. It returns an error with status 404 if another
// process started the run, or if at least Kept newer runs of this kind have been started.
func (rs *List[R]) Find(id string) (*Run[R], error) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for _, r := range rs.list {
		if r.status.ID == id { // never changes
			return r, nil
		}
	}
	return nil, server.Refusal(http.StatusNotFound, "no run here is called %q: it was started in another replica or before the last "+
		"start, or there have been %d since", id, Kept)
}

// Newest returns the states of the runs that Find finds, the newest first.
func (rs *List[R]) Newest() []api.RunStatus {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	list := make([]api.RunStatus, 0, len(rs.list))
	for _, r := range slices.Backward(rs.list) {
		status, _ := r.View()
		list = append(list, status)
	}
	return list
}

// Close cancels the run that is under way, makes Start refuse further runs, and waits until the
// cancelled run has ended or `ctx` ends.
func (rs *List[R]) Close(ctx context.Context) {
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

// Cancel asks a run to end. A run that has ended stays as it is.
func (r *Run[R]) Cancel() { r.cancel() }

// Update changes the run's report.
func (r *Run[R]) Update(change func(report *R)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.report)
}

// View returns the run's state and report.
func (r *Run[R]) View() (api.RunStatus, R) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status, r.report
}

func (r *Run[R]) end(ctx context.Context, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now().UTC()
	r.status.EndedAt = &now
	switch {
	case err == nil:
		r.status.State = api.RunSucceeded
	case ctx.Err() != nil:
		r.status.State = api.RunCancelled
	default:
		r.status.State, r.status.Error = api.RunFailed, err.Error()
	}
}

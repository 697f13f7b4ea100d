package autoprune

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/autoprune/snapshot"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/worker"
)

// timeSlice is the work that a worker does for one namespace before it takes the next
// namespace.
type timeSlice struct {
	p        *Pruner
	task     *task
	policies *policies.Set
	began    time.Time
	slice    time.Time // start of the present slice, after the last pause for others
	renewed  time.Time
	shared   time.Duration // time in this time slice that other namespaces had
	nested   bool          // this time slice runs in a pause of another one
	begun    bool          // the run's row exists, and the notice of its start is queued
	visited  bool          // at least one repository was begun

	repositories, tags, deleted, failed int64
	held                                int64            // tags that stay because they are held
	heldBy                              map[string]int64 // number of these tags by reporter
	firstError                          string
	notices                             map[string]string // by policy
	observed                            observed
	tallies                             map[string]*tally // by policy
	caps                                *caps             // nil: no policy has a cap
	judged                              map[string]bool   // policies that were judged before their first deletion, see rests.go
	unreadable                          int               // number of policies that can't be read

	page  []snapshot.Tag // buffers that are reused for each repository
	batch []candidate
}

// work spends one time slice on the namespace that has been due longest. It does nothing if
// no namespace is due.
func (p *Pruner) work(ctx context.Context) (more bool, err error) {
	p.rest = 0
	if !p.configured {
		if err := p.Policies.Configure(ctx, p.opt.Default); err != nil {
			return false, err
		}
		p.configured = true
	}
	if err := p.mayDelete(ctx); err != nil {
		return false, errors.Join(err, p.tellClocks(ctx, err))
	}
	if err := p.tellClocks(ctx, nil); err != nil {
		return false, err
	}
	if err := p.housekeeping(ctx); err != nil {
		return false, err
	}
	began := time.Now()
	t, err := p.claimNext(ctx)
	if err != nil || t == nil {
		return false, err
	}
	p.metrics.slices.Inc()
	deleted, err := p.sliceOrStop(ctx, t, false)
	if err != nil || deleted > 0 || t.runRequested {
		return err == nil, err
	}
	// A slice that found nothing to do must cost almost nothing, even if there are very
	// many namespaces. So the worker sleeps after it, unless a run waits to be continued.
	rest := min(time.Duration(float64(time.Since(began))*(1/p.opt.IdleShare-1)), p.opt.Interval)
	p.rest, err = p.unfinishedIn(ctx, rest)
	return rest > 0 && p.rest == 0, err
}

// sliceOrStop spends a time slice on the task. If this worker loses the task meanwhile,
// sliceOrStop ends the run (unless another worker continues it) and returns at least 1 as
// `deleted`, so that the caller doesn't think that the slice found nothing to do.
func (p *Pruner) sliceOrStop(ctx context.Context, t *task, nested bool) (deleted int64, err error) {
	deleted, err = p.timeSlice(ctx, t, nested)
	if errors.Is(err, errLost) {
		p.log.InfoContext(ctx, "stopped pruning a namespace before the end", "namespace", t.name, "run", t.run, "reason", err)
		return max(deleted, 1), p.stopRun(ctx, t)
	}
	return deleted, err
}

// timeSlice prunes a namespace until all of its repositories are finished or the time slice
// is over. It returns the number of tags that it deleted; at least 1 if there is more to
// do.
func (p *Pruner) timeSlice(ctx context.Context, t *task, nested bool) (deleted int64, err error) {
	now := time.Now()
	l, err := p.Policies.Load(ctx, t.namespace)
	waits := false
	if err == nil {
		waits, err = p.loadFree(ctx, t, l)
	}
	if err != nil {
		return 0, p.fail(ctx, t, err)
	}
	if l.None() && !waits {
		dropped, err := p.dropTaskWithoutPolicies(ctx, t)
		if dropped {
			return 0, p.stopRun(ctx, t)
		}
		if err != nil && !errors.Is(err, errOutdated) && !errors.Is(err, errBusy) {
			return 0, err
		}
		return 1, p.yieldTask(ctx, p.db.Pool, t) // a client is changing policies: look again
	}
	u := &timeSlice{p: p, task: t, policies: l, began: now, slice: now, renewed: now, nested: nested, notices: l.Unreadable()}
	defer func() { u.account() }()
	u.unreadable = len(u.notices)
	p.tellUnreadable(ctx, t, u.notices)
	done := false
	if err = errors.Join(u.loadTallies(ctx), u.loadCaps(ctx)); err == nil {
		done, err = u.namespace(ctx)
	}
	switch {
	case errors.Is(err, errLost):
		return u.deleted, err
	case errors.Is(err, errOutdated): // continue with the new policies or without one that has reached its cap, from the same repository
		return max(u.deleted, 1), u.pause(ctx)
	case errors.Is(err, worker.ErrRest): // a later time slice goes on with the run
		return max(u.deleted, 1), errors.Join(err, u.pause(ctx))
	case ctx.Err() != nil: // stopping: return the task, so that no worker has to wait for the lease to expire
		give, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		return u.deleted, errors.Join(err, u.pause(give))
	case err != nil:
		return u.deleted, p.fail(ctx, t, err)
	}
	if !done { // there is more to do
		return max(u.deleted, 1), u.pause(ctx)
	}
	return u.deleted, u.finish(ctx)
}

// tellUnreadable adds the number of policies that this time slice can't read, and therefore
// skips, to the metric of unreadable policies. It logs each such policy's problem once per
// process.
func (p *Pruner) tellUnreadable(ctx context.Context, t *task, problems map[string]string) {
	p.metrics.unreadable.Add(float64(len(problems)))
	for id, problem := range problems {
		if p.logged[id] == problem {
			continue
		}
		p.logged[id] = problem
		p.log.WarnContext(ctx, "skipping a policy: save it again, or delete it", "policy", id, "namespace", t.name, "problem", problem)
	}
}

// namespace prunes the namespace's repositories, starting after task.next. If policies have
// caps, it first counts in all repositories what these policies would delete. `done` is false if
// the time slice ended before the last repository.
func (u *timeSlice) namespace(ctx context.Context) (done bool, err error) {
	if u.caps != nil && u.caps.Counting {
		if done, err := u.walk(ctx, &u.caps.Next, u.count); err != nil || !done {
			return false, err
		}
		if err := u.p.decideCaps(ctx, u.caps, u.policies.WithCaps(), u.task.namespace); err != nil || u.over() {
			return false, err
		}
	}
	return u.walk(ctx, &u.task.next, func(ctx context.Context, target catalog.Repository) (bool, error) {
		done, err := u.repository(ctx, target)
		if done && err == nil {
			u.repositories++
		}
		return done, err
	})
}

// walk calls `visit` for the namespace's repositories in the order of their ids, starting after
// *next. `done` is false if the time slice ended before the last repository.
func (u *timeSlice) walk(ctx context.Context, next *int64, visit func(context.Context, catalog.Repository) (bool, error)) (done bool, err error) {
	page := min(u.p.opt.Page, 1000)
	for {
		list, err := u.p.Repositories.List(ctx, u.task.namespace, *next, page)
		if err != nil {
			return false, err
		}
		for _, target := range list {
			done, err := visit(ctx, target)
			if err != nil || !done {
				return false, err
			}
			*next = target.ID
			if u.over() {
				return false, nil
			}
		}
		if len(list) < page {
			return true, nil
		}
	}
}

// over returns whether the time slice is over.
func (u *timeSlice) over() bool { return time.Since(u.slice) >= u.p.opt.Turn }

// busy returns how long this time slice itself has worked, without the time that it gave to
// other namespaces (shared).
func (u *timeSlice) busy() time.Duration { return time.Since(u.began) - u.shared }

// account lets turns know the time since the last pause. A run that has paused is unfinished.
func (u *timeSlice) account() { u.p.turns.spent(u.task.resumed || u.shared > 0, time.Since(u.slice)) }

// errSliceOver says that the time slice must end before the repository is finished.
var errSliceOver = errors.New("the time slice is over")

// share pauses this time slice and gives other namespaces their time slices, for about the
// length of one time slice. Then this time slice continues. The pause is needed because the
// evaluation of a repository is valid in one snapshot only and can't be kept for a later
// time slice: without pauses, an evaluation that takes longer than a slice would delay all
// other namespaces. A nested time slice, which runs in such a pause, can't pause itself: in
// a nested slice, share returns errSliceOver, the slice ends without its unfinished
// evaluation, and the repository is evaluated again in a time slice of its own.
func (u *timeSlice) share(ctx context.Context) error {
	if u.nested {
		return errSliceOver
	}
	u.account()
	began := time.Now()
	err := u.lend(ctx)
	u.shared += time.Since(began)
	u.slice = time.Now()
	if err != nil {
		return err
	}
	u.renewed = u.slice
	return errors.Join(ctx.Err(), u.p.renew(ctx, u.task))
}

// lend gives other namespaces their time slices, for about the length of one.
func (u *timeSlice) lend(ctx context.Context) error {
	for began := time.Now(); time.Since(began) < u.p.opt.Turn; {
		u.renewed = time.Now()
		if err := u.p.renew(ctx, u.task); err != nil {
			return err
		}
		t, err := u.p.claimNext(ctx)
		if t == nil || err != nil {
			return err
		}
		u.p.metrics.slices.Inc()
		if _, err := u.p.sliceOrStop(ctx, t, true); err != nil {
			u.p.log.ErrorContext(ctx, "a time slice failed", "namespace", t.name, "run", t.run, "error", err)
			return nil
		}
	}
	return nil
}

// alive renews the lease on the task if a third of Options.Lease has passed since it was
// last renewed.
func (u *timeSlice) alive(ctx context.Context) error {
	if time.Since(u.renewed) < u.p.opt.Lease/3 {
		return nil
	}
	u.renewed = time.Now()
	return u.p.renew(ctx, u.task)
}

// repository prunes one repository. If that fails, it records the failure with the run and
// returns no error, so that the run continues with the next repository; an error that it
// does return ends the time slice.
func (u *timeSlice) repository(ctx context.Context, target catalog.Repository) (done bool, err error) {
	if err := u.alive(ctx); err != nil {
		return false, err
	}
	rules, saved := u.policies.Of(target)
	if len(rules.Policies) == 0 {
		return true, nil
	}
	v := &repositoryRun{slice: u, target: target, saved: saved}
	if err := v.findEarlier(ctx); err != nil {
		return false, err
	}
	err = u.p.Repositories.ReadConfigurations(ctx, u.p.opt.Background.Pool, target, rules.Policies, u.p.opt.Turn/2, u.alive)
	if err == nil {
		err = snapshot.Read(ctx, u.p.opt.Background.Pool, target, func(s *snapshot.Snapshot) error {
			if err := u.p.mayJudge(ctx, s.Now); err != nil {
				return err
			}
			return v.prune(ctx, s, rules)
		})
	}
	if !v.counted && !v.cut {
		u.tags += v.uncounted()
	}
	switch {
	case err == nil && !v.cut:
		u.observed.add(v.observed)
		for id, y := range v.tallies {
			u.tallies[id].add(y)
		}
		return true, nil
	case err == nil:
		return false, nil
	case errors.Is(err, errGone):
		u.p.log.InfoContext(ctx, "skipped a repository that was deleted", "repository", target.Path, "run", u.task.run)
		return true, nil
	case errors.Is(err, errLost), errors.Is(err, errOutdated), errors.Is(err, worker.ErrRest), ctx.Err() != nil:
		return false, err
	}
	u.p.metrics.failures.Inc()
	u.p.log.WarnContext(ctx, "a repository could not be pruned", "repository", target.Path, "run", u.task.run, "error", err)
	u.failed++
	if u.firstError == "" {
		u.firstError = fmt.Sprintf("%s: %v", target.Path, err)
	}
	return true, u.recordFailure(ctx, target, err)
}

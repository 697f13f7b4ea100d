package autoprune

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/catalog"
)

// turn is a time slice: what a worker does for one namespace without interruption.
type turn struct {
	p        *Pruner
	task     *task
	policies *policies
	began    time.Time
	slice    time.Time // start of the present slice, after the last pause for others
	renewed  time.Time
	shared   time.Duration // time in this turn that other namespaces had
	nested   bool          // this turn runs in a pause of another one
	begun    bool          // the run's row exists, and the notice of its start is queued
	visited  bool          // at least one repository was begun

	repositories, tags, deleted, failed int64
	firstError                          string
	notices                             map[string]string // by policy
	unreadable                          int               // number of policies that can't be read

	page, batch []going // buffers that are reused for each repository
}

// work does one time slice for the namespace that has waited longest, if one is due.
func (p *Pruner) work(ctx context.Context) (more bool, err error) {
	p.rest = 0
	if err := p.configure(ctx); err != nil {
		return false, err
	}
	if err := p.keepHouse(ctx); err != nil {
		return false, err
	}
	began := time.Now()
	t, err := p.claim(ctx)
	if err != nil || t == nil {
		return false, err
	}
	p.metrics.turns.Inc()
	deleted, err := p.turnOrStop(ctx, t, false)
	if err != nil || deleted > 0 || t.asked {
		return err == nil, err
	}
	// A slice that found nothing must cost next to nothing, however many namespaces there
	// are.
	p.rest = min(time.Duration(float64(time.Since(began))*(1/p.opt.IdleShare-1)), p.opt.Interval)
	return false, nil
}

// turnOrStop does a time slice. If the task is lost meanwhile it ends the run, which counts
// as something done.
func (p *Pruner) turnOrStop(ctx context.Context, t *task, nested bool) (deleted int64, err error) {
	deleted, err = p.turn(ctx, t, nested)
	if errors.Is(err, errLost) {
		p.log.InfoContext(ctx, "left a namespace in the middle of its pruning", "namespace", t.name, "run", t.run, "reason", err)
		return max(deleted, 1), p.stopRun(ctx, t)
	}
	return deleted, err
}

// turn prunes a namespace until it is done or its time slice is over.
func (p *Pruner) turn(ctx context.Context, t *task, nested bool) (deleted int64, err error) {
	l, err := p.load(ctx, p.db.Pool, t.namespace)
	if err != nil {
		return 0, p.fail(ctx, t, err)
	}
	if l.none() {
		retired, err := p.retire(ctx, t)
		if retired {
			return 0, p.stopRun(ctx, t)
		}
		if err != nil && !errors.Is(err, errOutdated) && !errors.Is(err, catalog.ErrTargetBusy) {
			return 0, err
		}
		return 1, p.park(ctx, p.db.Pool, t) // a client is changing policies: look again
	}
	now := time.Now()
	u := &turn{p: p, task: t, policies: l, began: now, slice: now, renewed: now, nested: nested, notices: l.unreadable()}
	u.unreadable = len(u.notices)
	p.tellUnreadable(ctx, t, u.notices)
	done, err := u.namespace(ctx)
	switch {
	case errors.Is(err, errLost):
		return u.deleted, err
	case errors.Is(err, errOutdated): // continue with the new policies, from the same repository
		return max(u.deleted, 1), u.pause(ctx)
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

// tellUnreadable counts the policies that are skipped because they can't be read, and logs
// each problem once.
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

// namespace prunes the namespace's repositories in id order, starting at task.next. done is
// false when the time slice ran out.
func (u *turn) namespace(ctx context.Context) (done bool, err error) {
	page := min(u.p.opt.Page, 1000)
	for {
		list, err := u.p.catalog.PruneTargets(ctx, u.task.namespace, u.task.next, page)
		if err != nil {
			return false, err
		}
		for _, target := range list {
			done, err := u.repository(ctx, target)
			if err != nil || !done {
				return false, err
			}
			u.task.next = target.ID
			u.repositories++
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
func (u *turn) over() bool { return time.Since(u.slice) >= u.p.opt.Turn }

// busy returns how long the turn itself has worked.
func (u *turn) busy() time.Duration { return time.Since(u.began) - u.shared }

// errTurnOver says that the turn must end in the middle of a repository.
var errTurnOver = errors.New("others are to have their turn")

// share pauses this turn and lets other namespaces have theirs, for about the length of one
// time slice; then a new slice of this turn begins. A judgement uses one snapshot and can't
// be kept for a later turn, so a judgement that takes longer than a slice pauses in this
// way. A nested turn, within a pause, can't pause: share returns errTurnOver, the turn ends
// without its unfinished judgement, and the namespace is judged again in a turn of its own.
func (u *turn) share(ctx context.Context) error {
	if u.nested {
		return errTurnOver
	}
	began := time.Now()
	for time.Since(began) < u.p.opt.Turn {
		u.renewed = time.Now()
		if err := u.p.renew(ctx, u.task); err != nil {
			return err
		}
		t, err := u.p.claim(ctx)
		if err != nil {
			return err
		}
		if t == nil {
			break
		}
		u.p.metrics.turns.Inc()
		if _, err := u.p.turnOrStop(ctx, t, true); err != nil {
			u.p.log.ErrorContext(ctx, "a turn failed", "namespace", t.name, "run", t.run, "error", err)
			break
		}
	}
	u.shared += time.Since(began)
	u.slice = time.Now()
	u.renewed = u.slice
	return errors.Join(ctx.Err(), u.p.renew(ctx, u.task))
}

// alive renews the lease when a third of its time has passed.
func (u *turn) alive(ctx context.Context) error {
	if time.Since(u.renewed) < u.p.opt.Lease/3 {
		return nil
	}
	u.renewed = time.Now()
	return u.p.renew(ctx, u.task)
}

// repository prunes one repository. A failure there is recorded with the run and doesn't
// stop the pruning of others; errors that are returned end the turn.
func (u *turn) repository(ctx context.Context, target catalog.PruneTarget) (done bool, err error) {
	if err := u.alive(ctx); err != nil {
		return false, err
	}
	rules, saved := u.policies.of(target)
	if len(rules.Policies) == 0 {
		return true, nil
	}
	v := &visit{turn: u, target: target, saved: saved}
	if err := v.findEarlier(ctx); err != nil {
		return false, err
	}
	err = u.p.catalog.PruneSnapshot(ctx, target, func(s *catalog.PruneSnapshot) error {
		return v.prune(ctx, s, rules)
	})
	if !v.counted && !v.cut {
		u.tags += v.uncounted()
	}
	switch {
	case err == nil:
		return !v.cut, nil
	case errors.Is(err, catalog.ErrRepositoryGone):
		u.p.log.InfoContext(ctx, "left a repository that is gone", "repository", target.Path, "run", u.task.run)
		return true, nil
	case errors.Is(err, errLost), errors.Is(err, errOutdated), ctx.Err() != nil:
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

// visit is a turn's work in one repository.
type visit struct {
	turn   *turn
	target catalog.PruneTarget
	saved  []Saved // the policies of the rules, in the same order
	pages  int     // number of pages that were read
	cut    bool    // the turn ended early: another has to continue in this repository
	held   bool    // attached tags were kept because a tag still reaches their image

	// Numbers of the repository's tags that earlier turns of the run have deleted, and that
	// they have counted.
	earlierDeleted, earlierTags int64
	tags                        int64 // number of tags when the run came to the repository
	counted                     bool  // the run's row includes tags

	// judging is how long the judgement took, and deleting when the deletion began, both in
	// the turn's own time (busy). Zero: not yet.
	judging, deleting time.Duration
	// finishing says that the tags attached to images without tags are being deleted. This
	// isn't left to the next turn, which couldn't tell such an image from one that never
	// had a tag and whose signatures stay.
	finishing bool
}

// findEarlier reads what earlier turns of the run have done in the repository. Only the
// first repository of a turn can have been begun before.
func (v *visit) findEarlier(ctx context.Context) error {
	u := v.turn
	first := u.task.resumed && !u.visited
	if u.visited = true; !first {
		return nil
	}
	err := u.p.db.Pool.QueryRow(ctx, "SELECT deleted, tags FROM autopruneruns_repositories WHERE run = $1 AND repository_id = $2",
		u.task.run, v.target.ID).Scan(&v.earlierDeleted, &v.earlierTags)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("looking for what the run has done in %s: %w", v.target.Path, err)
	}
	return nil
}

// uncounted returns how many tags of the repository the run hasn't counted yet.
func (v *visit) uncounted() int64 { return max(0, v.tags-v.earlierTags) }

// alive renews the lease, and returns an error if the repository was deleted.
func (v *visit) alive(ctx context.Context) error {
	if err := v.turn.alive(ctx); err != nil {
		return err
	}
	if v.pages++; v.pages == 1 {
		return nil
	}
	return v.turn.p.catalog.PruneTargetLives(ctx, v.target)
}

// step pauses for other turns when the time slice is over. A deletion ends the turn
// instead, once it has taken as long as the judgement, which the next turn has to repeat.
func (v *visit) step(ctx context.Context) error {
	u := v.turn
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case !u.over(), v.finishing && u.nested:
		return nil
	case !v.finishing && v.deleting != 0 && u.busy()-v.deleting >= v.judging:
		return errTurnOver
	}
	return u.share(ctx)
}

// prune judges the repository's tags and deletes those that the verdict selects: first
// images, page by page, then tags attached to images that no tag reaches any more, and
// orphans. The snapshot stays open meanwhile and is read again, so that nothing has to be
// kept in memory; the deletion itself skips tags that have changed since.
func (v *visit) prune(ctx context.Context, s *catalog.PruneSnapshot, rules Rules) error {
	u := v.turn
	rules.Now = s.Now
	r := reading{p: u.p, s: s, target: v.target, saved: v.saved, alive: v.alive, step: v.step, memory: u.page}
	defer func() { u.page = r.memory }()
	began := u.busy()
	verdict, err := Evaluate(rules, r.repository(ctx))
	if errors.Is(err, errTurnOver) {
		v.cut = true
		return nil
	}
	if err != nil {
		return err
	}
	v.deleting = u.busy()
	v.judging = v.deleting - began
	for _, n := range verdict.Notices() {
		u.notices[v.saved[n.Policy].ID] = n.Text
	}
	v.tags = v.earlierDeleted + r.seen
	if !verdict.may {
		return nil
	}
	attached := false
	err = v.each(ctx, &r, verdict, func(g going) bool {
		attached = attached || g.attached
		return !g.attached
	}, v.deleteTags)
	if err != nil || !attached && len(verdict.gone) == 0 {
		return err
	}
	v.finishing = true
	cut := v.cut
	for before := int64(-1); u.deleted > before; { // a deleted attached tag may have been the image of others
		before, v.cut, v.held = u.deleted, false, false
		if err := v.each(ctx, &r, verdict, func(g going) bool { return g.attached }, v.deleteAttached); err != nil {
			return err
		}
		if cut = cut || v.cut; v.cut || !v.held {
			break
		}
	}
	v.cut = cut
	return nil
}

// going is a tag that is a candidate for deletion, and why.
type going struct {
	catalog.PruneTag
	tag      Tag
	decision Decision
	reason   string
	attached bool // it belongs to an image, in the repository or missing
}

// each deletes, in batches, those tags that the verdict deletes and that want selects,
// until the turn is over.
func (v *visit) each(ctx context.Context, r *reading, verdict *Verdict, want func(going) bool,
	del func(ctx context.Context, verdict *Verdict, batch []going) error,
) error {
	batch := v.turn.batch[:0]
	defer func() { v.turn.batch = batch }()
	flush := func() error {
		if len(batch) == 0 {
			return nil
		}
		list := batch
		batch = batch[:0]
		return v.deleteBatch(ctx, verdict, list, del)
	}
	for t, err := range r.tags(ctx) {
		if errors.Is(err, errTurnOver) {
			v.cut = true
			break
		}
		if err != nil {
			return err
		}
		d := verdict.Decide(t.tag)
		if !d.Delete {
			continue
		}
		t.decision, t.attached = d, t.tag.attached() || t.tag.orphan()
		if !want(t) {
			continue
		}
		t.reason = verdict.Reason(t.tag, d)
		if batch = append(batch, t); len(batch) < v.turn.p.opt.Batch {
			continue
		}
		if err := flush(); err != nil {
			return err
		}
	}
	return flush()
}

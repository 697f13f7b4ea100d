package autoprune

import (
	"context"
	"fmt"
	"time"

	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/policy"
)

const (
	// lookWithin bounds the time of the look for uses in a transaction that deletes, which has
	// locked the task and the repository.
	lookWithin = 2 * time.Second
	// lookFor is how long after all processes have written their uses tags may be deleted. A
	// worker that was stopped meanwhile must look again.
	lookFor = 10 * time.Second
)

// lastLook is the look for uses of tags right before the tags are deleted: lookAgain looks
// without locks and, if the last use of some of them matters, waits for all processes. Then
// the transaction that deletes looks once more (drop).
type lastLook struct {
	v       *repositoryRun
	verdict *judge.Verdict
	settled time.Time // when all processes had written their uses; zero: no last use matters
}

// asks says whether the last use of a candidate matters: a last_pulled or max_bytes policy
// selects it, or a keep rule usedWithin may keep it.
func (v *repositoryRun) asks(g *candidate) bool {
	if g.Judged.Attached() {
		return false
	}
	for place := range v.saved {
		p := &v.saved[place].Policy
		if (p.Method == policy.LastPulled || p.Method == policy.MaxBytes) && g.decision.Policies.Has(place) || p.KeepsUsed() && g.Judged.ConsideredBy(p, place) {
			return true
		}
	}
	return false
}

func (v *repositoryRun) asked(list []candidate) (tags []*judge.Tag) {
	for i := range list {
		if v.asks(&list[i]) {
			tags = append(tags, &list[i].Judged)
		}
	}
	return tags
}

// lookAgain drops the tags that were used since they were judged, and that the verdict
// therefore keeps. It first waits until all processes have written the uses that they answered
// before. If one of them doesn't, the tags whose last use matters stay. It returns errOutdated if
// the statistics have become incomplete since the policies were read, such as by the death of a
// process that had uses in memory.
func (v *repositoryRun) lookAgain(ctx context.Context, verdict *judge.Verdict, part []candidate) (lastLook, []candidate, error) {
	look := lastLook{v: v, verdict: verdict}
	tags := v.asked(part)
	if v.slice.p.opt.Used == nil || len(tags) == 0 {
		return look, part, nil
	}
	known, err := v.settle(ctx)
	look.settled = time.Now()
	if err == nil && known {
		err = v.slice.p.opt.Used(ctx, v.target.ID, tags)
	}
	if err != nil {
		return look, nil, err
	}
	for _, t := range tags {
		if !known {
			t.UseUnknown = true
		}
		t.CountUnknown(v.rules.Now)
	}
	return look, look.deleted(part), nil
}

// settle waits until all processes have written the uses that they answered before the call.
// `known` is false if they haven't.
func (v *repositoryRun) settle(ctx context.Context) (known bool, err error) {
	p := v.slice.p
	if p.opt.Settle == nil {
		return true, nil
	}
	if err := p.opt.Settle(ctx); err != nil {
		p.metrics.unsettled.Inc()
		p.log.WarnContext(ctx, "tags stay until it is known whether they were used", "repository", v.target.Path, "run", v.slice.task.run, "reason", err)
		return false, ctx.Err()
	}
	if p.opt.Pulls == nil {
		return true, nil
	}
	now, err := p.opt.Pulls(ctx)
	if err != nil {
		return false, fmt.Errorf("asking how far the pull statistics are: %w", err)
	}
	if before := v.rules.Pulls; now.Since.After(before.Since) || now.Missing() != "" && before.Missing() == "" {
		return false, errOutdated
	}
	return true, nil
}

// deleted returns those tags of the list that the verdict deletes, with its present decisions.
func (l lastLook) deleted(list []candidate) (kept []candidate) {
	for _, g := range list {
		if g.decision = l.verdict.Decide(g.Judged); g.decision.Delete {
			g.reason = l.verdict.Reason(g.Judged, g.decision)
			kept = append(kept, g)
		}
	}
	return kept
}

// drop drops the tags that were used since lookAgain has looked. The caller's transaction has
// locked the repository. drop returns errBusy if lookAgain has looked too long ago, or if the last
// uses can't be read quickly, so that the caller looks again.
func (l lastLook) drop(ctx context.Context, list []candidate) ([]candidate, error) {
	tags := l.v.asked(list)
	if l.settled.IsZero() || len(tags) == 0 {
		return list, nil
	}
	within, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	err := l.v.slice.p.opt.Used(within, l.v.target.ID, tags)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case within.Err() != nil, time.Since(l.settled) > l.v.slice.p.lookFor:
		return nil, errBusy
	case err != nil:
		return nil, err
	}
	for _, t := range tags {
		t.CountUnknown(l.v.rules.Now)
	}
	return l.deleted(list), nil
}

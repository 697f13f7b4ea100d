package warnings

import (
	"context"
	"fmt"
	"iter"

	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/autoprune/snapshot"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/judge"
)

// coverage has the policies of a namespace before and after a change that may let policies delete
// what the changed one kept from them.
type coverage struct {
	id            string // of the policy that is changed; "": none is
	before, after *policies.Set
	// kept are the policies after the change, but the changed one keeps what it kept before, by its keep
	// rules and its least number; nil if the policy is deleted, its mode changes or it couldn't be read. compare uses them
	// to leave out tags that these rules kept only from the changed policy itself.
	kept *policies.Set
}

// changed returns the policies of a namespace before and after the change; nil if it can't let
// others delete more.
func (j *judging) changed(l *policies.Set) *coverage {
	if on := j.change.Defaults; on != nil {
		if *on == l.UsesDefaults() { // it is so already
			return nil
		}
		after := l.WithDefaults(*on)
		if after.None() { // an emergency stop waits for nothing
			return nil
		}
		return &coverage{before: l, after: after}
	}
	if j.old == nil || !j.old.Uncovers(j.change.Policy) || j.old.Inert() && !l.Last(j.old.ID) {
		return nil
	}
	c := &coverage{id: j.old.ID, before: l, after: l.Replace(j.old.ID, j.change.Policy)}
	if now := j.change.Policy; now != nil && now.Mode == j.old.Policy.Mode && j.old.Problem == "" {
		kept := *now
		kept.KeepAs(&j.old.Policy)
		c.kept = l.Replace(j.old.ID, &kept)
	}
	return c
}

// compare finds the tags that would be deleted after the change and not before.
func (j *judging) compare(ctx context.Context, s *snapshot.Snapshot, c *coverage, target catalog.Repository) error {
	before, err := j.lookAt(ctx, s, c.before, target)
	if err != nil {
		return err
	}
	defer before.stop()
	after, err := j.lookAt(ctx, s, c.after, target)
	if err != nil {
		return err
	}
	defer after.stop()
	kept := before
	if c.kept != nil {
		if kept, err = j.lookAt(ctx, s, c.kept, target); err != nil {
			return err
		}
		defer kept.stop()
	}
	for {
		name, then, more, err := after.next()
		if err != nil || !more {
			return err
		}
		same, old, _, err := before.next()
		if err != nil {
			return err
		}
		with := old
		if c.kept != nil {
			if _, with, _, err = kept.next(); err != nil {
				return err
			}
		}
		if same != name { // can't be: all read the same snapshot
			return fmt.Errorf("judging %s: its tags are read in different orders", target.Path)
		}
		byOthers := false
		for i := range then.Policies.All() {
			byOthers = byOthers || after.policies[i].ID != c.id
		}
		if then.Delete && (byOthers && !old.Delete || c.kept != nil && !with.Delete) {
			j.uncovered.add(target.Path + ":" + name)
		}
	}
}

// look goes through a repository's tags with a verdict on them.
type look struct {
	policies []judge.Applied
	next     func() (name string, d judge.Decision, more bool, err error)
	stop     func()
}

// lookAt judges a repository by policies, as if none of them waited.
func (j *judging) lookAt(ctx context.Context, s *snapshot.Snapshot, l *policies.Set, target catalog.Repository) (*look, error) {
	rules, _ := l.Of(target)
	rules.Now, rules.IgnoreWaits = s.Now, true
	r := j.finder.Repositories.Tags(s, rules.Policies, j.alive)
	v, err := judge.Evaluate(rules, r.Repository(ctx))
	if err != nil {
		return nil, err
	}
	r.Verdicts = []*judge.Verdict{v}
	next, stop := iter.Pull2(r.Tags(ctx))
	return &look{policies: rules.Policies, stop: stop, next: func() (string, judge.Decision, bool, error) {
		t, err, more := next()
		if err != nil || !more {
			return "", judge.Decision{}, false, err
		}
		return t.Name, v.Decide(t.Judged), true, nil
	}}, nil
}

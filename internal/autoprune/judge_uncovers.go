package autoprune

import (
	"context"
	"fmt"
	"iter"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/policy"
)

// coverage has the policies of a namespace before and after a change that may let policies delete
// what the changed one kept from them.
type coverage struct {
	id            string // of the policy that is changed; "": none is
	before, after *policies
	// kept are the policies after the change, but with the changed policy's old keep rules and old
	// neverBelow; nil if the policy is deleted, its mode changes or it couldn't be read. compare uses them
	// to leave out tags that these rules kept only from the changed policy itself.
	kept *policies
}

// uncovers returns whether a change of the policy may let others delete what it kept from them. A policy
// that can't be read may keep everything. Any policy of a namespace keeps the registry's defaults away.
func (s *Saved) uncovers(now *policy.Policy) bool {
	switch old := s.Policy; {
	case now == nil || s.Problem != "":
		return true
	case s.inert():
		return false
	case now.Mode != old.Mode && now.Mode != "":
		return true
	case !policy.EqualKeep(old.Keep, now.Keep) || now.NeverBelow < old.NeverBelow:
		return true
	default: // its keep rules look at the tags that it selects
		return old.Keeps() && !old.SameRule(*now)
	}
}

// inert returns whether the policy neither deletes nor keeps tags. It only keeps the registry's defaults
// away, if it is a namespace's.
func (s *Saved) inert() bool {
	return s.Problem == "" && (s.Policy.Mode == policy.Off || s.Policy.Method == policy.UntaggedManifests)
}

// last returns whether the namespace has no other policy of its own.
func (l *policies) last(id string) bool { return len(l.namespace) == 1 && l.namespace[0].ID == id }

// changed returns the policies of a namespace before and after the change; nil if it can't let
// others delete more.
func (j *judging) changed(l *policies) *coverage {
	if on := j.change.Defaults; on != nil {
		if *on != l.off { // it is so already
			return nil
		}
		after := *l
		if after.off = !*on; after.none() { // an emergency stop waits for nothing
			return nil
		}
		return &coverage{before: l, after: &after}
	}
	if j.old == nil || !j.old.uncovers(j.change.Policy) || j.old.inert() && !l.last(j.old.ID) {
		return nil
	}
	c := &coverage{id: j.old.ID, before: l, after: l.replace(j.old.ID, j.change.Policy)}
	if now := j.change.Policy; now != nil && now.Mode == j.old.Policy.Mode && j.old.Problem == "" {
		kept := *now
		kept.Keep, kept.NeverBelow = j.old.Policy.Keep, j.old.Policy.NeverBelow
		c.kept = l.replace(j.old.ID, &kept)
	}
	return c
}

// replace returns the policies with another one in place of one of them; nil: without that.
func (l *policies) replace(id string, with *policy.Policy) *policies {
	out := *l
	change := func(list []Saved) (changed []Saved) {
		for _, s := range list {
			switch {
			case s.ID != id:
			case with == nil:
				continue
			default:
				s.Policy, s.Problem, s.Stored, s.Counts, s.MayKeep = *with, "", "", false, false
			}
			changed = append(changed, s)
		}
		return changed
	}
	out.defaults, out.namespace = change(l.defaults), change(l.namespace)
	out.repositories = make(map[int64][]Saved, len(l.repositories))
	for repository, list := range l.repositories {
		if list = change(list); len(list) > 0 {
			out.repositories[repository] = list
		}
	}
	return &out
}

// compare finds the tags that would be deleted after the change and not before.
func (j *judging) compare(ctx context.Context, s *snapshot, c *coverage, target catalog.Repository) error {
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
			byOthers = byOthers || after.saved[i].ID != c.id
		}
		if then.Delete && (byOthers && !old.Delete || c.kept != nil && !with.Delete) {
			j.uncovered.add(target.Path + ":" + name)
		}
	}
}

// look goes through a repository's tags with a verdict on them.
type look struct {
	saved []Saved
	next  func() (name string, d judge.Decision, more bool, err error)
	stop  func()
}

// lookAt judges a repository by policies, as if none of them waited.
func (j *judging) lookAt(ctx context.Context, s *snapshot, l *policies, target catalog.Repository) (*look, error) {
	rules, saved := l.of(target)
	rules.Now, rules.IgnoreWaits = s.Now, true
	r := j.reader(s, target, saved)
	v, err := judge.Evaluate(rules, r.repository(ctx))
	if err != nil {
		return nil, err
	}
	r.verdicts = []*judge.Verdict{v}
	next, stop := iter.Pull2(r.tags(ctx))
	return &look{saved: saved, stop: stop, next: func() (string, judge.Decision, bool, error) {
		t, err, more := next()
		if err != nil || !more {
			return "", judge.Decision{}, false, err
		}
		return t.Name, v.Decide(t.tag), true, nil
	}}, nil
}

package judge

import "fmt"

// floor keeps a number of the newest tags of a repository, because a policy has neverBelow.
type floor struct {
	policy int // index in Rules.Policies
	number int // 0: it keeps nothing
	tags   newest
	// oldest is the rank of the oldest tag that is kept. full says that there are at least
	// `number` tags; otherwise all are kept.
	oldest rank
	full   bool
}

// addFloor lets the policy with index i keep its number of tags. Of two policies that count
// the same tags, the greater number is enough.
func (v *Verdict) addFloor(i int) {
	p := &v.rules[i].policy
	f := &v.floors[0]
	if p.RemoveOrphans {
		f = &v.floors[1]
	}
	if p.NeverBelow > f.number {
		f.policy, f.number, f.tags.limit = i, p.NeverBelow, p.NeverBelow
	}
}

// countFloors adds a tag, which isn't attached, to the newest tags.
func (v *Verdict) countFloors(t *Tag) {
	for i := range v.floors {
		if f := &v.floors[i]; f.looksAt(v, t) {
			f.tags.add(rank{created: t.Created, name: t.Name})
		}
	}
}

// looksAt returns whether the floor counts a tag that isn't attached. That of policies that
// remove orphans counts no orphans.
func (f *floor) looksAt(v *Verdict, t *Tag) bool {
	return f.number > 0 && (f == &v.floors[0] || !t.Orphan())
}

// settleFloors is called when all tags were counted.
func (v *Verdict) settleFloors() {
	for i := range v.floors {
		f := &v.floors[i]
		f.oldest, f.full = f.tags.oldest()
		f.tags.ranks = nil
	}
}

// keptByFloor returns the floor that keeps a tag, which isn't attached; nil if none does.
func (v *Verdict) keptByFloor(t *Tag) *floor {
	for i := range v.floors {
		f := &v.floors[i]
		if f.looksAt(v, t) && (!f.full || rank{created: t.Created, name: t.Name}.compare(f.oldest) >= 0) {
			return f
		}
	}
	return nil
}

func (f *floor) reason() string {
	return fmt.Sprintf("kept: among the newest %d tags of the repository (neverBelow)", f.number)
}

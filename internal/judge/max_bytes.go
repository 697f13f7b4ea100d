package judge

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/purser-registry/purser/internal/policy"
)

// A max_bytes policy keeps the most recently used tags that fit into its bytes. It orders the
// tags that it counts by their last use, from the most recent, and adds up what they store; each
// manifest and blob counts once. The first tag at which the sum exceeds its bytes, and all tags
// that were used earlier, are selected. This is the same as deleting the least recently used tag
// again and again until what remains fits.
//
// The policy counts fewer tags than it may delete. It doesn't count a tag that a policy by age or
// last use might take, that an undo has restored, or of which the last use isn't known. The sum
// up to any tag is then smaller, so the policy selects fewer of the others. So none of these
// makes the policy delete a tag that it would otherwise keep. A tag that isn't counted is selected
// if a counted tag is selected that was used more recently. Protection rules, keep rules and holds
// don't change what is counted.
//
// A tag's last use is known if it isn't before the pull statistics began. Otherwise the tag may
// have been used at any time between its push and that beginning. So every tag whose last use
// is known was used more recently, and this is enough to select the tag if those don't fit.

// weighedTag is a tag that max_bytes policies count.
type weighedTag struct {
	rank     // by last use
	manifest int64
	counted  PolicySet // the policies that count it
}

// weigh notes a tag, which isn't attached, for the max_bytes policies that count it.
func (v *Verdict) weigh(t *Tag) {
	var counted PolicySet
	for i := range v.rules {
		r := &v.rules[i]
		if r.policy.Method == policy.MaxBytes && !r.inactive && r.rests == "" && !t.Exempt.Has(i) && r.considers(t) && !(r.policy.RemoveOrphans && t.Orphan()) {
			counted = counted.With(i)
		}
	}
	if counted == 0 || v.takenFirst(t) {
		return
	}
	if v.unplaced(t) {
		for i := range counted.All() {
			v.rules[i].unplaced++
		}
		return
	}
	v.weighed = append(v.weighed, weighedTag{rank{t.LastUse(), t.Name}, t.Manifest, counted})
}

// clockSlack is how far in the future a time may be: stored times and the judgement's are of different
// moments, and clocks differ a little.
const clockSlack = 5 * time.Minute

// unplaced returns whether it isn't known when the tag was last used, compared with the others. A push
// or a use of the future, by a clock that was ahead, may have been before uses at the right time.
func (v *Verdict) unplaced(t *Tag) bool {
	return t.UseUnknown || t.LastUse().Before(v.pulls.Since) || v.ofTheFuture(t)
}

func (v *Verdict) ofTheFuture(t *Tag) bool { return t.LastUse().After(v.now.Add(clockSlack)) }

// settleBytes finds for each max_bytes policy the most recently used tag that doesn't fit into
// its bytes.
func (v *Verdict) settleBytes(repository Repository, attached []attachedTag) error {
	if len(v.weighed) == 0 {
		return nil
	}
	if repository.Kept == nil || repository.Contents == nil || repository.BlobSizes == nil {
		return errors.New("judge: max_bytes policies need to know what manifests store")
	}
	order := orderOf(v.weighed)
	if repository.Stock == nil {
		repository.Stock = NewStock(repository)
	}
	of := make(map[int64][]int64)
	for _, c := range attached {
		of[c.image] = append(of[c.image], c.manifest)
	}
	for i := range v.rules {
		r := &v.rules[i]
		if r.policy.Method != policy.MaxBytes || r.inactive || r.rests != "" {
			continue
		}
		var err error
		if r.beyond, r.full, err = repository.Stock.newScales(of).exceeds(v.weighed, order, i, int64(r.policy.MaxBytes)); err != nil {
			return err
		}
		v.candidates = v.candidates || r.full && r.waits == ""
	}
	v.weighed = nil
	return nil
}

// weighedPlace is the index of a tag in Verdict.weighed, and when it was last used.
type weighedPlace struct {
	micros int64
	index  int32
}

// orderOf sorts tags by their ranks, the highest first. It compares and moves numbers rather than tags
// where it can, since a forecast sorts all tags for each day.
func orderOf(tags []weighedTag) []weighedPlace {
	order := make([]weighedPlace, len(tags))
	for i := range tags {
		order[i] = weighedPlace{tags[i].created.UnixMicro(), int32(i)}
	}
	slices.SortFunc(order, func(a, b weighedPlace) int {
		if a.micros != b.micros {
			return cmp.Compare(b.micros, a.micros)
		}
		return tags[b.index].compare(tags[a.index].rank)
	})
	return order
}

// judgeBytes says whether a max_bytes policy selects a tag that it considers.
func (r *rule) judgeBytes(t *Tag) (code Code, selected bool) {
	if r.full && !t.UseUnknown && (rank{t.LastUse(), t.Name}).compare(r.beyond) <= 0 {
		return BeyondBytes, true
	}
	return WithinBytes, false
}

func (v *Verdict) bytesReason(t *Tag, r *rule, code Code) string {
	limit := r.policy.MaxBytes
	last := fmt.Sprintf("last used at %s", Stamp(t.LastUse()))
	if v.unplaced(t) {
		last = fmt.Sprintf("no use recorded since %s", Stamp(v.pulls.Since))
	}
	switch {
	case code == BeyondBytes:
		return fmt.Sprintf("%s, not among the most recently used tags%s that fit into %s", last, v.ofWhich(r), limit)
	case t.UseUnknown:
		return "it isn't known when it was last used"
	case v.ofTheFuture(t):
		return fmt.Sprintf("not counted: it was pushed or used at %s, which is in the future, so it isn't known when it was last used", Stamp(t.LastUse()))
	case v.unplaced(t):
		return fmt.Sprintf("not counted: %s, so it isn't known when it was last used", last)
	}
	return fmt.Sprintf("%s, among the most recently used tags%s that fit into %s", last, v.ofWhich(r), limit)
}

// unplacedNotice says how many tags a max_bytes policy doesn't count because it isn't known when
// they were last used; "" for none.
func (v *Verdict) unplacedNotice(i int) string {
	r := &v.rules[i]
	if r.unplaced == 0 {
		return ""
	}
	return fmt.Sprintf("it doesn't count %d tags, because they were neither pushed nor used since pull statistics began at %s, or it can't be found out now when they were used, or their times are in the future",
		r.unplaced, Stamp(v.pulls.Since))
}

package judge

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/purser-registry/purser/internal/policy"
)

// orphanAge is the least age at which a policy with removeOrphans deletes an orphan: a
// signature or similar tag whose image isn't in the repository. The delay is needed because
// tools that copy images may push the signature before the image.
const orphanAge = 24 * time.Hour

// Verdict says of each tag of one repository whether the policies delete it. Several
// goroutines may use it.
//
// A tag that is pushed after the evaluation is judged by the same rules, but the newest
// N tags of a number_of_tags policy, and the tags that fit into the bytes of a max_bytes policy,
// aren't determined again: the new tag stays in addition to these. Just before the caller deletes a tag, the caller may set a later
// time of last use in the Tag and call Decide again; Decide may then return that the tag
// stays. This doesn't change the verdict on other tags: Decide still returns that the
// tags attached to the same image are deleted. So that these attached tags stay too, the
// caller must delete attached tags last, and only those whose image has no tag any more.
type Verdict struct {
	rules      []rule
	order      []int    // indexes of rules that aren't inactive: policies that count tags come last
	floors     [2]floor // of policies that don't and that do remove orphans
	protection []Protection
	pulls      PullRecord
	now        time.Time
	gone       map[int64]PolicySet
	weighed    []weighedTag // that max_bytes policies count, while tags are surveyed
	candidates bool         // some tag may be deleted
	groups     int          // number of groups of all policies by number and keep rules
	maxGroups  int
	overflow   bool // there are more than maxGroups
	// readsManifests says that a policy reads Tag.MediaType, ArtifactType or Size.
	readsManifests bool
}

// HasCandidates returns whether a tag that isn't attached to an image may be deleted.
func (v *Verdict) HasCandidates() bool { return v.candidates }

// ImagesGo returns whether an image loses its last tag, so that what is attached to it is deleted.
func (v *Verdict) ImagesGo() bool { return len(v.gone) > 0 }

// Rests returns why policy i selects no tag, whatever the tag; "" if it may select tags.
func (v *Verdict) Rests(i int) string { return v.rules[i].rests }

// rule is a policy prepared for a repository.
type rule struct {
	policy policy.Policy
	bound  *FreeBound // restricts a policy that frees bytes; nil: no restriction
	id     string
	place  int // index in Rules.Policies
	// doubts is about how many tags the policy is in doubt.
	doubts int64
	// cutoff is now minus the policy's age. The policy selects tags whose time is before
	// it; a tag whose time equals cutoff stays.
	cutoff time.Time
	// orphans is now minus orphanAge. A policy with removeOrphans selects an orphan (a tag
	// whose image isn't in the repository) that was pushed before this time.
	orphans time.Time
	// newest has the newest tags, for a number_of_tags policy.
	newest *newestGroups
	// Of a max_bytes policy, full says that the tags exceed its bytes; beyond is then the rank
	// by last use of the most recently used tag that doesn't fit.
	beyond rank
	full   bool
	// unplaced is how many tags a max_bytes policy doesn't count, since it isn't known when they
	// were last used.
	unplaced int64
	// rests is the reason why the policy selects nothing, "" if it may select tags;
	// restCode is the code of the reason in `rests`.
	rests    string
	restCode Code
	// unreadable says that this version can't read the policy. Such a policy might select
	// any tag, before the policies that count tags do so. mayCount says that the unreadable
	// policy is known to be one that counts, so it selects nothing before the others count.
	unreadable, mayCount bool
	// inactive says that the policy selects nothing and doesn't matter for what other
	// policies select, because of its mode or its method. Its keep rules do matter unless it is off.
	inactive bool
	// excepted says that it is inactive because the repository is an exception.
	excepted bool
	// waits is why the policy deletes nothing of what it selects, "" if it may delete; waitCode
	// is the code of the reason. Other policies select what they would select if it didn't wait.
	waits    string
	waitCode Code
	// keepers are the policy's keep rules. countsKept says that at least one of them counts
	// tags or versions.
	keepers    []keeper
	countsKept bool
}

// counts returns whether this is a number_of_tags or max_bytes policy. Such policies count the
// tags that the other policies leave.
func (r *rule) counts() bool { return r.policy.Method.Counts() }

// Evaluate judges a repository's tags by the rules. It reads the tags once, and a second
// time if there are attached tags. It returns the errors of the repository's functions, and an
// error if a tag or a rule is invalid, which only a mistake of the caller can cause.
//
// Memory while Evaluate runs: 45 bytes and the name for each tag that a number_of_tags
// policy or a keep rule keeps because it is among the newest; about 250 bytes for each
// version that a keep rule keeps; about 200 bytes for each group in which a policy or a keep rule
// counts; about 200 bytes and the name for each image that a policy or a keep rule counts; about 60
// bytes for each attached tag; about 100 bytes for each image that has attached tags and for
// each index above such an image; 80 bytes and the name for each tag that max_bytes policies
// count, about 100 bytes for each manifest and each blob that they let stay, and 4 bytes for each use
// of a blob; nothing for other tags. The verdict keeps about 30 bytes for each image that has attached
// tags and loses its last tag.
func Evaluate(rules Rules, repository Repository) (*Verdict, error) {
	if err := rules.validate(); err != nil {
		return nil, err
	}
	v := newVerdict(rules)
	if len(v.rules) == 0 {
		return v, nil
	}
	attached, err := v.survey(repository)
	if err != nil {
		return nil, err
	}
	if err := v.settleBytes(repository, attached); err != nil {
		return nil, err
	}
	if err := v.followImages(repository, attached); err != nil {
		return nil, err
	}
	return v, nil
}

func newVerdict(rules Rules) *Verdict {
	v := &Verdict{protection: rules.Protection, pulls: rules.Pulls, now: rules.Now, maxGroups: cmp.Or(rules.MaxGroups, DefaultMaxGroups)}
	var last []int
	unreadable, mayKeep := -1, -1
	for i, applied := range rules.Policies {
		r := rule{
			policy: applied.Policy, bound: applied.Bound, id: applied.ID, place: i,
			cutoff:   rules.Now.Add(-applied.Policy.OlderThan.Duration()),
			orphans:  rules.Now.Add(-orphanAge),
			inactive: applied.Excepted || applied.Policy.Mode == policy.Off || applied.Policy.Mode == policy.Observe && !rules.Would || applied.Policy.Method == policy.UntaggedManifests,
			excepted: applied.Excepted,
		}
		if !rules.Would && !rules.IgnoreWaits {
			r.waitCode, r.waits = applied.waiting(rules.Now)
		}
		if applied.Policy.Mode != policy.Off {
			r.keepers = newKeepers(applied.Policy.Keep, rules.Now, rules.Pulls)
		}
		if r.policy.Method == policy.NumberOfTags {
			r.newest = newNewestGroups(r.policy.Counting, r.policy.NumTags, false)
		}
		v.readsManifests = v.readsManifests || r.policy.ReadsManifests()
		for i := range r.keepers {
			r.countsKept = r.countsKept || r.keepers[i].counts()
		}
		switch {
		case applied.Problem != "":
			r.unreadable, r.mayCount = true, applied.Counts
			r.rests, r.restCode = Unreadable+applied.Problem, PolicyUnreadable
			if !r.mayCount {
				unreadable = i
			}
			if applied.MayKeep {
				mayKeep = i
			}
		case r.policy.Method == policy.LastPulled:
			r.rests, r.restCode = rules.Pulls.problem(r.policy.OlderThan, r.cutoff), NoStatistics
		case r.policy.Method == policy.MaxBytes:
			r.rests, r.restCode = rules.Pulls.Missing(), NoStatistics
		}
		v.rules = append(v.rules, r)
		if r.policy.Mode != policy.Off {
			v.addFloor(i)
		}
		switch {
		case r.inactive:
		case r.counts():
			last = append(last, i)
		default:
			v.order = append(v.order, i)
		}
	}
	v.order = append(v.order, last...)
	if unreadable >= 0 {
		for _, i := range last {
			v.rules[i].rests = fmt.Sprintf("it counts what remains after other policies, and policy %s can't be read", v.rules[unreadable].id)
			v.rules[i].restCode = PolicyUnreadable
		}
	}
	for i := range v.rules {
		if r := &v.rules[i]; mayKeep >= 0 && !r.unreadable {
			r.rests = fmt.Sprintf("policy %s can't be read and may keep any tag", v.rules[mayKeep].id)
			r.restCode = PolicyUnreadable
		}
	}
	return v
}

// survey reads all tags. It finds the oldest tag that each number_of_tags policy and each
// keep rule keeps, and returns the attached tags.
func (v *Verdict) survey(repository Repository) ([]attachedTag, error) {
	var attached []attachedTag
	for t, err := range repository.Tags {
		if err != nil {
			return nil, err
		}
		if err := t.validate(); err != nil {
			return nil, err
		}
		if v.readsManifests && t.MediaType == "" {
			return nil, fmt.Errorf("judge: tag %q has no media type", t.Name)
		}
		if t.Attached() {
			attached = append(attached, attachedTag{image: t.Image, manifest: t.Manifest, exempt: t.Exempt, protected: v.protected(&t)})
			continue
		}
		v.countDoubts(&t)
		v.count(&t)
		v.weigh(&t)
		v.countKept(&t)
		v.countFloors(&t)
	}
	v.settleFloors()
	for k := range v.keepers() {
		k.settle()
	}
	for i := range v.rules {
		r := &v.rules[i]
		if r.policy.Method != policy.NumberOfTags || r.rests != "" || r.inactive {
			continue
		}
		r.newest.settle()
		v.candidates = v.candidates || r.waits == "" && r.newest.surplus
	}
	return attached, nil
}

// count adds the tag to the counters of those number_of_tags policies whose pattern selects
// it. It leaves out a tag that another policy deletes, that another policy selects while it
// waits, that another policy might delete but can't judge yet, or that another policy would
// delete if an undo hadn't exempted the tag. So neither a policy that selects nothing nor an
// undo makes a number_of_tags policy delete a tag that it would otherwise keep.
func (v *Verdict) count(t *Tag) {
	known, protected, remains := false, false, false
	for i := range v.rules {
		r := &v.rules[i]
		if r.inactive {
			continue
		}
		v.candidates = v.candidates || r.rests == "" && r.waits == "" && r.mayTakeFirst(t)
		if r.policy.Method != policy.NumberOfTags || !r.considers(t) || r.policy.RemoveOrphans && t.Orphan() {
			continue
		}
		if !known {
			known, protected = true, v.protected(t)
			remains = !protected && !v.takenFirst(t)
		}
		switch {
		case !protected && !t.Exempt.Has(i):
			v.groups += r.newest.see(t, remains)
		case r.newest.CountImages:
			r.newest.see(t, false)
		}
	}
	v.limitGroups()
}

// takenFirst returns whether a policy selects the tag before policies that count tags do so,
// or might select it but can't judge yet (the field `rests` of its rule is set, it is in doubt
// about the tag, or the tag's last use isn't known). It ignores exemptions.
func (v *Verdict) takenFirst(t *Tag) bool {
	for i := range v.rules {
		r := &v.rules[i]
		if r.inactive || !r.mayTakeFirst(t) || !r.considers(t) && !r.inDoubt(t) {
			continue
		}
		if _, taken := r.judgeConsidered(t); taken || r.rests != "" || r.policy.Method == policy.LastPulled && t.UseUnknown {
			return true
		}
	}
	return false
}

// mayTakeFirst is a quick check whether the policy might select the tag before policies that
// count tags do so. It looks at neither the policy's pattern nor the tag's
// last use.
func (r *rule) mayTakeFirst(t *Tag) bool {
	switch {
	case r.unreadable:
		return !r.mayCount
	case r.policy.RemoveOrphans && t.Orphan():
		return t.Created.Before(r.orphans)
	}
	return !r.counts() && t.Created.Before(r.cutoff)
}

// followImages finds the images that lose their last tag.
func (v *Verdict) followImages(repository Repository, attached []attachedTag) error {
	if len(attached) == 0 {
		return nil
	}
	g, err := newImages(attached, repository.Parents)
	if err != nil {
		return err
	}
	for t, err := range repository.Tags {
		if err != nil {
			return err
		}
		if t.Attached() || !g.has(t.Manifest) {
			continue
		}
		g.addTag(t.Manifest, v.Decide(t).Policies)
	}
	if err := g.hold(repository.Held); err != nil {
		return err
	}
	v.gone = g.settle()
	return nil
}

// Decide says whether a tag of the repository is deleted.
func (v *Verdict) Decide(t Tag) Decision {
	if len(v.rules) == 0 {
		return Decision{Code: NoPolicy, Policy: -1}
	}
	if v.protected(&t) {
		return Decision{Code: Protected, Policy: -1}
	}
	if t.Attached() {
		return v.decideAttached(&t).unlessHeld(&t)
	}
	d := Decision{Code: NotMatched, Policy: -1}
	unreadable, waiting := -1, -1
	for _, i := range v.order {
		if v.rules[i].unreadable {
			unreadable = i
			continue
		}
		code, selected := v.rules[i].judge(&t, t.Exempt.Has(i))
		switch {
		case selected && v.rules[i].waits != "":
			if waiting < 0 {
				waiting = i
			}
		case selected:
			if !d.Delete {
				d.Delete, d.Code, d.Policy = true, code, i
			}
			d.Policies = d.Policies.With(i)
		case d.Policy < 0 && code != NotMatched:
			d.Code, d.Policy = code, i
		}
	}
	switch {
	case d.Policy < 0 && unreadable >= 0:
		d.Code, d.Policy = PolicyUnreadable, unreadable
	case len(v.order) == 0:
		d.Code = Inactive
	case !d.Delete && waiting >= 0:
		d.Code, d.Policy = v.rules[waiting].waitCode, waiting
	}
	if d.Delete || waiting >= 0 {
		if k, policy, code := v.kept(&t); k != nil {
			return Decision{Code: code, Policy: policy}
		}
		if policy := v.keptInDoubt(&t); policy >= 0 {
			return Decision{Code: KeptDoubtful, Policy: policy}
		}
		if f := v.keptByFloor(&t); f != nil {
			return Decision{Code: KeptFloor, Policy: f.policy}
		}
	}
	return d.unlessHeld(&t)
}

// unlessHeld returns the decision that the tag stays, if it would be deleted and is held.
// Holds come last: they are looked up only for tags that would be deleted otherwise.
func (d Decision) unlessHeld(t *Tag) Decision {
	if d.Delete && t.Held != "" {
		return Decision{Code: Held, Policy: d.Policy}
	}
	return d
}

// judge says whether the policy selects a tag. It ignores protection.
func (r *rule) judge(t *Tag, exempt bool) (code Code, selected bool) {
	switch {
	case r.unreadable:
		return PolicyUnreadable, false
	case !r.considers(t):
		if r.inDoubt(t) {
			return Doubtful, false
		}
		return NotMatched, false
	case exempt:
		return Exempt, false
	case r.rests != "":
		return r.restCode, false
	}
	return r.judgeConsidered(t)
}

// judgeConsidered is like judge for a tag that the policy considers.
func (r *rule) judgeConsidered(t *Tag) (code Code, selected bool) {
	switch {
	case r.policy.RemoveOrphans && t.Orphan():
		if t.Created.Before(r.orphans) {
			return ImageMissing, true
		}
		return ImageAwaited, false
	case r.policy.Method == policy.MaxBytes:
		return r.judgeBytes(t)
	case r.counts():
		code = r.newest.judge(t)
		return code, code == BeyondNewest
	case !t.Created.Before(r.cutoff):
		return Young, false
	case r.policy.Method == policy.CreationDate:
		return TooOld, true
	}
	switch used := t.Used(); {
	case r.bound.beyond(t):
		return RecentlyPulled, false
	case used.IsZero():
		return NeverPulled, true
	case used.Before(r.cutoff):
		return NotPulled, true
	}
	return RecentlyPulled, false
}

// decideAttached returns the decision about an attached tag: it is deleted if its image
// loses its last tag, and by the same policies that delete the image's tags.
func (v *Verdict) decideAttached(t *Tag) Decision {
	// If the caller hasn't looked for the image, Image is 0. v.gone has no entry for 0, so
	// the tag stays.
	takers, gone := v.gone[t.Image]
	taken := takers &^ t.Exempt
	switch {
	case !gone:
		return Decision{Code: ImageStays, Policy: -1}
	case taken == 0:
		return Decision{Code: Exempt, Policy: takers.first()}
	}
	return Decision{Delete: true, Code: ImageGoes, Policy: v.firstOf(taken), Policies: taken}
}

// firstOf returns the policy of the set that applies first.
func (v *Verdict) firstOf(set PolicySet) int {
	for _, i := range v.order {
		if set.Has(i) {
			return i
		}
	}
	return -1
}

// Notices returns at most one notice for each policy: why the policy can't be applied now
// and therefore selects no tag, and why its keep rules keep more tags than they should.
func (v *Verdict) Notices() []Notice {
	var notices []Notice
	for i := range v.rules {
		if v.rules[i].policy.Mode == policy.Off {
			continue
		}
		texts := v.keptNotices(i)
		for _, reason := range []string{v.unplacedNotice(i), v.rules[i].newest.notice(v.maxGroups), v.rules[i].doubtNotice(), v.rules[i].waits, v.rules[i].rests} {
			if reason != "" {
				texts = slices.Insert(texts, 0, reason)
			}
		}
		if len(texts) > 0 {
			notices = append(notices, Notice{Policy: i, Text: strings.Join(texts, "; ")})
		}
	}
	return notices
}

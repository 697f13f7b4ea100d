package autoprune

import (
	"cmp"
	"fmt"
	"time"
)

// orphanAge is how old an orphan must be before removeOrphans deletes it. Tools that copy
// images may push the signature before the image.
const orphanAge = 24 * time.Hour

// Verdict judges the tags of one repository. It may be used by several goroutines.
//
// It judges tags that came after the evaluation like the others, except that a tag which
// would be new among the newest of a policy stays. The caller may pass newer use times to
// Decide, just before a tag is deleted, and so save it. The verdict then still deletes the
// tags attached to its image; to keep them, the caller must delete attached tags last, and
// only those whose image has no tag.
type Verdict struct {
	rules      []rule
	order      []int // indexes of rules: policies that count tags come last
	protection []Protection
	pulls      PullRecord
	gone       map[int64]PolicySet
	may        bool // some tag may be deleted
}

// rule is a policy prepared for a repository.
type rule struct {
	policy Policy
	id     string
	// cutoff is now minus the policy's age. Tags before it are deleted; a tag exactly at it
	// stays.
	cutoff time.Time
	// orphans is the time before which an orphan must have been pushed to be deleted.
	orphans time.Time
	// oldest is the oldest tag that a number_of_tags policy keeps. It is valid if full is
	// set.
	oldest rank
	full   bool
	// rests is the reason why the policy selects nothing, and restCode its code.
	rests    string
	restCode Code
	// unreadable says that the policy can't be read, so it might select any tag before tags
	// are counted. mayCount says that such a policy is known to count tags, and so only
	// comes after the others.
	unreadable, mayCount bool
}

// counts returns whether the policy counts tags. Such a policy applies after the others, to
// the tags that remain.
func (r *rule) counts() bool { return r.policy.method == NumberOfTags }

// Evaluate judges a repository's tags by the rules. It runs through the tags once, and a
// second time if there are attached tags. Errors come from the repository, or report a tag
// or a rule that only a mistake can produce.
//
// While it runs it holds 45 bytes and the name for each tag that a number_of_tags
// policy keeps, about 60 bytes for each attached tag, and about 100 for each image that
// has such tags and for each index above one. Other tags cost nothing. The verdict
// keeps some 30 bytes for each image that has attached tags and loses its last tag.
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
	if err := v.followImages(repository, attached); err != nil {
		return nil, err
	}
	return v, nil
}

func newVerdict(rules Rules) *Verdict {
	v := &Verdict{protection: rules.Protection, pulls: rules.Pulls}
	var last []int
	unreadable := ""
	for i, applied := range rules.Policies {
		r := rule{
			policy: applied.Policy, id: applied.ID,
			cutoff:  rules.Now.Add(-applied.Policy.age.Duration()),
			orphans: rules.Now.Add(-orphanAge),
		}
		switch {
		case applied.Problem != "":
			r.unreadable, r.mayCount = true, applied.Counts
			r.rests, r.restCode = unreadableText+applied.Problem, PolicyUnreadable
			if !r.mayCount {
				unreadable = applied.ID
			}
		case r.policy.method == LastPulled:
			r.rests, r.restCode = rules.Pulls.problem(r.policy.age, r.cutoff), NoStatistics
		}
		v.rules = append(v.rules, r)
		if r.counts() {
			last = append(last, i)
		} else {
			v.order = append(v.order, i)
		}
	}
	v.order = append(v.order, last...)
	if unreadable != "" {
		for _, i := range last {
			v.rules[i].rests = fmt.Sprintf("it counts what remains after other policies, and policy %s can't be read", unreadable)
			v.rules[i].restCode = PolicyUnreadable
		}
	}
	return v
}

// problem returns why the pull statistics can't tell which tags were used since cutoff, ""
// if they can.
func (p PullRecord) problem(age Age, cutoff time.Time) string {
	limit := cmp.Or(p.MaxBehind, DefaultMaxBehind)
	switch {
	case p.Unknown != "":
		return p.Unknown
	case p.Since.IsZero():
		return "there are no pull statistics yet"
	case !p.Since.Before(cutoff):
		return fmt.Sprintf("pull statistics began at %s, no more than %s ago", stamp(p.Since), age)
	case p.Behind > limit:
		return fmt.Sprintf("pull statistics are %s behind, more than %s", p.Behind.Round(time.Second), limit)
	}
	return ""
}

// survey finds the oldest tag that each number_of_tags policy keeps, and returns
// the attached tags.
func (v *Verdict) survey(repository Repository) ([]attachedTag, error) {
	counters := make([]newest, len(v.rules))
	for i := range v.rules {
		counters[i].limit = v.rules[i].policy.number
	}
	var attached []attachedTag
	for t, err := range repository.Tags {
		if err != nil {
			return nil, err
		}
		if err := t.validate(); err != nil {
			return nil, err
		}
		if t.attached() {
			attached = append(attached, attachedTag{image: t.Image, manifest: t.Manifest, exempt: t.Exempt, protected: v.protected(t.Name)})
			continue
		}
		v.count(counters, &t)
	}
	for i := range v.rules {
		r := &v.rules[i]
		if !r.counts() || r.rests != "" {
			continue
		}
		r.oldest, r.full = counters[i].oldest()
		v.may = v.may || r.full && counters[i].seen > r.policy.number
	}
	return attached, nil
}

// count passes the tag to the number_of_tags policies that consider it. A tag that other
// policies take, or may take, isn't counted, nor one that they would take without the
// exemption of an undo. So neither a policy that rests nor an undo makes a counting policy
// delete another tag.
func (v *Verdict) count(counters []newest, t *Tag) {
	known, remains := false, false
	for i := range v.rules {
		r := &v.rules[i]
		v.may = v.may || r.rests == "" && r.mayTakeFirst(t)
		if !r.counts() || t.Exempt.Has(i) || !r.policy.Considers(t.Name) || r.policy.orphans && t.orphan() {
			continue
		}
		if !known {
			if v.protected(t.Name) {
				return
			}
			known, remains = true, !v.takenFirst(t)
		}
		counters[i].seen++
		if remains {
			counters[i].add(rank{created: t.Created, name: t.Name})
		}
	}
}

// takenFirst returns whether a policy that comes before counting takes the tag, or may take
// it. It ignores exemptions.
func (v *Verdict) takenFirst(t *Tag) bool {
	for i := range v.rules {
		r := &v.rules[i]
		if !r.mayTakeFirst(t) || !r.policy.Considers(t.Name) {
			continue
		}
		if _, taken := r.judge(t, false); taken || r.rests != "" {
			return true
		}
	}
	return false
}

// mayTakeFirst is a quick check whether the policy may take the tag before tags are
// counted, regardless of its pattern and of the tag's uses.
func (r *rule) mayTakeFirst(t *Tag) bool {
	switch {
	case r.unreadable:
		return !r.mayCount
	case r.policy.orphans && t.orphan():
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
		if t.attached() || !g.has(t.Manifest) {
			continue
		}
		g.addTag(t.Manifest, v.Decide(t).Policies)
	}
	v.gone = g.settle()
	return nil
}

// Decide says whether a tag of the repository is deleted.
func (v *Verdict) Decide(t Tag) Decision {
	if len(v.rules) == 0 {
		return Decision{Code: NoPolicy, Policy: -1}
	}
	if v.protected(t.Name) {
		return Decision{Code: Protected, Policy: -1}
	}
	if t.attached() {
		return v.decideAttached(&t)
	}
	d := Decision{Code: NotMatched, Policy: -1}
	unreadable := -1
	for _, i := range v.order {
		if v.rules[i].unreadable {
			unreadable = i
			continue
		}
		code, selected := v.rules[i].judge(&t, t.Exempt.Has(i))
		switch {
		case selected:
			if !d.Delete {
				d.Delete, d.Code, d.Policy = true, code, i
			}
			d.Policies = d.Policies.with(i)
		case d.Policy < 0 && code != NotMatched:
			d.Code, d.Policy = code, i
		}
	}
	if d.Policy < 0 && unreadable >= 0 {
		d.Code, d.Policy = PolicyUnreadable, unreadable
	}
	return d
}

// judge says whether the policy selects a tag. It ignores protection.
func (r *rule) judge(t *Tag, exempt bool) (code Code, selected bool) {
	switch {
	case r.unreadable:
		return PolicyUnreadable, false
	case !r.policy.Considers(t.Name):
		return NotMatched, false
	case exempt:
		return Exempt, false
	case r.rests != "":
		return r.restCode, false
	case r.policy.orphans && t.orphan():
		if t.Created.Before(r.orphans) {
			return ImageMissing, true
		}
		return ImageAwaited, false
	case r.counts():
		if r.full && (rank{created: t.Created, name: t.Name}).compare(r.oldest) < 0 {
			return BeyondNewest, true
		}
		return AmongNewest, false
	case !t.Created.Before(r.cutoff):
		return Young, false
	case r.policy.method == CreationDate:
		return TooOld, true
	}
	switch used := t.used(); {
	case used.IsZero():
		return NeverPulled, true
	case used.Before(r.cutoff):
		return NotPulled, true
	}
	return RecentlyPulled, false
}

// decideAttached decides about an attached tag: it is deleted if its image is, by the policies
// that delete the image's tags.
func (v *Verdict) decideAttached(t *Tag) Decision {
	// Image 0 says that the caller didn't look for the image; such a tag stays.
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

// protected returns whether a protection rule matches the tag.
func (v *Verdict) protected(tag string) bool { return v.protectionOf(tag) != nil }

func (v *Verdict) protectionOf(tag string) *Protection {
	for i := range v.protection {
		if v.protection[i].Pattern.Match(tag) {
			return &v.protection[i]
		}
	}
	return nil
}

// protectedBy describes the protection rule that matches the tag.
func (v *Verdict) protectedBy(tag string) string {
	switch p := v.protectionOf(tag); {
	case p == nil:
		return "by a rule"
	case p.Problem != "":
		return fmt.Sprintf("by rule %s, which holds for every tag: %s", p.ID, p.Problem)
	default:
		return fmt.Sprintf("it matches %q", p.Pattern)
	}
}

// Notices returns the policies that select nothing, whatever the tags, and why.
func (v *Verdict) Notices() []Notice {
	var notices []Notice
	for i := range v.rules {
		if v.rules[i].rests != "" {
			notices = append(notices, Notice{Policy: i, Text: v.rules[i].rests})
		}
	}
	return notices
}

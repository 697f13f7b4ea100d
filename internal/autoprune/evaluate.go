package autoprune

import (
	"fmt"
	"time"
)

// orphanAge is how old a companion must be to go because its image isn't there.
// Tools that copy images may push the signature first.
const orphanAge = 24 * time.Hour

// Verdict judges the tags of one repository. It may be used by several goroutines.
//
// A tag that came after the evaluation is judged like the others, and one that is
// new among the newest of a policy stays. Uses may be newer than they were: Decide
// with what is known just before a tag is deleted may save it. The companions of
// its image then stay too only if the caller sees to it: delete companions last,
// and only those whose image has no tag.
type Verdict struct {
	rules      []rule
	all        PolicySet // policies that can select something
	protection []Protection
	pulls      PullRecord
	orphans    time.Time // companions pushed before go when their image isn't there
	gone       map[int64]PolicySet
	may        bool // there may be a tag that goes
}

// rule is a policy made ready for a repository.
type rule struct {
	policy Policy
	// cutoff is the policy's age ago. What is older goes, what is as old stays.
	cutoff time.Time
	// oldest is the oldest tag that a number_of_tags policy keeps, if full.
	oldest rank
	full   bool
	// unready says why the policy selects nothing.
	unready string
}

// Evaluate judges a repository's tags by the rules. It runs through the tags once,
// and a second time if there are companions whose images are there; errors are the
// repository's, or tell of a tag or a rule that can only be a mistake.
//
// While it runs it holds 45 bytes and the name for each tag that a number_of_tags
// policy keeps, about 60 bytes for each companion, and about 100 for each image that
// has companions and for each index above one. Other tags cost nothing. The verdict
// keeps some 30 bytes for each image that has companions and loses its last tag.
func Evaluate(rules Rules, repository Repository) (*Verdict, error) {
	if err := rules.validate(); err != nil {
		return nil, err
	}
	v := newVerdict(rules)
	if len(v.rules) == 0 {
		return v, nil
	}
	companions, err := v.survey(repository)
	if err != nil {
		return nil, err
	}
	if err := v.followImages(repository, companions); err != nil {
		return nil, err
	}
	return v, nil
}

func newVerdict(rules Rules) *Verdict {
	v := &Verdict{
		protection: rules.Protection,
		pulls:      rules.Pulls,
		orphans:    rules.Now.Add(-orphanAge),
	}
	for i, applied := range rules.Policies {
		r := rule{policy: applied.Policy, cutoff: rules.Now.Add(-applied.Policy.age.Duration())}
		if r.policy.method == LastPulled {
			r.unready = rules.Pulls.problem(r.policy.age, r.cutoff)
		}
		if r.unready == "" {
			v.all = v.all.with(i)
		}
		v.rules = append(v.rules, r)
	}
	return v
}

// problem says why pull statistics can't tell what was used since cutoff, "" when
// they can.
func (p PullRecord) problem(age Age, cutoff time.Time) string {
	limit := p.MaxBehind
	if limit == 0 {
		limit = DefaultMaxBehind
	}
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
// the companions.
func (v *Verdict) survey(repository Repository) ([]companion, error) {
	counters := make([]newest, len(v.rules))
	for i := range v.rules {
		counters[i].limit = v.rules[i].policy.number
	}
	var companions []companion
	for t, err := range repository.Tags {
		if err != nil {
			return nil, err
		}
		if err := t.validate(); err != nil {
			return nil, err
		}
		if t.companion() {
			companions = append(companions, v.newCompanion(&t))
			continue
		}
		v.count(counters, &t)
	}
	for i := range v.rules {
		v.rules[i].oldest, v.rules[i].full = counters[i].oldest()
		v.may = v.may || counters[i].added > v.rules[i].policy.number
	}
	return companions, nil
}

func (v *Verdict) newCompanion(t *Tag) companion {
	c := companion{image: t.Image, manifest: t.Manifest, exempt: t.Exempt, protected: v.protected(t.Name)}
	if t.Image == MissingImage {
		if d := v.Decide(*t); d.Delete {
			c.taken, v.may = d.Policies, true
		}
	}
	return c
}

// count shows the tag to the number_of_tags policies that count it.
func (v *Verdict) count(counters []newest, t *Tag) {
	protected, known := false, false
	for i := range v.rules {
		r := &v.rules[i]
		if r.policy.method != NumberOfTags {
			v.may = v.may || r.unready == "" && t.Created.Before(r.cutoff)
			continue
		}
		if t.Exempt.Has(i) || !r.policy.Considers(t.Name) {
			continue
		}
		if !known {
			protected, known = v.protected(t.Name), true
		}
		if protected {
			return
		}
		counters[i].add(rank{created: t.Created, name: t.Name})
	}
}

// followImages finds the images that lose their last tag.
func (v *Verdict) followImages(repository Repository, companions []companion) error {
	present := false
	for _, c := range companions {
		present = present || c.image != MissingImage
	}
	if !present {
		return nil
	}
	g, err := newImages(companions, repository.Parents)
	if err != nil {
		return err
	}
	for t, err := range repository.Tags {
		if err != nil {
			return err
		}
		if t.companion() || !g.has(t.Manifest) {
			continue
		}
		g.addTag(t.Manifest, v.Decide(t).Policies)
	}
	v.gone = g.settle()
	return nil
}

// Decide says whether a tag of the repository goes.
func (v *Verdict) Decide(t Tag) Decision {
	if len(v.rules) == 0 {
		return Decision{Code: NoPolicy, Policy: -1}
	}
	if t.companion() {
		return v.decideCompanion(&t)
	}
	if v.protected(t.Name) {
		return Decision{Code: Protected, Policy: -1}
	}
	d := Decision{Code: NotMatched, Policy: -1}
	for i := range v.rules {
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
	return d
}

// judge says whether the policy selects a tag, protection aside.
func (r *rule) judge(t *Tag, exempt bool) (code Code, selected bool) {
	switch {
	case !r.policy.Considers(t.Name):
		return NotMatched, false
	case exempt:
		return Exempt, false
	case r.unready != "":
		return NoStatistics, false
	case r.policy.method == NumberOfTags:
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

// decideCompanion says whether a companion goes.
func (v *Verdict) decideCompanion(t *Tag) Decision {
	if v.protected(t.Name) {
		return Decision{Code: Protected, Policy: -1}
	}
	if t.Image == MissingImage && v.all == 0 {
		return Decision{Code: NoStatistics, Policy: 0} // so for each of the policies
	}
	code, takers := v.takersOf(t)
	taken := takers &^ t.Exempt
	switch {
	case taken != 0:
		return Decision{Delete: true, Code: code, Policy: taken.first(), Policies: taken}
	case takers != 0:
		return Decision{Code: Exempt, Policy: takers.first()}
	}
	return Decision{Code: code, Policy: -1}
}

// takersOf returns the policies that take a companion, protection and exemptions
// aside, and the reason; or none and the reason why it stays.
func (v *Verdict) takersOf(t *Tag) (Code, PolicySet) {
	if t.Image == MissingImage {
		if t.Created.Before(v.orphans) {
			return ImageMissing, v.all
		}
		return ImageAwaited, 0
	}
	// An image of 0 says that the caller didn't look for it; it is never gone.
	if takers, gone := v.gone[t.Image]; gone {
		return ImageGoes, takers
	}
	return ImageStays, 0
}

// protected tells whether a rule keeps the tag.
func (v *Verdict) protected(tag string) bool { return v.protectionOf(tag) != nil }

func (v *Verdict) protectionOf(tag string) *Protection {
	for i := range v.protection {
		if v.protection[i].Pattern.Match(tag) {
			return &v.protection[i]
		}
	}
	return nil
}

// protectedBy names the rule for a reason.
func (v *Verdict) protectedBy(tag string) string {
	if p := v.protectionOf(tag); p != nil {
		return fmt.Sprintf("it matches %q", p.Pattern)
	}
	return "by a rule"
}

// Notices says which policies select nothing, whatever the tags, and why.
func (v *Verdict) Notices() []Notice {
	var notices []Notice
	for i := range v.rules {
		if v.rules[i].unready != "" {
			notices = append(notices, Notice{Policy: i, Text: v.rules[i].unready})
		}
	}
	return notices
}

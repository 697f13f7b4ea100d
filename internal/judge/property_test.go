package judge_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/policy"
)

// scene is a repository, with the policies, protection rules and statistics by which a test
// judges it.
type scene struct {
	rules      judge.Rules
	tags       []judge.Tag
	references []judge.Reference
}

// missing is the first image that no scene has.
const missing = 100

// drawScene draws a small repository. Equal push times, images with several tags, indexes,
// chains of attached tags and all kinds of policies are frequent in it.
func drawScene(t *rapid.T) scene {
	var s scene
	s.rules = rules(t, rapid.SliceOfN(drawPolicy(), 1, 4).Draw(t, "policies")...)
	s.rules.Protection = protect(t, rapid.SliceOfN(rapid.SampledFrom([]string{"^v1", "^pr-3$", `\.att$`}), 0, 2).Draw(t, "protection")...)
	s.rules.Pulls = judge.PullRecord{
		Since:  ago(time.Duration(rapid.IntRange(0, 120).Draw(t, "hours of statistics")) * time.Hour),
		Behind: time.Duration(rapid.IntRange(0, 70).Draw(t, "minutes behind")) * time.Minute,
	}
	names := rapid.SliceOfNDistinct(drawName(), 0, 30, rapid.ID[string]).Draw(t, "names")
	for _, name := range names {
		s.tags = append(s.tags, drawTag(t, name))
	}
	// Each drawn index has a higher number than its children, so the references contain no
	// cycle.
	for range rapid.IntRange(0, 10).Draw(t, "references") {
		parent := rapid.Int64Range(2, 12).Draw(t, "parent")
		child := rapid.Int64Range(1, parent-1).Draw(t, "child")
		if r := (judge.Reference{Parent: parent, Child: child}); !slices.Contains(s.references, r) {
			s.references = append(s.references, r)
		}
	}
	return s
}

// drawPolicy draws a policy of which half have keep rules.
func drawPolicy() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		text := drawPlainPolicy().Draw(t, "policy")
		switch keep := drawKeeps(t); {
		case keep == "" && text == "?":
			return rapid.SampledFrom([]string{"?", "?keep"}).Draw(t, "unreadable")
		case keep == "" || strings.HasPrefix(text, "?"):
			return text
		default:
			return text + " keep " + keep
		}
	})
}

// drawPlainPolicy draws a policy without keep rules.
func drawPlainPolicy() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		text := fmt.Sprintf("%s:%dh", rapid.SampledFrom([]string{"creation_date", "last_pulled"}).Draw(t, "method"), rapid.IntRange(1, 60).Draw(t, "age"))
		switch rapid.IntRange(0, 3).Draw(t, "counts") {
		case 0, 1:
			text = fmt.Sprintf("number_of_tags:%d", rapid.IntRange(1, 12).Draw(t, "number"))
		case 2:
			text = fmt.Sprintf("max_bytes:%d", rapid.IntRange(1, 50).Draw(t, "bytes"))
		}
		switch rapid.IntRange(0, 9).Draw(t, "kind of policy") {
		case 0:
			return "?"
		case 1:
			return "?number"
		case 2, 3:
			text += "+orphans"
		}
		if strings.HasPrefix(text, "number_of_tags") {
			return text + drawPattern(t) + drawCounting(t)
		}
		return text + drawPattern(t) +
			rapid.SampledFrom([]string{"", "", "", ` where "mediaTypes": ["a"]`, ` where "largerThan": "2"`}).Draw(t, "selectors")
	})
}

func drawPattern(t *rapid.T) string {
	return rapid.SampledFrom([]string{"", ":.*", ":^pr-", ":!^v", ":[a-z]+[0-9]$", ":^(pr-|sha256-)"}).Draw(t, "pattern")
}

func drawName() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		if rapid.IntRange(0, 2).Draw(t, "kind") == 0 {
			of := rapid.SampledFrom([]int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, missing, missing + 1}).Draw(t, "image")
			return attachedName(of, rapid.SampledFrom([]string{"", ".sig", ".att", ".sbom"}).Draw(t, "suffix"))
		}
		if rapid.IntRange(0, 2).Draw(t, "version") == 0 {
			return drawVersion(t)
		}
		return rapid.SampledFrom([]string{"v", "pr-", "x"}).Draw(t, "prefix") + fmt.Sprint(rapid.IntRange(1, 15).Draw(t, "suffix"))
	})
}

func drawTag(t *rapid.T, name string) judge.Tag {
	hours := func(label string) time.Time {
		return ago(time.Duration(rapid.IntRange(-1, 70).Draw(t, label)) * time.Hour)
	}
	one := judge.Tag{Name: name, Created: hours("created"), Manifest: rapid.Int64Range(1, 12).Draw(t, "manifest")}
	one.MediaType, one.Size = rapid.SampledFrom([]string{"a", "b"}).Draw(t, "media type"), rapid.Int64Range(1, 4).Draw(t, "size")
	for _, use := range []*time.Time{&one.Pulled, &one.ManifestPulled, &one.Checked} {
		if rapid.Bool().Draw(t, "used") {
			*use = hours("use")
		}
	}
	one.Platforms = rapid.SampledFrom([]string{"", "linux/amd64", "linux/arm64", "linux/amd64\x00linux/arm64"}).Draw(t, "platforms")
	if digest, ok := judge.AttachedTo(name); ok {
		fmt.Sscanf(strings.TrimPrefix(digest.String(), "sha256:"), "%x", &one.Image)
		if one.Image >= missing {
			one.Image = judge.MissingImage
		}
	}
	if rapid.IntRange(0, 5).Draw(t, "exempt") == 0 {
		one.Exempt = judge.PolicySet(rapid.Uint64Range(0, 15).Draw(t, "from"))
	}
	return one
}

func (s scene) evaluate(t rapid.TB) *judge.Verdict {
	t.Helper()
	return evaluate(t, s.rules, s.tags, s.references...)
}

// taken returns the names of the tags that the verdict deletes, each with the policies that
// select it.
func (s scene) taken(t rapid.TB) map[string]judge.PolicySet {
	t.Helper()
	v := s.evaluate(t)
	taken := map[string]judge.PolicySet{}
	for _, one := range s.tags {
		if d := v.Decide(one); d.Delete {
			taken[one.Name] = d.Policies
		}
	}
	return taken
}

// attached returns whether a tag is attached to another manifest.
func attached(one judge.Tag) bool { return one.Image > 0 && one.Image != one.Manifest }

func orphan(one judge.Tag) bool { return one.Image == judge.MissingImage }

func (s scene) protected(name string) bool {
	return slices.ContainsFunc(s.rules.Protection, func(p judge.Protection) bool { return p.Pattern.Match(name) })
}

// counts returns whether policy i is a number_of_tags or max_bytes policy, which counts the tags
// that other policies leave.
func (s scene) counts(i int) bool {
	p := s.rules.Policies[i]
	return p.Problem != "" && p.Counts || p.Policy.Method == policy.NumberOfTags || p.Policy.Method == policy.MaxBytes
}

// considered returns the tags that policy i may select.
func (s scene) considered(i int) []judge.Tag {
	return slices.DeleteFunc(slices.Clone(s.tags), func(one judge.Tag) bool {
		return attached(one) || s.protected(one.Name) || one.Exempt.Has(i) || !s.considers(i, one)
	})
}

// considers returns whether the pattern and the selectors of policy i select a tag.
func (s scene) considers(i int, one judge.Tag) bool {
	p := s.rules.Policies[i].Policy
	where := p.Selectors
	return p.Considers(one.Name) && (where.MediaTypes == nil || one.MediaType == "a") && (where.LargerThan == 0 || one.Size > 2)
}

// first returns whether policy i selects a tag before other policies count tags. It
// also returns true if the policy might do so, but can't be read or lacks pull statistics.
// It ignores exemptions.
func (s scene) first(i int, one judge.Tag) bool {
	p := s.rules.Policies[i]
	switch {
	case p.Problem != "":
		return !p.Counts
	case !s.considers(i, one):
		return false
	case orphan(one) && p.Policy.RemoveOrphans:
		return one.Created.Before(ago(24 * time.Hour))
	case s.counts(i) || !one.Created.Before(s.cutoff(i)):
		return false
	case s.rests(i) || p.Policy.Method == policy.CreationDate:
		return true
	}
	return !slices.ContainsFunc([]time.Time{one.Pulled, one.ManifestPulled, one.Checked}, func(use time.Time) bool {
		return !use.IsZero() && !use.Before(s.cutoff(i))
	})
}

// remaining returns the tags that policy i counts, newest first.
func (s scene) remaining(i int) []judge.Tag {
	list := slices.DeleteFunc(s.considered(i), func(one judge.Tag) bool {
		if orphan(one) && s.rules.Policies[i].Policy.RemoveOrphans {
			return true
		}
		for other := range s.rules.Policies {
			if s.first(other, one) {
				return true
			}
		}
		return false
	})
	slices.SortFunc(list, newestFirst)
	return list
}

func newestFirst(a, b judge.Tag) int {
	return cmp.Or(b.Created.Compare(a.Created), cmp.Compare(b.Name, a.Name))
}

// rests returns whether policy i selects no tag at all, because it can't be read or judged.
func (s scene) rests(i int) bool {
	p := s.rules.Policies[i]
	switch {
	case p.Problem != "":
		return true
	case slices.ContainsFunc(s.rules.Policies, func(other judge.Applied) bool { return other.MayKeep }):
		return true
	case p.Policy.Method == policy.LastPulled:
		return !s.rules.Pulls.Since.Before(s.cutoff(i)) || s.rules.Pulls.Behind > time.Hour
	case p.Policy.Method == policy.MaxBytes && (s.rules.Pulls.Since.IsZero() || s.rules.Pulls.Behind > time.Hour):
		return true
	case s.counts(i):
		return slices.ContainsFunc(s.rules.Policies, func(other judge.Applied) bool { return other.Problem != "" && !other.Counts })
	}
	return false
}

func (s scene) cutoff(i int) time.Time {
	age, err := policy.ParseAge(s.rules.Policies[i].Policy.Value().(string))
	if err != nil {
		panic(err)
	}
	return s.rules.Now.Add(-age.Duration())
}

// selected returns the tags that policy i selects, computed from the definition of the
// policies. Attached tags aren't among them.
func (s scene) selected(i int) []judge.Tag {
	if s.rests(i) {
		return nil
	}
	p, remaining := s.rules.Policies[i].Policy, s.remaining(i)
	if p.Method == policy.MaxBytes {
		return s.beyondBytes(i)
	}
	return slices.DeleteFunc(s.considered(i), func(one judge.Tag) bool {
		if !s.counts(i) || orphan(one) && p.RemoveOrphans {
			return !s.first(i, one)
		}
		return !s.beyondNewest(i, one, remaining)
	})
}

// reaches returns whether the manifest `from` is the manifest `to` itself, or an index
// above it.
func (s scene) reaches(from, to int64) bool {
	if from == to {
		return true
	}
	return slices.ContainsFunc(s.references, func(r judge.Reference) bool { return r.Parent == from && s.reaches(r.Child, to) })
}

// expected computes the result of the method taken in a slow and simple way: it goes
// through the attached tags again and again until no further tag is deleted.
func (s scene) expected() map[string]judge.PolicySet {
	taken := map[string]judge.PolicySet{}
	for i := range s.rules.Policies {
		for _, one := range s.selected(i) {
			if !s.kept(one) {
				taken[one.Name] |= judge.PolicySetOf(i)
			}
		}
	}
	for changed := true; changed; {
		changed = false
		for _, one := range s.tags {
			if !attached(one) || s.protected(one.Name) || taken[one.Name] != 0 {
				continue
			}
			if policies := s.takers(one, taken) &^ one.Exempt; policies != 0 {
				taken[one.Name], changed = policies, true
			}
		}
	}
	return taken
}

// takers returns the policies that delete an attached tag, namely those that delete the
// tags of its image; none if the image stays.
func (s scene) takers(one judge.Tag, taken map[string]judge.PolicySet) (policies judge.PolicySet) {
	for _, keeper := range s.tags {
		if !s.reaches(keeper.Manifest, one.Image) {
			continue
		}
		if taken[keeper.Name] == 0 {
			return 0
		}
		policies |= taken[keeper.Name]
	}
	return policies
}

// TestEvaluateByDefinition compares the result of Evaluate with the definition of the
// policies (expected): the same tags must be deleted by the same policies.
func TestEvaluateByDefinition(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := drawScene(t)
		if got, want := s.taken(t), s.expected(); !maps.Equal(got, want) {
			t.Fatalf("evaluation takes %v\nthe definition   %v", got, want)
		}
	})
}

// TestEvaluateProperties checks properties that every verdict must have: a second decision
// equals the first, protected and exempt tags stay, and each policy that a decision names
// selects the tag.
func TestEvaluateProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := drawScene(t)
		v := s.evaluate(t)
		for _, one := range s.tags {
			d := v.Decide(one)
			switch {
			case d != v.Decide(one):
				t.Fatalf("tag %s is judged twice and differently", one.Name)
			case d.Delete && s.protected(one.Name):
				t.Fatalf("tag %s is protected and goes", one.Name)
			case d.Delete != (d.Policies != 0):
				t.Fatalf("tag %s goes: %v, under the policies %b", one.Name, d.Delete, d.Policies)
			case d.Policies&one.Exempt != 0:
				t.Fatalf("tag %s goes under a policy that it is exempt from", one.Name)
			case d.Delete && !d.Policies.Has(d.Policy):
				t.Fatalf("tag %s goes under policy %d, which isn't among %b", one.Name, d.Policy, d.Policies)
			}
			for i := range d.Policies.All() {
				if !attached(one) && !slices.ContainsFunc(s.selected(i), func(other judge.Tag) bool { return other.Name == one.Name }) {
					t.Fatalf("tag %s goes under policy %d, which doesn't select it", one.Name, i)
				}
			}
			if v.Reason(one, d) == "" {
				t.Fatalf("no reason for tag %s", one.Name)
			}
		}
	})
}

// TestKeepsExactlyTheNewest checks that a number_of_tags policy keeps exactly the newest
// tags if it is the only policy.
func TestKeepsExactlyTheNewest(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := drawScene(t)
		number := rapid.IntRange(1, 12).Draw(t, "number alone")
		s.rules.Policies = rules(t, fmt.Sprintf("number_of_tags:%d:!^x", number)).Policies
		v, counted := s.evaluate(t), s.remaining(0)
		kept := slices.DeleteFunc(slices.Clone(counted), func(one judge.Tag) bool { return v.Decide(one).Delete })
		if want := counted[:min(number, len(counted))]; !slices.Equal(kept, want) {
			t.Fatalf("of %v\nare kept %v\nwant     %v", counted, kept, want)
		}
	})
}

// TestOrderDoesNotMatter shuffles tags and references.
func TestOrderDoesNotMatter(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := drawScene(t)
		before := s.taken(t)
		s.tags = rapid.Permutation(s.tags).Draw(t, "tags")
		s.references = rapid.Permutation(s.references).Draw(t, "references again")
		if after := s.taken(t); !maps.Equal(before, after) {
			t.Fatalf("taken in one order %v\nin another         %v", before, after)
		}
	})
}

// TestPoliciesAddUp adds a policy to a repository's policies. Policies by age must select
// the same tags as before. If the added policy is a number_of_tags policy, every tag that
// was selected before must be selected by the same policies.
func TestPoliciesAddUp(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := drawScene(t)
		before := s.taken(t)
		more, place := s, len(s.rules.Policies)
		more.rules.Policies = slices.Concat(s.rules.Policies, rules(t, drawPlainPolicy().Draw(t, "one more")).Policies)
		after := more.taken(t)
		added := more.rules.Policies[place]
		for _, one := range s.tags {
			kept := before[one.Name]
			if !more.counts(place) || added.Policy.RemoveOrphans {
				for i := range kept.All() {
					if s.counts(i) || attached(one) {
						kept &^= judge.PolicySetOf(i)
					}
				}
			}
			if after[one.Name]&kept != kept {
				t.Fatalf("tag %s went under %b; with one more policy under %b", one.Name, kept, after[one.Name])
			}
		}
	})
}

// TestLessIsKnown makes a policy unreadable or removes the pull statistics. No tag may be
// deleted then that would have stayed before.
func TestLessIsKnown(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := drawScene(t)
		before := s.taken(t)
		less := s
		less.rules.Policies = slices.Clone(s.rules.Policies)
		if i := rapid.IntRange(-1, len(s.rules.Policies)-1).Draw(t, "unreadable"); i >= 0 {
			less.rules.Policies[i] = judge.Applied{
				Problem: "it is from the future",
				Counts:  s.counts(i) && !s.rules.Policies[i].Policy.RemoveOrphans,
				MayKeep: s.rules.Policies[i].MayKeep || len(s.rules.Policies[i].Policy.Keep) > 0,
			}
		} else {
			less.rules.Pulls = judge.PullRecord{}
		}
		for name := range less.taken(t) {
			if before[name] == 0 {
				t.Fatalf("tag %s goes, and would stay if more were known", name)
			}
		}
	})
}

// TestRunTwice judges the same tags twice, and the result must be the same. Then it judges
// the tags that are left after a run: no tag may be selected.
func TestRunTwice(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := drawScene(t)
		first := s.taken(t)
		if again := s.taken(t); !maps.Equal(again, first) {
			t.Fatalf("the same tags are judged differently: %v, then %v", first, again)
		}
		s.tags = slices.DeleteFunc(s.tags, func(one judge.Tag) bool { return first[one.Name] != 0 })
		if second := s.taken(t); len(second) > 0 {
			t.Fatalf("a second run takes %v", second)
		}
	})
}

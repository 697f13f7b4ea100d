package judge_test

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/policy"
)

// drawKeeps draws a policy's keep rules as JSON; "" for none.
func drawKeeps(t *rapid.T) string {
	if rapid.Bool().Draw(t, "without keep rules") {
		return ""
	}
	one := rapid.Custom(func(t *rapid.T) string {
		number := rapid.IntRange(1, 4).Draw(t, "keep newest")
		return rapid.SampledFrom([]string{
			fmt.Sprintf(`{"newest": %d}`, number),
			fmt.Sprintf(`{"newest": %d, "countImages": true}`, number),
			fmt.Sprintf(`{"newest": %d, "perPlatform": true}`, number),
			fmt.Sprintf(`{"newest": %d, "groupBy": "^([a-z]+)"}`, number),
			fmt.Sprintf(`{"newest": %d, "groupBy": "^(v)?.*?([0-9])$"}`, number),
			fmt.Sprintf(`{"usedWithin": "%dh"}`, rapid.IntRange(1, 60).Draw(t, "keep age")),
			fmt.Sprintf(`{"tagPattern": %q}`, rapid.SampledFrom([]string{"^v1", "3$", `\.sig$`}).Draw(t, "keep pattern")),
			`{"versions": "releases"}`,
			fmt.Sprintf(`{"versions": "newest_patches", "newest": %d}`, number),
			fmt.Sprintf(`{"versions": "newest_prereleases", "newest": %d}`, number),
		}).Draw(t, "keep rule")
	})
	return "[" + strings.Join(rapid.SliceOfN(one, 1, 2).Draw(t, "keep rules"), ", ") + "]"
}

// drawVersion draws a tag's name that is a version.
func drawVersion(t *rapid.T) string {
	return fmt.Sprintf("%s1.%d.%d%s", rapid.SampledFrom([]string{"", "v"}).Draw(t, "v"),
		rapid.IntRange(0, 1).Draw(t, "minor"), rapid.IntRange(0, 2).Draw(t, "patch"),
		rapid.SampledFrom([]string{"", "", "-alpine3", "-rc1", "-rc2"}).Draw(t, "suffix of the version"))
}

// testVersion is a version that drawVersion draws.
type testVersion struct {
	minor, patch, rc int
	variant          string
}

func versionOf(name string) (v testVersion, ok bool) {
	found := regexp.MustCompile(`^v?1\.(\d)\.(\d)(?:-(alpine)\d|-rc(\d))?$`).FindStringSubmatch(name)
	if found == nil {
		return v, false
	}
	fmt.Sscan(found[1], &v.minor)
	fmt.Sscan(found[2], &v.patch)
	if fmt.Sscan(found[4], &v.rc); v.rc == 0 {
		v.rc = 9 // a release is newer than its prereleases
	}
	v.variant = found[3]
	return v, true
}

// kept returns whether a keep rule of a policy keeps a tag.
func (s scene) kept(one judge.Tag) bool {
	for i, p := range s.rules.Policies {
		if p.Problem != "" || !s.considers(i, one) {
			continue
		}
		for _, k := range p.Policy.Keep {
			if s.keptBy(i, k, one) {
				return true
			}
		}
	}
	return false
}

func (s scene) keptBy(i int, k policy.KeepRule, one judge.Tag) bool {
	switch {
	case !k.TagPattern.IsZero():
		return regexp.MustCompile(k.TagPattern.String()).MatchString(one.Name)
	case k.UsedWithin != policy.Age{}:
		cutoff := s.rules.Now.Add(-k.UsedWithin.Duration())
		if !s.rules.Pulls.Since.Before(cutoff) || s.rules.Pulls.Behind > time.Hour {
			return true
		}
		return slices.ContainsFunc([]time.Time{one.Created, one.Pulled, one.ManifestPulled, one.Checked}, func(use time.Time) bool {
			return !use.IsZero() && !use.Before(cutoff)
		})
	case k.Versions == policy.Releases:
		v, ok := versionOf(one.Name)
		return ok && v.rc == 9
	}
	if s.rules.Policies[i].Policy.RemoveOrphans && orphan(one) {
		return false
	}
	counted := slices.DeleteFunc(s.considered(i), func(other judge.Tag) bool {
		return s.rules.Policies[i].Policy.RemoveOrphans && orphan(other)
	})
	if k.Versions != "" {
		return keptVersion(k, counted, one)
	}
	groups := regexp.MustCompile(k.GroupBy.String())
	group := func(name string) string { return strings.Join(groups.FindStringSubmatch(name)[1:], "/") }
	if !k.GroupBy.IsZero() && !groups.MatchString(one.Name) {
		return false
	}
	if k.PerPlatform {
		return s.newestOfPlatform(one, counted, k.Newest)
	}
	if k.CountImages {
		return s.newerImages(i, one, counted, func(judge.Tag) bool { return true }) < k.Newest
	}
	newer := 0
	for _, other := range counted {
		if newestFirst(other, one) < 0 && (k.GroupBy.IsZero() || groups.MatchString(other.Name) && group(other.Name) == group(one.Name)) {
			newer++
		}
	}
	return newer < k.Newest
}

// keptVersion returns whether a rule newest_patches or newest_prereleases keeps a tag.
func keptVersion(k policy.KeepRule, counted []judge.Tag, one judge.Tag) bool {
	prerelease := k.Versions == policy.NewestPrereleases
	v, ok := versionOf(one.Name)
	if !ok || prerelease != (v.rc < 9) {
		return false
	}
	newer := map[testVersion]bool{}
	for _, tag := range counted {
		other, ok := versionOf(tag.Name)
		if ok && prerelease == (other.rc < 9) && other.variant == v.variant && (prerelease || other.minor == v.minor) &&
			slices.Compare([]int{other.minor, other.patch, other.rc}, []int{v.minor, v.patch, v.rc}) > 0 {
			newer[other] = true
		}
	}
	return len(newer) < k.Newest
}

// TestKeepsOnlyTakeAway removes the keep rules from the policies. Then exactly those tags
// must be deleted in addition that a rule has kept, by the same policies, and the tags
// attached to their images. No tag may be deleted that only the rules have made a policy
// select.
func TestKeepsOnlyTakeAway(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := drawScene(t)
		with, plain := s.taken(t), s
		plain.rules.Policies = slices.Clone(s.rules.Policies)
		for i, p := range plain.rules.Policies {
			if p.Problem == "" {
				plain.rules.Policies[i].Policy = withoutKeep(t, p.Policy)
			}
		}
		without := plain.taken(t)
		for _, one := range s.tags {
			switch before, after := without[one.Name], with[one.Name]; {
			case attached(one):
				if after&^before != 0 {
					t.Fatalf("attached tag %s goes under %b, and without keep rules under %b", one.Name, after, before)
				}
			case s.kept(one) && after != 0:
				t.Fatalf("tag %s is kept and goes", one.Name)
			case !s.kept(one) && after != before:
				t.Fatalf("tag %s isn't kept and goes under %b; without keep rules under %b", one.Name, after, before)
			}
		}
	})
}

func withoutKeep(t rapid.TB, p policy.Policy) policy.Policy {
	text, err := p.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	before, _, _ := strings.Cut(string(text), `,"keep":`)
	return parsed(t, strings.TrimSuffix(before, "}")+"}")
}

// TestProtectionOnlyTakesAway removes the protection rules and the exemptions of undos. Every
// tag that is deleted with them must also be deleted without them.
func TestProtectionOnlyTakesAway(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := drawScene(t)
		less := s
		less.rules.Protection = nil
		less.tags = slices.Clone(s.tags)
		for i := range less.tags {
			less.tags[i].Exempt = 0
		}
		before, after := less.taken(t), s.taken(t)
		for name := range maps.Keys(after) {
			if before[name] == 0 {
				t.Fatalf("tag %s goes only because of a protection rule or an undo", name)
			}
		}
	})
}

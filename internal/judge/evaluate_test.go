package judge_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/policy"
)

// now is when the tests judge.
var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) time.Time { return now.Add(-d) }

const day = 24 * time.Hour

// parsed parses a policy that must be right.
func parsed(t rapid.TB, text string) policy.Policy {
	t.Helper()
	p, err := policy.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// attachedName returns the name of a tag attached to a manifest.
func attachedName(image int64, suffix string) string {
	return fmt.Sprintf("sha256-%064x%s", image, suffix)
}

// tag returns a tag of manifest 1.
func tag(name string, age time.Duration, change ...func(*judge.Tag)) judge.Tag {
	t := judge.Tag{Name: name, Created: ago(age), Manifest: 1}
	for _, f := range change {
		f(&t)
	}
	return t
}

func manifest(id int64) func(*judge.Tag) { return func(t *judge.Tag) { t.Manifest = id } }
func image(id int64) func(*judge.Tag)    { return func(t *judge.Tag) { t.Image = id } }
func exempt(places ...int) func(*judge.Tag) {
	return func(t *judge.Tag) { t.Exempt = judge.PolicySetOf(places...) }
}

// signature returns a tag attached to an image, with a manifest of its own.
func signature(of int64, age time.Duration, change ...func(*judge.Tag)) judge.Tag {
	return tag(attachedName(of, ".sig"), age, append([]func(*judge.Tag){image(of), manifest(1000 + of)}, change...)...)
}

// rules returns rules with the given policies, each written as method:value:pattern, and
// with pull statistics that began three years ago. A value may end in "+orphans"; a pattern
// with "!" selects the tags that don't match; the methods "?", "?number" and "?keep" are
// policies that can't be read. After " keep " a policy may have keep rules, as JSON, and
// before them, after " where ", other members.
func rules(t rapid.TB, policies ...string) judge.Rules {
	t.Helper()
	r := judge.Rules{Now: now, Pulls: judge.PullRecord{Since: ago(3 * 365 * day)}}
	for i, short := range policies {
		short, keep, _ := strings.Cut(short, " keep ")
		short, where, _ := strings.Cut(short, " where ")
		method, rest, _ := strings.Cut(short, ":")
		value, pattern, filtered := strings.Cut(rest, ":")
		value, orphans := strings.CutSuffix(value, "+orphans")
		if strings.HasPrefix(method, "?") {
			r.Policies = append(r.Policies, judge.Applied{ID: fmt.Sprint(i), Problem: "it is from the future", Counts: method == "?number", MayKeep: method == "?keep"})
			continue
		}
		if method != "number_of_tags" {
			value = fmt.Sprintf("%q", value)
		}
		text := fmt.Sprintf(`{"method": %q, "value": %s, "removeOrphans": %v}`, method, value, orphans)
		if filtered {
			matches := !strings.HasPrefix(pattern, "!")
			text = fmt.Sprintf(`{"method": %q, "value": %s, "tagPattern": %q, "tagPatternMatches": %v, "removeOrphans": %v}`,
				method, value, strings.TrimPrefix(pattern, "!"), matches, orphans)
		}
		if where != "" {
			text = strings.TrimSuffix(text, "}") + ", " + where + "}"
		}
		if keep != "" {
			text = strings.TrimSuffix(text, "}") + `, "keep": ` + keep + "}"
		}
		r.Policies = append(r.Policies, judge.Applied{ID: fmt.Sprint(i), Scope: policy.NamespaceScope, Policy: parsed(t, text)})
	}
	return r
}

func protect(t rapid.TB, patterns ...string) []judge.Protection {
	t.Helper()
	var list []judge.Protection
	for _, text := range patterns {
		pattern, err := oci.ParseTagPattern(text)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, judge.Protection{ID: text, Pattern: pattern})
	}
	return list
}

// parentsOf answers from a list of references.
func parentsOf(references []judge.Reference) func([]int64) ([]judge.Reference, error) {
	return func(manifests []int64) (found []judge.Reference, err error) {
		for _, r := range references {
			if slices.Contains(manifests, r.Child) {
				found = append(found, r)
			}
		}
		return found, nil
	}
}

// Manifests store what contentOf says.
func evaluate(t rapid.TB, r judge.Rules, tags []judge.Tag, references ...judge.Reference) *judge.Verdict {
	t.Helper()
	return evaluateIn(t, r, withContent(judge.Repository{Tags: judge.Tags(tags), Parents: parentsOf(references)}, references))
}

func evaluateIn(t rapid.TB, r judge.Rules, repository judge.Repository) *judge.Verdict {
	t.Helper()
	v, err := judge.Evaluate(r, repository)
	if err != nil {
		t.Fatalf("Evaluate: %v", err)
	}
	return v
}

// one is a tag and the decision expected for it, as text: the Code of the Decision, with a
// minus before it if the tag is to be deleted, then the index of the policy that the code
// refers to, if there is one. Examples: "-too_old 0", "no_policy".
type one struct {
	tag  judge.Tag
	want string
}

func TestEvaluate(t *testing.T) {
	t.Parallel()
	pulled := func(tagged, manifest, checked time.Duration) func(*judge.Tag) {
		return func(t *judge.Tag) {
			for _, use := range []struct {
				field *time.Time
				age   time.Duration
			}{{&t.Pulled, tagged}, {&t.ManifestPulled, manifest}, {&t.Checked, checked}} {
				if use.age >= 0 {
					*use.field = ago(use.age)
				}
			}
		}
	}
	for _, tt := range []struct {
		name       string
		policies   []string
		protected  []string
		pulls      *judge.PullRecord
		references []judge.Reference
		tags       []one
	}{
		{name: "no policy", tags: []one{
			{tag("old", 1000*day), "no_policy"},
			{signature(judge.MissingImage, 1000*day), "no_policy"},
		}},
		{name: "older than the age, strictly", policies: []string{"creation_date:2w"}, tags: []one{
			{tag("older", 14*day+time.Nanosecond), "-too_old 0"},
			{tag("as-old", 14*day), "young 0"},
			{tag("younger", 14*day-time.Nanosecond), "young 0"},
			{tag("future", -day), "young 0"},
		}},
		{name: "the pattern and its opposite", policies: []string{"creation_date:1d:^pr-", "creation_date:2d:!^v"}, tags: []one{
			{tag("pr-1", 3*day), "-too_old 0"},
			{tag("pr-2", 36*time.Hour), "-too_old 0"},
			{tag("v1", 3*day), "not_matched"},
			{tag("main", 3*day), "-too_old 1"},
			{tag("main2", 36*time.Hour), "young 1"},
			{tag("xpr-1", 36*time.Hour), "young 1"},
		}},
		{name: "the newest of a number", policies: []string{"number_of_tags:2"}, tags: []one{
			{tag("c", 3*day), "-beyond_newest 0"},
			{tag("a", day), "among_newest 0"},
			{tag("d", 4*day), "-beyond_newest 0"},
			{tag("b", 2*day), "among_newest 0"},
		}},
		{name: "fewer than the number", policies: []string{"number_of_tags:3"}, tags: []one{
			{tag("a", 1000*day), "among_newest 0"},
			{tag("b", 1000*day), "among_newest 0"},
		}},
		{name: "as many as the number", policies: []string{"number_of_tags:1"}, tags: []one{
			{tag("a", 1000*day), "among_newest 0"},
		}},
		{name: "ties go by name", policies: []string{"number_of_tags:2"}, tags: []one{
			{tag("a", day), "-beyond_newest 0"},
			{tag("c", day), "among_newest 0"},
			{tag("b", day), "among_newest 0"},
		}},
		{name: "only what the pattern selects counts", policies: []string{"number_of_tags:1:^pr-"}, tags: []one{
			{tag("new", 0), "not_matched"},
			{tag("pr-1", 2*day), "-beyond_newest 0"},
			{tag("pr-2", day), "among_newest 0"},
			{tag("old", 9*day), "not_matched"},
		}},
		{name: "protected, exempt and attached tags don't count", policies: []string{"number_of_tags:1"}, protected: []string{"^v", "^stable$"}, tags: []one{
			{tag("v1", 0), "protected"},
			{tag("stable", 5*day), "protected"},
			{tag("undone", time.Hour, exempt(0)), "exempt 0"},
			{signature(2, time.Minute), "image_stays"},
			{tag("new", 2*day, manifest(2)), "among_newest 0"},
			{tag("old", 3*day), "-beyond_newest 0"},
		}},
		{name: "a tag goes if any policy selects it", policies: []string{"number_of_tags:2", "creation_date:1d"}, tags: []one{
			{tag("a", time.Hour), "young 1"},
			{tag("b", 2*day), "-too_old 1"},
			{tag("c", 3*day), "-too_old 1"},
		}},
		{name: "what a policy by age takes doesn't count for one by number", policies: []string{"number_of_tags:1", "creation_date:1d:^x"}, tags: []one{
			{tag("x", 2*day), "-too_old 1"},
			{tag("b", 3*day), "among_newest 0"},
			{tag("c", 4*day), "-beyond_newest 0"},
			{tag("x2", 5*day), "-too_old 1"},
		}},
		{name: "policies by number count apart from each other", policies: []string{"number_of_tags:2", "number_of_tags:1:^pr-"}, tags: []one{
			{tag("pr-1", day), "among_newest 0"},
			{tag("pr-2", 2*day), "-beyond_newest 1"},
			{tag("c", 3*day), "-beyond_newest 0"},
		}},
		{name: "what an undo has restored doesn't count", policies: []string{"number_of_tags:1", "creation_date:1d:^pr-"}, tags: []one{
			{tag("pr-1", 2*day, exempt(1)), "exempt 1"},
			{tag("b", 3*day), "among_newest 0"},
			{tag("c", 4*day), "-beyond_newest 0"},
			{tag("pr-2", 5*day, exempt(1)), "-beyond_newest 0"},
		}},
		{name: "what statistics would tell doesn't count", policies: []string{"number_of_tags:2", "last_pulled:30d"}, pulls: &judge.PullRecord{}, tags: []one{
			{tag("a", 31*day), "no_statistics 1"},
			{tag("b", 32*day), "no_statistics 1"},
			{tag("c", 33*day), "no_statistics 1"},
			{tag("d", day), "no_statistics 1"},
		}},
		{name: "policies by number rest less than those by use", policies: []string{"number_of_tags:2", "last_pulled:30d"}, pulls: &judge.PullRecord{}, tags: []one{
			{tag("a", 31*day), "-beyond_newest 0"},
			{tag("b", day), "no_statistics 1"},
			{tag("c", 2*day), "no_statistics 1"},
		}},
		{name: "exempt from one policy", policies: []string{"creation_date:1d", "creation_date:3d"}, tags: []one{
			{tag("a", 2*day, exempt(0)), "exempt 0"},
			{tag("b", 4*day, exempt(0)), "-too_old 1"},
			{tag("c", 4*day, exempt(0, 1)), "exempt 0"},
		}},
		{name: "the latest use counts", policies: []string{"last_pulled:90d"}, tags: []one{
			{tag("all-old", 200*day, pulled(91*day, 92*day, 93*day)), "-not_pulled 0"},
			{tag("tag", 200*day, pulled(90*day, -1, 100*day)), "recently_pulled 0"},
			{tag("manifest", 200*day, pulled(100*day, 89*day, -1)), "recently_pulled 0"},
			{tag("head", 200*day, pulled(-1, -1, time.Second)), "recently_pulled 0"},
			{tag("never", 91*day), "-never_pulled 0"},
			{tag("young", 90*day), "young 0"},
			{tag("young-pulled", day, pulled(100*day, -1, -1)), "young 0"},
		}},
		{name: "no statistics", policies: []string{"last_pulled:90d"}, pulls: &judge.PullRecord{}, tags: []one{
			{tag("never", 91*day), "no_statistics 0"},
			{tag("old", 200*day, pulled(100*day, -1, -1)), "no_statistics 0"},
			{signature(judge.MissingImage, 91*day), "no_statistics 0"},
		}},
		{name: "statistics that are too young", policies: []string{"last_pulled:90d", "last_pulled:89d"}, pulls: &judge.PullRecord{Since: ago(90 * day)}, tags: []one{
			{tag("never", 100*day), "-never_pulled 1"},
			{tag("old", 200*day, pulled(100*day, -1, -1)), "-not_pulled 1"},
		}},
		{name: "statistics that are behind", policies: []string{"last_pulled:1d"}, pulls: &judge.PullRecord{Since: ago(9 * day), Behind: time.Hour + 1}, tags: []one{
			{tag("never", 5*day), "no_statistics 0"},
		}},
		{name: "statistics that are behind, within the limit", policies: []string{"last_pulled:1d"}, pulls: &judge.PullRecord{Since: ago(9 * day), Behind: 2 * time.Hour, MaxBehind: 2 * time.Hour}, tags: []one{
			{tag("never", 5*day), "-never_pulled 0"},
		}},
		{name: "attached tags go with their image", policies: []string{"creation_date:5d"}, tags: []one{
			{tag("old", 6*day, manifest(1)), "-too_old 0"},
			{signature(1, time.Minute), "-image_goes 0"},
			{tag(attachedName(1, ""), time.Minute, image(1), manifest(70)), "-image_goes 0"},
			{tag("sbom-by-subject", time.Minute, image(1), manifest(71)), "-image_goes 0"},
			{tag("new", day, manifest(2)), "young 0"},
			{signature(2, 100*day), "image_stays"},
			{tag("sbom-of-new", 100*day, image(2), manifest(72)), "image_stays"},
			{signature(3, 100*day), "image_stays"}, // untagged: not this run's doing
		}},
		{name: "another tag keeps the image", policies: []string{"creation_date:5d"}, protected: []string{"^keep$"}, tags: []one{
			{tag("old", 6*day, manifest(1)), "-too_old 0"},
			{tag("new", 4*day, manifest(1)), "young 0"},
			{signature(1, time.Minute), "image_stays"},
			{tag("old2", 6*day, manifest(2)), "-too_old 0"},
			{tag("keep", 6*day, manifest(2)), "protected"},
			{signature(2, time.Minute), "image_stays"},
		}},
		{name: "an index keeps its children", policies: []string{"creation_date:5d"},
			references: []judge.Reference{{Parent: 10, Child: 1}, {Parent: 20, Child: 10}, {Parent: 30, Child: 2}, {Parent: 31, Child: 2}},
			tags: []one{
				{tag("old", 6*day, manifest(1)), "-too_old 0"},
				{tag("new-index-of-index", day, manifest(20)), "young 0"},
				{signature(1, time.Minute), "image_stays"},
				{tag("old-index", 6*day, manifest(30)), "-too_old 0"},
				{signature(30, time.Minute), "-image_goes 0"},
				{signature(2, time.Minute), "-image_goes 0"}, // 31 has no tag
			}},
		{name: "attached to attached", policies: []string{"creation_date:5d", "creation_date:50d"}, tags: []one{
			{tag("old", 6*day, manifest(1)), "-too_old 0"},
			{signature(1, day, manifest(2)), "-image_goes 0"},
			{signature(2, day, manifest(3)), "-image_goes 0"},
			{signature(3, day, exempt(0), manifest(4)), "exempt 0"},
			{signature(4, day, manifest(5)), "image_stays"},
		}},
		{name: "protected and exempt attached tags", policies: []string{"creation_date:5d"}, protected: []string{`\.att$`}, tags: []one{
			{tag("old", 6*day, manifest(1)), "-too_old 0"},
			{tag(attachedName(1, ".att"), day, image(1), manifest(2)), "protected"},
			{signature(1, day, exempt(0)), "exempt 0"},
			{tag(attachedName(2, ".sbom"), day, image(2), manifest(3)), "image_stays"},
			{tag(attachedName(9, ".att"), 9*day, image(judge.MissingImage), manifest(4)), "protected"},
		}},
		{name: "an image tagged by its own digest is an image", policies: []string{"creation_date:5d", "number_of_tags:1"}, tags: []one{
			{tag("old", 6*day, manifest(1)), "-too_old 0"},
			{tag(attachedName(1, ""), 4*day, image(1), manifest(1)), "young 0"},
			{signature(1, day), "image_stays"},
			{tag(attachedName(2, ""), 9*day, image(2), manifest(2)), "-too_old 0"},
			{signature(2, day), "-image_goes 0"},
		}},
		{name: "orphans are tags like any other", policies: []string{"creation_date:90d", "number_of_tags:2:^sha256"}, tags: []one{
			{tag(attachedName(1, ".sig"), day+1, image(judge.MissingImage)), "young 0"},
			{tag(attachedName(2, ".att"), 2*day, image(judge.MissingImage)), "young 0"},
			{tag(attachedName(3, ".sbom"), 9*day, image(judge.MissingImage)), "-beyond_newest 1"},
			{tag(attachedName(4, ""), 91*day, image(judge.MissingImage)), "-too_old 0"},
			{tag("x-subject", 99*day, image(judge.MissingImage), manifest(5)), "-too_old 0"},
			{signature(5, time.Hour), "-image_goes 0"}, // of the one before
		}},
		{name: "orphans that no pattern selects stay", policies: []string{"creation_date:1d:^pr-", "creation_date:1d:!^sha256-"}, tags: []one{
			{tag(attachedName(1, ".sig"), 99*day, image(judge.MissingImage)), "not_matched"},
		}},
		{name: "orphans whose removal is asked for", policies: []string{"last_pulled:30d+orphans", "creation_date:90d+orphans", "number_of_tags:1:^(x|sha256-)"}, pulls: &judge.PullRecord{}, tags: []one{
			{tag(attachedName(1, ".sig"), day+1, image(judge.MissingImage)), "-image_missing 1"},
			{tag(attachedName(2, ".sig"), day, image(judge.MissingImage)), "no_statistics 0"},
			{tag(attachedName(3, ".sig"), 9*day, image(judge.MissingImage), exempt(0, 1, 2)), "exempt 0"},
			{tag("x-subject", 99*day, image(judge.MissingImage), manifest(5)), "-image_missing 1"},
			{signature(5, time.Hour), "-image_goes 1"}, // of the one before
		}},
		{name: "the pattern selects orphans, too", policies: []string{`creation_date:90d+orphans:\.sig$`}, tags: []one{
			{tag(attachedName(1, ".sig"), 2*day, image(judge.MissingImage)), "-image_missing 0"},
			{tag(attachedName(1, ".att"), 2*day, image(judge.MissingImage)), "not_matched"},
		}},
		{name: "a policy by number that removes orphans doesn't count them", policies: []string{"number_of_tags:1+orphans"}, tags: []one{
			{tag(attachedName(1, ".sig"), time.Hour, image(judge.MissingImage)), "image_awaited 0"},
			{tag(attachedName(2, ".sig"), 2*day, image(judge.MissingImage)), "-image_missing 0"},
			{tag("a", 3*day), "among_newest 0"},
		}},
		{name: "a policy that can't be read", policies: []string{"?", "creation_date:1d:^pr-", "number_of_tags:1"}, tags: []one{
			{tag("pr-1", 2*day), "-too_old 1"},
			{tag("pr-2", time.Hour), "young 1"},
			{tag("c", 3*day), "policy_unreadable 2"},
		}},
		{name: "a policy by number that can't be read", policies: []string{"?number", "creation_date:1d:^pr-", "number_of_tags:1"}, tags: []one{
			{tag("pr-1", 2*day), "-too_old 1"},
			{tag("b", 2*day), "among_newest 2"},
			{tag("c", 3*day), "-beyond_newest 2"},
		}},
		{name: "no policy can be read", policies: []string{"?", "?"}, tags: []one{
			{tag("a", 2000*day), "policy_unreadable 1"},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := rules(t, tt.policies...)
			r.Protection = protect(t, tt.protected...)
			if tt.pulls != nil {
				r.Pulls = *tt.pulls
			}
			var tags []judge.Tag
			for _, c := range tt.tags {
				tags = append(tags, c.tag)
			}
			v := evaluate(t, r, tags, tt.references...)
			for _, c := range tt.tags {
				d := v.Decide(c.tag)
				got := string(d.Code)
				if d.Delete {
					got = "-" + got
				}
				if d.Policy >= 0 {
					got = fmt.Sprint(got, " ", d.Policy)
				}
				if got != c.want {
					t.Errorf("tag %s: %s, want %s", c.tag.Name, got, c.want)
				}
				if reason := v.Reason(c.tag, d); reason == "" || reason == string(d.Code) || strings.Contains(reason, "%!") {
					t.Errorf("tag %s: the reason is %q", c.tag.Name, reason)
				}
			}
		})
	}
}

func TestReason(t *testing.T) {
	t.Parallel()
	r := rules(t, "creation_date:2w:^a", `number_of_tags:1:!^[al]\w`, "last_pulled:90d:^l", "last_pulled:9y:^m")
	r.Protection = protect(t, "^v")
	used := tag("l1", 100*day)
	used.Pulled, used.Checked = ago(95*day), ago(91*day)
	tags := []judge.Tag{
		tag("a1", 20*day), tag("a2", 3*day), tag("b1", day), tag("b2", 2*day), used, tag("l2", 99*day), tag("v1", 0), tag("n1", 9*day, exempt(1)),
	}
	v := evaluate(t, r, tags)
	for i, want := range []string{
		"pushed at 2026-02-09 12:00:00 UTC, more than 2w ago",
		"pushed at 2026-02-26 12:00:00 UTC, no more than 2w ago",
		`among the newest 1 that don't match "^[al]\w" and that policies by age leave`,
		`not among the newest 1 that don't match "^[al]\w" and that policies by age leave`,
		"last used at 2025-11-30 12:00:00 UTC, more than 90d ago",
		"pushed at 2025-11-22 12:00:00 UTC, more than 90d ago, and no use recorded since 2023-03-02 12:00:00 UTC",
		`protected: it matches "^v"`,
		"restored by an undo, and exempt until the policy gets another rule or somebody ends that",
	} {
		if got := v.Reason(tags[i], v.Decide(tags[i])); got != want {
			t.Errorf("tag %s: the reason is %q, want %q", tags[i].Name, got, want)
		}
	}
	want := "[{3 pull statistics began at 2023-03-02 12:00:00 UTC, no more than 9y ago}]"
	if got := fmt.Sprint(v.Notices()); got != want {
		t.Errorf("the notices are %s, want %s", got, want)
	}
}

// TestFreshUse: a tag is judged again, with the time of a pull that came after the
// evaluation. The tag must stay.
func TestFreshUse(t *testing.T) {
	t.Parallel()
	old := tag("old", 100*day)
	v := evaluate(t, rules(t, "last_pulled:90d"), []judge.Tag{old})
	if d := v.Decide(old); !d.Delete {
		t.Fatalf("an old tag stays: %s", v.Reason(old, d))
	}
	old.ManifestPulled = ago(time.Second)
	if d := v.Decide(old); d.Delete {
		t.Errorf("a tag that was just pulled goes: %s", v.Reason(old, d))
	}
}

package judge_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/policy"
)

func TestParseKeep(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`null`:             ``,
		`[]`:               ``,
		`[{"newest": 10}]`: `[{"newest":10}]`,
		`[ {"groupBy": " ^(v\\d+) ", "newest": 1} , {"usedWithin": "07d"}]`:                    `[{"newest":1,"groupBy":"^(v\\d+)"},{"usedWithin":"7d"}]`,
		`[{"tagPattern": "^release-"}]`:                                                        `[{"tagPattern":"^release-"}]`,
		`[{"newest": 3, "groupBy": null}]`:                                                     `[{"newest":3}]`,
		`[{"versions": "releases"}]`:                                                           `[{"versions":"releases"}]`,
		`[{"versions": "newest_patches"}, {"newest": 1000, "versions": "newest_prereleases"}]`: `[{"newest":1,"versions":"newest_patches"},{"newest":1000,"versions":"newest_prereleases"}]`,
		"[" + strings.Repeat(`{"newest": 1},`, policy.MaxKeeps-1) + `{"newest": 1}]`:           "[" + strings.Repeat(`{"newest":1},`, policy.MaxKeeps-1) + `{"newest":1}]`,
	} {
		p := parsed(t, `{"method": "creation_date", "olderThan": "2w", "keep": `+in+`}`)
		if want != "" {
			want = `,"keep":` + want
		}
		got, err := json.Marshal(p)
		if err != nil || string(got) != `{"method":"creation_date","olderThan":"2w"`+want+`}` {
			t.Errorf("keep %s is written as %s, %v", in, got, err)
		}
	}
	for _, tt := range []struct{ in, field, problem string }{
		{`7`, "keep", "must be an array of keep rules, not a number"},
		{`{"newest": 1}`, "keep", "not an object"},
		{"[" + strings.Repeat(`{"newest": 1},`, policy.MaxKeeps) + `{"newest": 1}]`, "keep", "at most 16"},
		{`[{"newest": 1}, 2]`, "keep[1]", "not a number"},
		{`[{}]`, "keep[0]", "says nothing"},
		{`[{"groupBy": "(a)"}]`, "keep[0]", "says nothing"},
		{`[{"newest": 1, "usedWithin": "1d"}]`, "keep[0].usedWithin", "newest is given, too"},
		{`[{"tagPattern": "a", "versions": "releases"}]`, "keep[0].versions", "tagPattern is given, too"},
		{`[{"newest": 1, "newest": 2}]`, "keep[0].newest", "given twice"},
		{`[{"newest": 1}, {"Newest": 1}]`, "keep[1].Newest", "must be written newest"},
		{`[{"oldest": 1}]`, "keep[0].oldest", "a keep rule has newest, countImages, perPlatform, groupBy, "},
		{`[{"newest": 0}]`, "keep[0].newest", "at least 1"},
		{`[{"newest": null}]`, "keep[0].newest", "must be a number"},
		{`[{"newest": 1000000001}]`, "keep[0].newest", "too large"},
		{`[{"newest": 1, "groupBy": "^v"}]`, "keep[0].groupBy", "parentheses"},
		{`[{"newest": 1, "groupBy": "^(?:v)"}]`, "keep[0].groupBy", "parentheses"},
		{`[{"newest": 1, "groupBy": "("}]`, "keep[0].groupBy", "isn't a regular expression"},
		{`[{"usedWithin": "1d", "groupBy": "(a)"}]`, "keep[0].groupBy", "only with newest"},
		{`[{"newest": 1, "versions": "newest_patches", "groupBy": "(a)"}]`, "keep[0].groupBy", "only with newest"},
		{`[{"usedWithin": "0d"}]`, "keep[0].usedWithin", "is zero"},
		{`[{"usedWithin": 3}]`, "keep[0].usedWithin", "must be a string"},
		{`[{"tagPattern": ""}]`, "keep[0].tagPattern", "is empty"},
		{`[{"tagPattern": null}]`, "keep[0].tagPattern", "not null"},
		{`[{"versions": "patches"}]`, "keep[0].versions", `"patches" is unknown`},
		{`[{"versions": "releases", "newest": 1}]`, "keep[0].newest", "has no number"},
		{`[{"versions": "newest_patches", "newest": 1001}]`, "keep[0].newest", "at most 1000"},
	} {
		_, err := policy.Parse([]byte(`{"method": "creation_date", "olderThan": "2w", "keep": ` + tt.in + `}`))
		problem, ok := errors.AsType[*policy.FieldError](err)
		if !ok || problem.Field != tt.field || !strings.Contains(problem.Problem, tt.problem) {
			t.Errorf("keep %s: the error is %v, want %q of %q", tt.in, err, tt.problem, tt.field)
		}
	}
	a := parsed(t, `{"method": "creation_date", "olderThan": "2w", "keep": [{"usedWithin": "14d"}]}`)
	for keep, want := range map[string]bool{`[{"usedWithin": "2w"}]`: true, `[{"usedWithin": "15d"}]`: false, `[]`: false, `[{"newest": 14}]`: false} {
		if b := parsed(t, `{"method": "creation_date", "olderThan": "2w", "keep": `+keep+`}`); a.Equal(b) != want {
			t.Errorf("%s equals %s: %v", a, b, !want)
		}
	}
}

// TestKeep judges tags by policies with keep rules, most by a policy that would delete all
// tags of two days and more.
func TestKeep(t *testing.T) {
	t.Parallel()
	series := func(names ...string) (list []judge.Tag) { // the first is the newest
		for i, name := range names {
			list = append(list, tag(name, time.Duration(2+i)*day, manifest(int64(i+1))))
		}
		return list
	}
	used := func(age time.Duration) func(*judge.Tag) {
		return func(t *judge.Tag) { t.ManifestPulled = ago(age) }
	}
	for _, tt := range []struct {
		name      string
		policies  []string
		protected []string
		pulls     *judge.PullRecord
		tags      []judge.Tag
		stay      string // with their codes
	}{
		{"the newest", []string{`creation_date:1d keep [{"newest": 2}]`}, nil, nil, series("a", "b", "c"), "a:kept_newest b:kept_newest"},
		{
			"the newest of the tags that the policy considers, young ones too", []string{`creation_date:4d:^v keep [{"newest": 3}]`, "creation_date:1d"},
			nil, nil, series("v5", "x", "v4", "v3", "v2", "v1"), "v5:kept_newest v4:kept_newest v3:kept_newest",
		},
		{
			"of tags of the same time, the last in the alphabet", []string{`number_of_tags:1 keep [{"newest": 2}]`}, nil, nil,
			[]judge.Tag{tag("b", day), tag("a", day), tag("c", day)}, "b:kept_newest c:among_newest",
		},
		{
			"protected and exempt tags aren't counted", []string{`creation_date:1d keep [{"newest": 1}]`, "creation_date:1h"}, []string{"^a$"}, nil,
			append(series("a"), tag("b", 3*day, exempt(0)), tag("c", 4*day), tag("d", 5*day, exempt(0))), "a:protected b:kept_newest c:kept_newest",
		},
		{
			"in groups", []string{`creation_date:1d keep [{"newest": 1, "groupBy": "^(v\\d+)\\.(\\d)?"}]`}, nil, nil,
			series("v1.2.2", "v1.2.1", "v1.3", "v2", "v2.", "latest", "v1.", "v11.2"), "v1.2.2:kept_newest v1.3:kept_newest v2.:kept_newest v1.:kept_newest v11.2:kept_newest",
		},
		{
			"against other policies", []string{"number_of_tags:1", `creation_date:9y keep [{"tagPattern": "^k"}]`, "last_pulled:1d"}, nil, nil,
			series("a", "b", "k", "c"), "k:kept_pattern",
		},
		{
			"numbers are counted as without keep rules", []string{`number_of_tags:2 keep [{"tagPattern": "^t1$"}]`}, nil, nil,
			series("t5", "t4", "t3", "t2", "t1"), "t5:among_newest t4:among_newest t1:kept_pattern",
		},
		{
			"used or pushed within", []string{`creation_date:1h keep [{"usedWithin": "3d"}]`}, nil, nil, []judge.Tag{
				tag("pushed", 3*day), tag("older", 3*day+1), tag("pulled", 9*day, used(3*day)), tag("long-ago", 9*day, used(3*day+1)),
			},
			"pushed:kept_used pulled:kept_used",
		},
		{
			"without statistics", []string{`creation_date:1h:^v keep [{"usedWithin": "3d"}]`, "creation_date:1h"}, nil, &judge.PullRecord{},
			[]judge.Tag{tag("v1", 9*day), tag("w1", 9*day), tag("v2", 2*day)}, "v1:kept_unknown v2:kept_used",
		},
		{
			"orphans aren't counted if they are removed", []string{
				`number_of_tags:1+orphans keep [{"newest": 2}, {"tagPattern": "sbom$"}]`,
			}, nil, nil, append(series("a", "b", "c"), signature(missing, 30*time.Hour, image(judge.MissingImage)),
				tag(attachedName(missing, ".sbom"), 30*time.Hour, image(judge.MissingImage))),
			"a:among_newest b:kept_newest " + attachedName(missing, ".sbom") + ":kept_pattern",
		},
		{
			"attached tags follow a kept image and aren't counted", []string{`creation_date:1d keep [{"newest": 1}, {"tagPattern": "sig$"}]`}, nil, nil,
			append(series("a", "b"), signature(1, 0), signature(2, 0)), "a:kept_newest " + attachedName(1, ".sig") + ":image_stays",
		},
		{
			"a policy that can't be read and may keep", []string{"creation_date:1h", "?keep", "number_of_tags:1", "last_pulled:1h"}, nil, nil,
			append(series("a", "b"), signature(1, 0)), "a:policy_unreadable b:policy_unreadable " + attachedName(1, ".sig") + ":image_stays",
		},
		{
			"every release", []string{`creation_date:1d keep [{"versions": "releases"}]`}, nil, nil,
			series("v1.0.0", "1.0", "v1", "1.0.0-rc1", "1.0.0-alpine", "latest", "2.0.0_b1"), "v1.0.0:kept_version 1.0.0-alpine:kept_version 2.0.0_b1:kept_version",
		},
		{
			"the newest patches", []string{`creation_date:1d keep [{"versions": "newest_patches", "newest": 2}]`}, nil, nil,
			series("1.4.0", "1.4.1", "v1.4.2", "1.4.2", "1.5.0", "2.4.0", "1.4.0-alpine", "1.4.9-rc1", "1.10.3"),
			"1.4.1:kept_version v1.4.2:kept_version 1.4.2:kept_version 1.5.0:kept_version 2.4.0:kept_version 1.4.0-alpine:kept_version 1.10.3:kept_version",
		},
		{
			"the newest prereleases", []string{`creation_date:1d keep [{"versions": "newest_prereleases"}]`}, nil, nil,
			series("2.0.0-rc9", "2.0.0-rc10", "2.0.0-rc.10", "2.0.0-beta.11", "1.9.9-rc99", "2.0.0", "1.0.0-rc.1-alpine3.20"),
			"2.0.0-rc10:kept_version 2.0.0-rc.10:kept_version 1.0.0-rc.1-alpine3.20:kept_version",
		},
	} {
		r := rules(t, tt.policies...)
		r.Protection = protect(t, tt.protected...)
		if tt.pulls != nil {
			r.Pulls = *tt.pulls
		}
		v := evaluate(t, r, tt.tags)
		var stay []string
		for _, one := range tt.tags {
			if d := v.Decide(one); !d.Delete {
				stay = append(stay, one.Name+":"+string(d.Code))
			}
		}
		if got := strings.Join(stay, " "); got != tt.stay {
			t.Errorf("%s:\n%s stay, want\n%s", tt.name, got, tt.stay)
		}
	}
}

// TestKeepReasons checks the texts for people, and that a rule which can't judge says so.
func TestKeepReasons(t *testing.T) {
	t.Parallel()
	r := rules(t, `creation_date:1d:!^x keep [{"tagPattern": "^p"}, {"newest": 1, "groupBy": "^(n)"}, {"versions": "releases"},
		{"versions": "newest_prereleases"}, {"usedWithin": "9y"}]`, `creation_date:1d keep [{"usedWithin": "30d"}]`)
	v := evaluate(t, r, nil)
	x := tag("x", 90*day)
	x.Checked = ago(day)
	for want, one := range map[string]judge.Tag{
		`kept: tags that match "^p"`:                             tag("p", 3*day),
		`kept: the newest 1 of each group by "^(n)"`:             tag("n1", 3*day),
		"kept: every release":                                    tag("1.2.3", 3*day),
		"kept: the newest 1 prereleases":                         tag("1.2.3-rc1", 3*day),
		"kept: pushed at 2026-02-26 12:00:00 UTC, within 9y":     tag("u", 3*day),
		"kept: last used at 2026-02-28 12:00:00 UTC, within 30d": x,
		"kept, because it isn't known whether it was used within 9y: pull statistics began at 2023-03-02 12:00:00 UTC, no more than 9y ago": tag("u", 20*365*day),
	} {
		if got := v.Reason(one, v.Decide(one)); got != want {
			t.Errorf("tag %s: the reason is %q, want %q", one.Name, got, want)
		}
	}
	want := "[{0 its keep rule usedWithin 9y keeps every tag: pull statistics began at 2023-03-02 12:00:00 UTC, no more than 9y ago}]"
	if got := fmt.Sprint(v.Notices()); got != want {
		t.Errorf("the notices are %s, want %s", got, want)
	}
	if got, want := r.Policies[1].Policy.String(), "creation_date olderThan 1d, but keep tags used within 30d"; got != want {
		t.Errorf("the policy is %q, want %q", got, want)
	}
}

// TestTooManyGroups lowers the number of groups that keep rules may have. At this number
// they must keep as usual. With one group more, the rules with groups must keep every tag of
// a group, in any order of the tags, and the rule without groups must keep as usual.
func TestTooManyGroups(t *testing.T) {
	t.Parallel()
	r := rules(t, `creation_date:1d keep [{"newest": 1}, {"newest": 1, "groupBy": "^(.)-"}]`, `creation_date:1d keep [{"versions": "newest_patches"}]`)
	r.MaxGroups = 6
	var tags []judge.Tag
	for i, name := range []string{"z", "a-1", "a-2", "b-1", "c-1", "1.0.0", "1.0.1", "1.1.0", "2.0.0"} { // 6 groups
		tags = append(tags, tag(name, time.Duration(2+i)*day))
	}
	for _, tt := range []struct{ more, gone string }{{"y", "[a-2 1.0.0 y]"}, {"d-1", "[]"}, {"3.0.0", "[]"}} {
		list := append(slices.Clone(tags), tag(tt.more, 99*day))
		for range 2 {
			v := evaluate(t, r, list)
			var gone []string
			for _, one := range append(slices.Clone(tags), tag(tt.more, 99*day)) {
				if v.Decide(one).Delete {
					gone = append(gone, one.Name)
				}
			}
			if fmt.Sprint(gone) != tt.gone || (len(v.Notices()) > 0) != (tt.gone == "[]") {
				t.Errorf("with %s: %v go, want %s; notices %v", tt.more, gone, tt.gone, v.Notices())
			}
			slices.Reverse(list)
		}
	}
}

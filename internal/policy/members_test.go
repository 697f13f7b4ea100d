package policy_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/policy"
)

func TestParseSelectors(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`"repositories": null, "mediaTypes": null, "largerThan": null`: ``,
		`"repositories": ["a/b", "a/**"]`:                              `,"repositories":["a/b","a/**"]`,
		`"mediaTypes": ["Application/*+JSON"], "artifactTypes": ["*"]`: `,"mediaTypes":["application/*+json"],"artifactTypes":["*"]`,
		`"largerThan": "1024MiB", "smallerThan": "2000GB"`:             `,"largerThan":"1GiB","smallerThan":"2TB"`,
		`"smallerThan": "9223372036854775807"`:                         `,"smallerThan":"9223372036854775807"`,
		`"largerThan": "07"`:                                           `,"largerThan":"7"`,
		`"largerThan": "5", "smallerThan": "7"`:                        `,"largerThan":"5","smallerThan":"7"`,
		`"annotations": null, "labels": null, "platforms": null`:       ``,
		`"labels": {"b": "", "A": "x*"}, "annotations": {"c": "*"}`:    `,"annotations":{"c":"*"},"labels":{"A":"x*","b":""}`,
		`"platforms": ["Linux/ARM64", "windows/*", "linux/arm/v7"]`:    `,"platforms":["linux/arm64","windows/*","linux/arm/v7"]`,
		`"artifactTypes": [` + strings.Repeat(`"a",`, 31) + `"a"]`:     `,"artifactTypes":[` + strings.Repeat(`"a",`, 31) + `"a"]`,
	} {
		p := parsed(t, `{"method": "creation_date", "olderThan": "2w", `+in+`}`)
		got, err := json.Marshal(p)
		if err != nil || string(got) != `{"method":"creation_date","olderThan":"2w"`+want+`}` {
			t.Errorf("%s is written as %s, %v", in, got, err)
		}
		if plain := parsed(t, `{"method": "creation_date", "olderThan": "2w"}`); !p.Equal(p) || p.Equal(plain) != (want == "") {
			t.Errorf("%s equals itself: %v, and a policy without selectors: %v", in, p.Equal(p), p.Equal(plain))
		}
	}
	for _, tt := range []struct{ in, field, problem string }{
		{`"repositories": "a"`, "repositories", "must be an array of strings, not a string"},
		{`"repositories": []`, "repositories", "is empty"},
		{`"repositories": ["a", 1]`, "repositories[1]", "must be a string"},
		{`"repositories": ["A"]`, "repositories[0]", "no pattern of repositories"},
		{`"mediaTypes": ["a", ""]`, "mediaTypes[1]", "is empty"},
		{`"mediaTypes": ["a/b?"]`, "mediaTypes[0]", "media types don't have"},
		{`"artifactTypes": ["a b"]`, "artifactTypes[0]", "character"},
		{`"artifactTypes": [` + strings.Repeat(`"a",`, 32) + `"a"]`, "artifactTypes", "at most 32"},
		{`"labels": ["a=b"]`, "labels", "must be an object of strings, not an array"},
		{`"labels": {}`, "labels", "is empty"},
		{`"labels": {"a": 1}`, "labels", "the value of \"a\" must be a string, not a number"},
		{`"labels": {"a": "1", "a": "2"}`, "labels", "given twice"},
		{`"annotations": {"": "x"}`, "annotations", "a key is empty"},
		{`"annotations": {"a": "` + strings.Repeat("b", 256) + `"}`, "annotations", "more than 255 bytes"},
		{`"platforms": ["linux"]`, "platforms[0]", "is no platform"},
		{`"platforms": ["linux/arm64", "linux/a/b/c"]`, "platforms[1]", "is no platform"},
		{`"platforms": []`, "platforms", "is empty"},
		{`"largerThan": 5`, "largerThan", "must be a string"},
		{`"largerThan": "0GiB"`, "largerThan", "is zero"},
		{`"largerThan": "1.5GiB"`, "largerThan", "no size"},
		{`"largerThan": "1gib"`, "largerThan", "no size"},
		{`"largerThan": "GiB"`, "largerThan", "isn't a number"},
		{`"largerThan": "-1"`, "largerThan", "no size"},
		{`"smallerThan": "8388608TiB"`, "smallerThan", "isn't a number"},
		{`"largerThan": "1GiB", "smallerThan": "1GiB"`, "smallerThan", "no size is larger than 1GiB and smaller than 1GiB"},
		{`"largerThan": "5", "smallerThan": "6"`, "smallerThan", "no size is larger"},
	} {
		_, err := policy.Parse([]byte(`{"method": "creation_date", "olderThan": "2w", ` + tt.in + `}`))
		problem, ok := errors.AsType[*policy.FieldError](err)
		if !ok || problem.Field != tt.field || !strings.Contains(problem.Problem, tt.problem) {
			t.Errorf("%s: the error is %v, want %q of %q", tt.in, err, tt.problem, tt.field)
		}
	}
}

// TestWindowForms: a window that can't be meant must be refused, and others be written in one form.
func TestWindowForms(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"days": ["sun", "mon"]}`:                                     `{"days":["mon","sun"],"from":"00:00","to":"00:00","zone":"UTC"}`,
		`{"from": "22:00", "to": "06:00", "zone": "Europe/Berlin"}`:    `{"from":"22:00","to":"06:00","zone":"Europe/Berlin"}`,
		`{"days": null, "from": "22:00", "to": "06:00", "zone": null}`: `{"from":"22:00","to":"06:00","zone":"UTC"}`,
		`{"days": ["mon","tue","wed","thu","fri","sat","sun"]}`:        `{"from":"00:00","to":"00:00","zone":"UTC"}`,
		`{}`:                                  "windows[0]: it says nothing",
		`{"zone": "UTC"}`:                     "windows[0]: it says nothing",
		`{"from": "22:00"}`:                   "windows[0].to: it is missing",
		`{"to": "22:00"}`:                     "windows[0].from: it is missing",
		`{"from": "24:00", "to": "06:00"}`:    `windows[0].from: "24:00" is no time of day`,
		`{"from": "1:00", "to": "06:00"}`:     `windows[0].from: "1:00" is no time of day`,
		`{"from": "01:00", "to": "06:00:00"}`: `windows[0].to: "06:00:00" is no time of day`,
		`{"days": ["mon-fri"]}`:               `windows[0].days[0]: "mon-fri" is no day`,
		`{"days": []}`:                        `windows[0].days: it is empty`,
		`{"days": ["mon"], "zone": "Local"}`:  `windows[0].zone: "Local" is no time zone`,
		`{"days": ["mon"], "zone": "Mars"}`:   `windows[0].zone: "Mars" is no time zone`,
		`{"days": ["mon"], "zone": "../UTC"}`: `windows[0].zone: "../UTC" is no time zone`,
		`{"days": ["mon"], "at": "10:00"}`:    `windows[0].at: unknown field`,
	} {
		p, err := policy.Parse([]byte(`{"method": "number_of_tags", "numTags": 1, "windows": [` + text + `]}`))
		got := fmt.Sprint(err)
		if err == nil {
			written, err := json.Marshal(p.Windows[0])
			if err != nil {
				t.Fatal(err)
			}
			got = string(written)
		}
		if len(got) < len(want) || got[:len(want)] != want {
			t.Errorf("%s becomes %s, want %s", text, got, want)
		}
	}
}

package policy_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/policy"
	"github.com/purser-registry/purser/internal/testscale"
)

func TestMain(m *testing.M) {
	testscale.Properties()
	os.Exit(m.Run())
}

// parsed parses a policy that must be right.
func parsed(t rapid.TB, text string) policy.Policy {
	t.Helper()
	p, err := policy.Parse([]byte(text))
	if err != nil {
		t.Fatalf("Parse(%s): %v", text, err)
	}
	return p
}

func TestParse(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ in, want string }{
		{`{"method": "creation_date", "olderThan": "2w"}`, `{"method":"creation_date","olderThan":"2w"}`},
		{`{"method": "number_of_tags", "numTags": 100}`, `{"method":"number_of_tags","numTags":100}`},
		{`{"method": "last_pulled", "olderThan": "90d"}`, `{"method":"last_pulled","olderThan":"90d"}`},
		{`{"method": "max_bytes", "maxBytes": "50GiB"}`, `{"method":"max_bytes","maxBytes":"50GiB"}`},
		{`{"method": "max_bytes", "value": "1024kB"}`, `{"method":"max_bytes","maxBytes":"1000KiB"}`},
		{`{"method": "creation_date", "value": "2w"}`, `{"method":"creation_date","olderThan":"2w"}`},
		{`{"method": "number_of_tags", "value": 100}`, `{"method":"number_of_tags","numTags":100}`},
		{`{"method": "last_pulled", "value": "1y"}`, `{"method":"last_pulled","olderThan":"1y"}`},
		{" \n{\"value\":1,\"method\":\"number_of_tags\"}\t\r\n ", `{"method":"number_of_tags","numTags":1}`},
		{`{"method": "number_of_tags", "numTags": 1000000000}`, `{"method":"number_of_tags","numTags":1000000000}`},
		{`{"method": "creation_date", "olderThan": "007d"}`, `{"method":"creation_date","olderThan":"7d"}`},
		{
			`{"method": "creation_date", "value": "2w", "tagPattern": "pr-.*"}`,
			`{"method":"creation_date","olderThan":"2w","tagPattern":"pr-.*","tagPatternMatches":true}`,
		},
		{
			`{"method": "creation_date", "value": "2w", "tagPattern": "v.*", "tagPatternMatches": false}`,
			`{"method":"creation_date","olderThan":"2w","tagPattern":"v.*","tagPatternMatches":false}`,
		},
		{ // what Quay's API answers for a policy without a pattern can be sent back
			`{"method": "creation_date", "value": "2w", "tagPattern": null, "tagPatternMatches": null}`,
			`{"method":"creation_date","olderThan":"2w"}`,
		},
		{
			`{"method": "creation_date", "value": "2w", "tagPattern": null, "tagPatternMatches": true}`,
			`{"method":"creation_date","olderThan":"2w"}`,
		},
	} {
		got, err := json.Marshal(parsed(t, tt.in))
		if err != nil || string(got) != tt.want {
			t.Errorf("policy %s is written as %s (%v), want %s", tt.in, got, err, tt.want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 257)
	for _, tt := range []struct{ name, in, field, problem string }{
		{"nothing", ``, "", "it is empty"},
		{"space", " \n", "", "it is empty"},
		{"malformed", `{"method": }`, "", "it isn't JSON"},
		{"malformed in the second field", `{"method": "creation_date", "olderThan" "2w"}`, "", "at byte"},
		{"cut off", `{"method": "creation_date"`, "", "ends too early"},
		{"unquoted, as documentation has it", `{method: "creation_date", olderThan: "2w"}`, "", "it isn't JSON"},
		{"not UTF-8", "{\"method\": \"\xff\"}", "", "UTF-8"},
		{"null", `null`, "", "must be a JSON object, not null"},
		{"array", ` [{"method": "creation_date", "olderThan": "2w"}]`, "", "not an array"},
		{"string", `"creation_date"`, "", "not a string"},
		{"trailing object", `{"method": "creation_date", "olderThan": "2w"} {}`, "", "text follows"},
		{"trailing brace", `{"method": "creation_date", "olderThan": "2w"}}`, "", "text follows"},
		{"unknown field", `{"method": "creation_date", "olderThan": "2w", "tag_pattern": "x"}`, "tag_pattern", "unknown field"},
		{"field without a name", `{"": 1}`, "", "unknown field"},
		{"another case", `{"Method": "creation_date", "olderThan": "2w"}`, "Method", "must be written method"},
		{"field twice", `{"method": "creation_date", "olderThan": "2w", "olderThan": "1s"}`, "olderThan", "given twice"},

		{"no method", `{"olderThan": "2w"}`, "method", "is missing"},
		{"method null", `{"method": null, "olderThan": "2w"}`, "method", "must be a string, not null"},
		{"method a number", `{"method": 1}`, "method", "must be a string, not a number"},
		{"method unknown", `{"method": "creation-date", "olderThan": "2w"}`, "method", `"creation-date" is unknown`},
		{"method empty", `{"method": "", "olderThan": "2w"}`, "method", "unknown"},

		{"number missing", `{"method": "number_of_tags"}`, "numTags", "is missing"},
		{"number zero", `{"method": "number_of_tags", "numTags": 0}`, "numTags", "at least 1"},
		{"number negative", `{"method": "number_of_tags", "value": -3}`, "value", "at least 1"},
		{"number negative zero", `{"method": "number_of_tags", "numTags": -0}`, "numTags", "at least 1"},
		{"number a fraction", `{"method": "number_of_tags", "numTags": 1.5}`, "numTags", "whole number"},
		{"number with an exponent", `{"method": "number_of_tags", "numTags": 1e2}`, "numTags", "whole number"},
		{"number a string", `{"method": "number_of_tags", "value": "10"}`, "value", "must be a number such as 100, not a string"},
		{"number null", `{"method": "number_of_tags", "value": null}`, "value", "not null"},
		{"number too large", `{"method": "number_of_tags", "numTags": 1000000001}`, "numTags", "too large"},
		{"number far too large", `{"method": "number_of_tags", "numTags": 99999999999999999999999}`, "numTags", "too large"},
		{"number's method with an age", `{"method": "number_of_tags", "olderThan": "2w"}`, "olderThan", "it takes numTags"},
		{"number twice", `{"method": "number_of_tags", "numTags": 1, "value": 1}`, "value", "give one of them"},

		{"size missing", `{"method": "max_bytes"}`, "maxBytes", "is missing"},
		{"size a number", `{"method": "max_bytes", "maxBytes": 100}`, "maxBytes", "must be a string, not a number"},
		{"size null", `{"method": "max_bytes", "maxBytes": null}`, "maxBytes", "not null"},
		{"size empty", `{"method": "max_bytes", "maxBytes": ""}`, "maxBytes", "isn't a number of bytes"},
		{"size zero", `{"method": "max_bytes", "value": "0GiB"}`, "value", "is zero"},
		{"size negative", `{"method": "max_bytes", "maxBytes": "-5GiB"}`, "maxBytes", "is no size"},
		{"size a fraction", `{"method": "max_bytes", "maxBytes": "1.5GiB"}`, "maxBytes", "is no size"},
		{"size too large", `{"method": "max_bytes", "maxBytes": "8388608TiB"}`, "maxBytes", "up to 8388607TiB"},
		{"size's method with a number", `{"method": "max_bytes", "maxBytes": "1GiB", "numTags": 3}`, "numTags", "it takes maxBytes"},
		{"size with another method", `{"method": "number_of_tags", "numTags": 3, "maxBytes": "1GiB"}`, "maxBytes", "it takes numTags"},
		{"size twice", `{"method": "max_bytes", "maxBytes": "1GiB", "value": "1GiB"}`, "value", "give one of them"},

		{"age missing", `{"method": "last_pulled"}`, "olderThan", "is missing"},
		{"age a number", `{"method": "creation_date", "olderThan": 14}`, "olderThan", "must be a string, not a number"},
		{"age null", `{"method": "creation_date", "olderThan": null}`, "olderThan", "not null"},
		{"age empty", `{"method": "creation_date", "olderThan": ""}`, "olderThan", "it is empty"},
		{"age zero", `{"method": "last_pulled", "olderThan": "0d"}`, "olderThan", "is zero"},
		{"age negative", `{"method": "creation_date", "value": "-1d"}`, "value", "is negative"},
		{"age's method with a number", `{"method": "creation_date", "olderThan": "2w", "numTags": 3}`, "numTags", "it takes olderThan"},
		{"age twice", `{"method": "creation_date", "olderThan": "2w", "value": "2w"}`, "value", "give one of them"},

		{"pattern a number", `{"method": "creation_date", "olderThan": "2w", "tagPattern": 1}`, "tagPattern", "must be a string"},
		{"pattern empty", `{"method": "creation_date", "olderThan": "2w", "tagPattern": ""}`, "tagPattern", "it is empty"},
		{"pattern wrong", `{"method": "creation_date", "olderThan": "2w", "tagPattern": "("}`, "tagPattern", "isn't a regular expression"},
		{"pattern long", `{"method": "creation_date", "olderThan": "2w", "tagPattern": "` + long + `"}`, "tagPattern", "257 characters"},
		{"matches a string", `{"method": "creation_date", "olderThan": "2w", "tagPattern": "x", "tagPatternMatches": "true"}`, "tagPatternMatches", "true or false, not a string"},
		{"matches nothing", `{"method": "creation_date", "olderThan": "2w", "tagPatternMatches": false}`, "tagPatternMatches", "needs a tagPattern"},
	} {
		p, err := policy.Parse([]byte(tt.in))
		var problem *policy.FieldError
		if !errors.As(err, &problem) {
			t.Errorf("%s: the policy is %v, error %v; want an error of a field", tt.name, p, err)
			continue
		}
		if problem.Field != tt.field || !strings.Contains(problem.Problem, tt.problem) {
			t.Errorf("%s: the error is %q of field %q, want %q of %q", tt.name, problem.Problem, problem.Field, tt.problem, tt.field)
		}
	}
}

func TestPolicyEqual(t *testing.T) {
	t.Parallel()
	twoWeeks := parsed(t, `{"method": "creation_date", "olderThan": "2w"}`)
	for in, want := range map[string]bool{
		`{"method": "creation_date", "value": "14d"}`:                                                                true,
		`{"method": "creation_date", "olderThan": "0336h", "tagPattern": null}`:                                      true,
		`{"method": "creation_date", "olderThan": "15d"}`:                                                            false,
		`{"method": "last_pulled", "olderThan": "2w"}`:                                                               false,
		`{"method": "number_of_tags", "numTags": 14}`:                                                                false,
		`{"method": "creation_date", "olderThan": "2w", "tagPattern": ".*"}`:                                         false,
		`{"method": "creation_date", "olderThan": "2w", "tagPattern": "a", "tagPatternMatches": false}`:              false,
		`{"tagPatternMatches": true, "tagPattern": null, "olderThan": "1209600s", "method": "creation_\u0064ate"}`:   true,
		`{"method": "creation_date", "olderThan": "20160m", "tagPatternMatches": true}`:                              true,
		`{"method": "number_of_tags", "numTags": 14, "tagPattern": "a", "tagPatternMatches": true}`:                  false,
		`{"method": "creation_date", "olderThan": "1y"}`:                                                             false,
		`{"method": "max_bytes", "maxBytes": "14"}`:                                                                  false,
		`{"method": "creation_date", "olderThan": "2w", "tagPattern": "[a-z]+", "tagPatternMatches": true}` + "\n\n": false,
	} {
		if got := parsed(t, in).Equal(twoWeeks); got != want {
			t.Errorf("%s equals %s: %v, want %v", in, twoWeeks, got, want)
		}
	}
	a := parsed(t, `{"method": "creation_date", "olderThan": "2w", "tagPattern": "a"}`)
	if b := parsed(t, `{"method": "creation_date", "olderThan": "2w", "tagPattern": "a", "tagPatternMatches": false}`); a.Equal(b) {
		t.Errorf("%s equals %s", a, b)
	}
}

func TestPolicyText(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`{"method": "number_of_tags", "value": 7}`:                                                "number_of_tags numTags 7 7 int",
		`{"method": "last_pulled", "value": "90d", "tagPattern": "a\"b"}`:                         `last_pulled olderThan 90d, tags that match "a\"b" 90d string`,
		`{"method": "creation_date", "value": "2w", "tagPattern":"v", "tagPatternMatches":false}`: `creation_date olderThan 2w, tags that don't match "v" 2w string`,
	} {
		p := parsed(t, in)
		if got := fmt.Sprintf("%s %v %[2]T", p, p.Value()); got != want {
			t.Errorf("%s reads %q, want %q", in, got, want)
		}
	}
	var zero policy.Policy
	if _, err := json.Marshal(zero); err == nil {
		t.Error("the zero policy has a JSON form")
	}
	if zero.Value() != nil || zero.String() != "no policy" {
		t.Errorf("the zero policy reads %q with value %v", zero, zero.Value())
	}
}

func TestParseAge(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for in, want := range map[string]time.Duration{
		"1s": time.Second, "90m": 90 * time.Minute, "5h": 5 * time.Hour, "30d": 30 * day,
		"2w": 14 * day, "1y": 365 * day, "100y": 100 * 365 * day, "0001w": 7 * day, "3153600000s": 100 * 365 * day,
	} {
		age, err := policy.ParseAge(in)
		if err != nil || age.Duration() != want {
			t.Errorf("%q is %s (%v), want %s", in, age.Duration(), err, want)
		}
	}
	for in, want := range map[string]string{
		"": "empty", "0d": "zero", "000s": "zero", "-1d": "negative", "-": "negative",
		"d": "begin with a digit", "+1d": "begin with a digit", " 1d": "begin with a digit", "x1d": "begin with a digit",
		"14": "no unit", "2W": "unknown unit", "2x": "unknown unit", "1.5d": "unknown unit", "2 w": "unknown unit", "1e3d": "unknown unit",
		"1w2d": "goes on", "2ww": "goes on", "2w ": "goes on",
		"101y": "longer than 100y", "3153600001s": "longer than 100y", "9223372036854775807w": "longer than 100y",
		"99999999999999999999999999d": "longer than 100y",
		"２w":                          "ASCII", "2ｗ": "ASCII", "٣d": "ASCII", "2w\u200b": "ASCII", "2w\x00": "ASCII", "2w\n": "ASCII", "−1d": "ASCII",
	} {
		age, err := policy.ParseAge(in)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is %q, error %v; want an error with %q", in, age, err, want)
		}
	}
}

func TestPatternsThatAreRefused(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                              "empty",
		"(":                             "regular expression",
		"a)|(b":                         "regular expression",
		" \t":                           "empty",
		"*":                             "regular expression",
		"(?=a)":                         "regular expression",
		`a\`:                            "regular expression",
		`(a)\1`:                         "regular expression",
		"a{1001}":                       "regular expression",
		"(a{32}){32}":                   "regular expression",
		"([a-z]{30}[0-9]?){30}":         "at most 500",
		"\xff":                          "UTF-8",
		"a\x00":                         "control character",
		strings.Repeat("é", 257):        "257 characters",
		strings.Repeat("[a-z]{99}", 28): "at most 500",
	} {
		if p, err := oci.ParseTagPattern(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is a pattern (%q), error %v; want an error with %q", in, p, err, want)
		}
	}
	if _, err := oci.ParseTagPattern(strings.Repeat("é", 256)); err != nil {
		t.Errorf("256 characters: %v", err)
	}
	if _, err := oci.ParseTagPattern("^(?:" + strings.Repeat("é", 256) + ")$"); err != nil {
		t.Errorf("256 characters, anchored: %v", err)
	}
	if (oci.TagPattern{}).Match("") {
		t.Error("the zero pattern matches")
	}
}

// TestPolicyRoundTrip writes any policy and reads it back.
func TestPolicyRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		fields := map[string]any{}
		if method := rapid.SampledFrom([]string{"creation_date", "number_of_tags", "last_pulled"}).Draw(t, "method"); method == "number_of_tags" {
			fields["method"], fields["numTags"] = method, rapid.IntRange(1, policy.MaxNumTags).Draw(t, "number")
		} else {
			unit := rapid.SampledFrom([]string{"s", "m", "h", "d", "w", "y"}).Draw(t, "unit")
			fields["method"] = method
			fields["olderThan"] = fmt.Sprintf("%d%s", rapid.IntRange(1, 100).Draw(t, "count"), unit)
		}
		if rapid.Bool().Draw(t, "with a pattern") {
			fields["tagPattern"] = rapid.StringMatching(`[a-z<>&"é.*+|-]{1,20}`).Draw(t, "pattern")
			fields["tagPatternMatches"] = rapid.Bool().Draw(t, "matches")
		}
		text, _ := json.Marshal(fields)
		p, err := policy.Parse(text)
		if err != nil {
			t.Skip("the pattern doesn't compile:", err)
		}
		written, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		var back policy.Policy
		if err := json.Unmarshal(written, &back); err != nil || !back.Equal(p) {
			t.Fatalf("%s is written as %s and read as %s (%v)", text, written, back, err)
		}
	})
}

// TestDropped: a policy must be warned of that lacks the reporters, the cap or the windows of the one that
// it replaces, with the reporters first that aren't live. One that only has others of them isn't.
func TestDropped(t *testing.T) {
	t.Parallel()
	const base = `{"method": "number_of_tags", "numTags": 30`
	for _, tt := range []struct{ old, now, silent, want string }{
		{``, ``, ``, ``},
		{``, `, "requireReporter": ["eu"], "maxDeleted": 3, "windows": [{"days": ["mon"]}]`, ``, ``},
		{`, "requireReporter": ["eu"]`, `, "requireReporter": ["us", "eu"]`, `eu`, ``},
		{`, "requireReporter": ["eu", "us"]`, `, "requireReporter": ["us"]`, ``, `drops_reporter 1: it doesn't require 1 reporter any more: eu`},
		{`, "requireReporter": ["eu"]`, ``, `eu`, `drops_reporter 1: it doesn't require 1 reporter any more, which isn't live: eu`},
		{`, "requireReporter": ["eu"]`, `, "mode": "observe"`, `eu`, `drops_reporter 1: it doesn't require 1 reporter any more, which isn't live: eu`},
		{`, "requireReporter": ["eu", "us"]`, ``, `us`, `drops_reporter 2: it doesn't require 2 reporters any more, the first of which isn't live: us, eu`},
		{`, "requireReporter": ["eu", "us"]`, ``, `us eu`, `drops_reporter 2: it doesn't require 2 reporters any more, none of which is live: eu, us`},
		{`, "requireReporter": ["a", "b", "c", "d", "e", "f"]`, ``, `e f`, `drops_reporter 6: it doesn't require 6 reporters any more, the first 2 of which aren't live: e, f, a, b, c, …`},
		{`, "maxDeleted": 3, "maxDeletedPercent": 9`, `, "maxDeletedPercent": 90`, ``, ``},
		{`, "maxDeleted": 3`, ``, ``, `drops_safeguard 0: it has no cap any more on how many tags a run deletes by it`},
		{`, "windows": [{"days": ["mon"]}]`, `, "windows": [{"days": ["tue"]}]`, ``, ``},
		{`, "windows": [{"days": ["mon"]}], "maxDeletedPercent": 9`, ``, ``, `drops_safeguard 0: it has no cap any more on how many tags a run deletes by it
drops_safeguard 0: it has no windows any more, so it deletes at any time`},
	} {
		var got []string
		for _, w := range parsed(t, base+tt.now+"}").Dropped(parsed(t, base+tt.old+"}"), strings.Fields(tt.silent)) {
			got = append(got, fmt.Sprintf("%s %d: %s", w.Code, w.Number, w.Sentence()))
		}
		if got := strings.Join(got, "\n"); got != tt.want {
			t.Errorf("%s after %s: %q, want %q", tt.now, tt.old, got, tt.want)
		}
	}
}

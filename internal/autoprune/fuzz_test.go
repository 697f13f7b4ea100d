package autoprune_test

import (
	"encoding/json"
	"errors"
	"regexp"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/oci"
)

// FuzzParsePolicy looks for text that makes the parser panic, for a policy that
// selects by no time or number, and for one that isn't read as it was written.
func FuzzParsePolicy(f *testing.F) {
	for _, seed := range []string{
		`{"method": "creation_date", "olderThan": "2w"}`,
		`{"method": "number_of_tags", "numTags": 100}`,
		`{"method": "last_pulled", "value": "90d", "tagPattern": "v[0-9]+", "tagPatternMatches": false}`,
		`{"method": "creation_date", "value": "0d", "tagPattern": null}`,
		`{"Method": 1, "method": 2} x`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := autoprune.ParsePolicy(data)
		if err != nil {
			var problem *autoprune.FieldError
			if !errors.As(err, &problem) || problem.Problem == "" {
				t.Fatalf("%q: the error %v is of no field", data, err)
			}
			return
		}
		switch value := p.Value().(type) {
		case int:
			if value < 1 || value > autoprune.MaxNumTags {
				t.Fatalf("%q: the number is %d", data, value)
			}
		case string:
			if age, err := autoprune.ParseAge(value); err != nil || age.Duration() < time.Second {
				t.Fatalf("%q: the age is %q (%v)", data, value, err)
			}
		default:
			t.Fatalf("%q: the policy has no value", data)
		}
		written, err := json.Marshal(p)
		if err != nil {
			t.Fatalf("%q: %v", data, err)
		}
		back, err := autoprune.ParsePolicy(written)
		if err != nil || !back.Equal(p) {
			t.Fatalf("%q: written as %s, read as %s (%v)", data, written, back, err)
		}
	})
}

// FuzzTagPattern compares a pattern with the longest match of the expression that
// it was made of: a whole match is a match of the whole.
func FuzzTagPattern(f *testing.F) {
	for _, seed := range [][2]string{{"v.*", "v1"}, {"a|ab", "ab"}, {`\Qa`, "a"}, {"(?i)x$|^y", "X"}, {"(?s-m)a{2,3}?", "aa"}, {`\bq\B`, "q"}} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, text, tag string) {
		p, err := oci.ParseTagPattern(text)
		if err != nil {
			return
		}
		re, err := regexp.Compile(text)
		if err != nil {
			t.Fatalf("%q is a pattern but no expression: %v", text, err)
		}
		re.Longest()
		place := re.FindStringIndex(tag)
		if want := place != nil && place[0] == 0 && place[1] == len(tag); p.Match(tag) != want {
			t.Fatalf("%q matches %q: %v, want %v", text, tag, !want, want)
		}
	})
}

package policy_test

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/policy"
)

// FuzzParse looks for texts with which Parse panics, returns a policy without
// an age or number, or returns a policy that differs after it was written as JSON and read
// again.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		`{"method": "creation_date", "olderThan": "2w"}`,
		`{"method": "number_of_tags", "numTags": 100}`,
		`{"method": "last_pulled", "value": "90d", "tagPattern": "v[0-9]+", "tagPatternMatches": false}`,
		`{"method": "creation_date", "value": "0d", "tagPattern": null}`,
		`{"method": "number_of_tags", "value": 9, "removeOrphans": true}`,
		`{"Method": 1, "method": 2} x`,
		`{"method": "max_bytes", "maxBytes": "50GiB"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := policy.Parse(data)
		if err != nil {
			var problem *policy.FieldError
			if !errors.As(err, &problem) || problem.Problem == "" {
				t.Fatalf("%q: the error %v is of no field", data, err)
			}
			return
		}
		switch value := p.Value().(type) {
		case int:
			if value < 1 || value > policy.MaxNumTags {
				t.Fatalf("%q: the number is %d", data, value)
			}
		case string:
			if size, err := policy.ParseSize(value); p.Method == policy.MaxBytes && err == nil && size > 0 {
				break
			}
			if age, err := policy.ParseAge(value); err != nil || age.Duration() < time.Second {
				t.Fatalf("%q: the age is %q (%v)", data, value, err)
			}
		default:
			t.Fatalf("%q: the policy has no value", data)
		}
		written, err := json.Marshal(p)
		if err != nil {
			t.Fatalf("%q: %v", data, err)
		}
		back, err := policy.Parse(written)
		if err != nil || !back.Equal(p) {
			t.Fatalf("%q: written as %s, read as %s (%v)", data, written, back, err)
		}
	})
}

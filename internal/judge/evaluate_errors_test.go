package judge_test

import (
	"errors"
	"iter"
	"slices"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/policy"
)

func TestEvaluateRefuses(t *testing.T) {
	t.Parallel()
	good := func() judge.Rules { return rules(t, "number_of_tags:1") }
	for name, change := range map[string]func(*judge.Rules, *judge.Tag){
		"no time":                    func(r *judge.Rules, _ *judge.Tag) { r.Now = time.Time{} },
		"zero policy":                func(r *judge.Rules, _ *judge.Tag) { r.Policies[0].Policy = policy.Policy{} },
		"protection without pattern": func(r *judge.Rules, _ *judge.Tag) { r.Protection = make([]judge.Protection, 1) },
		"too many policies": func(r *judge.Rules, _ *judge.Tag) {
			r.Policies = slices.Repeat(r.Policies, judge.MaxPolicies+1)
		},
		"no name":                        func(_ *judge.Rules, t *judge.Tag) { t.Name = "" },
		"no creation time":               func(_ *judge.Rules, t *judge.Tag) { t.Created = time.Time{} },
		"no manifest":                    func(_ *judge.Rules, t *judge.Tag) { t.Manifest = 0 },
		"an image that is none":          func(_ *judge.Rules, t *judge.Tag) { t.Image = -2 },
		"an attached tag without images": func(_ *judge.Rules, t *judge.Tag) { t.Name = attachedName(1, ".sig") },
	} {
		r, bad := good(), tag("a", day)
		change(&r, &bad)
		v, err := judge.Evaluate(r, judge.Repository{Tags: judge.Tags([]judge.Tag{tag("b", day), bad})})
		if err == nil || v != nil {
			t.Errorf("%s: a verdict %v, error %v", name, v, err)
		}
	}
	most := good()
	most.Policies = slices.Repeat(most.Policies, judge.MaxPolicies)
	d := evaluate(t, most, []judge.Tag{tag("a", day), tag("b", 2*day)}).Decide(tag("b", 2*day))
	if !d.Policies.Has(0) || !d.Policies.Has(judge.MaxPolicies-1) || len(slices.Collect(d.Policies.All())) != judge.MaxPolicies {
		t.Errorf("with %d policies the tag goes under %v", judge.MaxPolicies, slices.Collect(d.Policies.All()))
	}
}

// TestEvaluateFails: if the tags or the references can't be read, in the first or the
// second pass, Evaluate must return the error and no verdict.
func TestEvaluateFails(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	tags := []judge.Tag{tag("old", 9*day), signature(1, day)}
	failing := func(pass int) iter.Seq2[judge.Tag, error] {
		run := 0
		return func(yield func(judge.Tag, error) bool) {
			if run++; run == pass {
				yield(judge.Tag{}, broken)
				return
			}
			judge.Tags(tags)(yield)
		}
	}
	for name, repository := range map[string]judge.Repository{
		"first pass":  {Tags: failing(1)},
		"second pass": {Tags: failing(2)},
		"parents": {Tags: judge.Tags(tags), Parents: func([]int64) ([]judge.Reference, error) {
			return nil, broken
		}},
	} {
		v, err := judge.Evaluate(rules(t, "creation_date:1d"), repository)
		if v != nil || !errors.Is(err, broken) {
			t.Errorf("%s: the verdict is %v, the error %v; want %v", name, v, err, broken)
		}
	}
}

// TestLongChain evaluates a chain of 50,000 attached tags, each attached to the manifest of
// the tag before it. It counts the manifests whose parents Evaluate asks for: the number
// must grow linearly, and one call must ask for at most 1,000.
func TestLongChain(t *testing.T) {
	t.Parallel()
	const length = 50_000
	tags := []judge.Tag{tag("old", 9*day, manifest(1))}
	for i := int64(1); i < length; i++ {
		tags = append(tags, signature(i, day, manifest(i+1)))
	}
	slices.Reverse(tags)
	asked := 0
	v, err := judge.Evaluate(rules(t, "creation_date:5d"), judge.Repository{
		Tags: judge.Tags(tags),
		Parents: func(manifests []int64) (references []judge.Reference, err error) {
			if asked += len(manifests); len(manifests) > 1000 {
				t.Errorf("parents of %d manifests at once", len(manifests))
			}
			for _, child := range manifests { // each is in one index that nobody tagged
				if child <= length {
					references = append(references, judge.Reference{Parent: child + length, Child: child})
				}
			}
			return references, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range tags {
		if d := v.Decide(one); !d.Delete {
			t.Fatalf("tag %s of manifest %d stays: %s", one.Name, one.Manifest, v.Reason(one, d))
		}
	}
	if want := 2 * (length - 1); asked != want {
		t.Errorf("parents were asked for %d manifests, want %d", asked, want)
	}
}

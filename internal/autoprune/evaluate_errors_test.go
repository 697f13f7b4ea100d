package autoprune_test

import (
	"errors"
	"iter"
	"slices"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/policy"
)

func TestEvaluateRefuses(t *testing.T) {
	t.Parallel()
	good := func() autoprune.Rules { return rules(t, "number_of_tags:1") }
	for name, change := range map[string]func(*autoprune.Rules, *autoprune.Tag){
		"no time":                    func(r *autoprune.Rules, _ *autoprune.Tag) { r.Now = time.Time{} },
		"zero policy":                func(r *autoprune.Rules, _ *autoprune.Tag) { r.Policies[0].Policy = policy.Policy{} },
		"protection without pattern": func(r *autoprune.Rules, _ *autoprune.Tag) { r.Protection = make([]autoprune.Protection, 1) },
		"too many policies": func(r *autoprune.Rules, _ *autoprune.Tag) {
			r.Policies = slices.Repeat(r.Policies, autoprune.MaxPolicies+1)
		},
		"no name":                        func(_ *autoprune.Rules, t *autoprune.Tag) { t.Name = "" },
		"no creation time":               func(_ *autoprune.Rules, t *autoprune.Tag) { t.Created = time.Time{} },
		"no manifest":                    func(_ *autoprune.Rules, t *autoprune.Tag) { t.Manifest = 0 },
		"an image that is none":          func(_ *autoprune.Rules, t *autoprune.Tag) { t.Image = -2 },
		"an attached tag without images": func(_ *autoprune.Rules, t *autoprune.Tag) { t.Name = attachedName(1, ".sig") },
	} {
		r, bad := good(), tag("a", day)
		change(&r, &bad)
		v, err := autoprune.Evaluate(r, autoprune.Repository{Tags: autoprune.Tags([]autoprune.Tag{tag("b", day), bad})})
		if err == nil || v != nil {
			t.Errorf("%s: a verdict %v, error %v", name, v, err)
		}
	}
	most := good()
	most.Policies = slices.Repeat(most.Policies, autoprune.MaxPolicies)
	d := evaluate(t, most, []autoprune.Tag{tag("a", day), tag("b", 2*day)}).Decide(tag("b", 2*day))
	if !d.Policies.Has(0) || !d.Policies.Has(autoprune.MaxPolicies-1) || len(slices.Collect(d.Policies.All())) != autoprune.MaxPolicies {
		t.Errorf("with %d policies the tag goes under %v", autoprune.MaxPolicies, slices.Collect(d.Policies.All()))
	}
}

// TestEvaluateFails: if the tags or the references can't be read, in the first or the
// second pass, Evaluate must return the error and no verdict.
func TestEvaluateFails(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	tags := []autoprune.Tag{tag("old", 9*day), signature(1, day)}
	failing := func(pass int) iter.Seq2[autoprune.Tag, error] {
		run := 0
		return func(yield func(autoprune.Tag, error) bool) {
			if run++; run == pass {
				yield(autoprune.Tag{}, broken)
				return
			}
			autoprune.Tags(tags)(yield)
		}
	}
	for name, repository := range map[string]autoprune.Repository{
		"first pass":  {Tags: failing(1)},
		"second pass": {Tags: failing(2)},
		"parents": {Tags: autoprune.Tags(tags), Parents: func([]int64) ([]autoprune.Reference, error) {
			return nil, broken
		}},
	} {
		v, err := autoprune.Evaluate(rules(t, "creation_date:1d"), repository)
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
	tags := []autoprune.Tag{tag("old", 9*day, manifest(1))}
	for i := int64(1); i < length; i++ {
		tags = append(tags, signature(i, day, manifest(i+1)))
	}
	slices.Reverse(tags)
	asked := 0
	v, err := autoprune.Evaluate(rules(t, "creation_date:5d"), autoprune.Repository{
		Tags: autoprune.Tags(tags),
		Parents: func(manifests []int64) (references []autoprune.Reference, err error) {
			if asked += len(manifests); len(manifests) > 1000 {
				t.Errorf("parents of %d manifests at once", len(manifests))
			}
			for _, child := range manifests { // each is in one index that nobody tagged
				if child <= length {
					references = append(references, autoprune.Reference{Parent: child + length, Child: child})
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

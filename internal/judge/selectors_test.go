package judge_test

import (
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/judge"
)

// TestSelectors checks which tags a policy with selectors deletes and counts, and that its
// keep rules look at the selected tags only.
func TestSelectors(t *testing.T) {
	t.Parallel()
	of := func(mediaType, artifactType string, size int64) func(*judge.Tag) {
		return func(t *judge.Tag) { t.MediaType, t.ArtifactType, t.Size = mediaType, artifactType, size }
	}
	tags := []judge.Tag{
		tag("image", 2*day, of("application/vnd.oci.image.manifest.v1+json", "application/vnd.oci.image.config.v1+json", 1000)),
		tag("index", 3*day, of("Application/vnd.oci.image.index.v1+json", "", 2000)),
		tag("chart", 4*day, of("application/vnd.oci.image.manifest.v1+json", "application/vnd.cncf.helm.config.v1+json", 10)),
	}
	for in, want := range map[string]string{
		`"mediaTypes": ["*index*"]`:                                         "index",
		`"mediaTypes": ["application/vnd.oci.image.manifest.v1+json", "x"]`: "image chart",
		`"mediaTypes": ["application/vnd.oci.image"]`:                       "",
		`"mediaTypes": ["*"]`:                                               "image index chart",
		`"artifactTypes": ["*"]`:                                            "image chart",
		`"artifactTypes": ["*.helm.*"]`:                                     "chart",
		`"artifactTypes": ["*json*json"]`:                                   "",
		`"largerThan": "10"`:                                                "image index",
		`"largerThan": "9", "smallerThan": "2kB"`:                           "image chart",
		`"largerThan": "9", "tagPattern": "^i"`:                             "image index",
		`"keep": [{"newest": 1}], "largerThan": "9"`:                        "index chart",
		`"keep": [{"newest": 1}], "smallerThan": "1kB"`:                     "",
		`"keep": [{"newest": 1}], "mediaTypes": ["*manifest*"]`:             "chart",
	} {
		r := rules(t)
		r.Policies = []judge.Applied{{ID: "p", Policy: parsed(t, `{"method": "creation_date", "olderThan": "1d", `+in+`}`)}}
		v := evaluate(t, r, tags)
		var gone []string
		for _, one := range tags {
			if v.Decide(one).Delete {
				gone = append(gone, one.Name)
			}
		}
		if got := strings.Join(gone, " "); got != want {
			t.Errorf("%s: %q go, want %q", in, got, want)
		}
	}
	r := rules(t)
	r.Policies = []judge.Applied{{ID: "p", Policy: parsed(t, `{"method": "number_of_tags", "numTags": 1, "mediaTypes": ["*manifest*"]}`)}}
	v := evaluate(t, r, tags)
	if v.Decide(tags[0]).Delete || v.Decide(tags[1]).Delete || !v.Decide(tags[2]).Delete {
		t.Error("of the manifests that aren't indexes, not all but the newest go")
	}
	if _, err := judge.Evaluate(r, judge.Repository{Tags: judge.Tags([]judge.Tag{tag("a", day)})}); err == nil {
		t.Error("tags are judged without their media types")
	}
}

package autoprune_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/catalog"
)

// TestSelectors checks which tags a policy with selectors deletes and counts, and that its
// keep rules look at the selected tags only.
func TestSelectors(t *testing.T) {
	t.Parallel()
	of := func(mediaType, artifactType string, size int64) func(*autoprune.Tag) {
		return func(t *autoprune.Tag) { t.MediaType, t.ArtifactType, t.Size = mediaType, artifactType, size }
	}
	tags := []autoprune.Tag{
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
		r.Policies = []autoprune.Applied{{ID: "p", Policy: parsed(t, `{"method": "creation_date", "olderThan": "1d", `+in+`}`)}}
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
	r.Policies = []autoprune.Applied{{ID: "p", Policy: parsed(t, `{"method": "number_of_tags", "numTags": 1, "mediaTypes": ["*manifest*"]}`)}}
	v := evaluate(t, r, tags)
	if v.Decide(tags[0]).Delete || v.Decide(tags[1]).Delete || !v.Decide(tags[2]).Delete {
		t.Error("of the manifests that aren't indexes, not all but the newest go")
	}
	if _, err := autoprune.Evaluate(r, autoprune.Repository{Tags: autoprune.Tags([]autoprune.Tag{tag("a", day)})}); err == nil {
		t.Error("tags are judged without their media types")
	}
}

// TestRunSelects: runs and previews must apply policies with selectors to the tags and
// repositories that these select. The size of an index must include that of its manifests.
func TestRunSelects(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *autoprune.Options) { o.Page = 2 })
	web, api := r.repository("app/web/a"), r.repository("app/api")
	for _, target := range []catalog.Repository{web, api} {
		for _, name := range []string{"chart", "image", "index", "small"} {
			r.tag(target, name, name, 10*day)
		}
		r.layer(target, "part", "layer", 5_000_000)
		r.index(target, "index", "part")
		r.exec(`UPDATE manifests SET media_type = 'application/vnd.oci.image.index.v1+json' WHERE id = $1`, r.manifest(target, "index", ""))
		r.exec(`UPDATE manifests SET total_size = 5000000 WHERE id = ANY ($1)`, []int64{r.manifest(target, "image", ""), r.manifest(target, "part", "")})
		r.exec(`UPDATE manifests SET artifact_type = 'application/vnd.cncf.helm.config.v1+json' WHERE id = $1`, r.manifest(target, "chart", ""))
	}
	app := autoprune.Target{Namespace: "app"}
	large := parsed(t, `{"method": "creation_date", "olderThan": "1d", "largerThan": "4MB", "repositories": ["app/*"]}`)
	preview, err := r.pruner.Preview(t.Context(), app, autoprune.PreviewOptions{Policy: &large})
	r.must(err)
	if preview.Deleted != 2 || len(preview.Per) != 1 || preview.Per[0].Repository != "app/api" || preview.Tags != 8 {
		t.Errorf("the preview of one policy: %+v", preview)
	}
	r.policy(app, `{"method": "creation_date", "olderThan": "1d", "largerThan": "4MB", "repositories": ["app/*"]}`)
	r.policy(app, `{"method": "creation_date", "olderThan": "1d", "mediaTypes": ["*manifest*"], "artifactTypes": ["*helm*"], "repositories": ["app/web/**"]}`)
	r.exec(`INSERT INTO defaultautoprunepolicy (uuid, policy) VALUES (gen_random_uuid(), '{"method": "creation_date", "olderThan": "1d"}')`)
	preview, err = r.pruner.Preview(t.Context(), app, autoprune.PreviewOptions{})
	r.must(err)
	r.run()
	for target, want := range map[catalog.Repository][]string{web: {"image", "index", "small"}, api: {"chart", "small"}} {
		if got := r.tags(target); !slices.Equal(got, want) {
			t.Errorf("%s has %v, want %v", target.Path, got, want)
		}
	}
	if preview.Deleted != 3 || len(preview.Policies) != 2 {
		t.Errorf("the preview: %+v", preview)
	}
	_, err = r.pruner.Create(t.Context(), autoprune.Target{Repository: "app/api"}, large)
	if err == nil || !strings.Contains(fmt.Sprint(err), "repositories: a policy of a repository applies only there") {
		t.Errorf("a repository's policy with patterns of repositories: %v", err)
	}
}

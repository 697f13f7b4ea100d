package autoprune_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/catalog"
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
		p := policy(t, `{"method": "creation_date", "olderThan": "2w", `+in+`}`)
		got, err := json.Marshal(p)
		if err != nil || string(got) != `{"method":"creation_date","olderThan":"2w"`+want+`}` {
			t.Errorf("%s is written as %s, %v", in, got, err)
		}
		if plain := policy(t, `{"method": "creation_date", "olderThan": "2w"}`); !p.Equal(p) || p.Equal(plain) != (want == "") {
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
		_, err := autoprune.ParsePolicy([]byte(`{"method": "creation_date", "olderThan": "2w", ` + tt.in + `}`))
		problem, ok := errors.AsType[*autoprune.FieldError](err)
		if !ok || problem.Field != tt.field || !strings.Contains(problem.Problem, tt.problem) {
			t.Errorf("%s: the error is %v, want %q of %q", tt.in, err, tt.problem, tt.field)
		}
	}
}

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
		r.Policies = []autoprune.Applied{{ID: "p", Policy: policy(t, `{"method": "creation_date", "olderThan": "1d", `+in+`}`)}}
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
	r.Policies = []autoprune.Applied{{ID: "p", Policy: policy(t, `{"method": "number_of_tags", "numTags": 1, "mediaTypes": ["*manifest*"]}`)}}
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
	large := policy(t, `{"method": "creation_date", "olderThan": "1d", "largerThan": "4MB", "repositories": ["app/*"]}`)
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

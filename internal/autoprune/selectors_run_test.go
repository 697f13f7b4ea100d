package autoprune_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/autoprunetest"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/catalog"
)

// TestRunSelects: runs and previews must apply policies with selectors to the tags and
// repositories that these select. The size of an index must include that of its manifests.
func TestRunSelects(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *autoprune.Options) { o.Page = 2 })
	web, api := r.Repository("app/web/a"), r.Repository("app/api")
	for _, target := range []catalog.Repository{web, api} {
		for _, name := range []string{"chart", "image", "index", "small"} {
			r.Tag(target, name, name, 10*day)
		}
		r.Layer(target, "part", "layer", 5_000_000)
		r.Index(target, "index", "part")
		r.Exec(`UPDATE manifests SET media_type = 'application/vnd.oci.image.index.v1+json' WHERE id = $1`, r.Manifest(target, "index", ""))
		r.Exec(`UPDATE manifests SET total_size = 5000000 WHERE id = ANY ($1)`, []int64{r.Manifest(target, "image", ""), r.Manifest(target, "part", "")})
		r.Exec(`UPDATE manifests SET artifact_type = 'application/vnd.cncf.helm.config.v1+json' WHERE id = $1`, r.Manifest(target, "chart", ""))
	}
	app := policies.Target{Namespace: "app"}
	large := autoprunetest.Parsed(t, `{"method": "creation_date", "olderThan": "1d", "largerThan": "4MB", "repositories": ["app/*"]}`)
	preview, err := r.pruner.Preview(t.Context(), app, autoprune.PreviewOptions{Policy: &large})
	r.Must(err)
	if preview.Deleted != 2 || len(preview.Per) != 1 || preview.Per[0].Repository != "app/api" || preview.Tags != 8 {
		t.Errorf("the preview of one policy: %+v", preview)
	}
	r.policy(app, `{"method": "creation_date", "olderThan": "1d", "largerThan": "4MB", "repositories": ["app/*"]}`)
	r.policy(app, `{"method": "creation_date", "olderThan": "1d", "mediaTypes": ["*manifest*"], "artifactTypes": ["*helm*"], "repositories": ["app/web/**"]}`)
	r.Exec(`INSERT INTO defaultautoprunepolicy (uuid, policy) VALUES (gen_random_uuid(), '{"method": "creation_date", "olderThan": "1d"}')`)
	preview, err = r.pruner.Preview(t.Context(), app, autoprune.PreviewOptions{})
	r.Must(err)
	r.run()
	for target, want := range map[catalog.Repository][]string{web: {"image", "index", "small"}, api: {"chart", "small"}} {
		if got := r.Tags(target); !slices.Equal(got, want) {
			t.Errorf("%s has %v, want %v", target.Path, got, want)
		}
	}
	if preview.Deleted != 3 || len(preview.Policies) != 2 {
		t.Errorf("the preview: %+v", preview)
	}
	_, err = r.pruner.Policies.Create(t.Context(), policies.Target{Repository: "app/api"}, large)
	if err == nil || !strings.Contains(fmt.Sprint(err), "repositories: a policy of a repository applies only there") {
		t.Errorf("a repository's policy with patterns of repositories: %v", err)
	}
}

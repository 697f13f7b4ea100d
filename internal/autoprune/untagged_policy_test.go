package autoprune_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/autoprunetest"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/policy"
)

// TestUntaggedPolicy: a policy of the method untagged deletes no tag, lets garbage collection keep
// untagged manifests, and shows in previews when they go.
func TestUntaggedPolicy(t *testing.T) {
	t.Parallel()
	r := setup(t)
	web := r.Repository("app/web")
	id := r.Manifest(web, "untagged", "")
	app := policies.Target{Namespace: "app"}
	r.Exec(`INSERT INTO gc_manifest_review_queue (top_level_namespace_id, repository_id, manifest_id, review_after, event, unused_since)
		VALUES ($1, $2, $3, now() + interval '23 hours', 'tag_delete', now() - interval '1 hour')
		ON CONFLICT (manifest_id, repository_id, top_level_namespace_id) DO UPDATE
		SET review_after = EXCLUDED.review_after, event = EXCLUDED.event, unused_since = EXCLUDED.unused_since`,
		web.NamespaceID, web.ID, id)
	r.Exec("DELETE FROM gc_review_after_defaults") // then the delays are a day
	r.Exec("INSERT INTO gc_review_after_defaults (event, value) VALUES ('tag_prune', '7 days')")
	r.Manifest(web, "image", "")
	r.Tag(web, "old", "image", 1000*24*time.Hour)
	r.policy(app, `{"method": "untagged", "olderThan": "14d"}`)
	if got := r.untagged(web, id)[id]; got.For != 14*24*time.Hour || !strings.Contains(got.String(), "14d") {
		t.Errorf("the manifest is kept for %v", got)
	}
	p, err := r.pruner.Preview(t.Context(), app, autoprune.PreviewOptions{})
	r.Must(err)
	if p.Deleted != 0 || p.WouldDelete != 0 || p.Reasons[judge.Inactive] != p.Tags {
		t.Errorf("the policy deletes %d tags, and would delete %d: %v", p.Deleted, p.WouldDelete, p.Reasons)
	}
	i := slices.IndexFunc(p.Untagged, func(u autoprune.PreviewUntagged) bool { return u.Policy != "" })
	if i < 0 || time.Until(p.Untagged[i].Deleted).Round(time.Hour) != (14*24-1)*time.Hour {
		t.Errorf("the preview shows %+v", p.Untagged)
	}
	r.policy(app, `{"method": "untagged", "olderThan": "3d", "mode": "off"}`)
	for age, want := range map[string]string{"14d": "", "7d": "", "3d": "tag_prune", "6h": "tag_delete"} {
		warnings, err := r.pruner.Policies.UntaggedWarnings(t.Context(), autoprunetest.Parsed(t, `{"method": "untagged", "olderThan": "`+age+`"}`))
		r.Must(err)
		if text := strings.Join(warnings, "; "); (want == "") != (text == "") || !strings.Contains(text, want) {
			t.Errorf("a policy with %s has the warnings %q, want %q", age, text, want)
		}
	}
}

// TestUntaggedPolicyRefuses: an untagged policy has no members that mean something for tags alone.
func TestUntaggedPolicyRefuses(t *testing.T) {
	t.Parallel()
	for member, field := range map[string]string{
		`"tagPattern": "^v"`: "tagPattern", `"keepUntagged": "3d"`: "keepUntagged", `"keep": [{"newest": 1}]`: "keep", `"neverBelow": 1`: "neverBelow",
		`"removeOrphans": true`: "removeOrphans", `"maxDeleted": 1`: "maxDeleted", `"windows": [{"days": ["sun"]}]`: "windows", `"grace": "1d"`: "grace",
		`"numTags": 1`: "numTags", `"groupBy": "^(a)"`: "groupBy", `"countImages": true`: "countImages",
	} {
		_, err := policy.Parse([]byte(`{"method": "untagged", "olderThan": "14d", ` + member + `}`))
		if err == nil || !strings.HasPrefix(err.Error(), field+": ") {
			t.Errorf("%s: %v", member, err)
		}
	}
	for _, member := range []string{`"tagPattern": null, "tagPatternMatches": true, "removeOrphans": false`, `"mediaTypes": ["*index*"]`, `"mode": "observe"`} {
		autoprunetest.Parsed(t, `{"method": "untagged", "olderThan": "14d", `+member+`}`)
	}
	if _, err := policy.Parse([]byte(`{"method": "untagged"}`)); err == nil || !strings.HasPrefix(err.Error(), "olderThan: it is missing") {
		t.Error(err)
	}
}

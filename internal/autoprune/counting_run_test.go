package autoprune_test

import (
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/autoprune/policies"
)

// TestRunCountsPlatforms: runs read the platforms of images that a policy counts for.
func TestRunCountsPlatforms(t *testing.T) {
	t.Parallel()
	l := newLabelled(t)
	web := l.Repository("app/web")
	for name, content := range map[string]string{
		"a": `{"os": "linux", "architecture": "amd64"}`, "b": `{"os": "linux", "architecture": "amd64"}`, "c": `{"os": "linux", "architecture": "arm64"}`,
		"chart": `{}`, "gone": `{"os": "linux", "architecture": "amd64"}`,
	} {
		l.image(web, name, content)
	}
	delete(l.store.objects, "gone")
	l.multi(web, "multi", "a", "c")
	l.Exec("UPDATE tags SET created_at = now() - interval '20 days' WHERE name <> 'multi'")
	l.policy(policies.Target{Namespace: "app"}, `{"method": "number_of_tags", "numTags": 1, "perPlatform": true}`)
	l.run()
	if tags := strings.Join(l.Tags(web), " "); tags != "chart gone multi" {
		t.Errorf("the tags %s stay", tags)
	}
}

package autoprune_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/autoprunetest"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/judge"
)

// TestStrangeConfigurations: policies are in doubt about configurations that are damaged in the
// store, or that another program may read in another way.
func TestStrangeConfigurations(t *testing.T) {
	t.Parallel()
	l := newLabelled(t)
	web := l.Repository("app/web")
	const arm = `{"os": "linux", "architecture": "arm64"`
	for tag, content := range map[string]string{
		"bytes": "\x1f\x8b", "list": `[{"os": "linux", "architecture": "arm64"}]`, "null": "null", "no-labels": arm + `, "config": {"Labels": null}}`,
		"slash-os": `{"os": "linux/arm64", "architecture": "v8"}`, "nul-os": `{"os": "lin` + `\u0000` + `ux", "architecture": "arm64"}`,
		"other-key": arm + `, "config": {"Labels": {"stages": "test"}}}`,
		// In doubt:
		"truncated": stageTest, "rotten": stageTest, "syntax": arm + `, "config": {"Labels": {"stage": "test"}}`,
		"number": arm + `, "config": {"Labels": {"stage": 1}}}`, "labels-list": arm + `, "config": {"Labels": ["stage"]}}`,
		"variant": arm + `, "variant": 8, "config": {"Labels": {"stage": "test"}}}`,
		"deep":    arm + `, "config": {"Labels": {"stage": "test"}}, "x": ` + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000) + `}`,
		"long":    `{"os": "linux", "architecture": "` + strings.Repeat("x", 300) + `"}`,
		"many":    arm + `, "config": {"Labels": {` + strings.TrimSuffix(strings.Repeat(`"a":"",`, 20_000), ",") + `}}}`,
	} {
		l.image(web, tag, content)
	}
	l.store.objects["truncated"] = l.store.objects["truncated"][:40]
	l.store.objects["rotten"] = strings.ReplaceAll(l.store.objects["rotten"], "test", "prod")
	app := policies.Target{Namespace: "app"}
	l.policy(app, `{"method": "creation_date", "olderThan": "1d", "labels": {"stage": "test"}, "platforms": ["linux/arm64"]}`)
	preview, err := l.pruner.Preview(t.Context(), app, autoprune.PreviewOptions{Limit: 100})
	l.Must(err)
	var doubtful []string
	for _, one := range preview.Staying {
		if one.Code == judge.Doubtful {
			doubtful = append(doubtful, one.Tag)
		}
	}
	if want := []string{"deep", "labels-list", "long", "many", "number", "rotten", "syntax", "truncated", "variant"}; !slices.Equal(doubtful, want) || len(preview.Going) > 0 {
		t.Errorf("in doubt: %v, want %v; %v go", doubtful, want, preview.Going)
	}
	if n := autoprunetest.Value[int](l.Registry, "SELECT max(length(platform) + length(labels)) FROM configurationattributes"); n > 1000 {
		t.Errorf("a configuration takes %d bytes in the database", n)
	}
}

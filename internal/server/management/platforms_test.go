package management_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// TestPlatformsOfImages: a list of tags shows the platforms of images when it is asked for them, and the
// description of a tag does. They come from the configuration: one that auto-pruning has read, or the
// blob. What is no platform, or can't be read, isn't shown.
func TestPlatformsOfImages(t *testing.T) {
	t.Parallel()
	r := setup(t)
	configs := map[string]oci.Digest{}
	for tag, config := range map[string]string{
		"arm": `{"os":"linux","architecture":"arm64","variant":"v8"}`, "amd": `{"os":"linux","architecture":"amd64"}`, "none": `{}`,
		"list": `[1]`, "long": fmt.Sprintf(`{"os":"linux","architecture":%q}`, strings.Repeat("a", 40)), "hostile": `{"os":"<b>","architecture":"x"}`,
		"large": `{"os":"linux","architecture":"arm64","x":"` + strings.Repeat("x", 64<<10) + `"}`, "known": `{"os":"linux","architecture":"s390x"}`,
	} {
		configs[tag] = r.Push(t, "acme/app", config)
		r.Put(t, "acme/app", tag, servertest.Image(t, configs[tag], nil, nil))
	}
	r.Exec(t, "INSERT INTO configurationattributes (digest, platform) VALUES ($1, 'linux/riscv64')", configs["known"].Bytes())
	for range 2 { // the second answer comes from memory
		var plain, asked api.TagPage
		r.Manage(t, "GET", "/repository/acme/app/tag/", "").Into(t, 200, &plain)
		r.Manage(t, "GET", "/repository/acme/app/tag/?platforms=true", "").Into(t, 200, &asked)
		for i, tag := range asked.Tags {
			want := map[string]string{"arm": "linux/arm64/v8", "amd": "linux/amd64", "known": "linux/riscv64"}[tag.Name]
			if got := strings.Join(tag.Platforms, " "); got != want {
				t.Errorf("%s: %q, want %q", tag.Name, got, want)
			}
			if got := plain.Tags[i].Platforms; len(got) > 0 {
				t.Errorf("%s, not asked for platforms: %q", plain.Tags[i].Name, got)
			}
		}
		var one api.ListedTag
		r.Manage(t, "GET", "/repository/acme/app/tag/arm", "").Into(t, 200, &one)
		if got := strings.Join(one.Platforms, " "); got != "linux/arm64/v8" {
			t.Errorf("one tag: %q", got)
		}
	}
}

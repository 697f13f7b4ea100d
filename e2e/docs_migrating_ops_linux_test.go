//go:build all

package e2e

import (
	"strings"
	"testing"
)

// TestOpsDocsMigrating runs docs/migrating.md: the storage of Debian's docker-registry is imported,
// and its repositories are copied over the network.
func TestOpsDocsMigrating(t *testing.T) {
	beginOwn(t)
	p, im := readPage(t, "docs/migrating.md"), newImages(t)
	storage := p.path("storage")
	host := startDistribution(t, storage)
	for _, repo := range []string{"team/app", "team/web", "alpine"} {
		for _, tag := range []string{"v1", "v2", "3.20"} {
			im.crane.Run("push", writeImage(t, newImage(t, 1, 10<<10), tag), host+"/"+repo+":"+tag)
		}
	}
	same := func(r *registry, prefix string) {
		t.Helper()
		for _, repo := range []string{"team/app", "team/web", "alpine"} {
			for _, tag := range []string{"v1", "v2", "3.20"} {
				if got, want := im.crane.Run("digest", r.Ref(prefix+repo, tag)), im.crane.Run("digest", host+"/"+repo+":"+tag); got != want {
					t.Errorf("%s:%s: %s, want %s", repo, tag, got, want)
				}
				im.crane.Run("validate", "--remote", r.Ref(prefix+repo, tag))
			}
		}
	}

	p.env = append(p.env, "PURSER_STORAGE_FILESYSTEM_PATH="+storage)
	r := p.Registry()
	p.Run("Import a storage")
	same(r, "")

	blocks := p.Section("Copy over the network")
	p.values["old.example.com"], p.values["docker.io/library/alpine"] = host, host+"/alpine"
	p.values["purser.example.com"] = r.host
	p.RunBlock(blocks[0])
	same(r, "mirror/")
	p.values["OLD"] = host + " mirror"
	p.expect(p.Inline("purser copy OLD --dry-run"), "Would copy 0 tags", "9 tags were up to date")
	if !strings.Contains(p.text, "`purser import --finish`") {
		t.Error("the page doesn't end the import")
	}
	if out := p.command("purser import --finish --yes"); !strings.Contains(out, "belong to Purser") {
		t.Errorf("the end of the import: %s", out)
	}
	same(r, "mirror/")
}

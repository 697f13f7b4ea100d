package e2e

import (
	"slices"
	"strings"
	"testing"
)

func TestCrane(t *testing.T) {
	begin(t)
	r, crane := startRegistry(t, options{}), toolClient(t, "crane")
	img := newImage(t, 3, 64<<10)
	digest, dir := digestOf(t, img), writeImage(t, img, "v1")

	if out := crane.Run("push", dir, r.Ref("crane/app", "v1")); !strings.Contains(out, digest) {
		t.Errorf("crane push printed %q, want the digest %s", out, digest)
	}
	r.API().checkWhole(t, "crane/app", "v1", digest)
	if got := crane.Run("digest", r.Ref("crane/app", "v1")); got != digest {
		t.Errorf("crane digest: %s, want %s", got, digest)
	}
	crane.Run("validate", "--remote", r.Ref("crane/app", digest))

	// The second push finds everything there.
	crane.Run("push", dir, r.Ref("crane/app", "v2"))
	crane.Run("tag", r.Ref("crane/app", "v1"), "v3")
	if got := lines(crane.Run("ls", r.host+"/crane/app")); !slices.Equal(got, []string{"v1", "v2", "v3"}) {
		t.Errorf("crane ls: %q, want v1, v2 and v3", got)
	}
	if got := lines(crane.Run("catalog", r.host)); !slices.Contains(got, "crane/app") {
		t.Errorf("crane catalog: %q, want crane/app among them", got)
	}

	pulled := newDir(t) + "/pulled"
	crane.Run("pull", "--format", "oci", r.Ref("crane/app", digest), pulled)
	if got := layoutDigests(t, pulled); !slices.Equal(got, []string{digest}) {
		t.Errorf("crane pull wrote %q, want %s", got, digest)
	}
}

func TestCraneCopiesBetweenRepositories(t *testing.T) {
	begin(t)
	r, crane := startRegistry(t, options{}), toolClient(t, "crane")
	img := newImage(t, 2, 1<<20)
	digest := digestOf(t, img)
	crane.Run("push", writeImage(t, img, "v1"), r.Ref("from", "v1"))
	crane.Run("copy", r.Ref("from", "v1"), r.Ref("deeply/nested/to", "v1"))
	r.API().checkWhole(t, "deeply/nested/to", "v1", digest)
}

func TestCraneIndex(t *testing.T) {
	begin(t)
	r, crane := startRegistry(t, options{}), toolClient(t, "crane")
	index := newIndex(t, "amd64", "arm64", "riscv64")
	digest := digestOf(t, index)
	// writeIndex writes a layout, whose index.json lists `index`. crane pushes this index.json
	// as an outer index, with `index` as its child. The test then copies the child.
	crane.Run("push", "--index", writeIndex(t, index, "multi"), r.Ref("crane/multi", "outer"))
	r.API().checkWhole(t, "crane/multi", digest, digest)
	crane.Run("copy", r.Ref("crane/multi", digest), r.Ref("crane/copied", "multi"))
	r.API().checkWhole(t, "crane/copied", "multi", digest)

	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	arm := manifest.Manifests[1].Digest.String()
	if got := crane.Run("digest", "--platform", "linux/arm64", r.Ref("crane/copied", "multi")); got != arm {
		t.Errorf("crane digest of linux/arm64: %s, want %s", got, arm)
	}
}

func TestCraneDeletes(t *testing.T) {
	begin(t)
	r, crane := startRegistry(t, options{}), toolClient(t, "crane")
	img := newImage(t, 1, 1<<10)
	digest, dir := digestOf(t, img), writeImage(t, img, "v1")
	crane.Run("push", dir, r.Ref("crane/deleted", "v1"))
	crane.Run("push", dir, r.Ref("crane/deleted", "v2"))

	crane.Run("delete", r.Ref("crane/deleted", "v1"))
	crane.Refused("digest", r.Ref("crane/deleted", "v1"))
	r.API().checkWhole(t, "crane/deleted", "v2", digest)

	crane.Run("delete", r.Ref("crane/deleted", digest))
	crane.Refused("digest", r.Ref("crane/deleted", digest))
	crane.Refused("digest", r.Ref("crane/deleted", "v2"))
	crane.Run("push", dir, r.Ref("crane/deleted", "again"))
	r.API().checkWhole(t, "crane/deleted", "again", digest)
}

//go:build all

package e2e

import (
	"testing"
)

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

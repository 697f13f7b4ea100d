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

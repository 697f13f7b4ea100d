package e2e

import (
	"slices"
	"testing"
)

func regctl(t testing.TB, r *registry) *client {
	t.Helper()
	return toolClient(t, "regctl", "--host", "reg="+r.host+",tls=disabled")
}

func TestRegctl(t *testing.T) {
	begin(t)
	r := startRegistry(t, options{})
	regctl := regctl(t, r)
	index := newIndex(t, "amd64", "arm64")
	digest := digestOf(t, index)

	regctl.Run("image", "copy", "ocidir://"+writeIndex(t, index, "v1")+":v1", r.Ref("regctl/app", "v1"))
	r.API().checkWhole(t, "regctl/app", "v1", digest)
	regctl.Run("image", "copy", r.Ref("regctl/app", "v1"), r.Ref("regctl/copy", "v2"))
	r.API().checkWhole(t, "regctl/copy", "v2", digest)
	regctl.Run("image", "copy", r.Ref("regctl/app", digest), "ocidir://"+newDir(t)+"/pulled:v1")

	if got := lines(regctl.Run("repo", "ls", r.host)); !slices.Contains(got, "regctl/app") || !slices.Contains(got, "regctl/copy") {
		t.Errorf("regctl repo ls: %q, want both repositories among them", got)
	}
	regctl.Run("image", "copy", r.Ref("regctl/app", "v1"), r.Ref("regctl/app", "v2"))
	regctl.Run("tag", "delete", r.Ref("regctl/app", "v1"))
	if got := lines(regctl.Run("tag", "ls", r.host+"/regctl/app")); !slices.Equal(got, []string{"v2"}) {
		t.Errorf("regctl tag ls after deleting v1: %q, want v2", got)
	}
	regctl.Run("manifest", "delete", r.Ref("regctl/app", digest))
	regctl.Refused("manifest", "head", r.Ref("regctl/app", "v2"))
	r.API().checkWhole(t, "regctl/copy", "v2", digest)
}

//go:build all

package e2e

import (
	"testing"
)

func TestPodmanManifestList(t *testing.T) {
	begin(t)
	r, podman := startRegistry(t, options{}), podman(t)
	podman.Run("manifest", "create", "list")
	for _, architecture := range []string{"amd64", "arm64"} {
		dir := writeImage(t, newPlatformImage(t, 1, 4<<10, architecture), architecture)
		podman.Run("manifest", "add", "--arch", architecture, "--os", "linux", "list", "oci:"+dir+":"+architecture)
	}
	podman.Run("manifest", "push", "--all", "--tls-verify=false", "list", "docker://"+r.Ref("podman/multi", "v1"))
	_, pushed, err := r.API().manifest(t.Context(), "podman/multi", "v1")
	if err != nil {
		t.Fatal(err)
	}
	r.API().checkWhole(t, "podman/multi", "v1", pushed.String())
	podman.Run("pull", "--quiet", "--tls-verify=false", "--arch", "arm64", r.Ref("podman/multi", "v1"))
}

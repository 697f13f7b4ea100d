package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// podman returns a client for podman, with a storage directory of its own.
func podman(t testing.TB) *client {
	t.Helper()
	if _, err := exec.LookPath("newuidmap"); err != nil && os.Getuid() != 0 {
		lacking(t, "newuidmap isn't installed, and only root runs podman without it (tools/packages installs it)")
	}
	dir := newDir(t)
	c := systemClient(t, "podman", "--root", filepath.Join(dir, "root"), "--runroot", filepath.Join(dir, "run"),
		"--storage-driver", "vfs", "--cgroup-manager", "cgroupfs", "--events-backend", "none")
	t.Cleanup(func() {
		// podman runs in a user namespace, in which the files that it makes belong to other
		// users. So only a command inside this namespace can remove them.
		if os.Getuid() != 0 {
			c.Try("", "unshare", "rm", "-rf", filepath.Join(dir, "root")) //nolint:errcheck // newDir reports what stays
		}
	})
	return c
}

func TestPodman(t *testing.T) {
	begin(t)
	r, podman := startRegistry(t, options{}), podman(t)
	img := newImage(t, 2, 32<<10)
	dir := writeImage(t, img, "v1")
	ref := r.Ref("podman/app", "v1")

	podman.Run("pull", "oci:"+dir+":v1")
	id := podman.Run("images", "--quiet", "--no-trunc")
	podman.Run("push", "--tls-verify=false", id, ref)
	_, pushed, err := r.API().manifest(t.Context(), "podman/app", "v1")
	if err != nil {
		t.Fatal(err)
	}
	r.API().checkWhole(t, "podman/app", "v1", pushed.String())
	r.API().checkWhole(t, "podman/app", pushed.String(), pushed.String())

	podman.Run("rmi", "--force", id)
	if got := podman.Run("pull", "--quiet", "--tls-verify=false", ref); got != strings.TrimPrefix(id, "sha256:") {
		t.Errorf("podman pull printed %s, want the image %s", got, id)
	}
	podman.Run("pull", "--quiet", "--tls-verify=false", r.Ref("podman/app", pushed.String()))
}

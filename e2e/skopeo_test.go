package e2e

import (
	"encoding/json"
	"path/filepath"
	"testing"
)

func skopeo(t testing.TB) *client {
	t.Helper()
	return systemClient(t, "skopeo", "--insecure-policy")
}

func TestSkopeo(t *testing.T) {
	begin(t)
	r, skopeo := startRegistry(t, options{}), skopeo(t)
	img := newImage(t, 3, 64<<10)
	digest, dir := digestOf(t, img), writeImage(t, img, "v1")
	docker := func(repo, reference string) string { return "docker://" + r.Ref(repo, reference) }

	skopeo.Run("copy", "--dest-tls-verify=false", "oci:"+dir+":v1", docker("skopeo/app", "v1"))
	r.API().checkWhole(t, "skopeo/app", "v1", digest)

	// skopeo copies an image from one repository to another, and mounts the layers instead of
	// uploading them.
	skopeo.Run("copy", "--src-tls-verify=false", "--dest-tls-verify=false", docker("skopeo/app", "v1"), docker("skopeo/other", "v2"))
	r.API().checkWhole(t, "skopeo/other", "v2", digest)

	var inspected struct{ Digest string }
	if err := json.Unmarshal([]byte(skopeo.Run("inspect", "--tls-verify=false", docker("skopeo/app", digest))), &inspected); err != nil {
		t.Fatal(err)
	}
	if inspected.Digest != digest {
		t.Errorf("skopeo inspect: %s, want %s", inspected.Digest, digest)
	}
	skopeo.Run("copy", "--src-tls-verify=false", docker("skopeo/app", "v1"), "oci:"+filepath.Join(newDir(t), "pulled")+":v1")
}

//go:build all

package e2e

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"testing"
)

func TestSkopeoDockerMediaTypes(t *testing.T) {
	begin(t)
	r, skopeo := startRegistry(t, options{}), skopeo(t)
	dir := writeImage(t, newImage(t, 2, 8<<10), "v1")
	ref := "docker://" + r.Ref("skopeo/docker", "v1")
	skopeo.Run("copy", "--format", "v2s2", "--dest-tls-verify=false", "oci:"+dir+":v1", ref)

	text, digest, err := r.API().manifest(t.Context(), "skopeo/docker", "v1")
	if err != nil {
		t.Fatal(err)
	}
	var manifest struct{ MediaType string }
	if err := json.Unmarshal(text, &manifest); err != nil {
		t.Fatal(err)
	}
	if want := "application/vnd.docker.distribution.manifest.v2+json"; manifest.MediaType != want {
		t.Errorf("the manifest is %s, want %s", manifest.MediaType, want)
	}
	r.API().checkWhole(t, "skopeo/docker", "v1", digest.String())
	skopeo.Run("copy", "--src-tls-verify=false", ref, "dir:"+filepath.Join(newDir(t), "pulled"))
}

func TestSkopeoIndexTagsAndDelete(t *testing.T) {
	begin(t)
	r, skopeo := startRegistry(t, options{}), skopeo(t)
	index := newIndex(t, "amd64", "arm64")
	ref := func(tag string) string { return "docker://" + r.Ref("skopeo/multi", tag) }
	dir := writeIndex(t, index, "v1")
	skopeo.Run("copy", "--all", "--dest-tls-verify=false", "oci:"+dir+":v1", ref("v1"))
	// Some versions of skopeo don't copy the index itself, but write a new one with the same
	// children.
	_, digest, err := r.API().manifest(t.Context(), "skopeo/multi", "v1")
	if err != nil {
		t.Fatal(err)
	}
	skopeo.Run("copy", "--all", "--src-tls-verify=false", "--dest-tls-verify=false", ref("v1"), ref("v2"))
	r.API().checkWhole(t, "skopeo/multi", "v1", digest.String())
	r.API().checkWhole(t, "skopeo/multi", "v2", digest.String())
	children, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	for _, child := range children.Manifests {
		r.API().checkWhole(t, "skopeo/multi", child.Digest.String(), child.Digest.String())
	}

	var listed struct{ Tags []string }
	out := skopeo.Run("list-tags", "--tls-verify=false", "docker://"+r.host+"/skopeo/multi")
	if err := json.Unmarshal([]byte(out), &listed); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(listed.Tags, []string{"v1", "v2"}) {
		t.Errorf("skopeo list-tags: %q, want v1 and v2", listed.Tags)
	}
	// skopeo deletes the manifest of the tag, and not the tag. So both tags of the manifest
	// are deleted.
	skopeo.Run("delete", "--tls-verify=false", ref("v1"))
	for _, tag := range []string{"v1", "v2"} {
		if _, err := r.API().pullWhole(t.Context(), "skopeo/multi", tag); !isStatus(err, 404) {
			t.Errorf("pulling the deleted %s: %v, want 404", tag, err)
		}
	}
}

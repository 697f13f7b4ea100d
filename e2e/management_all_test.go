//go:build all

package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// A tag is deleted. As long as its manifest exists, the management API must be able to restore
// it.
func TestManagementRestoresTag(t *testing.T) {
	beginOwn(t)
	r, crane := startRegistry(t, options{}), toolClient(t, "crane")
	img := newImage(t, 2, 1<<10)
	digest := digestOf(t, img)
	crane.Run("push", writeImage(t, img, "v1"), r.Ref("team/deep/app", "v1"))
	crane.Run("delete", r.Ref("team/deep/app", "v1"))
	crane.Refused("digest", r.Ref("team/deep/app", "v1"))

	var explained struct{ Fate string }
	manifest := "/repository/team/deep/app/manifest/" + digest + "/explain"
	r.manage("GET", manifest, nil, &explained, http.StatusOK)
	if explained.Fate != "waiting" {
		t.Errorf("without its tag the manifest is %s, want waiting", explained.Fate)
	}
	body := map[string]string{"manifest_digest": digest}
	r.manage("POST", "/repository/team/deep/app/tag/v1/restore", body, nil, http.StatusOK)
	r.manage("POST", "/repository/team%2Fdeep%2Fapp/tag/v2/restore", body, nil, http.StatusOK)
	r.collect(false)
	for _, tag := range []string{"v1", "v2"} {
		if got := crane.Run("digest", r.Ref("team/deep/app", tag)); got != digest {
			t.Errorf("%s: %s, want %s", tag, got, digest)
		}
		r.API().checkWhole(t, "team/deep/app", tag, digest)
	}
	r.manage("GET", manifest, nil, &explained, http.StatusOK)
	if explained.Fate != "kept" {
		t.Errorf("with its tag the manifest is %s, want kept", explained.Fate)
	}
}

// Reviews are due at once, but the registry's workers are switched off. So only the runs of
// garbage collection that the test requests find and delete garbage.
func TestManagementCollects(t *testing.T) {
	beginOwn(t)
	r, crane := startRegistry(t, options{env: []string{
		"PURSER_GC_REVIEW_AFTER=0", "PURSER_GC_REVIEW_BLOBS=false", "PURSER_GC_REVIEW_MANIFESTS=false",
	}}), toolClient(t, "crane")
	keep, gone := newImage(t, 1, 1<<10), newImage(t, 3, 1<<10)
	crane.Run("push", writeImage(t, keep, "v1"), r.Ref("app", "keep"))
	crane.Run("push", writeImage(t, gone, "v1"), r.Ref("app", "gone"))
	r.collect(false) // the reviews that the pushes have queued
	crane.Run("delete", r.Ref("app", "gone"))

	var status struct {
		Manifests struct{ Due struct{ Count int } }
	}
	r.manage("GET", "/gc/status", nil, &status, http.StatusOK)
	if status.Manifests.Due.Count != 1 {
		t.Errorf("status: %+v, want one manifest due", status)
	}
	dry := r.collect(true)
	if len(dry.Findings) != 1 || dry.Findings[0].Repository != "app" || dry.Findings[0].Digest != digestOf(t, gone) {
		t.Fatalf("a dry run finds %+v, want the image without its tag", dry.Findings)
	}
	r.API().checkWhole(t, "app", digestOf(t, gone), digestOf(t, gone))

	run := r.collect(false)
	if run.Progress.ManifestsDeleted != 1 || run.Progress.BlobsDeleted != 4 {
		t.Errorf("a run has deleted %+v, want a manifest and its four blobs", run.Progress)
	}
	r.API().checkWhole(t, "app", "keep", digestOf(t, keep))
	restore := request{
		method: "POST", path: "/api/v1/repository/app/tag/gone/restore", want: http.StatusNotFound,
		header: map[string]string{"Content-Type": "application/json"},
		body:   fmt.Appendf(nil, `{"manifest_digest": %q}`, digestOf(t, gone)),
	}
	if a, err := r.API().do(t.Context(), restore); err != nil {
		t.Error(err)
	} else if text := string(a.body); !strings.Contains(text, `"error_type":"not_found"`) || !strings.Contains(text, "has been deleted since") {
		t.Errorf("restoring what is gone: %s", text)
	}
}

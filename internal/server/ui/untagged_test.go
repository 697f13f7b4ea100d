package ui_test

import (
	"net/url"
	"testing"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// TestUntaggedPage: the page lists the manifests without a tag and what keeps them, and deletes those that
// were picked, unless they have got a tag meanwhile.
func TestUntaggedPage(t *testing.T) {
	t.Parallel()
	r := setupPruned(t, func(o *servertest.Options) { o.Access = &auth.Options{} })
	r.AddAccount(t, "root", true)
	root := r.as("root")
	root.Put(t, "acme/web", "v1", root.Simple(t, "acme/web", 1, nil))
	alone := root.Put(t, "acme/web", "v2", root.Simple(t, "acme/web", 2, nil))
	root.Do(t, "DELETE", "/v2/acme/web/manifests/v2", "").WantStatus(t, 202)
	for name, role := range map[string]auth.Role{"reader": auth.Reader, "maintainer": auth.Maintainer} {
		r.AddAccount(t, name, false)
		r.Grant(t, "acme", name, role)
	}
	const path = "/ui/repositories/acme/web/-/untagged"
	want(t, r.as("reader").page(t, 200, path), alone.String(), "Nothing refers to it", "!Delete picked", `!type="checkbox"`)
	page := r.as("maintainer").page(t, 200, path)
	want(t, page, alone.String(), "Delete picked manifests", `name="digest"`)
	want(t, root.page(t, 200, path), alone.String(), "!Nothing refers to it")
	r.as("reader").send(t, path, url.Values{"digest": {alone.String()}})
	root.Do(t, "GET", "/v2/acme/web/manifests/"+alone.String(), "").WantStatus(t, 200)

	// It gets a tag after the page was made.
	root.Manage(t, "PUT", "/repository/acme%2Fweb/tag/late", `{"manifest_digest": "`+alone.String()+`"}`).WantStatus(t, 201)
	want(t, string(r.as("maintainer").send(t, path, url.Values{"digest": {alone.String()}}).WantStatus(t, 200).Content), "has a tag now", "0 manifests were deleted")
	root.Do(t, "GET", "/v2/acme/web/manifests/late", "").WantStatus(t, 200)
	root.Do(t, "DELETE", "/v2/acme/web/manifests/late", "").WantStatus(t, 202)
	want(t, string(r.as("maintainer").send(t, path, url.Values{"digest": {alone.String()}}).WantStatus(t, 200).Content), "1 manifest was deleted", "There are no manifests without a tag")
	root.Do(t, "GET", "/v2/acme/web/manifests/"+alone.String(), "").WantStatus(t, 404)
	want(t, string(r.as("maintainer").send(t, path, url.Values{}).WantStatus(t, 200).Content), "Pick the manifests")
}

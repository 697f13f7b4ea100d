package login_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// TestOneConnection: only one connection of the pool is free. Log-ins, pushes, pulls and deletions are
// answered nevertheless, since none takes a second connection while it has one. If one did, as many of them
// at once as there are connections would wait for each other, and all others with them.
func TestOneConnection(t *testing.T) {
	t.Parallel()
	r := whole(t, &auth.Options{})
	person(t, r, "ann", true)
	r.LeaveOneConnection(t)
	ask := func(method, path, body string, headers ...string) servertest.Answer {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		a, err := r.Try(ctx, method, path, strings.NewReader(body), headers...)
		if err != nil {
			t.Fatalf("%s %s isn't answered: %v", method, path, err)
		}
		if a.StatusCode >= 400 {
			t.Errorf("%s %s: %d %s", method, path, a.StatusCode, a.Content)
		}
		return a
	}
	ann := secret("ann")
	ask("GET", "/auth/session", "", ann...)
	var out struct{ Token string }
	ask("GET", "/token?service=purser&scope=repository:ann/app:pull,push,delete&scope=repository:ann/other:pull,push", "", ann...).Into(t, 200, &out)
	bearer := servertest.Bearer(out.Token)
	do := func(method, path, body string) servertest.Answer {
		t.Helper()
		return ask(method, path, body, bearer...)
	}
	pieces := servertest.Digest("content in pieces")
	upload := do("POST", "/v2/ann/app/blobs/uploads/", "").Header.Get("Location")
	upload = do("PATCH", upload, "content ").Header.Get("Location")
	do("GET", upload, "")
	upload = do("PATCH", upload, "in ").Header.Get("Location")
	do("PUT", upload+"?digest="+pieces.String(), "pieces")
	do("DELETE", do("POST", "/v2/ann/app/blobs/uploads/", "").Header.Get("Location"), "")
	config := servertest.Digest("{}")
	do("POST", "/v2/ann/app/blobs/uploads/?digest="+config.String(), "{}")
	do("POST", "/v2/ann/other/blobs/uploads/?mount="+pieces.String()+"&from=ann/app", "")
	manifest := servertest.Image(t, config, []oci.Digest{pieces}, nil)
	do("PUT", "/v2/ann/app/manifests/v1", manifest)
	at := "/v2/ann/app/manifests/" + servertest.Digest(manifest).String()
	for _, path := range []string{
		"/v2/", "/v2/ann/app/tags/list", "/v2/ann/app/manifests/v1", at, "/v2/ann/app/blobs/" + pieces.String(),
		"/v2/ann/app/referrers/" + servertest.Digest(manifest).String(),
	} {
		do("GET", path, "")
		if !strings.Contains(path, "/tags/") && !strings.Contains(path, "/referrers/") {
			do("HEAD", path, "")
		}
	}
	ask("GET", "/v2/_catalog", "", secret("ann")...)
	do("DELETE", "/v2/ann/app/manifests/v1", "")
	do("DELETE", at, "")
	do("DELETE", "/v2/ann/app/blobs/"+pieces.String(), "")
}

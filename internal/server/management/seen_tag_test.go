package management_test

import (
	"testing"

	"github.com/purser-registry/purser/internal/server/servertest"
)

// TestTagAsSeen: with if_digest, a tag is moved, given a date, restored and deleted only if it still points
// to what the client has seen.
func TestTagAsSeen(t *testing.T) {
	t.Parallel()
	r := servertest.Setup(t)
	first := r.Put(t, "acme/web", "v1", r.Simple(t, "acme/web", 1, nil)).String()
	second := r.Put(t, "acme/web", "v2", r.Simple(t, "acme/web", 2, nil)).String()
	const tag = "/repository/acme%2Fweb/tag/v1"
	to := `{"manifest_digest": "` + second + `"}`
	for _, c := range []struct{ method, path, body string }{
		{"PUT", tag + "?if_digest=" + second, to},
		{"PUT", tag + "?if_digest=none", to},
		{"PUT", tag + "?if_digest=" + second, `{"expiration": 3893596645}`},
		{"POST", tag + "/restore?if_digest=" + second, to},
		{"POST", tag + "/restore?if_digest=none", to},
		{"DELETE", tag + "?if_digest=" + second, ""},
	} {
		r.Manage(t, c.method, c.path, c.body).WantStatus(t, 412)
	}
	for _, c := range []struct{ method, path string }{ // a condition that came out empty is none that holds
		{"DELETE", tag + "?if_digest="}, {"PUT", tag + "?if_digest"}, {"POST", tag + "/restore?if_digest="},
		{"DELETE", "/repository/acme%2Fweb/manifest/" + first + "?untagged="}, {"DELETE", "/repository/acme%2Fweb/manifest/" + first + "?untagged"},
	} {
		body := to
		if c.method == "DELETE" {
			body = ""
		}
		r.Manage(t, c.method, c.path, body).WantStatus(t, 400)
	}
	for _, path := range []string{tag + "?if_digest=x", tag + "?if_digest=" + first} { // the second is beside immutable
		r.Manage(t, "PUT", path, `{"immutable": true}`).WantStatus(t, 400)
	}
	r.Do(t, "GET", "/v2/acme/web/manifests/v1", "").Want(t, 200, "", "Docker-Content-Digest", first)
	r.Manage(t, "PUT", tag+"?if_digest="+first, to).WantStatus(t, 201)
	// With both, the date is that of the tag that was moved.
	r.Manage(t, "PUT", tag+"?if_digest="+second, `{"manifest_digest": "`+first+`", "expiration": 3893596645}`).WantStatus(t, 201)
	r.Manage(t, "DELETE", tag+"?if_digest="+first, "").WantStatus(t, 204)
	r.Manage(t, "PUT", tag+"?if_digest="+first, to).WantStatus(t, 412)
	r.Manage(t, "POST", tag+"/restore?if_digest=none", to).WantStatus(t, 200)
	r.Do(t, "GET", "/v2/acme/web/manifests/v1", "").Want(t, 200, "", "Docker-Content-Digest", second)
}

package distribution_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// TestUnknownRoutes: paths outside of the API are answered with 404.
func TestUnknownRoutes(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for _, path := range []string{
		"/v1/", "/v3/", "/v2x", "/V2/", "//v2/", "/v2//", "/v2/a", "/v2/a/", "/v2/_catalog/", "/v2/_catalog/x", "/v2/a/tags",
		"/v2/a/tags/", "/v2/a/tags/list/", "/v2/a/tags/other", "/v2/tags/list", "/v2//tags/list", "/v2/a/manifests", "/v2/a/manifests/",
		"/v2/manifests/v1", "/v2/a/blobs", "/v2/a/blobs/", "/v2/blobs/uploads/", "/v2/a/referrers", "/v2/a/referrers/", "/v2/a/unknown/x",
		"/v2/a/manifest/v1", "/metrics", "/healthz", "/favicon.ico",
	} {
		for _, method := range []string{"GET", "HEAD", "PUT", "POST", "PATCH", "DELETE", "OPTIONS"} {
			r.Do(t, method, path, "").Want(t, 404, oci.Unsupported)
		}
	}
}

// TestUnknownMethods: the answer 405 names the allowed methods.
func TestUnknownMethods(t *testing.T) {
	t.Parallel()
	r := setup(t)
	d, id := digest("x").String(), "00000000-0000-4000-8000-000000000000"
	all := []string{"GET", "HEAD", "PUT", "POST", "PATCH", "DELETE", "OPTIONS", "INVENTED"}
	for path, allow := range map[string]string{
		"/v2/":                       "GET, HEAD",
		"/v2/_catalog":               "GET, HEAD",
		"/v2/a/tags/list":            "GET, HEAD",
		"/v2/a/referrers/" + d:       "GET, HEAD",
		"/v2/a/blobs/uploads/":       "POST",
		"/v2/a/blobs/uploads":        "POST",
		"/v2/a/blobs/uploads/" + id:  "GET, HEAD, PATCH, PUT, DELETE",
		"/v2/a/blobs/" + d:           "GET, HEAD, DELETE",
		"/v2/a/manifests/v1":         "GET, HEAD, PUT, DELETE",
		"/v2/a/b/c/d/manifests/" + d: "GET, HEAD, PUT, DELETE",
	} {
		for _, method := range all {
			if !strings.Contains(", "+allow+",", ", "+method+",") {
				r.Do(t, method, path, "").Want(t, 405, oci.Unsupported, "Allow", allow)
			}
		}
	}
}

// TestInvalidNames: clients send requests with an invalid repository name in the path. The
// registry must answer 400 NAME_INVALID on every route that contains a repository name.
func TestInvalidNames(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for _, name := range []string{
		"A", "a/B", "a//b", "/a", "a/", "-a", "a-", "a..b", "a___b", "_a", "a/_b", "a/.", "..", "a/../b", "a%20b", "a%00", "%C3%A9", "%FF",
		"a:b", "a@b", "a%2F%2Fb", strings.Repeat("a", 256), "a/" + strings.Repeat("b/", 127) + "cc",
	} {
		for _, route := range []string{
			"GET tags/list", "GET manifests/v1", "HEAD manifests/v1", "PUT manifests/v1", "DELETE manifests/v1", "POST blobs/uploads/",
			"GET blobs/" + digest("x").String(), "DELETE blobs/" + digest("x").String(), "GET referrers/" + digest("x").String(),
			"PATCH blobs/uploads/00000000-0000-4000-8000-000000000000",
		} {
			method, rest, _ := strings.Cut(route, " ")
			a := r.Do(t, method, "/v2/"+name+"/"+rest, "")
			if a.StatusCode != 400 || method != "HEAD" && a.Code(t) != oci.NameInvalid {
				t.Errorf("%s of %q: %d %s, want 400 NAME_INVALID", route, name, a.StatusCode, a.Content)
			}
		}
	}
}

// TestNames: clients use repository names that the OCI Distribution Specification allows, among
// them names that look like a part of a route, such as "a/tags/list". All must work on every
// route.
func TestNames(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for i, name := range []string{
		"a", "0", "a/b", "a/b/c/d/e/f/g", "a-b", "a--b---c", "a.b", "a_b", "a__b", "a.b_c__d-e/f.g", strings.Repeat("a", 255), strings.Repeat("a/", 127) + "a",
		"tags/list", "a/tags/list", "v2", "v2/a", "a/blobs", "a/blobs/uploads", "blobs/uploads", "x/manifests/y", "manifests", "a/manifests",
		"a/referrers", "referrers", "a/blobs/uploads/b", "catalog", "a/tags", "list", "a/manifests/tags", "uploads", "a/referrers/manifests/blobs/tags/list",
	} {
		content := fmt.Sprint("content ", i)
		config, layer := r.Push(t, name, "{}"), r.Push(t, name, content)
		payload := image(t, config, []oci.Digest{layer}, object{"annotations": map[string]string{"name": name}})
		for _, tag := range []string{"list", "uploads", "manifests"} {
			r.Put(t, name, tag, payload)
			r.Do(t, "GET", "/v2/"+name+"/manifests/"+tag, "").Want(t, 200, "").Text(t, payload)
		}
		r.Do(t, "GET", "/v2/"+name+"/manifests/"+digest(payload).String(), "").Want(t, 200, "").Text(t, payload)
		r.WantBlob(t, name, layer, content)
		r.Do(t, "GET", "/v2/"+name+"/tags/list", "").Want(t, 200, "").Text(t, `{"name":"`+name+`","tags":["list","manifests","uploads"]}`)
		r.Do(t, "GET", "/v2/"+name+"/referrers/"+layer.String(), "").Want(t, 200, "")
		at := r.StartUpload(t, name, "")
		r.Do(t, "PATCH", at, "x").Want(t, 202, "", "Location", at+".1")
		r.Do(t, "DELETE", at, "").Want(t, 204, "")
		r.Do(t, "POST", "/v2/"+name+"/mounted/blobs/uploads/?mount="+layer.String()+"&from="+name, "").
			Want(t, map[bool]int{true: 201, false: 400}[len(name) < 248], "")
		r.Do(t, "DELETE", "/v2/"+name+"/manifests/"+digest(payload).String(), "").Want(t, 202, "")
		r.Do(t, "DELETE", "/v2/"+name+"/blobs/"+layer.String(), "").Want(t, 202, "")
	}
}

// TestAccess: each route must call Authorize with the access that it needs and the right
// repository. If Authorize returns an error, the registry must answer with this error.
func TestAccess(t *testing.T) {
	t.Parallel()
	type asked struct {
		access     auth.Access
		repository string
	}
	var mu sync.Mutex
	var last asked
	refuse := oci.Denied
	r := setup(t, func(o *servertest.Options) {
		o.Server.Authorize = func(_ context.Context, a auth.Access, of auth.Resource) error {
			mu.Lock()
			defer mu.Unlock()
			last = asked{a, of.Repository}
			return oci.NewError(refuse)
		}
	})
	d, id := digest("x").String(), "00000000-0000-4000-8000-000000000000"
	for code, status := range map[oci.Code]int{oci.Denied: 403, oci.Unauthorized: 401} {
		mu.Lock()
		refuse = code
		mu.Unlock()
		for route, want := range map[string]auth.Access{
			"GET /v2/": auth.Ping, "HEAD /v2/": auth.Ping, "GET /v2/_catalog": auth.List,
			"GET /v2/a/b/tags/list": auth.Pull, "GET /v2/a/b/referrers/" + d: auth.Pull,
			"POST /v2/a/b/blobs/uploads/": auth.Push, "GET /v2/a/b/blobs/uploads/" + id: auth.Push,
			"PATCH /v2/a/b/blobs/uploads/" + id: auth.Push, "PUT /v2/a/b/blobs/uploads/" + id: auth.Push,
			"DELETE /v2/a/b/blobs/uploads/" + id: auth.Push,
			"GET /v2/a/b/blobs/" + d:             auth.Pull, "HEAD /v2/a/b/blobs/" + d: auth.Pull,
			"DELETE /v2/a/b/blobs/" + d: auth.Delete,
			"GET /v2/a/b/manifests/v1":  auth.Pull, "HEAD /v2/a/b/manifests/v1": auth.Pull,
			"PUT /v2/a/b/manifests/v1": auth.Push, "DELETE /v2/a/b/manifests/v1": auth.Delete,
		} {
			method, path, _ := strings.Cut(route, " ")
			r.Do(t, method, path, "").Want(t, status, code)
			repository := ""
			if strings.Contains(path, "/a/b/") {
				repository = "a/b"
			}
			mu.Lock()
			if want := (asked{want, repository}); last != want {
				t.Errorf("%s asks for %v, want %v", route, last, want)
			}
			mu.Unlock()
		}
	}
}

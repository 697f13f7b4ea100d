package management_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/server/servertest"
)

// TestAPIUnknownSubPaths: clients send requests to paths below an existing repository that
// match no operation, such as acme/app/frobnicate. The answer must be 404 for every method, and
// its text must not say that a repository of that name is unknown.
func TestAPIUnknownSubPaths(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.Put(t, "acme/app", "v1", r.Simple(t, "acme/app", 1, nil))
	for _, path := range []string{
		"acme/app/frobnicate", "acme/app/frobnicate/", "acme/app/tags/v1", "acme/app/tag/v1/restored", "acme/app/tag/v1/restore/x",
		"acme/app/Frobnicate", "acme/app/frobnicate/logs", "acme/app/frobnicate/logs/export", "acme/app/frobnicate/tagprotection",
		"acme/app/frobnicate/pull_statistics", "acme/app/frobnicate/tag", "acme/app/Frobnicate/tag", "acme/app//logs",
	} {
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "INVENTED"} {
			body := ""
			if method == "POST" || method == "PUT" {
				body = `{"pattern": "x"}`
			}
			r.Manage(t, method, "/repository/"+path, body).Refused(t, 404, "not_found", "nothing at /api/v1/repository/acme/app/")
		}
	}
	for _, method := range []string{"POST", "PUT", "PATCH"} {
		r.Manage(t, method, "/repository/acme/frobnicate", "{}").Refused(t, 404, "not_found", "nothing at")
		r.Manage(t, method, "/repository/acme/app", "{}").Refused(t, 405, "invalid_request", "not possible")
	}
	for _, path := range []string{"/organization/acme/frobnicate", "/organization/acme/autoprune/frobnicate", "/frobnicate", "/superuser", "/tag", ""} {
		r.Manage(t, "DELETE", path, "").WantStatus(t, map[bool]int{true: 405, false: 404}[path == ""])
	}
	// The path /repository/acme/app/frobnicate means the repository acme/app/frobnicate if it
	// exists, and so does a path below it, such as …/logs. If the client writes the slashes of
	// the name as %2F, the path means the repository even if it doesn't exist.
	r.Put(t, "acme/app/frobnicate", "v1", r.Simple(t, "acme/app/frobnicate", 1, nil))
	r.Manage(t, "GET", "/repository/acme/app/frobnicate", "").WantStatus(t, 200)
	r.Manage(t, "GET", "/repository/acme/app/frobnicate/logs", "").WantStatus(t, 200)
	r.Manage(t, "DELETE", "/repository/acme/app/frobnicate", "").WantStatus(t, 204)
	r.Manage(t, "GET", "/repository/acme/app/frobnicate/logs", "").WantStatus(t, 404)
	r.Manage(t, "GET", "/repository/acme%2Fapp%2Ffrobnicate/logs", "").WantStatus(t, 200)
	r.Manage(t, "GET", "/repository/acme/app", "").WantStatus(t, 200)
}

// TestBadEscapes: a client sends a query with a malformed escape such as %zz. The registry must
// refuse the request with 400, in the format of the API to which the path belongs.
func TestBadEscapes(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.Put(t, "acme/app", "v1", r.Simple(t, "acme/app", 1, nil))
	d := digest("x").String()
	for _, query := range []string{"?%", "?%zz", "?n=%zz", "?%zz=1", "?n=1&last=%f", "?n=%%", "?digest=%u0000"} {
		for _, path := range []string{"GET /v2/", "GET /v2/_catalog", "GET /v2/acme/app/tags/list", "GET /v2/acme/app/referrers/" + d,
			"POST /v2/acme/app/blobs/uploads/", "GET /v2/acme/app/manifests/v1", "HEAD /v2/acme/app/blobs/" + d, "PUT /v2/acme/app/manifests/v2"} {
			method, path, _ := strings.Cut(path, " ")
			a := r.unchecked(t, method, path+query)
			if text := string(a.Content); a.StatusCode != 400 || method != "HEAD" && (!strings.Contains(text, "UNSUPPORTED") || !strings.Contains(text, "the query can't be read")) {
				t.Errorf("%s %s%s: %d %s", method, path, query, a.StatusCode, a.Content)
			}
		}
		for _, path := range []string{"", "/openapi.json", "/repository", "/repository/acme/app", "/repository/acme/app/tag", "/repository/acme/app/logs",
			"/superuser/logs/export", "/organization/acme", "/gc/status", "/system", "/error/not_found"} {
			r.unchecked(t, "GET", "/api/v1"+path+query).Refused(t, 400, "invalid_request", "^the query can't be read")
		}
	}
}

// unchecked sends a request whose path and query may be malformed. It sets path and query after
// the call of http.NewRequest, which would refuse a malformed URL.
func (r *registry) unchecked(t testing.TB, method, target string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, r.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	path, query, _ := strings.Cut(target, "?")
	req.URL.Path, req.URL.RawQuery = path, query
	res, err := servertest.Client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close() //nolint:errcheck // read to its end
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{Response: res, Content: b}
}

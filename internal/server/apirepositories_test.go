package server_test

import (
	"testing"
)

func TestAPIDeleteRepository(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.push(t, "acme/app", "content")
	r.push(t, "acme/web", "content")
	r.push(t, "else", "content")
	if a := r.manage(t, "DELETE", "/repository/acme/app", ""); a.StatusCode != 204 || len(a.body) != 0 {
		t.Errorf("deleting a repository: %d %s, want 204", a.StatusCode, a.body)
	}
	r.manage(t, "DELETE", "/repository/acme/app", "").refused(t, 404, "not_found", "repository acme/app is not known")
	r.manage(t, "PUT", "/repository/acme/web", "{}").refused(t, 405, "invalid_request", "but DELETE, GET")
	r.manage(t, "DELETE", "/repository/acme/../web", "").refused(t, 404, "not_found", "nothing at")
	r.do(t, "HEAD", "/v2/acme/app/blobs/"+digest("content").String(), "").want(t, 404, "")
	r.do(t, "HEAD", "/v2/acme/web/blobs/"+digest("content").String(), "").want(t, 200, "")
	if a := r.manage(t, "DELETE", "/organization/acme", ""); a.StatusCode != 204 || len(a.body) != 0 {
		t.Errorf("deleting a namespace: %d %s, want 204", a.StatusCode, a.body)
	}
	r.manage(t, "DELETE", "/organization/acme", "").refused(t, 404, "not_found", "namespace acme is not known")
	r.do(t, "HEAD", "/v2/acme/web/blobs/"+digest("content").String(), "").want(t, 404, "")
	r.do(t, "HEAD", "/v2/else/blobs/"+digest("content").String(), "").want(t, 200, "")
	r.do(t, "GET", "/v2/_catalog", "").want(t, 200, "").text(t, `{"repositories":["else"]}`)
}

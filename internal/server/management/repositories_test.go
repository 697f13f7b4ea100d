package management_test

import (
	"testing"
)

func TestAPIDeleteRepository(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.Push(t, "acme/app", "content")
	r.Push(t, "acme/web", "content")
	r.Push(t, "else", "content")
	if a := r.Manage(t, "DELETE", "/repository/acme/app", ""); a.StatusCode != 204 || len(a.Content) != 0 {
		t.Errorf("deleting a repository: %d %s, want 204", a.StatusCode, a.Content)
	}
	r.Manage(t, "DELETE", "/repository/acme/app", "").Refused(t, 404, "not_found", "repository acme/app is not known")
	r.Manage(t, "PUT", "/repository/acme/web", "{}").Refused(t, 405, "invalid_request", "but DELETE, GET")
	r.Manage(t, "DELETE", "/repository/acme/../web", "").Refused(t, 404, "not_found", "nothing at")
	r.Do(t, "HEAD", "/v2/acme/app/blobs/"+digest("content").String(), "").Want(t, 404, "")
	r.Do(t, "HEAD", "/v2/acme/web/blobs/"+digest("content").String(), "").Want(t, 200, "")
	if a := r.Manage(t, "DELETE", "/organization/acme", ""); a.StatusCode != 204 || len(a.Content) != 0 {
		t.Errorf("deleting a namespace: %d %s, want 204", a.StatusCode, a.Content)
	}
	r.Manage(t, "DELETE", "/organization/acme", "").Refused(t, 404, "not_found", "namespace acme is not known")
	r.Do(t, "HEAD", "/v2/acme/web/blobs/"+digest("content").String(), "").Want(t, 404, "")
	r.Do(t, "HEAD", "/v2/else/blobs/"+digest("content").String(), "").Want(t, 200, "")
	r.Do(t, "GET", "/v2/_catalog", "").Want(t, 200, "").Text(t, `{"repositories":["else"]}`)
}

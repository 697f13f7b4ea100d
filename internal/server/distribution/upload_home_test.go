package distribution_test

import (
	"io"
	"testing"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/catalog/trash"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/quota"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// removals delete the repository acme/app for good, alone or with its namespace. The worker that
// cleans up after deletions doesn't run in these tests.
var removals = map[string]func(t *testing.T, r *registry) error{
	"repository": func(t *testing.T, r *registry) error {
		return r.Trash.DeleteRepository(t.Context(), "acme/app", trash.PurgeAtOnce)
	},
	"namespace": func(t *testing.T, r *registry) error {
		return r.Trash.DeleteNamespace(t.Context(), "acme", trash.PurgeAtOnce)
	},
}

// remove deletes the repository acme/app.
func (r *registry) remove(t *testing.T, removal string) {
	t.Helper()
	if err := removals[removal](t, r); err != nil {
		t.Fatal(err)
	}
}

// wantUnknown sends each request on uploads that the registry answers, and expects 404. `urls` has an
// upload for each method. Of the uploads' content, `sent` bytes were sent before.
func (r *registry) wantUnknown(t *testing.T, urls map[string]string, content string, sent int) {
	t.Helper()
	for method, at := range urls {
		body := ""
		switch method {
		case "PUT":
			at += "?digest=" + digest(content).String()
			body = content[sent:]
		case "PATCH":
			body = content[sent:]
		}
		a := r.Do(t, method, at, body)
		if a.StatusCode != 404 || method != "HEAD" && a.Code(t) != oci.BlobUploadUnknown {
			t.Errorf("%s of an upload of %d bytes: %d %s, want 404 %s", method, sent, a.StatusCode, a.Content, oci.BlobUploadUnknown)
		}
	}
}

// TestUploadEndsWithItsRepository: a client has begun uploads, and sent nothing, a little or much. Then
// the repository or its namespace is deleted, and somebody else makes another one of that name. The
// uploads' URLs must be unknown from then on, to the replica that began the uploads and to another.
// Nor may a request on them make the repository anew.
func TestUploadEndsWithItsRepository(t *testing.T) {
	t.Parallel()
	one := setup(t)
	two := replica(t, one.DSN, one.Dir)
	n := 0
	for removal := range removals {
		for _, sent := range []int{0, 100, catalog.MaxTail + 100} {
			for i, by := range []*registry{one, two} {
				t.Logf("%s, %d bytes, replica %d", removal, sent, i+1)
				n++
				content := pattern(byte(n), sent+50)
				begin := func() map[string]string {
					urls := map[string]string{}
					for _, method := range []string{"GET", "HEAD", "PATCH", "PUT", "DELETE"} {
						at := one.StartUpload(t, "acme/app", "")
						if sent > 0 {
							at = one.Do(t, "PATCH", at, content[:sent]).Want(t, 202, "").Header.Get("Location")
						}
						urls[method] = at
					}
					return urls
				}
				one.Push(t, "acme/app", "x")
				two.Do(t, "HEAD", "/v2/acme/app/blobs/"+digest("x").String(), "").WantStatus(t, 200) // it knows the repository
				before, after := begin(), begin()
				one.remove(t, removal)
				by.wantUnknown(t, before, content, sent)
				if h, err := one.Catalog.Home(t.Context(), "acme/app"); err != nil || h.Repository != 0 {
					t.Errorf("a request on an upload of the deleted repository has made another one: %+v, %v", h, err)
				}
				one.Push(t, "acme/app", "y")
				by.wantUnknown(t, after, content, sent)
				by.Do(t, "GET", "/v2/acme/app/blobs/"+digest(content).String(), "").Want(t, 404, oci.BlobUnknown)
			}
		}
	}
}

// TestUploadsBeforeTheirRepository: clients begin uploads before there is a repository, or even a
// namespace, and finish them when others have made it. If the repository that was made is deleted, the
// uploads that are left must end with it.
func TestUploadsBeforeTheirRepository(t *testing.T) {
	t.Parallel()
	for removal := range removals {
		for _, namespace := range []bool{false, true} { // whether it exists at the beginning
			one := setup(t)
			two := replica(t, one.DSN, one.Dir)
			sent := 100
			if namespace {
				one.Push(t, "acme/other", "x")
				sent += catalog.MaxTail
			}
			content := pattern(1, sent+50)
			begin := func() string {
				return one.Do(t, "PATCH", one.StartUpload(t, "acme/app", ""), content[:sent]).Want(t, 202, "").Header.Get("Location")
			}
			empty := one.StartUpload(t, "acme/app", "")
			first, second, left := begin(), begin(), map[string]string{"PATCH": begin(), "PUT": begin(), "GET": begin(), "DELETE": begin()}
			for i, at := range []string{first, second} {
				r := []*registry{one, two}[i]
				r.Do(t, "GET", at, "").Want(t, 204, "")
				r.Do(t, "PUT", at+"?digest="+digest(content).String(), content[sent:]).Want(t, 201, "")
			}
			two.Do(t, "PUT", empty+"?digest="+digest("z").String(), "z").Want(t, 201, "")
			one.remove(t, removal)
			one.Push(t, "acme/app", "y")
			two.wantUnknown(t, left, content, sent)
			two.Do(t, "GET", "/v2/acme/app/blobs/"+digest(content).String(), "").Want(t, 404, oci.BlobUnknown)
		}
	}
}

// TestRunningUploadOfDeletedRepository: a request sends an upload while its repository or its namespace
// is deleted, and another one gets the name. The request must not bring its bytes into that one.
func TestRunningUploadOfDeletedRepository(t *testing.T) {
	t.Parallel()
	r := setup(t)
	const size = 400_000
	claimed := func() (n int) {
		if err := r.DB.Pool.QueryRow(t.Context(), "SELECT count(*) FROM uploads WHERE attempt > 0").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	n := 0
	for removal := range removals {
		for _, method := range []string{"PATCH", "PUT"} {
			n++
			content := pattern(byte(n), size)
			r.Push(t, "acme/app", "x")
			at := r.StartUpload(t, "acme/app", "")
			path := at
			if method == "PUT" {
				path += "?digest=" + digest(content).String()
			}
			before, w := claimed(), r.Dial(t)
			w.Send(t, method, path, []string{servertest.Length(size)}, content[:size/2])
			eventually(t, "the request has claimed the upload", func() bool { return claimed() == before+1 })
			r.remove(t, removal)
			r.Push(t, "acme/app", "y")
			if _, err := io.WriteString(w, content[size/2:]); err != nil {
				t.Fatal(err)
			}
			if a := w.Answer(t, method, path); a.StatusCode != 416 && a.StatusCode != 404 {
				t.Errorf("%s, %s: %d %s", removal, method, a.StatusCode, a.Content)
			}
			r.Do(t, "GET", at, "").Want(t, 404, oci.BlobUploadUnknown)
			r.Do(t, "GET", "/v2/acme/app/blobs/"+digest(content).String(), "").Want(t, 404, oci.BlobUnknown)
			if list := r.orphans(t); len(list) > 0 {
				t.Errorf("nobody owns %v", list)
			}
		}
	}
}

// TestUploadsBeforeSomebodyElsesNamespace: somebody begins uploads before there is a namespace, and somebody else
// makes it. Only who may push there can go on with them, and their bytes count for its quota.
func TestUploadsBeforeSomebodyElsesNamespace(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *servertest.Options) { o.Access = &auth.Options{} })
	for name, superuser := range map[string]bool{"root": true, "ann": true, "eve": true} {
		r.AddAccount(t, name, superuser)
	}
	root, ann, eve := r.With(servertest.As("root")), r.With(servertest.As("ann")), r.With(servertest.As("eve"))
	content := pattern(1, 1000)
	empty, begun := eve.StartUpload(t, "acme/app", ""), eve.StartUpload(t, "acme/app", "")
	begun = eve.Do(t, "PATCH", begun, content[:100]).Want(t, 202, "").Header.Get("Location")
	for _, name := range []string{"ann", "eve"} {
		root.Manage(t, "PUT", "/superuser/users/"+name, `{"super_user":false}`).WantStatus(t, 200)
	}
	root.Manage(t, "POST", "/organization", `{"name":"acme"}`).WantStatus(t, 201)
	r.Grant(t, "acme", "ann", auth.Writer)
	r.limited(t, quota.Usage{Bytes: 1500})
	for _, at := range []string{empty, begun} {
		for _, method := range []string{"GET", "PATCH", "PUT", "DELETE"} {
			if a := eve.Do(t, method, at, content[100:]); a.StatusCode != 403 && a.StatusCode != 404 {
				t.Errorf("%s of who may not push: %d %s", method, a.StatusCode, a.Content)
			}
		}
	}
	charged := func(want int64) {
		t.Helper()
		var n int64
		if err := r.DB.Pool.QueryRow(t.Context(), "SELECT COALESCE(sum(u.size), 0) FROM uploads u JOIN live_namespaces n ON n.id = u.namespace_id WHERE n.name = 'acme'").Scan(&n); err != nil || n != want {
			t.Errorf("unfinished uploads of the namespace have %d bytes, %v; want %d", n, err, want)
		}
	}
	charged(0)
	begun = ann.Do(t, "PATCH", begun, content[100:]).Want(t, 202, "").Header.Get("Location")
	charged(1000)
	ann.Do(t, "PATCH", empty, content).WantStatus(t, 409)
	ann.Do(t, "PUT", begun+"?digest="+digest(content).String(), "").Want(t, 201, "")
}

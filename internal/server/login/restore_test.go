package login_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// trashID deletes a repository or a namespace, and returns the path of what is then in the trash.
func trashID(t *testing.T, who *servertest.Registry, path string) string {
	t.Helper()
	return "/trash/" + who.Manage(t, "DELETE", path, "").WantStatus(t, 204).Header.Get("Purser-Trash-Id")
}

// TestRestoreMatrix: each principal of the matrix, with each of its credentials, may see and
// restore what it might delete, and may purge it with the access of an administrator.
func TestRestoreMatrix(t *testing.T) {
	t.Parallel()
	m := newMatrix(t)
	root := m.With(secret("root"))
	places := []place{{namespace: "acme"}}
	for repository, public := range repositories {
		places = append(places, place{namespace: "acme", repository: repository, public: public == true})
	}
	may, mayNot := 0, 0
	for _, p := range places {
		path, access := "/repository/"+p.repository, "delete"
		if p.repository == "" {
			path, access = "/organization/acme", "admin"
		}
		id := trashID(t, root, path)
		for _, c := range m.clients {
			r := m.With(c.headers)
			w, ok := c.seen(true)
			if p.repository == "" && w.robot {
				ok = false // the robots of a deleted namespace can't log in
			}
			want := 404
			switch {
			case !ok, !w.account && !w.anonymous:
				want = 401
			case w.may(access, p):
				want = 200
			}
			if got := r.Manage(t, "GET", id, ""); got.StatusCode != want {
				t.Errorf("%s: GET %s (%v): %d %s, want %d", c.name, id, p, got.StatusCode, got.Content, want)
			}
			if c.credential == "cookie" { // it takes a header of the page for requests that change something
				continue
			}
			purge := want
			if want == 200 && !w.may("admin", place{namespace: "acme"}) {
				purge = 403
			}
			if purge != 200 {
				if got := r.Manage(t, "POST", id+"/purge", ""); got.StatusCode != purge {
					t.Errorf("%s: purge of %v: %d %s, want %d", c.name, p, got.StatusCode, got.Content, purge)
				}
			}
			got := r.Manage(t, "POST", id+"/restore", "{}")
			if got.StatusCode != want {
				t.Errorf("%s: restore of %v: %d %s, want %d", c.name, p, got.StatusCode, got.Content, want)
			}
			if mayNot++; got.StatusCode == 200 {
				id = trashID(t, root, path)
				may++
			}
		}
		root.Manage(t, "POST", id+"/restore", "{}").WantStatus(t, 200)
	}
	if may < 40 || mayNot-may < 80 {
		t.Errorf("%d clients could restore, %d could not", may, mayNot-may)
	}
}

// TestRestoreByRole: a maintainer lists and restores the repositories of the namespace, and
// a maintainer of one repository this one. Both can't purge. An administrator of a namespace
// lists and restores the namespace under its name, whoever has deleted it.
func TestRestoreByRole(t *testing.T) {
	t.Parallel()
	root, ann, max, _ := twoNamespaces(t)
	root.Put(t, "acme/web", "v1", root.Simple(t, "acme/web", 1, nil))
	for _, name := range []string{"web", "pusher", "stranger"} {
		person(t, root, name, false)
	}
	root.Grant(t, "acme/web", "web", auth.Maintainer)
	root.Grant(t, "acme", "pusher", auth.Writer)
	root.Grant(t, "other", "stranger", auth.Administrator)
	web, pusher, stranger := root.With(secret("web")), root.With(secret("pusher")), root.With(secret("stranger"))
	items := func(who *servertest.Registry, want int) {
		t.Helper()
		var list struct{ Items []struct{ ID string } }
		if who.Manage(t, "GET", "/trash?namespace=acme&limit=1", "").Into(t, 200, &list); len(list.Items) != want {
			t.Errorf("%d items, want %d", len(list.Items), want)
		}
	}

	items(max, 0)
	app, id := trashID(t, max, "/repository/acme/app"), trashID(t, web, "/repository/acme/web")
	for _, who := range []*servertest.Registry{ann, max, web} { // app is the first page of two
		items(who, 1)
	}
	for _, who := range []*servertest.Registry{pusher, stranger} {
		who.Manage(t, "GET", "/trash?namespace=acme&limit=1", "").WantStatus(t, 403)
	}
	root.With(nil).Manage(t, "GET", "/trash?namespace=acme", "").WantStatus(t, 401)
	web.Manage(t, "GET", app, "").WantStatus(t, 404)
	web.Manage(t, "POST", id+"/restore", `{"as":"acme/other"}`).WantStatus(t, 403)
	web.Manage(t, "POST", id+"/restore", "{}").WantStatus(t, 200)
	ann.Manage(t, "GET", "/trash", "").WantStatus(t, 403)
	max.Manage(t, "POST", app+"/restore", `{"as":"acme/UPPER"}`).WantStatus(t, 400)
	max.Manage(t, "POST", app+"/restore", `{"as":"other/app"}`).WantStatus(t, 400)
	max.Manage(t, "POST", app+"/purge", "").WantStatus(t, 403)
	max.Manage(t, "POST", app+"/restore", `{"as":"acme/app2"}`).WantStatus(t, 200)
	max.Manage(t, "DELETE", "/repository/acme/app2?purge=true", "").WantStatus(t, 403)
	ann.Manage(t, "GET", "/repository/acme/app2", "").WantStatus(t, 200)

	id = trashID(t, root, "/organization/acme")
	items(ann, 1)
	items(root, 1)
	for _, who := range []*servertest.Registry{max, web, stranger} {
		who.Manage(t, "GET", "/trash?namespace=acme", "").WantStatus(t, 403)
		who.Manage(t, "POST", id+"/restore", "{}").WantStatus(t, 404)
	}
	root.Manage(t, "POST", "/organization", `{"name":"acme"}`).WantStatus(t, 201)
	ann.Manage(t, "POST", id+"/restore", "{}").WantStatus(t, 409)
	ann.Manage(t, "POST", id+"/restore", `{"as":"acme2"}`).WantStatus(t, 403)
	root.Manage(t, "DELETE", "/organization/acme?purge=true", "").WantStatus(t, 204)
	ann.Manage(t, "POST", id+"/restore", `{"as":"acme/x"}`).WantStatus(t, 400)
	ann.Manage(t, "POST", id+"/restore", "{}").WantStatus(t, 200)
	ann.Manage(t, "GET", "/repository/acme/app2", "").WantStatus(t, 200)

	id = trashID(t, ann, "/organization/acme")
	root.Manage(t, "POST", id+"/restore", `{"as":"acme2"}`).WantStatus(t, 200)
	ann.Manage(t, "GET", "/repository/acme2/app2", "").WantStatus(t, 200)

	// A repository that was deleted before its namespace waits for it.
	app = trashID(t, max, "/repository/acme2/app2")
	id = trashID(t, ann, "/organization/acme2")
	max.Manage(t, "GET", app, "").WantStatus(t, 200)
	if a := max.Manage(t, "POST", app+"/restore", "{}").WantStatus(t, 409); !strings.Contains(string(a.Content), strings.TrimPrefix(id, "/trash/")) {
		t.Errorf("the answer doesn't name %s: %s", id, a.Content)
	}
	ann.Manage(t, "POST", id+"/purge", "").WantStatus(t, 204)
	ann.Manage(t, "POST", id+"/purge", "").WantStatus(t, 404)
}

// TestTrashPages: items that a client may not restore neither hide others from it nor show in
// cursors.
func TestTrashPages(t *testing.T) {
	t.Parallel()
	root, ann, max, _ := twoNamespaces(t)
	trashID(t, root, "/organization/acme")
	var want []string
	for range 2 {
		root.Manage(t, "POST", "/organization", `{"name":"acme"}`).WantStatus(t, 201)
		trashID(t, root, "/organization/acme")
		root.Manage(t, "POST", "/organization", `{"name":"acme"}`).WantStatus(t, 201)
		root.Grant(t, "acme", "max", auth.Administrator)
		want = append(want, strings.TrimPrefix(trashID(t, max, "/organization/acme"), "/trash/"))
	}
	var got []string
	for cursor := ""; len(got) < 3; {
		var page struct {
			Items []struct{ ID string }
			Next  string
		}
		max.Manage(t, "GET", "/trash?namespace=acme&limit=1&cursor="+cursor, "").Into(t, 200, &page)
		for _, item := range page.Items {
			got = append(got, item.ID)
		}
		if cursor = page.Next; cursor == "" {
			break
		}
		if !slices.Contains(want, cursor) {
			t.Errorf("the cursor %s is of an item that isn't shown", cursor)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("the pages have %v, want %v", got, want)
	}
	ann.Manage(t, "GET", "/trash?namespace=acme&limit=1", "").WantStatus(t, 200)
}

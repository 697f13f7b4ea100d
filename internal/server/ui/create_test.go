package ui_test

import (
	"net/url"
	"testing"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/server/servertest"
)

func TestCreateNamespace(t *testing.T) {
	t.Parallel()
	r := setupPruned(t, func(o *servertest.Options) { o.Access = &auth.Options{} })
	r.AddAccount(t, "root", true)
	r.AddAccount(t, "ann", false)
	root := r.as("root")
	want(t, r.as("ann").page(t, 200, "/ui/namespaces"), "!Create a namespace")
	r.as("ann").send(t, "/ui/namespaces", url.Values{"name": {"shop"}}).WantStatus(t, 403)

	form := formAfter(t, root.page(t, 200, "/ui/namespaces"), "<summary>Create a namespace</summary>")
	form.Set("do", "create")
	form.Set("name", "shop")
	form.Set("bytes", "10GB")
	form.Set("preset", "pull-requests")
	to := root.send(t, "/ui/namespaces", form).WantStatus(t, 303).Header.Get("Location")
	want(t, root.page(t, 200, to), "The namespace was created", "Its policy observes", "of 10 GB", "refuses above 100%", "observes")

	// It exists now: the form comes back as it was typed, with the reason beside the name.
	page := string(root.send(t, "/ui/namespaces", form).WantStatus(t, 400).Content)
	want(t, page, `role="alert"`, `id="wrong-create-name"`, "exists already", `aria-describedby="wrong-create-name"`, `value="shop"`, `value="10GB"`, `<option value="pull-requests" selected>`)
	// A step that is no percentage is found before anything is made.
	form.Set("name", "other")
	form.Set("Reject", "101")
	want(t, string(root.send(t, "/ui/namespaces", form).WantStatus(t, 400).Content), `id="wrong-create-Reject"`, "between 1 and 100")
	root.page(t, 404, "/ui/namespaces/other")
}

// TestCreateNamespaceInPart: a namespace whose quota is refused is there, and the page says so, says what it
// lacks, and leads to where that is set.
func TestCreateNamespaceInPart(t *testing.T) {
	t.Parallel()
	r := setupPruned(t)
	form := url.Values{"do": {"create"}, "name": {"shop"}, "bytes": {"much"}, "Reject": {"100"}, "preset": {"untagged"}}
	page := string(r.send(t, "/ui/namespaces", form).WantStatus(t, 200).Content)
	want(t, page, "Namespace shop was created; it has a policy.", "It has no quota:", "number and a unit", `href="/ui/namespaces/shop/-/settings"`, "Finish it there")
	if list := r.policies(t, "/organization/shop"); len(list) != 1 || list[0].Mode != "observe" {
		t.Errorf("policies %+v", list)
	}
}

func TestCreateRepository(t *testing.T) {
	t.Parallel()
	r := setupPruned(t, func(o *servertest.Options) { o.Access = &auth.Options{} })
	r.AddAccount(t, "root", true)
	root := r.as("root")
	for _, namespace := range []string{"acme", "shop", "lab"} {
		root.send(t, "/ui/namespaces", url.Values{"do": {"create"}, "name": {namespace}}).WantStatus(t, 303)
	}
	for name, role := range map[string]auth.Role{"reader": auth.Reader, "writer": auth.Writer, "admin": auth.Administrator} {
		r.AddAccount(t, name, false)
		r.Grant(t, "acme", name, role)
	}
	r.Grant(t, "lab", "writer", auth.Reader)
	want(t, r.as("reader").page(t, 200, "/ui/repositories"), "!Create a repository")
	want(t, r.as("writer").page(t, 200, "/ui/repositories?namespace=lab"), "!Create a repository")
	page := r.as("writer").page(t, 200, "/ui/repositories")
	want(t, page, "Create a repository", `<option value="acme">`, `!<option value="lab">`, `!<option value="public">`, `<option value="private">`)
	want(t, r.as("admin").page(t, 200, "/ui/repositories?namespace=acme"), `<option value="public">`, `name="namespace" value="acme"`)

	form := formAfter(t, page, "<summary>Create a repository</summary>")
	form.Set("do", "create")
	form.Set("name", "web/front")
	form.Set("visibility", "private")
	to := r.as("writer").send(t, "/ui/repositories", form).WantStatus(t, 303).Header.Get("Location")
	want(t, r.as("writer").page(t, 200, to), "acme/web/front", "The repository was created", "members")
	var made api.DescribedRepository
	root.Manage(t, "GET", "/repository/acme%2Fweb%2Ffront", "").Into(t, 200, &made)
	if made.Visibility != "private" {
		t.Errorf("visibility %q", made.Visibility)
	}
	want(t, string(r.as("writer").send(t, "/ui/repositories", form).WantStatus(t, 400).Content), `id="wrong-create-name"`, "exists already", `value="web/front"`, `value="private" selected`)
	form.Set("name", "Web")
	want(t, string(r.as("writer").send(t, "/ui/repositories", form).WantStatus(t, 400).Content), `id="wrong-create-name"`, `value="Web"`)
	form.Set("namespace", "lab")
	form.Set("name", "x")
	want(t, string(r.as("writer").send(t, "/ui/repositories", form).WantStatus(t, 403).Content), `role="alert"`, `value="x"`)
}

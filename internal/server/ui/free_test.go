package ui_test

import (
	"fmt"
	"net/url"
	"testing"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// old pushes tags old-0, old-1 and so on, each with a layer of about 1000 bytes of its own. The number says
// how many times ten days ago the tag was pushed.
func (r pruned) old(t *testing.T, repository string, n int) {
	t.Helper()
	for i := range n {
		tag := fmt.Sprintf("old-%d", i)
		layer := r.Push(t, repository, repository+tag+servertest.Pattern(0, 1000))
		r.Put(t, repository, tag, servertest.Image(t, r.Push(t, repository, "{}"), []oci.Digest{layer}, nil))
		r.Exec(t, "UPDATE tags SET updated_at = now() - $1 * interval '10 days' WHERE name = $2", i, tag)
	}
}

// names returns the names of a repository's tags.
func (r pruned) names(t testing.TB, repository string) (names string) {
	t.Helper()
	var list struct{ Tags []struct{ Name string } }
	r.Manage(t, "GET", "/repository/"+repository+"/tag/?sort=name&limit=100", "").Into(t, 200, &list)
	for i, tag := range list.Tags {
		if i > 0 {
			names += " "
		}
		names += tag.Name
	}
	return names
}

// TestFreeOnPage: a page shows which tags would go to free bytes, and a second form lets the next run
// delete these, and nothing else.
func TestFreeOnPage(t *testing.T) {
	t.Parallel()
	r := setupPruned(t)
	r.old(t, "acme/web", 4)
	r.old(t, "other/api", 2)
	const path = "/ui/namespaces/acme/-/free"
	for _, page := range []string{"/ui/namespaces/acme/-/policies", "/ui/runs?namespace=acme"} {
		want(t, r.page(t, 200, page), `href="`+path+`"`)
	}
	want(t, r.page(t, 200, "/ui/runs"), `href="/ui/runs/free"`)
	want(t, r.page(t, 200, "/ui/repositories/acme/web/-/policies"), "!Free bytes")
	r.page(t, 404, "/ui/namespaces/none/-/free")

	form := formAfter(t, r.page(t, 200, path), `action="`+path+`"`)
	if form.Get("unused") != "30d" {
		t.Errorf("the form begins with %v", form)
	}
	form.Set("do", "plan")
	form.Set("bytes", "much<b>")
	want(t, string(r.send(t, path, form).WantStatus(t, 400).Content), `role="alert"`, `value="much&lt;b&gt;"`, `aria-invalid="true"`, "!What would be deleted")
	form.Set("bytes", "1500")
	form.Set("unused", "5 apples")
	want(t, string(r.send(t, path, form).WantStatus(t, 400).Content), `role="alert"`, `value="5 apples"`)
	form.Set("unused", "6m")
	page := string(r.send(t, path, form).WantStatus(t, 200).Content)
	want(t, page, `<p class="warn">6m is 6 minutes, and not months: write 180d for those.</p>`,
		`data-confirm="Delete 2 tags not used or pushed for 6m? 6m is 6 minutes, and not months: write 180d for those. The run can be undone`)
	form.Set("unused", "5d")
	page = string(r.send(t, path, form).WantStatus(t, 200).Content)
	want(t, page, "!and not months", `data-confirm="Delete 2 tags not used or pushed for 5d? The run can be undone`)
	want(t, page, "<dd>2</dd>", "2.0 KiB", "of 1.5 KiB", "/ui/repositories/acme/web", "Delete 2 tags", "!can't be freed", "!other/api", "Last use is no proof", "no reporter holds what runs in 1 namespace: acme.")
	if names := r.names(t, "acme/web"); names != "old-0 old-1 old-2 old-3" {
		t.Fatalf("a preview left %s", names)
	}
	confirm := formAfter(t, page, "until then, the run can be undone.")
	if confirm.Get("bytes") != "1500" || confirm.Get("unused") != "5d" {
		t.Errorf("the form that confirms has %v", confirm)
	}
	confirm.Set("do", "free")
	want(t, string(r.send(t, "/ui/namespaces/other/-/free", confirm).WantStatus(t, 400).Content), "it is of another namespace")
	r.send(t, path, url.Values{"do": {"free"}}).WantStatus(t, 400)
	r.send(t, path, url.Values{"do": {"nothing"}}).WantStatus(t, 400)
	want(t, string(r.send(t, path, confirm).WantStatus(t, 200).Content), `role="status"`, "The next run of namespace acme deletes these tags", "!Delete 2 tags")
	want(t, string(r.send(t, path, confirm).WantStatus(t, 409).Content), "being freed in namespace acme already")
	servertest.Background(t, r.pruner.Run)
	servertest.Eventually(t, "the run deletes the tags", func() bool { return r.names(t, "acme/web") == "old-0 old-1" })
	want(t, r.page(t, 200, "/ui/runs?namespace=acme"), ">acme<")

	form.Set("bytes", "1 GB")
	page = string(r.send(t, "/ui/runs/free", form).WantStatus(t, 200).Content)
	want(t, page, "/ui/repositories/acme/web", "/ui/repositories/other/api", "More can't be freed of what wasn't used for 5d")
	form.Set("unused", "5y")
	want(t, string(r.send(t, "/ui/runs/free", form).WantStatus(t, 200).Content), "!data-confirm", "!By repository")
}

// TestFreeByRole: only who may free bytes is led to the page, and gets its form.
func TestFreeByRole(t *testing.T) {
	t.Parallel()
	r := setupPruned(t, func(o *servertest.Options) { o.Access = &auth.Options{AnonymousPull: true} })
	r.AddAccount(t, "root", true)
	root := r.as("root")
	root.old(t, "acme/web", 2)
	for name, role := range map[string]auth.Role{"writer": auth.Writer, "maintainer": auth.Maintainer, "admin": auth.Administrator} {
		r.AddAccount(t, name, false)
		r.Grant(t, "acme", name, role)
	}
	const path = "/ui/namespaces/acme/-/free"
	plan := url.Values{"do": {"plan"}, "bytes": {"1kB"}, "unused": {"5d"}}
	r.page(t, 303, path) // to the log-in
	r.as("writer").page(t, 403, path)
	r.as("writer").send(t, path, plan).WantStatus(t, 403)
	for _, page := range []string{"/ui/namespaces/acme/-/policies", "/ui/runs?namespace=acme"} {
		want(t, r.as("maintainer").page(t, 200, page), "!Free bytes")
		want(t, r.as("admin").page(t, 200, page), "Free bytes")
	}
	want(t, r.as("maintainer").page(t, 200, path), "Administrators of the namespace free bytes here", "!<form class=\"tools\"")
	r.as("maintainer").send(t, path, plan).WantStatus(t, 403)
	want(t, string(r.as("admin").send(t, path, plan).WantStatus(t, 200).Content), "Delete 1 tag")
	r.as("admin").page(t, 403, "/ui/runs/free")
	want(t, r.as("admin").page(t, 200, "/ui/runs"), "!Free bytes")
	want(t, root.page(t, 200, "/ui/runs"), `href="/ui/runs/free"`)
	root.page(t, 200, "/ui/runs/free")
}

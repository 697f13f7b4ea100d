package ui_test

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/protection"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// withTrash keeps what is deleted for a day.
func withTrash(o *servertest.Options) { o.TrashKeep = 24 * time.Hour }

func TestSettingsOfRepository(t *testing.T) {
	t.Parallel()
	r := setupPruned(t, withTrash, func(o *servertest.Options) { o.Access = &auth.Options{AnonymousPull: true} })
	r.AddAccount(t, "root", true)
	r.as("root").tags(t, "acme/web", 2)
	for name, role := range map[string]auth.Role{"reader": auth.Reader, "maintainer": auth.Maintainer, "admin": auth.Administrator} {
		r.AddAccount(t, name, false)
		r.Grant(t, "acme", name, role)
	}
	admin, path := r.as("admin"), "/ui/repositories/acme/web/-/settings"
	want(t, r.as("reader").page(t, 200, path), "Members only", "!Protect tags", "!Nobody has a role", "!Delete this repository")
	want(t, r.as("reader").page(t, 200, "/ui/repositories/acme/web"), "pr-0", "!Delete picked tags", `!type="checkbox"`)
	want(t, admin.page(t, 200, "/ui/repositories/acme/web"), "Delete picked tags")
	want(t, r.as("maintainer").page(t, 200, path), "No rule protects tags here", "!Nobody has a role")
	want(t, r.as("maintainer").page(t, 200, "/ui/namespaces/acme/-/settings"), "Labels of images")
	want(t, r.as("reader").page(t, 200, "/ui/namespaces/acme/-/settings"), "!Labels of images", "Maintainers and administrators of this namespace see its settings", `!/-/settings"`)
	want(t, r.as("maintainer").page(t, 200, "/ui/namespaces/acme"), `/ui/namespaces/acme/-/settings"`)
	want(t, admin.page(t, 200, path), "No rule protects tags here", "Nobody has a role", "Delete this repository")
	r.page(t, 303, path)
	r.as("reader").send(t, path, url.Values{"do": {"visibility"}, "was_visibility": {"private"}, "visibility": {"public"}}).WantStatus(t, 403)

	admin.send(t, path, merge(formAfter(t, admin.page(t, 200, path), "<h2>Who may pull</h2>"), "do", "visibility", "visibility", "public")).WantStatus(t, 303)
	admin.send(t, path, url.Values{"do": {"protect"}, "pattern": {"^v<b>"}}).WantStatus(t, 303)
	refused := string(admin.send(t, path, url.Values{"do": {"protect"}, "pattern": {"("}}).WantStatus(t, 400).Content)
	want(t, refused, `role="alert"`, `name="pattern" value="("`)
	want(t, string(admin.send(t, path, url.Values{"do": {"add"}, "name": {"nobody"}, "role": {"read"}}).WantStatus(t, 404).Content), `role="alert"`, `value="nobody"`)
	admin.send(t, path, url.Values{"do": {"add"}, "who": {"account"}, "name": {"reader"}, "role": {"write"}}).WantStatus(t, 303)
	page := admin.page(t, 200, path+"?done=saved")
	want(t, page, `value="public" selected`, "^v&lt;b&gt;", "!^v<b>", ">reader<", `value="write" selected`, "Saved.")

	var rules struct{ Rules []api.ProtectionRule }
	admin.Manage(t, "GET", "/repository/acme/web/tagprotection", "").Into(t, 200, &rules)
	admin.send(t, path, url.Values{"do": {"unprotect"}, "rule": {rules.Rules[0].UUID}}).WantStatus(t, 303)
	admin.send(t, path, url.Values{"do": {"remove"}, "who": {"account"}, "name": {"reader"}}).WantStatus(t, 303)
	want(t, admin.page(t, 200, path), "No rule protects tags here", "Nobody has a role")

	want(t, string(admin.send(t, path, url.Values{"do": {"delete"}, "confirm": {"acme/we"}}).WantStatus(t, 400).Content), "Not deleted")
	to := admin.send(t, path, url.Values{"do": {"delete"}, "confirm": {"acme/web"}}).WantStatus(t, 303).Header.Get("Location")
	admin.page(t, 404, "/ui/repositories/acme/web")
	page = admin.page(t, 200, to)
	want(t, page, "acme/web is deleted", "Restore it", "2 tags", ">repository<")
	_, undo, _ := strings.Cut(page, `role="status"`)
	undo, _, _ = strings.Cut(undo, "</form>")
	want(t, string(admin.send(t, "/ui/trash", fields(undo)).WantStatus(t, 200).Content), "acme/web is back", "is empty")
	admin.page(t, 200, "/ui/repositories/acme/web")
	want(t, admin.page(t, 200, "/ui/trash"), "Choose a namespace", "?namespace=acme")
}

func TestSettingsOfNamespace(t *testing.T) {
	t.Parallel()
	r := setupPruned(t, withTrash)
	r.tags(t, "acme/web", 2)
	path := "/ui/namespaces/acme/-/settings"
	want(t, r.page(t, 200, "/ui/namespaces/acme"), "/ui/repositories?namespace=acme", "has no policies of its own", "of it only here")
	want(t, r.page(t, 200, path), "has no quota", "The registry's default policies apply")
	form := url.Values{"do": {"quota"}, "bytes": {"10 GiB"}, "repositories": {"5"}, "tags": {""}, "Warning": {"70, 90"}, "Reject": {"100"}}
	r.send(t, path, form).WantStatus(t, 303)
	page := r.page(t, 200, path)
	want(t, page, `value="10 GiB"`, `value="70, 90"`, "1 of 5", "(20%)")
	var quotas []api.QuotaView
	r.Manage(t, "GET", "/organization/acme/quota", "").Into(t, 200, &quotas)
	if len(quotas) != 1 || *quotas[0].LimitBytes != 10<<30 || *quotas[0].LimitRepositories != 5 || quotas[0].LimitTags != nil || len(quotas[0].Limits) != 3 {
		t.Fatalf("quota %+v", quotas)
	}
	_, saved, _ := strings.Cut(page, `name="bytes"`)
	saved, _, _ = strings.Cut(saved, "</form>")
	form = fields(`<input name="bytes"` + saved)
	form.Set("do", "quota")
	form.Set("bytes", "much")
	want(t, string(r.send(t, path, form).WantStatus(t, 400).Content), "number and a unit", `value="much"`)
	// The unit stays as somebody has typed it.
	for _, typed := range []string{"10 GB", "1.5 TiB", "10 GiB", "750 MB", "1 B"} {
		form.Set("bytes", strings.ReplaceAll(typed, " ", ""))
		r.send(t, path, form).WantStatus(t, 303)
		want(t, r.page(t, 200, path), `name="bytes" value="`+typed+`"`, " of "+typed+" (", "!This quota")
	}
	form.Set("Reject", "")
	r.send(t, path, form).WantStatus(t, 303)
	want(t, r.page(t, 200, path), "Pushes go on: nothing is refused, since no step refuses")
	form.Set("bytes", "1GB")
	r.send(t, path, form).WantStatus(t, 303)
	want(t, r.page(t, 200, path), "This quota refuses nothing, since no step refuses: it only sends notices")
	form = merge(formAfter(t, r.page(t, 200, path), "<h2>Quota</h2>"), "do", "quota")
	form.Set("Reject", "100")
	form.Set("bytes", "")
	form.Set("tags", "100")
	r.send(t, path, form).WantStatus(t, 303)
	r.Manage(t, "GET", "/organization/acme/quota", "").Into(t, 200, &quotas)
	if q := quotas[0]; q.LimitBytes != nil || *q.LimitRepositories != 5 || *q.LimitTags != 100 || len(q.Limits) != 3 {
		t.Errorf("quota %+v", q)
	}
	want(t, r.page(t, 200, "/ui/namespaces/acme"), "2 of 100", "refuses above 100%")
	want(t, page, `name="expires_after" value="true">`, `name="immutable" value="true">`)
	r.send(t, path, url.Values{"do": {"labels"}, "was_expires_after": {"false"}, "was_immutable": {"false"}, "expires_after": {"true"}}).WantStatus(t, 303)
	want(t, r.page(t, 200, path), `name="expires_after" value="true" checked>`, `name="immutable" value="true">`)
	var labels protection.TagLabels
	r.Manage(t, "GET", "/organization/acme/taglabels", "").Into(t, 200, &labels)
	if labels != (protection.TagLabels{Expiry: true}) {
		t.Errorf("labels %+v", labels)
	}
	r.send(t, path, url.Values{"do": {"defaults"}, "defaults": {"off"}}).WantStatus(t, 303)
	want(t, r.page(t, 200, path), "refuses the registry's default policies")
	want(t, r.page(t, 200, "/ui/namespaces/acme/-/policies"), "default policies don't apply here")
	want(t, string(r.send(t, path, url.Values{"do": {"quota"}, "tags": {"five"}, "bytes": {"1.25GB"}, "quota": form["quota"]}).WantStatus(t, 400).Content),
		`id="wrong-quota-tags"`, `aria-describedby="wrong-quota-tags"`, `value="five"`, `value="1.25GB"`)
	for name, text := range map[string]string{"repositories": "five", "Warning": "many%", "quota": "x"} {
		bad := url.Values{"do": {"quota"}, "repositories": {"5"}, "Warning": {"70"}, "quota": form["quota"]}
		bad.Set(name, text)
		told := map[string]string{"repositories": "“five” is no whole number", "Warning": "“many” is no whole number", "quota": "names no quota"}[name]
		if a := r.send(t, path, bad).WantStatus(t, 400); !strings.Contains(string(a.Content), told) {
			t.Errorf("a quota with %s %q: the page doesn't say %q", name, text, told)
		}
	}
	form.Set("do", "delete-quota")
	r.send(t, path, form).WantStatus(t, 303)

	to := r.send(t, path, url.Values{"do": {"delete"}, "confirm": {"acme"}}).WantStatus(t, 303).Header.Get("Location")
	r.page(t, 404, "/ui/namespaces/acme")
	page = r.page(t, 200, to)
	want(t, page, "acme is deleted", ">namespace<")
	_, undo, _ := strings.Cut(page, `role="status"`)
	undo, _, _ = strings.Cut(undo, "</form>")
	purge := fields(undo)
	purge.Set("do", "purge")
	want(t, string(r.send(t, "/ui/trash", purge).WantStatus(t, 200).Content), "deleted for good")
	want(t, string(r.send(t, "/ui/trash", purge).WantStatus(t, 404).Content), `role="alert"`)
}

func TestHoldsPages(t *testing.T) {
	t.Parallel()
	r := setupPruned(t)
	r.tags(t, "acme/web", 1)
	want(t, r.page(t, 200, "/ui/holds?namespace=acme"), "purser report kubernetes", "--namespace acme")
	body := `{"digests": [{"digest": "` + servertest.Digest("x").String() + `", "used_by": "<pod> shop"}]}`
	r.Manage(t, "PUT", "/holds/prod%2Feu?namespace=acme&lease=1h&kind=kubernetes", body).WantStatus(t, 200)
	r.Exec(t, "UPDATE holdreporters SET reported_at = reported_at - interval '40 min'")
	page := r.page(t, 200, "/ui/holds?namespace=acme")
	want(t, page, "prod/eu", "silent", "kubernetes")
	want(t, r.page(t, 200, "/ui/holds/prod%2Feu?namespace=acme"), "&lt;pod&gt; shop", "!<pod>", "no report for half of its lease")
	runs := `{"digests": [{"digest": "` + servertest.Digest("x").String() + `", "used_by": "deployment shop/web", "names": ["registry.example.com:5000/acme/web:v0", "r.example/acme/gone:v1"]},
		{"digest": "` + servertest.Digest("y").String() + `", "used_by": "deployment cart/api", "names": ["acme/web:<b>", "acme/web:v1@` + servertest.Digest("y").String() + `"]}]}`
	r.Manage(t, "PUT", "/holds/prod%2Feu?namespace=acme", runs).WantStatus(t, 200)
	page = r.page(t, 200, "/ui/holds/prod%2Feu?namespace=acme")
	want(t, page, ">shop</td>", ">deployment web</th>", `<a href="/ui/repositories/acme/web?q=v0">acme/web:v0</a>`, "acme/gone:v1", "!gone?q=", `<a href="/ui/repositories/acme/web">acme/web:&lt;b&gt;</a>`, "!registry.example.com",
		`<a href="/ui/repositories/acme/web/-/manifests/`+servertest.Digest("y").String()+`">acme/web:v1@`)
	if strings.Index(page, "deployment api") > strings.Index(page, "deployment web") {
		t.Error("the workloads aren't in the order of their namespaces")
	}
	want(t, string(r.send(t, "/ui/holds", url.Values{"reporter": {"prod/eu"}, "namespace": {"acme"}}).WantStatus(t, 200).Content), "is deleted", "purser report kubernetes")
}

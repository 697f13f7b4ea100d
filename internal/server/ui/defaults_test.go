package ui_test

import (
	"net/url"
	"testing"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// TestDefaultsPage: those who operate the registry see and change the rules and the policies of the whole
// registry.
func TestDefaultsPage(t *testing.T) {
	t.Parallel()
	r := setupPruned(t, func(o *servertest.Options) { o.Access = &auth.Options{} })
	r.AddAccount(t, "root", true)
	r.AddAccount(t, "ann", false)
	root := r.as("root")
	root.tags(t, "acme/web", 2)
	r.Grant(t, "acme", "ann", auth.Administrator)
	const path = "/ui/defaults"
	r.as("ann").page(t, 403, path)
	r.as("ann").send(t, path, url.Values{"do": {"protect"}, "pattern": {"^pr"}}).WantStatus(t, 403)
	want(t, r.as("ann").page(t, 200, "/ui/"), "!/ui/defaults")
	want(t, root.page(t, 200, path), "No rule protects tags", "The registry has no policies", "&#34;olderThan&#34;: &#34;90d&#34;")
	want(t, root.page(t, 200, path+"?preset=untagged"), "&#34;untagged&#34;", "&#34;observe&#34;")

	want(t, string(root.send(t, path, url.Values{"do": {"protect"}, "pattern": {"("}}).WantStatus(t, 400).Content), `id="wrong-protect-pattern"`, `value="("`)
	want(t, string(root.send(t, path, url.Values{"do": {"protect"}, "pattern": {"^pr-0$"}}).WantStatus(t, 200).Content), "Saved.", "^pr-0$")
	want(t, root.page(t, 200, "/ui/repositories/acme/web/-/tags/pr-0"), "A rule protects it", `href="/ui/defaults"`)

	want(t, string(root.send(t, path, url.Values{"do": {"create"}, "document": {`{"method": "x"}`}}).WantStatus(t, 400).Content), `role="alert"`, "{&#34;method&#34;: &#34;x&#34;}")
	// A policy of the registry says first where it applies, and is saved when somebody has confirmed that.
	confirmed := func(form url.Values) string {
		t.Helper()
		asked := string(root.send(t, path, form).WantStatus(t, 409).Content)
		want(t, asked, "Nothing was changed yet: it applies in 1 namespace: acme.")
		return string(root.send(t, path, fields(between(t, asked, `role="alert"`, "</form>"))).WantStatus(t, 200).Content)
	}
	page := confirmed(url.Values{"do": {"create"}, "document": {`{"method": "creation_date", "olderThan": "45d", "mode": "observe"}`}})
	want(t, page, "more than 45 days ago", "observes")
	form := formAfter(t, page, "<summary>Change</summary>")
	form.Set("do", "change")
	form.Set("document", `{"method": "creation_date", "olderThan": "50d", "mode": "observe"}`)
	want(t, confirmed(form), "more than 50 days ago")
	// Somebody else has changed it meanwhile.
	form.Set("document", `{"method": "creation_date", "olderThan": "55d", "mode": "observe"}`)
	want(t, string(root.send(t, path, form).WantStatus(t, 409).Content), `role="alert"`, "55d", "more than 50 days ago")
	form.Set("do", "delete")
	want(t, string(root.send(t, path, form).WantStatus(t, 200).Content), "is deleted", "The registry has no policies")
}

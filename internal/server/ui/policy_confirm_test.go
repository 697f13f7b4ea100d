package ui_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/server/servertest"
)

// TestPolicyConfirm: the editor must save nothing that has warnings before somebody has seen and
// confirmed them, without a script, and neither must the page that deletes a policy.
func TestPolicyConfirm(t *testing.T) {
	t.Parallel()
	r := setupPruned(t)
	r.tags(t, "acme/web", 3)
	home := "/ui/namespaces/acme/-/policies"
	form := editor(t, r.page(t, 200, home+"/new"))
	if form.Get("mode") != "observe" {
		t.Errorf("a new policy has the mode %q", form.Get("mode"))
	}
	form.Set("olderThan", "6m")
	form.Set("keep0.kind", "newest")
	form.Set("keep0.value", "2")
	want(t, string(r.send(t, home+"/preview", form).WantStatus(t, 200).Content), "Is this meant?", "6m is 6 minutes")
	page := string(r.send(t, home+"/new", form).WantStatus(t, 409).Content)
	want(t, page, "Not saved yet", "6m is 6 minutes", `value="6m"`)
	if n := len(r.policies(t, "/organization/acme")); n != 0 {
		t.Fatalf("%d policies were saved", n)
	}
	// Enter in a field presses the first button.
	_, first, _ := strings.Cut(page[strings.Index(page, `class="editor"`):], "<button")
	if first, _, _ = strings.Cut(first, ">"); strings.Contains(first, "confirm") {
		t.Errorf("the first button is %s", first)
	}
	form = editor(t, page)
	form.Set("confirm", value(t, page, `<button name="confirm" value="`))
	r.send(t, home+"/new", form).WantStatus(t, 303)
	id := r.policies(t, "/organization/acme")[0].UUID

	r.Manage(t, "POST", "/organization/acme/autoprunepolicy", `{"method": "creation_date", "olderThan": "1h"}`).WantStatus(t, 201)
	gone := url.Values{"do": {"delete"}, "policy": {id}}
	page = string(r.send(t, home, gone).WantStatus(t, 200).Content)
	want(t, page, "Not deleted yet: without the policy, policies would delete 1 tag that they leave now", "Delete it all the same")
	gone.Set("confirm", value(t, page, `name="confirm" value="`))
	want(t, string(r.send(t, home, gone).WantStatus(t, 200).Content), "The policy is deleted")
	if n := len(r.policies(t, "/organization/acme")); n != 1 {
		t.Errorf("%d policies are left", n)
	}
}

// TestDefaultsConfirm: the page of settings must not let the registry's defaults apply before somebody has
// seen and confirmed what they would delete.
func TestDefaultsConfirm(t *testing.T) {
	t.Parallel()
	r := setupPruned(t)
	r.tags(t, "acme/web", 3)
	r.Manage(t, "PUT", "/organization/acme/autoprune", `{"uses_defaults": false}`).WantStatus(t, 204)
	r.Manage(t, "POST", "/autoprunepolicy?confirm=all", `{"method": "number_of_tags", "numTags": 1}`).WantStatus(t, 201)
	home := "/ui/namespaces/acme/-/settings"
	form := url.Values{"do": {"defaults"}, "defaults": {"on"}}
	page := string(r.send(t, home, form).WantStatus(t, 409).Content)
	want(t, page, "Not saved yet: with the registry&#39;s default policies, policies would delete 2 tags that they leave now", "Save it all the same", "refuses the registry's default policies")
	form.Set("confirm", value(t, page, `name="confirm" value="`))
	r.send(t, home, form).WantStatus(t, 303)
	want(t, r.page(t, 200, home), "The registry's default policies apply")
}

// value returns what follows a text on the page, up to the next quotation mark.
func value(t testing.TB, page, before string) string {
	t.Helper()
	_, after, found := strings.Cut(page, before)
	text, _, _ := strings.Cut(after, `"`)
	if !found {
		t.Fatalf("the page lacks %s", before)
	}
	return text
}

// TestRestOnPage: the page of policies must say why one rests, and let it be confirmed.
func TestRestOnPage(t *testing.T) {
	t.Parallel()
	r := setupPruned(t)
	r.tags(t, "acme/web", 3)
	r.Manage(t, "POST", "/organization/acme/autoprunepolicy?confirm=none", `{"method": "creation_date", "olderThan": "1d", "tagPattern": "^(latest)$"}`).WantStatus(t, 201)
	r.Exec(t, "UPDATE tags SET name = 'latest', created_at = now() - interval '9 days', updated_at = NULL WHERE name = 'pr-1'")
	servertest.Background(t, r.pruner.Run)
	home := "/ui/namespaces/acme/-/policies"
	var page string
	servertest.Eventually(t, "the policy rests", func() bool {
		page = r.page(t, 200, home)
		return strings.Contains(page, "on, rests")
	})
	want(t, page, "rests until somebody confirms that it deletes, once they are old enough, 1 tag with the name latest: acme/web:latest")
	_, form, _ := strings.Cut(page, `class="ask"`)
	form, _, _ = strings.Cut(form, "</form>")
	confirm := fields(form)
	confirm.Set("do", "confirm")
	want(t, string(r.send(t, home, confirm).WantStatus(t, 200).Content), "Confirmed")
	servertest.Eventually(t, "the policy deletes", func() bool {
		return !strings.Contains(string(r.Manage(t, "GET", "/repository/acme/web/tag/", "").Content), "latest")
	})
}

// TestExemptionsOnPage: a repository's page lists what undos have exempted, and ends that.
func TestExemptionsOnPage(t *testing.T) {
	t.Parallel()
	r := setupPruned(t)
	r.tags(t, "acme/web", 2)
	page := "/ui/repositories/acme/web/-/exemptions"
	want(t, r.page(t, 200, page), "No tag of this repository is exempt")
	r.Manage(t, "POST", "/organization/acme/autoprunepolicy", `{"method": "number_of_tags", "numTags": 9}`).WantStatus(t, 201)
	r.Exec(t, `INSERT INTO autopruneexemptions (repository_id, tag_id, policy, version)
		SELECT repository_id, t.id, uuid, p.version FROM tags t, namespaceautoprunepolicy p`)
	want(t, r.page(t, 200, page), "pr-0", "pr-1", "End all")
	want(t, string(r.send(t, page, url.Values{"tag": {"pr-0"}}).WantStatus(t, 200).Content), "Ended 1 exemption.", "pr-1", `!<th scope="row" class="break">pr-0`)
	want(t, string(r.send(t, page, url.Values{}).WantStatus(t, 200).Content), "Ended 1 exemption.", "No tag of this repository is exempt")
	r.page(t, 404, "/ui/namespaces/acme/-/exemptions")
}

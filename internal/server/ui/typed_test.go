package ui_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// TestRefusedFormsStayTyped: a form that the registry refuses comes back as it was typed, with the reason
// beside the field, which describes it; passwords don't come back.
func TestRefusedFormsStayTyped(t *testing.T) {
	t.Parallel()
	r := setupPruned(t, withTrash, func(o *servertest.Options) { o.Access = &auth.Options{} })
	r.AddAccount(t, "root", true)
	r.AddAccount(t, "ann", false)
	root := r.as("root")
	root.tags(t, "acme/web", 2)
	teams := "/ui/namespaces/acme/-/teams"
	root.send(t, teams, url.Values{"do": {"create"}, "team": {"devs"}, "role": {"reader"}}).WantStatus(t, 200)
	for _, c := range []struct {
		path, form string
		has        string // texts with | between them; those that begin with ! must be missing
	}{
		{"/ui/users", "do=create&name=A b&email=a@b.example&superuser=true", `id="wrong-create-name"|value="A b"|value="a@b.example"|value="true" checked> administers`},
		{teams, "do=create&team=DEVS x&role=creator&description=All of them", `id="wrong-create-team"|value="DEVS x"|value="All of them"|<option value="creator" selected>`},
		{teams, "do=add&team=devs&member=nobody", `value="nobody"|role="alert"`},
		{"/ui/account", "do=token&title=laptop&expires=soon&repositories=acme/*&action=pull", `id="wrong-token-expires"|value="laptop"|value="soon"|value="acme/*"|value="pull" checked|<details class="card" open><summary>Make a token`},
		{"/ui/account", "do=password&current=secret-one&password=secret-two&again=secret-three", `id="wrong-password-again"|!secret-`},
		{"/ui/account", "do=password&current=secret-one&password=secret-two&again=secret-two", `id="wrong-password-current"|!secret-`},
		{"/ui/repositories/acme/web/-/pattern", "do=preview&pattern=pr-[&when=now", `id="wrong-preview-pattern"|value="pr-["|<option value="now" selected>`},
		{"/ui/repositories/acme/web/-/pattern", "do=preview&pattern=pr-*&when=in&in=soon", `id="wrong-preview-in"|value="soon"`},
		{"/ui/namespaces/acme/-/free", "do=plan&bytes=much&unused=40d", `id="wrong-plan-bytes"|value="much"|value="40d"`},
		{"/ui/repositories/acme/web/-/settings", "do=protect&pattern=(", `id="wrong-protect-pattern"|value="("`},
		{"/ui/repositories/acme/web/-/settings", "do=delete&confirm=web&override=true", `id="wrong-delete-confirm"|value="web"|value="true" checked> Also if`},
		{"/ui/repositories/acme/web/-/settings", "do=add&who=team&name=nobody&role=write", `value="nobody"|<option value="team" selected>|<option value="write" selected>`},
		{"/ui/namespaces/acme/-/policies/new", "as=form&method=creation_date&olderThan=soon&mode=on", `id="wrong-olderThan"|aria-describedby="wrong-olderThan"|value="soon"`},
	} {
		form, err := url.ParseQuery(c.form)
		if err != nil {
			t.Fatal(err)
		}
		page := string(root.send(t, c.path, form).Content)
		for _, text := range strings.Split(c.has, "|") {
			text, absent := strings.CutPrefix(text, "!")
			if strings.Contains(page, text) == absent {
				t.Errorf("%s, sent %q: the page has %q: %t", c.path, c.form, text, absent)
				if i := strings.Index(page, `<div class="notice`); i >= 0 {
					t.Log(page[i : i+300])
				}
			}
			if id, ok := strings.CutPrefix(text, `id="`); ok && !strings.Contains(page, `aria-describedby="`+id) {
				t.Errorf("%s, sent %q: %s describes no field", c.path, c.form, text)
			}
		}
	}
}

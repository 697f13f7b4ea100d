package ui_test

import (
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/policy"
)

// TestPresetsInTheEditor: a new policy can start with a preset, by a link, and is saved as any other.
func TestPresetsInTheEditor(t *testing.T) {
	t.Parallel()
	r := setupPruned(t)
	r.tags(t, "acme/web", 3)
	const home = "/ui/namespaces/acme/-/policies"
	page := r.page(t, 200, home+"/new")
	for _, p := range policy.Presets {
		want(t, page, `href="`+home+`/new?preset=`+p.Name+`"`, p.Title)
		form := editor(t, r.page(t, 200, home+"/new?preset="+p.Name))
		r.send(t, home+"/preview", form).WantStatus(t, 200)
		a := r.send(t, home+"/new", form)
		if _, button, asks := strings.Cut(string(a.Content), `<button name="confirm" value="`); asks { // the namespace has no release to keep
			form = editor(t, string(a.WantStatus(t, 409).Content))
			codes, _, _ := strings.Cut(button, `"`)
			form.Set("confirm", codes)
			a = r.send(t, home+"/new", form)
		}
		a.WantStatus(t, 303)
	}
	saved := r.policies(t, "/organization/acme")
	if len(saved) != len(policy.Presets) || saved[2].GroupBy.String() != policy.BranchPattern {
		t.Errorf("the policies are %+v", saved)
	}
	page = r.page(t, 200, home)
	want(t, page, "of each group by", "Deletes no tags; manifests without tags stay for 2 weeks")
}

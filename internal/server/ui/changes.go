package ui

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/purser-registry/purser/internal/api"
)

// A form that saves several things sends along what the page had shown of each: the field NAME has the
// hidden field was_NAME beside it. Only what differs from that is saved. What somebody else has changed since
// the page was made stays.

// wasPrefix begins the names of fields that have what the page had shown.
const wasPrefix = "was_"

// unchanged is the value of the parameter "done" after a form in which nothing was changed.
const unchanged, unchangedText = "unchanged", "Nothing was changed, so nothing was saved."

// checkShown refuses a form that lacks what the page had shown of a field.
func checkShown(f url.Values, name string) error {
	if f.Has(wasPrefix + name) {
		return nil
	}
	return formError("The form doesn't say what the page had shown: open the page again.")
}

// changed says whether a field has another text than the page had shown. A field of one line has no line
// breaks, and no space around it.
func changed(f url.Values, name string) bool {
	line := func(text string) string {
		return strings.TrimSpace(strings.NewReplacer("\r", "", "\n", "").Replace(text))
	}
	return line(f.Get(name)) != line(f.Get(wasPrefix+name))
}

// sameElements says whether two lists have the same elements, in whichever order. Nil isn't an empty list.
func sameElements(a, b []string) bool {
	return (a == nil) == (b == nil) && slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

// changedMeanwhile is the refusal of a form whose page is too old.
func changedMeanwhile(text string) error {
	return &apiError{status: http.StatusConflict, message: text}
}

// saveVisibility changes who may pull from a repository.
func (q *request) saveVisibility(p place) (saved bool, err error) {
	if err := checkShown(q.form, "visibility"); err != nil || !changed(q.form, "visibility") {
		return false, err
	}
	in := api.VisibilityChange{InRepository: repositoryOf(p.repository)}
	in.Body.Visibility = q.form.Get("visibility")
	_, err = run(q, api.ChangeVisibility, in)
	return true, err
}

// saveRole changes the role of a member. A role that was taken away meanwhile isn't given again.
func (q *request) saveRole(p place) (saved bool, err error) {
	if err := checkShown(q.form, "role"); err != nil || !changed(q.form, "role") {
		return false, err
	}
	item, of := memberOf(p, q.form)
	switch now, err := run(q, of.Get, item); {
	case err != nil:
		return false, err
	case now.Role != q.form.Get(wasPrefix+"role"):
		return false, changedMeanwhile("Somebody else has changed this role meanwhile, so nothing was saved: it is " + roleName(now.Role) + " now.")
	}
	_, err = run(q, of.Change, api.RoleChange{RoleItem: item, Body: api.RoleForm{Role: q.form.Get("role")}})
	return true, err
}

// saveLabels changes which labels of images count. The API has one call for all of them.
func (q *request) saveLabels(p place) (saved bool, err error) {
	if err := checkShown(q.form, "expires_after"); err != nil {
		return false, err
	}
	of := api.InNamespace{Namespace: p.namespace}
	labels, err := run(q, api.GetTagLabels, of)
	if err != nil {
		return false, err
	}
	for name, label := range map[string]*bool{"expires_after": &labels.Expiry, "immutable": &labels.Immutable} {
		if picked := q.form.Get(name) == "true"; picked != (q.form.Get(wasPrefix+name) == "true") {
			*label, saved = picked, true
		}
	}
	if saved {
		_, err = run(q, api.SetTagLabels, api.TagLabelsChange{InNamespace: of, Body: labels})
	}
	return saved, err
}

// saveQuota gives a namespace a quota, or changes it.
func (q *request) saveQuota(p place) (saved bool, err error) {
	typed, err := quotaForm(q.form)
	if err != nil {
		return false, err
	}
	if q.form.Get("quota") == "" {
		_, err = run(q, api.CreateQuota, api.QuotaNew{At: p.At(), Body: typed})
		return true, err
	}
	item, err := quotaItem(p, q.form)
	if err != nil {
		return false, err
	}
	if err := checkShown(q.form, "bytes"); err != nil {
		return false, err
	}
	var body api.QuotaForm
	if changed(q.form, "bytes") {
		body.Limit, body.LimitBytes, saved = typed.Limit, typed.LimitBytes, true
	}
	if changed(q.form, "repositories") {
		body.LimitRepositories, saved = typed.LimitRepositories, true
	}
	if changed(q.form, "tags") {
		body.LimitTags, saved = typed.LimitTags, true
	}
	if changed(q.form, "Warning") || changed(q.form, "Reject") {
		if body.Limits, err = q.quotaSteps(item, typed.Limits); err != nil {
			return false, err
		}
		saved = true
	}
	if saved {
		_, err = run(q, api.ChangeQuota, api.QuotaChange{QuotaItem: item, Body: body})
	}
	return saved, err
}

// quotaSteps returns the steps that a quota is to have: as they were typed for those kinds that somebody has
// changed in the form, and as they are now for the others. The API replaces the steps of both kinds at once.
func (q *request) quotaSteps(item api.QuotaItem, typed []api.QuotaLimitForm) ([]api.QuotaLimitForm, error) {
	now, err := run(q, api.GetQuota, item)
	if err != nil {
		return nil, err
	}
	steps := []api.QuotaLimitForm{}
	for _, l := range typed {
		if changed(q.form, l.Type) {
			steps = append(steps, l)
		}
	}
	for _, l := range now.Limits {
		if !changed(q.form, l.Type) {
			steps = append(steps, api.QuotaLimitForm{Type: l.Type, Threshold: l.Percent})
		}
	}
	return steps, nil
}

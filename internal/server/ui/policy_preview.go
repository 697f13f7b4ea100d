package ui

import (
	"net/http"

	"github.com/purser-registry/purser/internal/autoprune"
)

// previewLimit is how many tags of each list a preview shows.
const previewLimit = "25"

// previewData says what policies would delete.
type previewData struct {
	Error   string // why there is no preview
	Preview *autoprune.Preview
	Stays   int64
	Going   previewTags
	Would   previewTags
	Staying previewTags
}

// previewTags are the first tags of a kind.
type previewTags struct {
	Title      string
	Tags       []autoprune.PreviewTag
	Of         int
	Repository string // of all of them, "" if there are several
}

// preview asks what a policy, or without one the policies that apply now, would delete.
func (q *request) preview(p place, policy any) (*previewData, error) {
	var v autoprune.Preview
	if err := q.call(http.MethodPost, p.api("/autoprunepolicy/preview")+"?limit="+previewLimit, policy, &v); err != nil {
		if statusOf(err) == 0 {
			return nil, err
		}
		return &previewData{Error: sentence(err.Error())}, nil
	}
	return &previewData{
		Preview: &v, Stays: v.Tags - v.Deleted,
		Going:   previewTags{"Goes", v.Going, int(v.Deleted), p.repository},
		Would:   previewTags{"Would go without observing and waiting", v.Would, int(v.WouldDelete), p.repository},
		Staying: previewTags{"Stays", v.Staying, int(v.Tags - v.Deleted), p.repository},
	}, nil
}

// showPreview shows what the policies that apply now would delete.
func showPreview(q *request) error {
	p := q.place()
	v, err := q.preview(p, nil)
	if err != nil {
		return err
	}
	out := q.placePage(p, "/-/policies")
	out.Crumbs = append(out.Crumbs, crumb{p.Name(), p.Home("")}, crumb{"Policies", p.Home("/-/policies")})
	out.Title, out.Tabs, out.Data = "Preview", nil, v
	out.Lead = "All policies that apply to " + clip(255, p.Name()) + " together. Nothing is deleted."
	out.Same = []same{command("purser prune preview %s --staying", p.Name()), call("POST", p.api("/autoprunepolicy/preview"))}
	return q.show("policy-preview", out)
}

// previewPolicy shows the editor with what the policy in it would delete, if it were the only one.
func previewPolicy(q *request) error {
	e := editorData{Place: q.place(), ID: q.form.Get("policy"), Form: readPolicyForm(q.form)}
	body, err := e.Form.policy()
	if err != nil {
		e.Preview = &previewData{Error: err.Error()}
	} else if e.Preview, err = q.preview(e.Place, body); err != nil {
		return err
	}
	return q.showEditor(http.StatusOK, e, nil)
}

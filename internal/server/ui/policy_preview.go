package ui

import (
	"net/http"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/policy"
)

// previewLimit is how many tags of each list a preview shows.
const previewLimit = 25

// previewData says what policies would delete.
type previewData struct {
	Error   string // why there is no preview
	Found   []policy.Warning
	Preview *autoprune.Preview
	Stays   int64
	// BytesLater says that the bytes weren't added up yet, and BytesAt is the page that has them.
	BytesLater bool
	BytesAt    string
	Going      previewTags
	Would      previewTags
	Staying    previewTags
}

// previewTags are the first tags of a kind.
type previewTags struct {
	Title      string
	Tags       []autoprune.PreviewTag
	Of         int
	Repository string // of all of them, "" if there are several
}

// preview asks what a policy, or without one the policies that apply now, would delete. To add up the
// bytes takes most of the time if there are many tags.
func (q *request) preview(p place, policy *api.PolicyText, bytes bool) (*previewData, error) {
	v, err := run(q, api.PreviewPolicy, api.PreviewInput{PolicyAt: p.PolicyAt(), Limit: previewLimit, TagsOnly: !bytes, Body: policy})
	if err != nil {
		if statusOf(err) == 0 {
			return nil, err
		}
		return &previewData{Error: sentence(err.Error())}, nil
	}
	return &previewData{
		Preview: &v.Preview, Found: v.Found, Stays: v.Tags - v.Deleted, BytesLater: !bytes && v.Deleted > 0,
		Going:   previewTags{"Goes", v.Going, int(v.Deleted), p.repository},
		Would:   previewTags{"Would go without observing and waiting", v.Would, int(v.WouldDelete), p.repository},
		Staying: previewTags{"Stays", v.Staying, int(v.Tags - v.Deleted), p.repository},
	}, nil
}

// showPreview shows what the policies that apply now would delete: first without the bytes, which a
// link leads to. The page's script follows it at once.
func showPreview(q *request) error {
	p := q.place()
	v, err := q.preview(p, nil, q.query("bytes") != "")
	if err != nil {
		return err
	}
	v.BytesAt = p.Home("/-/policies/preview") + "?bytes=yes"
	out := q.placePage(p, "/-/policies")
	out.Crumbs = append(out.Crumbs, crumb{p.Name(), p.Home("")}, crumb{"Policies", p.Home("/-/policies")})
	out.Title, out.Tabs, out.Data = "Preview", nil, v
	out.Lead = "All policies that apply to " + clip(255, p.Name()) + " together. Nothing is deleted."
	out.Same = []same{command("purser prune preview %s --staying", p.Name()), call("POST", p.api("/autoprunepolicy/preview"))}
	return q.show("policy-preview", out)
}

// previewPolicy shows the editor with what the policy in it would delete, if it were the only one. The
// page's script asks for the tags first, and then for the bytes.
func previewPolicy(q *request) error {
	e := editorData{Place: q.place(), ID: q.form.Get("policy"), Form: readPolicyForm(q.form)}
	body, err := e.Form.policy()
	if err != nil {
		e.Preview = &previewData{Error: err.Error()}
	} else if e.Preview, err = q.preview(e.Place, switchedOn(body), q.form.Get("bytes") != "later"); err != nil {
		return err
	}
	return q.showEditor(http.StatusOK, e, nil)
}

// switchedOn returns a policy that observes as one that deletes: a preview of the policy alone shows
// what that would be.
func switchedOn(body api.PolicyText) *api.PolicyText {
	d, err := parseDocument(string(body))
	if err != nil || string(d["mode"]) != `"observe"` {
		return &body
	}
	delete(d, "mode")
	body = api.PolicyText(d.text())
	return &body
}

package ui

import (
	"net/http"
	"strconv"
	"time"

	"github.com/purser-registry/purser/internal/server/ui/chart"
	"github.com/purser-registry/purser/internal/server/ui/format"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/forecast"
	"github.com/purser-registry/purser/internal/policy"
)

// forecastData says what policies would have deleted in the past.
type forecastData struct {
	Place    place
	Days     string
	Forecast forecast.Forecast
	Of       *policyWords // of the policy in the editor, nil: of the policies that apply
	Fields   []field      // of the editor, so that the form can ask again
	Found    chart.Chart
	Deleted  chart.Chart
	Freed    *chart.Chart // nil: hidden
}

// Periods returns the numbers of days that the page offers.
func (d forecastData) Periods() []option {
	return []option{{"30", "30 days"}, {"90", "90 days"}, {"180", "180 days"}, {"365", "a year"}}
}

// showForecast shows what the policies that apply now would have deleted in the past days or, if
// the editor's form was sent, what the policy in it would have.
func showForecast(q *request) error {
	p := q.place()
	d := forecastData{Place: p, Days: oneOf(q.query("days"), "90", "30", "180", "365")}
	in := api.ForecastInput{PolicyAt: p.PolicyAt()}
	if q.Method == http.MethodPost {
		f := readPolicyForm(q.form)
		d.Days = oneOf(q.form.Get("days"), "90", "30", "180", "365")
		policy, err := f.policy()
		if err != nil {
			return q.refusedPolicy(editorData{Place: p, ID: q.form.Get("policy"), Form: f}, err)
		}
		doc, err := parseDocument(string(policy))
		if err != nil {
			return err
		}
		v, err := viewOf(asAnswer(doc))
		if err == nil {
			words := wordsOf(v)
			d.Of = &words
		}
		in.Settings, in.Body = comparedSettings(v.Method), &policy
		for name, values := range q.form {
			for _, value := range values {
				if name != "days" && name != "switch" {
					d.Fields = append(d.Fields, field{name, value})
				}
			}
		}
	}
	var err error
	if in.Days, err = strconv.Atoi(d.Days); err != nil {
		return err
	}
	if d.Forecast, err = run(q, api.ForecastPolicy, in); err != nil {
		if in.Body != nil && statusOf(err) == http.StatusBadRequest {
			return q.refusedPolicy(editorData{Place: p, ID: q.form.Get("policy"), Form: readPolicyForm(q.form)}, err)
		}
		return err
	}
	d.draw()
	out := q.placePage(p, "/-/policies")
	out.Crumbs = append(out.Crumbs, crumb{p.Name(), p.Home("")}, crumb{"Policies", p.Home("/-/policies")})
	out.Title, out.Tabs, out.Data = "Forecast", nil, d
	out.Lead = "What would have been deleted in the past, if a run had taken place once a day. Nothing is deleted."
	out.Same = []same{command("purser prune forecast %s", p.Name()), call("POST", p.api("/autoprunepolicy/forecast"))}
	return q.show("forecast", out)
}

// asAnswer returns a policy with the members of answers, which have the age, the number or the size as value.
func asAnswer(d document) document {
	d = d.writable()
	for _, name := range []string{"olderThan", "numTags", "maxBytes"} {
		if d[name] != nil {
			d["value"] = d[name]
		}
	}
	if d["tagPatternMatches"] == nil {
		d["tagPatternMatches"] = []byte("true")
	}
	return d
}

// comparedSettings returns the ages, numbers or sizes with which a forecast compares a policy's own.
func comparedSettings(method string) []string {
	switch policy.Method(method).Takes() {
	case "numTags":
		return []string{"5", "10", "25", "50", "100"}
	case "maxBytes":
		return []string{"1GiB", "5GiB", "10GiB", "50GiB", "100GiB"}
	}
	return []string{"7d", "14d", "30d", "90d", "180d", "1y"}
}

// draw makes the charts.
func (d *forecastData) draw() {
	found := chart.Series{ID: "found", Title: "Tags that there would have been", Unit: "Tags", Format: format.Number}
	deleted := chart.Series{ID: "deleted", Title: "Tags deleted each day", Unit: "Deleted", Format: format.Number}
	freed := chart.Series{ID: "freed", Title: "Bytes that nothing would need any more", Unit: "Freed", Format: format.Bytes, Binary: true}
	known := len(d.Forecast.Days) > 0
	for _, day := range d.Forecast.Days {
		label := day.At.UTC().Format(time.DateOnly)
		found.Labels, found.Values = append(found.Labels, label), append(found.Values, day.Tags-day.Deleted)
		deleted.Values = append(deleted.Values, day.Deleted)
		if day.Freed == nil {
			known = false
			continue
		}
		freed.Values = append(freed.Values, *day.Freed)
	}
	deleted.Labels, freed.Labels = found.Labels, found.Labels
	d.Found, d.Deleted = chart.LineChart(found), chart.BarChart(deleted)
	if known {
		c := chart.BarChart(freed)
		d.Freed = &c
	}
}

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
		return &previewData{Error: format.Sentence(err.Error())}, nil
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
	out.Lead = "All policies that apply to " + format.Clip(255, p.Name()) + " together. Nothing is deleted."
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

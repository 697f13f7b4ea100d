package ui

import (
	"net/http"
	"strconv"
	"time"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/policy"
)

// forecastData says what policies would have deleted in the past.
type forecastData struct {
	Place    place
	Days     string
	Forecast autoprune.Forecast
	Of       *policyWords // of the policy in the editor, nil: of the policies that apply
	Fields   []field      // of the editor, so that the form can ask again
	Found    chart
	Deleted  chart
	Freed    *chart // nil: hidden
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
	found := series{ID: "found", Title: "Tags that there would have been", Unit: "Tags", Format: formatNumber}
	deleted := series{ID: "deleted", Title: "Tags deleted each day", Unit: "Deleted", Format: formatNumber}
	freed := series{ID: "freed", Title: "Bytes that nothing would need any more", Unit: "Freed", Format: formatBytes, Binary: true}
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
	d.Found, d.Deleted = lineChart(found), barChart(deleted)
	if known {
		c := barChart(freed)
		d.Freed = &c
	}
}

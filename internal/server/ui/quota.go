package ui

import (
	"cmp"
	"html/template"
	"net/url"
	"strconv"
	"strings"

	"github.com/purser-registry/purser/internal/api"
)

// quotaForm reads a quota of a form, in which an empty field stands for no limit.
func quotaForm(f url.Values) (body api.QuotaForm, err error) {
	number := func(field, text string, bits int) int64 {
		n, wrong := strconv.ParseInt(text, 10, bits)
		if wrong != nil && err == nil {
			err = fieldError{field, "“" + clip(40, text) + "” is no whole number."}
		}
		return n
	}
	if text := strings.TrimSpace(f.Get("bytes")); text != "" {
		body.Limit = &text
	} else {
		body.LimitBytes = new(int64)
	}
	body.LimitRepositories, body.LimitTags = new(int64), new(int64)
	for _, limit := range []struct {
		name string
		to   *int64
	}{{"repositories", body.LimitRepositories}, {"tags", body.LimitTags}} {
		if text := strings.TrimSpace(f.Get(limit.name)); text != "" {
			*limit.to = number(limit.name, text, 64)
		}
	}
	body.Limits = []api.QuotaLimitForm{}
	for _, kind := range []string{"Warning", "Reject"} {
		for _, text := range strings.FieldsFunc(f.Get(kind), func(c rune) bool { return c == ',' || c == ' ' }) {
			n := number(kind, strings.TrimSuffix(text, "%"), 32)
			if err == nil && (n < 1 || n > 100) {
				err = fieldError{kind, "“" + clip(40, text) + "” is not between 1 and 100 percent."}
			}
			body.Limits = append(body.Limits, api.QuotaLimitForm{Type: kind, Threshold: int(n)})
		}
	}
	return body, err
}

// quotaFields are the names of a form's fields by the API's members.
var quotaFields = map[string]string{"limit": "bytes", "limit_bytes": "bytes", "limit_repositories": "repositories", "limit_tags": "tags"}

// saveQuota gives a namespace a quota, or changes it.
func (q *request) saveQuota(p place) error {
	body, err := quotaForm(q.form)
	if err != nil {
		return err
	}
	if q.form.Get("quota") == "" {
		_, err = run(q, api.CreateQuota, api.QuotaNew{At: p.At(), Body: body})
		return err
	}
	item, err := quotaItem(p, q.form)
	if err == nil {
		_, err = run(q, api.ChangeQuota, api.QuotaChange{QuotaItem: item, Body: body})
	}
	return err
}

// quotaItem returns the quota that a form names.
func quotaItem(p place, f url.Values) (api.QuotaItem, error) {
	id, err := strconv.ParseInt(f.Get("quota"), 10, 64)
	if err != nil {
		return api.QuotaItem{}, formError("The form names no quota.")
	}
	return api.QuotaItem{At: p.At(), ID: id}, nil
}

// quotaLine is a limit of a quota with what is used of it. The texts have the same kind of unit.
type quotaLine struct {
	Name, Used, Limit string // Limit is "" for none
	used, limit       int64
}

// Share returns what is used and the limit, for a bar.
func (l quotaLine) Share() []int64 { return []int64{l.used, l.limit} }

// quotaLines returns the limits of a quota.
func quotaLines(v api.QuotaView) []quotaLine {
	lines := []quotaLine{
		{Name: "Bytes", Used: formatBytes(v.UsedBytes), used: v.UsedBytes},
		{Name: "Repositories", Used: formatNumber(v.UsedRepositories), used: v.UsedRepositories},
		{Name: "Tags", Used: formatNumber(v.UsedTags), used: v.UsedTags},
	}
	for i, limit := range []*int64{v.LimitBytes, v.LimitRepositories, v.LimitTags} {
		if limit != nil && *limit > 0 {
			lines[i].limit, lines[i].Limit = *limit, formatNumber(*limit)
		}
	}
	if n := lines[0].limit; n > 0 {
		lines[0].Limit = exactBytes(n)
		if isDecimal(lines[0].Limit) {
			lines[0].Used = formatDecimalBytes(v.UsedBytes)
		}
	}
	return lines
}

// quotaEffect says what a quota does now, if that isn't plain from its numbers: it refuses nothing, or
// something is above a limit.
func quotaEffect(v api.QuotaView) string {
	refuses, notices := 0, false // refuses is the percentage above which something is refused, 0: nothing is
	for _, l := range v.Limits {
		notices = notices || l.Type != "Reject"
		if l.Type == "Reject" && (refuses == 0 || l.Percent < refuses) {
			refuses = l.Percent
		}
	}
	var limited bool
	var above []string
	for _, l := range quotaLines(v) {
		limited = limited || l.limit > 0
		if l.limit > 0 && float64(l.used) > float64(l.limit)*float64(cmp.Or(refuses, 100))/100 {
			above = append(above, strings.ToLower(l.Name))
		}
	}
	switch {
	case !limited:
		return "This quota limits nothing: it has no limit."
	case refuses == 0 && len(above) > 0:
		return "The namespace is above its limit of " + strings.Join(above, " and ") + ". Pushes go on: nothing is refused, since no step refuses."
	case refuses == 0 && notices:
		return "This quota refuses nothing, since no step refuses: it only sends notices."
	case refuses == 0:
		return "This quota limits nothing: no step refuses or sends a notice."
	case len(above) > 0 && v.Counted:
		return "The namespace is above what it may have of " + strings.Join(above, " and ") + ": pushes that need more are refused. Nothing is deleted; pulls go on."
	}
	return ""
}

// quotaInputs are the fields of a quota in the form whose field "do" has the value Do.
type quotaInputs struct {
	Do    string
	Typed typed
	Quota *api.QuotaView // nil: the namespace has none yet
}

// quotaInput is one of the fields.
type quotaInput struct {
	Name, Label, Value, Placeholder string
	Number                          bool
	Mark                            template.HTMLAttr
	Fault                           *fault
}

// Inputs returns the fields with what they contain.
func (d quotaInputs) Inputs() (list []quotaInput) {
	for _, in := range []quotaInput{
		{Name: "bytes", Label: "Bytes", Placeholder: "500 GiB"},
		{Name: "repositories", Label: "Repositories", Placeholder: "no limit", Number: true},
		{Name: "tags", Label: "Tags", Placeholder: "no limit", Number: true},
		{Name: "Warning", Label: "Notice at %"},
		{Name: "Reject", Label: "Refuse above %"},
	} {
		in.Value = d.Typed.Value(d.Do, in.Name, d.stored(in.Name))
		in.Mark, in.Fault = d.Typed.Mark(d.Do, in.Name), d.Typed.At(d.Do, in.Name)
		list = append(list, in)
	}
	return list
}

// stored returns what a field contains of the quota that the namespace has.
func (d quotaInputs) stored(name string) string {
	if d.Quota == nil {
		return map[string]string{"Warning": "80", "Reject": "100"}[name]
	}
	switch name {
	case "bytes":
		if n := d.Quota.LimitBytes; n != nil {
			return exactBytes(*n)
		}
		return ""
	case "repositories":
		return limitText(d.Quota.LimitRepositories)
	case "tags":
		return limitText(d.Quota.LimitTags)
	}
	var list []string
	for _, l := range d.Quota.Limits {
		if l.Type == name {
			list = append(list, strconv.Itoa(l.Percent))
		}
	}
	return strings.Join(list, ", ")
}

// limitText returns a limit as text, "" for none.
func limitText(n *int64) string {
	if n == nil {
		return ""
	}
	return strconv.FormatInt(*n, 10)
}

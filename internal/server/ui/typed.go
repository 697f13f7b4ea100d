package ui

import (
	"encoding/json"
	"errors"
	"html/template"
	"net/url"
	"strings"
	"time"
)

// typed is a form that the registry refused. The page shows it again as it was typed, with the reason
// beside the field that is wrong, if the registry has named it. The zero value is a page without such
// a form, whose fields have their defaults.
type typed struct {
	form  url.Values
	field string // that was refused, "" if nobody knows
	why   string
	whole string // the reason as the registry has given it

	expires time.Time // the date of a tag that the form means, which is to be confirmed; zero: none
}

// fault is why a field was refused. ID is that of the element with the reason, and Whole is the reason with
// the name of the member that it is about.
type fault struct{ ID, Text, Whole string }

// fieldError is an error of a form's field, which the page shows beside it.
type fieldError struct{ field, text string }

func (e fieldError) Error() string { return e.text }

// typedForm returns the form of the request with the reason for which it was refused. `fields` has the
// names of fields by the members of the API under which they are sent, where these differ.
func (q *request) typedForm(err error, fields map[string]string) typed {
	t := typed{form: q.form, why: sentence(err.Error()), whole: sentence(err.Error())}
	if e, ok := errors.AsType[fieldError](err); ok {
		t.field = e.field
		return t
	}
	member, why := memberOfError(err)
	if name, ok := fields[member]; ok {
		member = name
	}
	if q.form.Has(member) && member != "" && member != "do" {
		t.field, t.why = member, sentence(why)
	}
	return t
}

// refuse keeps the form of the request for the page, as typedForm does, and returns what stands at the top
// of the page.
func (q *request) refuse(err error, fields map[string]string) *notice {
	q.refused = q.typedForm(err, fields)
	return q.refused.Notice()
}

// memberOfError returns the member or the parameter of the API that an error is about, with the rest
// of the error's text; "" if it names none.
func memberOfError(err error) (member, why string) {
	member, why, found := strings.Cut(err.Error(), ": ")
	if !found || strings.ContainsAny(member, " \"") {
		member, why = "", err.Error()
	}
	var details struct{ Field string }
	if e, ok := errors.AsType[*apiError](err); ok && json.Unmarshal(e.details, &details) == nil && details.Field != "" {
		member = details.Field
	}
	for _, prefix := range []string{"body.", "path.", "query."} {
		member = strings.TrimPrefix(member, prefix)
	}
	member, _, _ = strings.Cut(member, "[") // of an element of a list
	return member, why
}

// Is says whether the refused form is the one whose field "do" has this value.
func (t typed) Is(do string) bool { return t.form != nil && t.form.Get("do") == do }

// Value returns what was typed in a field of a form, else its default.
func (t typed) Value(do, name, otherwise string) string {
	if t.Is(do) {
		return t.form.Get(name)
	}
	return otherwise
}

// Values returns what was typed in the fields of a name, nil if the form wasn't refused.
func (t typed) Values(do, name string) []string {
	if t.Is(do) {
		return t.form[name]
	}
	return nil
}

// Checked says whether a box was checked, else whether it is by default.
func (t typed) Checked(do, name string, otherwise bool) bool {
	if t.Is(do) {
		return t.form.Get(name) != ""
	}
	return otherwise
}

// At returns why a field was refused, nil if it wasn't.
func (t typed) At(do, name string) *fault {
	if !t.Is(do) || t.field != name {
		return nil
	}
	return &fault{"wrong-" + do + "-" + name, t.why, t.whole}
}

// Mark returns the attributes of a field that was refused: it has the focus, and its reason describes it.
// Templates give it names that stand in them, never text of clients.
func (t typed) Mark(do, name string) template.HTMLAttr {
	f := t.At(do, name)
	if f == nil {
		return ""
	}
	return template.HTMLAttr(`aria-invalid="true" autofocus aria-describedby="` + f.ID + `"`) //nolint:gosec // names of templates
}

// Notice returns what stands at the top of the page.
func (t typed) Notice() *notice {
	switch {
	case t.form == nil, !t.expires.IsZero():
		return nil
	case t.field != "":
		return &notice{Bad: true, Text: "Nothing was changed: a field below says why.", Beside: t.At(t.form.Get("do"), t.field)}
	}
	return &notice{Bad: true, Text: t.why}
}

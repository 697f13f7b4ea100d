package ui_test

import (
	"html"
	"net/url"
	"regexp"
	"strings"
	"testing"
)

var (
	inputForm     = regexp.MustCompile(`<(input|textarea|select|option|/select)\b([^>]*)>([^<]*)`)
	attributeForm = regexp.MustCompile(`([a-z-]+)(?:="([^"]*)")?`)
)

// fields returns the fields of a form as a browser would send them.
func fields(form string) url.Values {
	values := make(url.Values)
	selected, first := "", false
	for _, m := range inputForm.FindAllStringSubmatch(form, -1) {
		has := make(map[string]string)
		for _, a := range attributeForm.FindAllStringSubmatch(m[2], -1) {
			if _, twice := has[a[1]]; !twice {
				has[a[1]] = html.UnescapeString(a[2])
			}
		}
		_, checked := has["checked"]
		_, chosen := has["selected"]
		switch {
		case m[1] == "select":
			selected, first = has["name"], true
		case m[1] == "/select":
			selected = ""
		case m[1] == "option" && selected != "":
			if first || chosen {
				values.Set(selected, has["value"])
			}
			first = false
		case has["name"] == "":
		case m[1] == "textarea":
			values.Set(has["name"], strings.TrimPrefix(html.UnescapeString(m[3]), "\n"))
		case has["type"] == "checkbox" || has["type"] == "radio":
			if checked {
				values.Add(has["name"], has["value"])
			}
		default:
			values.Add(has["name"], has["value"])
		}
	}
	return values
}

// formAfter returns the fields of the first form of a page that stands after a text.
func formAfter(t testing.TB, page, text string) url.Values {
	t.Helper()
	_, rest, ok := strings.Cut(page, text)
	form, _, closed := strings.Cut(rest, "</form>")
	if !ok || !closed {
		t.Fatalf("the page has no form after %q:\n%s", text, page)
	}
	return fields(form)
}

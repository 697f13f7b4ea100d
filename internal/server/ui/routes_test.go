package ui

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestLinksLeadBack: for every route and all values of its variables, the link leads to that
// route with those values.
func TestLinksLeadBack(t *testing.T) {
	t.Parallel()
	u := new(UI)
	u.addRoutes()
	name := rapid.StringMatching(`[a-z0-9]+([._-][a-z0-9]+)*`)
	repository := rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(name, 1, 5).Draw(t, "parts"), "/")
	})
	other := rapid.StringMatching(`[A-Za-z0-9_%?#&+ :;"'<>-][A-Za-z0-9._%?#&+ :;"'<>/-]{0,20}`).Filter(func(s string) bool {
		return !strings.HasPrefix(s, "-") && s != "tags"
	})
	for _, rt := range u.router.Routes() {
		rapid.Check(t, func(t *rapid.T) {
			var values []string
			for _, part := range strings.Split(rt.Pattern, "/") {
				switch {
				case part == "{repository}":
					values = append(values, repository.Draw(t, part))
				case strings.HasPrefix(part, "{"):
					values = append(values, other.Draw(t, part))
				}
			}
			at := link(rt.Pattern, values...)
			match := u.router.Match(at)
			found, got := match.Route, match.Values
			if found != rt {
				// A more specific route may have the same path, such as that of a new thing.
				if found != nil && strings.Count(found.Pattern, "{") < strings.Count(rt.Pattern, "{") {
					return
				}
				t.Fatalf("%s leads to %+v, want %s", at, found, rt.Pattern)
			}
			i := 0
			for _, part := range strings.Split(rt.Pattern, "/") {
				if variable, ok := strings.CutPrefix(part, "{"); ok {
					if got[strings.TrimSuffix(variable, "}")] != values[i] {
						t.Fatalf("%s: %v, want %q", at, got, values)
					}
					i++
				}
			}
		})
	}
}

func TestMatchRefuses(t *testing.T) {
	t.Parallel()
	u := new(UI)
	u.addRoutes()
	for _, path := range []string{"/ui/repositories/-/tags", "/ui/repositories/a/-/nothing", "/ui/nothing", "/ui/repositories/a/-/-/tags", "/ui/repositories/%zz", "/ui/repositories/"} {
		if rt := u.router.Match(path).Route; rt != nil {
			t.Errorf("%s: %s", path, rt.Pattern)
		}
	}
}

func TestAPIPath(t *testing.T) {
	t.Parallel()
	if got, want := apiPath("/repository/%s/tag/%s", "a/b", "v%s"), "/repository/a%2Fb/tag/v%25s"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestPagesIn: a page has several lists, each with its own links to its first and its next page, which
// leave the others where they are.
func TestPagesIn(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]string{
		"":                     "{ /ui/x?user=c}",
		"done=saved":           "{ /ui/x?user=c}",
		"q=a&team=t":           "{ /ui/x?q=a&team=t&user=c}",
		"q=a&team=t&user=b":    "{/ui/x?q=a&team=t /ui/x?q=a&team=t&user=c}",
		"user=b":               "{/ui/x /ui/x?user=c}",
		"user=b&user=d&team=t": "{/ui/x?team=t /ui/x?team=t&user=c}",
	} {
		q := &request{Request: httptest.NewRequest("GET", "/ui/x?"+query, nil)}
		if got := fmt.Sprint(q.pagesIn("user", "c")); got != want {
			t.Errorf("%q: %s, want %s", query, got, want)
		}
		if last := q.pagesIn("user", ""); last.Next != "" {
			t.Errorf("%q: after the last page comes %q", query, last.Next)
		}
	}
}

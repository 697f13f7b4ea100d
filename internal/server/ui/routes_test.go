package ui

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

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

func TestFormats(t *testing.T) {
	t.Parallel()
	big := int64(1234567)
	for got, want := range map[string]string{
		formatBytes(0): "0 B", formatBytes(1023): "1023 B", formatBytes(1024): "1.0 KiB", formatBytes(10 << 10): "10 KiB",
		formatBytes(1024*1024 - 1): "1.0 MiB", formatBytes(int64(1500) << 20): "1.5 GiB", formatBytes((*int64)(nil)): "–", formatBytes(-2048): "−2.0 KiB",
		formatNumber(0): "0", formatNumber(999): "999", formatNumber(&big): "1,234,567", formatNumber(-1000): "−1,000",
		plural(1, "tag", "tags"): "1 tag", plural(2000, "tag", "tags"): "2,000 tags",
		shortDigest("sha256:0123456789abcdef0123"): "0123456789ab", shortDigest("sha512:0123456789abcdef"): "sha512:0123456789ab", shortDigest("x"): "x",
		clip(3, "abcdef"): "abc…", clip(9, "a\u202eb"): "a\ufffdb", clip(9, "a\x00b"): "a\ufffdb",
		ago(time.Time{}): "never", ago((*time.Time)(nil)): "never", ago(time.Now().Add(-90 * time.Minute)): "1 h ago",
		ago(time.Now().Add(-3 * time.Second)): "just now", ago(time.Now().Add(72*time.Hour + time.Minute)): "in 3 days",
		sentence("it failed"): "It failed.", sentence("Why?"): "Why?", sentence(" "): "",
		apiPath("/repository/%s/tag/%s", "a/b", "v%s"): "/repository/a%2Fb/tag/v%25s",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
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

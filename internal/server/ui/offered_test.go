package ui_test

import (
	"fmt"
	"html"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// offer is a button of a form on a page.
type offer struct {
	page, action, button string
	form                 url.Values
	danger               bool
}

var (
	formTag    = regexp.MustCompile(`(?s)<form\b([^>]*)>(.*?)</form>`)
	buttonTag  = regexp.MustCompile(`<button\b([^>]*)>`)
	linkTag    = regexp.MustCompile(`<a\b[^>]*\bhref="(/ui/[^"#]*)`)
	inputNames = regexp.MustCompile(`<(?:input|textarea)\b[^>]*\bname="([^"]*)"`)
	longText   = regexp.MustCompile(`(sha256:)?[0-9a-f]{12,}|[0-9]+`)
)

// attributes returns the attributes of an element.
func attributes(text string) map[string]string {
	has := make(map[string]string)
	for _, a := range attributeForm.FindAllStringSubmatch(text, -1) {
		has[a[1]] = html.UnescapeString(a[2])
	}
	return has
}

// offers returns the buttons of the forms of a page that change something.
func offers(path, page string) (list []offer) {
	for _, m := range formTag.FindAllStringSubmatch(page, -1) {
		of := attributes(m[1])
		if of["method"] != "post" || of["action"] == "/auth/logout" {
			continue
		}
		values := fields(m[2])
		for _, name := range inputNames.FindAllStringSubmatch(m[2], -1) {
			if values.Get(name[1]) == "" { // the registry looks at the access before it looks at what was typed
				values.Set(name[1], map[string]string{"expires": "2090-01-02", "in": "2d", "at": "", "confirm": "", "to": "pr-1", "bytes": "1GB", "count": "1"}[name[1]])
				if _, given := map[string]bool{"at": true, "confirm": true}[name[1]]; !given && values.Get(name[1]) == "" {
					values.Set(name[1], "x1")
				}
			}
		}
		for _, b := range buttonTag.FindAllStringSubmatch(m[2], -1) {
			has := attributes(b[1])
			if has["type"] == "button" {
				continue
			}
			o := offer{page: path, action: of["action"], form: maps.Clone(values), danger: strings.Contains(b[1], "danger") || has["data-confirm"] != ""}
			if o.action == "" || strings.HasPrefix(o.action, "?") {
				o.action = path
			}
			if has["formaction"] != "" {
				o.action = has["formaction"]
			}
			if has["name"] != "" {
				o.form.Set(has["name"], has["value"])
			}
			o.button = has["name"] + "=" + has["value"]
			list = append(list, o)
		}
	}
	return list
}

// TestOnlyWhatOneMayIsOffered: whoever follows all links finds no page without access, and no form that the
// registry refuses because of who sends it.
func TestOnlyWhatOneMayIsOffered(t *testing.T) {
	t.Parallel()
	for _, role := range []auth.Role{auth.Reader, auth.Writer, auth.Maintainer, auth.Administrator, auth.NoRole} {
		name := map[bool]string{true: "stranger", false: role.String()}[role == auth.NoRole]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setupPruned(t, withTrash, func(o *servertest.Options) { o.Access = &auth.Options{AnonymousPull: true} })
			r.AddAccount(t, "root", true)
			root := r.as("root")
			root.tags(t, "acme/web", 3)
			root.Manage(t, "POST", "/repository/acme/web/changevisibility", `{"visibility": "public"}`).WantStatus(t, 200)
			root.Do(t, "DELETE", "/v2/acme/web/manifests/pr-2", "").WantStatus(t, 202)
			root.Manage(t, "POST", "/repository/acme/web/tagprotection", `{"pattern": "^v"}`).WantStatus(t, 201)
			root.Manage(t, "POST", "/organization/acme/autoprunepolicy", `{"method": "creation_date", "olderThan": "90d", "mode": "observe"}`).WantStatus(t, 201)
			root.Manage(t, "POST", "/organization/acme/quota", `{"limit_bytes": 1000000, "limits": [{"type": "Reject", "threshold_percent": 100}]}`).WantStatus(t, 201)
			root.Manage(t, "PUT", "/organization/acme/team/devs", `{"role": "reader"}`).WantStatus(t, 200)
			root.Manage(t, "PUT", "/holds/prod?namespace=acme&lease=1h&kind=kubernetes", `{"digests": [{"digest": "`+servertest.Digest("x").String()+`"}]}`).WantStatus(t, 200)
			root.tags(t, "acme/gone", 1)
			root.Manage(t, "DELETE", "/repository/acme/gone", "").WantStatus(t, 204)
			r.AddAccount(t, "ann", false)
			if role != auth.NoRole {
				r.Grant(t, "acme", "ann", role)
			}
			found := walk(t, r.as("ann"))
			if least := map[auth.Role]int{auth.Reader: 2, auth.Writer: 6, auth.Maintainer: 30, auth.Administrator: 40}[role]; len(found) < least {
				t.Errorf("the pages offer %d buttons, want %d at least: the test doesn't find them", len(found), least)
			}
			slices.SortFunc(found, func(a, b offer) int {
				return strings.Compare(fmt.Sprint(a.danger, a.page), fmt.Sprint(b.danger, b.page))
			})
			for _, o := range found {
				a := r.as("ann").send(t, o.action, o.form)
				text := string(a.Content)
				if a.StatusCode == http.StatusForbidden || a.StatusCode == http.StatusUnauthorized || a.StatusCode >= 500 || strings.Contains(text, "may not do this") && strings.Contains(text, `class="notice bad"`) {
					notice := ""
					if _, after, ok := strings.Cut(text, `class="notice bad"`); ok {
						notice, _, _ = strings.Cut(after, "</p>")
					}
					t.Errorf("%s offers %q, and %s answers %v with %d: %s", o.page, o.button, o.action, o.form, a.StatusCode, notice)
				}
			}
		})
	}
}

// walk follows the links of all pages, one of each kind, and returns what they offer.
func walk(t *testing.T, r pruned) (found []offer) {
	t.Helper()
	seen, shapes, offered := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for queue := []string{"/ui/", "/ui/account"}; len(queue) > 0; queue = queue[1:] {
		path := queue[0]
		shape := longText.ReplaceAllString(path, "N")
		if seen[path] || shapes[shape] || strings.HasSuffix(path, "/raw") {
			continue
		}
		seen[path], shapes[shape] = true, true
		if len(seen) > 200 {
			t.Fatal("there are too many kinds of pages")
		}
		a := r.Do(t, "GET", path, "")
		if a.StatusCode != http.StatusOK {
			t.Errorf("a link leads to %s, which has the status %d", path, a.StatusCode)
			continue
		}
		page := string(a.Content)
		for _, o := range offers(path, page) {
			if key := longText.ReplaceAllString(o.action+" "+o.button+" "+o.form.Get("do"), "N"); !offered[key] {
				offered[key] = true
				found = append(found, o)
			}
		}
		for _, m := range linkTag.FindAllStringSubmatch(page, -1) {
			if to := html.UnescapeString(m[1]); !seen[to] && !strings.HasPrefix(to, "/ui/static/") {
				queue = append(queue, to)
			}
		}
	}
	return found
}

//go:build all

package e2e

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

var (
	digestInPath = regexp.MustCompile(`sha256(:|%3A)[0-9a-f]{64}`)
	idInPath     = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]{27}|/\d+$`)
	tagInPath    = regexp.MustCompile(`/-/tags/[^/]+$`)
	memberInPath = regexp.MustCompile(`/-/(robots|teams)/[^/]+$`)
)

// shapeOf returns what kind of page a URL is: the path without the names in it, and the names of
// the query's parameters.
func shapeOf(u *url.URL) string {
	path := idInPath.ReplaceAllString(digestInPath.ReplaceAllString(u.EscapedPath(), "DIGEST"), "ID")
	path = tagInPath.ReplaceAllString(path, "/-/tags/TAG")
	for _, repo := range []string{"acme/web", "acme/deep/er/name", "library/alpine"} {
		path = strings.Replace(path, "/repositories/"+repo, "/repositories/REPO", 1)
	}
	for _, namespace := range []string{"acme", "library"} {
		path = strings.Replace(path, "/namespaces/"+namespace, "/namespaces/NAMESPACE", 1)
	}
	path = memberInPath.ReplaceAllString(path, "/-/$1/NAME")
	var names []string
	for name := range u.Query() {
		names = append(names, name)
	}
	slices.Sort(names)
	return path + "?" + strings.Join(names, ",")
}

// maxPages is how many kinds of pages crawl looks at.
const maxPages = 150

// crawl opens a page of every kind that links lead to, beginning at the overview, and checks each.
// It returns one URL of each kind.
func crawl(t *testing.T, b *browser, r *registry) map[string]string {
	t.Helper()
	seen, kinds := map[string]bool{"/ui/": true}, map[string]string{}
	for queue := []string{"/ui/"}; len(queue) > 0 && len(seen) < 5000; queue = queue[1:] {
		at, err := url.Parse(queue[0])
		if err != nil {
			t.Fatalf("a link to %q: %v", queue[0], err)
		}
		shape := shapeOf(at)
		if kinds[shape] != "" || strings.HasSuffix(at.Path, "/raw") { // a manifest as it was pushed is no page
			continue
		}
		kinds[shape] = at.String()
		if len(kinds) > maxPages {
			t.Fatalf("there are more than %d kinds of pages: shapeOf takes names for kinds", maxPages)
		}
		if status := b.open(r.URL() + at.String()); status != 200 {
			t.Errorf("%s: status %d", at, status)
		}
		b.checkPage(at.String())
		size := eval[int](b, `fetch(location.href).then(r => r.text()).then(t => new Blob([t]).size)`)
		if size > 100<<10 {
			t.Errorf("%s has %d bytes, want at most 100 KiB", at, size)
		}
		links := eval[[]string](b, `[...document.querySelectorAll("a[href]")].map(a => new URL(a.getAttribute("href"), location)).filter(u => u.origin == location.origin && u.pathname.startsWith("/ui/") && !u.hash).map(u => u.pathname + u.search)`)
		for _, link := range links {
			if !seen[link] {
				seen[link] = true
				queue = append(queue, link)
			}
		}
	}
	return kinds
}

// TestUIPages opens every page of the web UI in a browser, on a wide and a narrow screen, light
// and dark. No page may have an error in the console, violate a rule of accessibility, be wider
// than the screen or run what somebody has written into names, annotations and labels.
func TestUIPages(t *testing.T) {
	r, b := openUI(t, options{})
	b.look(1280, 900, "light")
	kinds := crawl(t, b, r)
	for _, want := range []string{"/ui/?", "/ui/repositories?", "/ui/repositories/REPO?", "/ui/namespaces?"} {
		if kinds[want] == "" {
			t.Errorf("no link leads to %s; the pages were %v", want, kinds)
		}
	}
	for _, scheme := range []string{"light", "dark"} {
		for _, width := range []int64{1280, 390} {
			b.look(width, 844, scheme)
			for shape, at := range kinds {
				b.open(r.URL() + at)
				name := fmt.Sprintf("%s %d %s", shape, width, scheme)
				b.checkPage(name)
				b.shoot(name)
			}
		}
	}
}

// TestUIActions does with the mouse and the keyboard what people do in a repository.
func TestUIActions(t *testing.T) {
	r, b := openUI(t, options{})
	b.look(1280, 900, "light")
	if status := b.open(r.URL() + "/"); status != 200 || !strings.Contains(b.text(), "Purser") {
		t.Fatalf("the root: status %d", status)
	}

	// The slash goes to the search, and its results follow what is typed.
	b.open(r.URL() + "/ui/repositories")
	b.do("pressing /", chromedp.KeyEvent("/"))
	b.wait("the search has the focus", `document.activeElement.name == "q"`)
	b.do("searching", chromedp.SendKeys(chromedp.CSS("#main input[name=q]"), "deep"))
	b.wait("the results follow", `document.querySelectorAll("#results tbody tr").length == 1 && location.search.includes("q=deep")`)

	// Tags are picked and deleted, and are back after an undo.
	b.open(r.URL() + "/ui/repositories/acme/web?sort=name")
	b.do("picking tags", chromedp.Click(chromedp.CSS(`input[value^="pr-0@"]`)), chromedp.Click(chromedp.CSS(`input[value^="pr-1@"]`)))
	b.wait("the button counts", `document.querySelector("[data-needs-pick]").textContent.includes("(2)")`)
	b.answer()
	b.do("deleting", chromedp.Click(chromedp.CSS("[data-needs-pick]")), chromedp.WaitVisible(chromedp.CSS(".notice button")))
	if status := getStatus(t.Context(), r.URL()+"/v2/acme/web/manifests/pr-0"); status != 404 {
		t.Errorf("the deleted tag: %d", status)
	}
	b.checkPage("after the deletion")
	b.do("undoing", chromedp.Click(chromedp.CSS(".notice button")))
	b.wait("the notice says so", `document.querySelector(".notice")?.textContent.includes("2 tags are back")`)
	for _, tag := range []string{"pr-0", "pr-1"} {
		if status := getStatus(t.Context(), r.URL()+"/v2/acme/web/manifests/"+tag); status != 200 {
			t.Errorf("the restored tag %s: %d", tag, status)
		}
	}

	// With the keyboard alone: the first stop of a page with tabs, which scroll on a phone, skips to
	// the content, and links open by Enter.
	b.look(200, 740, "light")
	b.open(r.URL() + "/ui/repositories/acme/web/-/settings")
	b.wait("the current tab is seen", `(tab => tab && document.querySelector(".tabs").scrollLeft > 0 && tab.getBoundingClientRect().right <= innerWidth)(document.querySelector(".tabs [aria-current]"))`)
	b.look(1280, 900, "light")
	b.open(r.URL() + "/ui/repositories")
	b.do("tabbing", chromedp.KeyEvent(kb.Tab))
	b.wait("the skip link has the focus", `document.activeElement.className == "skip"`)
	b.do("following it", chromedp.KeyEvent(kb.Enter))
	b.wait("the content is the target", `location.hash == "#main"`)
	b.do("going to a repository", chromedp.Focus(chromedp.CSS(`a[href="/ui/repositories/library/alpine"]`)), chromedp.KeyEvent(kb.Enter))
	b.wait("it is shown", `location.pathname == "/ui/repositories/library/alpine"`)
	b.checkPage("a repository by keyboard")
	if status := b.open(r.URL() + "/ui/repositories/no/such"); status != 404 || !strings.Contains(b.text(), "Not found") {
		t.Errorf("a repository that doesn't exist: %d", status)
	}
}

// TestUIPolicies: the preview of a policy follows what is typed, before anything is saved. Of two
// tabs that edit the policy, the second one to save is shown what the first one has saved, and loses
// nothing of its own.
func TestUIPolicies(t *testing.T) {
	r, b := openUI(t, options{env: []string{"PURSER_AUTOPRUNE_INTERVAL=1h"}})
	b.look(1280, 900, "light")
	policies := r.URL() + "/ui/repositories/acme/web/-/policies"
	b.open(policies + "/new")
	b.wait("the preview is there", `document.querySelector("#preview dd")`)
	eval[string](b, `(select => { select.value = "number_of_tags"; select.dispatchEvent(new Event("change", {bubbles: true})); return "" })(document.querySelector("select[name=method]"))`)
	number := chromedp.CSS("input[name=numTags]")
	b.do("typing a number", chromedp.WaitVisible(number), chromedp.SendKeys(number, "5"))
	b.wait("the preview follows", `document.querySelector("#preview tbody tr") && document.querySelectorAll("#preview dd")[2]?.textContent == "5"`)
	b.checkPage("the editor with a preview")
	var list struct {
		Policies []struct {
			UUID  string
			Value int
		}
	}
	path := "/repository/acme/web/autoprunepolicy/"
	if r.manage("GET", path, nil, &list, 200); len(list.Policies) != 0 {
		t.Fatalf("before it is saved: %+v", list)
	}
	save := chromedp.CSS("form.editor button.main")
	saved := func(tab *browser) { // the registry asks first if the policy deletes most tags
		t.Helper()
		tab.wait("the policy is listed, or asked about", `document.readyState == "complete" && (location.pathname.endsWith("/-/policies") || document.querySelector("button[name=confirm]"))`)
		if eval[bool](tab, `document.querySelector("button[name=confirm]") != null`) {
			tab.do("saving what was asked about", chromedp.Click(chromedp.CSS("button[name=confirm]")))
			tab.wait("the policy is listed", `location.pathname.endsWith("/-/policies") && document.readyState == "complete"`)
		}
	}
	b.do("saving", chromedp.Click(save))
	saved(b)
	if r.manage("GET", path, nil, &list, 200); len(list.Policies) != 1 || list.Policies[0].Value != 5 {
		t.Fatalf("what was saved: %+v", list)
	}

	second := newBrowser(t)
	for _, tab := range []*browser{b, second} {
		tab.open(policies + "/" + list.Policies[0].UUID)
	}
	change := func(tab *browser, to string) {
		t.Helper()
		tab.do("changing the number to "+to, chromedp.WaitVisible(number), chromedp.Clear(number), chromedp.SendKeys(number, to), chromedp.Click(save))
	}
	change(b, "6")
	saved(b)
	change(second, "7")
	second.wait("the tab shows what the other one has saved", `document.querySelector("#main .card .does")?.textContent.includes("6") && document.querySelector("input[name=numTags]").value == "7"`)
	if r.manage("GET", path, nil, &list, 200); list.Policies[0].Value != 6 {
		t.Errorf("the second tab has overwritten what the first one saved: %+v", list)
	}
	second.do("saving all the same", chromedp.Click(save))
	saved(second)
	if r.manage("GET", path, nil, &list, 200); list.Policies[0].Value != 7 {
		t.Errorf("the second tab couldn't save after it was told: %+v", list)
	}
	b.checkPage("the policies")
}

// TestUIOperations does what people who look after a registry do: they protect tags, delete those
// that a pattern selects, ask what would go to free bytes, ask why something is kept, filter the audit log, and delete a repository and take it out of the trash.
func TestUIOperations(t *testing.T) {
	r, b := openUI(t, options{})
	b.look(390, 844, "dark")

	b.open(r.URL() + "/ui/repositories/acme/web/-/settings")
	b.do("protecting tags", chromedp.SendKeys(chromedp.CSS("input[name=pattern]"), "^v[0-9.]+$"), chromedp.Click(chromedp.CSS("button[value=protect]")))
	b.wait("the rule is listed", `[...document.querySelectorAll("#main td, #main th")].some(e => e.textContent.trim() == "^v[0-9.]+$")`)
	b.checkPage("the settings with a rule")
	b.open(r.URL() + "/ui/repositories/acme/web/-/tags/v1.0")
	says(t, b.text(), "Remove the rule first to change the tag.")
	if eval[bool](b, `document.querySelector("button[value=delete], button[value=move]") != null`) {
		t.Error("the page of a protected tag offers to change it")
	}

	digest := eval[string](b, `document.querySelector("#main dl.pairs code").textContent`)
	b.open(r.URL() + "/ui/repositories/acme/web/-/pattern")
	eval[string](b, `(select => { select.value = "now"; select.dispatchEvent(new Event("change", {bubbles: true})); return "" })(document.querySelector("select[name=when]"))`)
	b.wait("the fields of dates are hidden", `["in", "at"].every(name => !document.querySelector("form.pattern input[name=" + name + "]").checkVisibility())`)
	b.do("asking what a pattern selects", chromedp.SendKeys(chromedp.CSS("#main input[name=pattern]"), "pr-5*"+kb.Enter))
	b.wait("the tags are shown", `document.querySelector("#main section.card h2")?.textContent == "11 tags would be deleted now"`)
	b.checkPage("the tags of a pattern")
	b.answer()
	b.do("deleting them", chromedp.Click(chromedp.CSS("button[value=change]")))
	b.wait("the page says so", `document.querySelector(".notice")?.textContent.includes("11 tags were deleted")`)
	if status := getStatus(t.Context(), r.URL()+"/v2/acme/web/manifests/pr-59"); status != 404 {
		t.Errorf("a tag that the pattern selects: %d", status)
	}

	b.open(r.URL() + "/ui/namespaces/acme/-/free")
	b.do("asking what would go", chromedp.SendKeys(chromedp.CSS("#main input[name=bytes]"), "1 GB"+kb.Enter))
	b.wait("the plan is shown", `document.querySelector("#main section.card h2")?.textContent == "What would be deleted"`)
	says(t, b.text(), "Nothing can be freed")
	b.checkPage("a plan to free bytes")

	b.open(r.URL() + "/ui/gc/explain")
	b.do("asking why a manifest is kept", chromedp.SendKeys(chromedp.CSS("#main input[name=digest]"), digest),
		chromedp.SendKeys(chromedp.CSS("#main input[name=repository]"), "acme/web"+kb.Enter))
	b.wait("the page explains it", `document.querySelector("#main section.card h2")?.textContent.startsWith("Manifest")`)
	says(t, b.text(), "acme/web", "v1.0")
	b.checkPage("an explanation")

	b.open(r.URL() + "/ui/repositories/acme/deep/er/name/-/settings")
	confirm := chromedp.CSS("input[name=confirm]")
	b.do("deleting without the right name", chromedp.SendKeys(confirm, "acme/other"), chromedp.Click(chromedp.CSS("section.danger button[value=delete]")))
	b.wait("it is refused", `document.querySelector(".notice.bad")`)
	b.do("deleting", chromedp.Clear(confirm), chromedp.SendKeys(confirm, "acme/deep/er/name"), chromedp.Click(chromedp.CSS("section.danger button[value=delete]")))
	// A page that is opened while the browser follows the answer's redirect would be aborted.
	b.wait("the browser leaves the repository", `document.readyState == "complete" && !location.pathname.startsWith("/ui/repositories/acme/deep/er/name")`)
	eventually(t, time.Minute, func() error {
		if status := getStatus(t.Context(), r.URL()+"/v2/acme/deep/er/name/manifests/latest"); status != 404 {
			return fmt.Errorf("the deleted repository: %d", status)
		}
		return nil
	})
	b.open(r.URL() + "/ui/trash?namespace=acme")
	b.do("restoring", chromedp.Click(chromedp.CSS("button[value=restore]")))
	b.wait("the page says so", `document.querySelector(".notice:not(.bad)")`)
	if status := getStatus(t.Context(), r.URL()+"/v2/acme/deep/er/name/manifests/latest"); status != 200 {
		t.Errorf("the restored repository: %d", status)
	}
	b.checkPage("the trash")

	b.open(r.URL() + "/ui/audit?namespace=acme&kind=delete_repo")
	says(t, b.text(), "acme/deep/er/name")
	b.checkPage("the filtered audit log")
}

// logIn opens a page of a registry with access control, and logs in on the way.
func (b *browser) logIn(r *registry, path, name string) {
	b.t.Helper()
	b.open(r.URL() + path)
	b.do("logging in", chromedp.WaitVisible(chromedp.CSS("input[name=password]")),
		chromedp.SendKeys(chromedp.CSS("input[name=username]"), name),
		chromedp.SendKeys(chromedp.CSS("input[name=password]"), accountPassword+kb.Enter))
	b.wait("the browser comes back", `location.pathname == "`+path+`" && document.readyState == "complete" && document.querySelector("#main")`)
}

// TestUIMembers: an administrator makes an account, puts it into a team, makes a robot, looks at
// what is deployed, and takes all of it away again.
func TestUIMembers(t *testing.T) {
	r, _ := startClosed(t)
	b := newBrowser(t)
	b.look(390, 844, "light")
	b.logIn(r, "/ui/users", "admin")
	press := func(what, selector string) {
		t.Helper()
		b.answer()
		b.do(what, chromedp.Click(chromedp.CSS(selector)))
	}
	b.do("making an account", chromedp.Click(chromedp.CSS("details.card summary")), chromedp.WaitVisible(chromedp.CSS("details.card input[name=name]")),
		chromedp.SendKeys(chromedp.CSS("details.card input[name=name]"), "newcomer"+kb.Enter), chromedp.WaitVisible(chromedp.CSS(".secret code")))
	password := eval[string](b, `document.querySelector(".secret code").textContent`)
	b.checkPage("a new account")
	enters := func(want int) {
		t.Helper()
		_, err := r.API().do(t.Context(), request{method: "GET", path: "/api/v1/user", want: want,
			header: map[string]string{"Authorization": basic("newcomer", password)}})
		if err != nil {
			t.Error(err)
		}
	}
	enters(http.StatusOK)

	const teams = "/ui/namespaces/acme/-/teams"
	b.open(r.URL() + teams)
	b.do("making a team", chromedp.SendKeys(chromedp.CSS("details.card input[name=team]"), "developers"+kb.Enter),
		chromedp.WaitVisible(chromedp.CSS("input[name=member]")))
	b.do("adding a member", chromedp.SendKeys(chromedp.CSS("input[name=member]"), "newcomer"+kb.Enter),
		chromedp.WaitVisible(chromedp.CSS(`[aria-label="Remove newcomer from developers"]`)))
	b.checkPage("a team")
	says(t, string(r.administer(t, "GET", "/organization/acme/team/developers/members", "", http.StatusOK)), `"newcomer"`)
	b.do("opening the team", chromedp.Click(chromedp.CSS(`a[href="`+teams+`/developers"]`)), chromedp.WaitVisible(chromedp.CSS("#groups")))
	b.checkPage("the roles and groups of a team")
	b.do("naming a group", chromedp.SendKeys(chromedp.CSS("textarea[name=oidc]"), "builders"), chromedp.Click(chromedp.CSS("button[value=sync]")))
	b.wait("the group is there", `document.querySelector(".notice")?.textContent.includes("The groups were saved")`)
	b.open(r.URL() + teams)
	press("removing the member", `[aria-label="Remove newcomer from developers"]`)
	b.wait("it has left", `document.querySelector("#main").textContent.includes("It has no members")`)
	b.open(r.URL() + "/ui/namespaces/acme")
	b.wait("the role is in words", `[...document.querySelectorAll("#main td")].some(e => e.textContent == "none (only in single repositories)")`)
	b.open(r.URL() + teams)
	press("deleting the team", "button[value=delete]")
	b.wait("it is gone", `document.querySelector("#main").textContent.includes("has no teams")`)

	b.open(r.URL() + "/ui/namespaces/acme/-/robots")
	b.do("making a robot that may only report", chromedp.Click(chromedp.CSS("details.card summary")), chromedp.WaitVisible(chromedp.CSS("details.card input[name=robot]")),
		chromedp.Click(chromedp.CSS("details.card input[value=hold]")), chromedp.SendKeys(chromedp.CSS("details.card input[name=robot]"), "cluster"+kb.Enter),
		chromedp.WaitVisible(chromedp.CSS(".secret code")))
	b.checkPage("a new robot")
	b.open(r.URL() + "/ui/namespaces/acme/-/robots")
	b.do("opening the robot", chromedp.Click(chromedp.CSS(`a[href="/ui/namespaces/acme/-/robots/cluster"]`)), chromedp.WaitVisible(chromedp.CSS("#ready")))
	b.do("opening its limits", chromedp.Click(chromedp.CSS("details:has(button[value=save]) summary")), chromedp.WaitVisible(chromedp.CSS("button[value=save]")))
	b.do("saving its limits as they are", chromedp.Click(chromedp.CSS("button[value=save]")))
	b.wait("they are as they were", `document.querySelector(".notice")?.textContent.includes("Nothing was changed")`)
	says(t, string(r.administer(t, "GET", "/organization/acme/robots/cluster", "", http.StatusOK)), `"actions":["hold"]`)

	r.administer(t, "PUT", "/holds/prod-eu?namespace=acme&kind=kubernetes&lease=1h", `{"digests":[{"digest":"sha256:`+strings.Repeat("a", 64)+`","used_by":"pod shop/web"}]}`, http.StatusOK)
	b.open(r.URL() + "/ui/holds?namespace=acme")
	b.checkPage("reporters")
	b.do("opening a reporter", chromedp.Click(chromedp.CSS(`a[href^="/ui/holds/prod-eu"]`)))
	b.wait("it says what runs", `document.querySelector("#main").textContent.includes("pod web")`)
	b.checkPage("a reporter")
	b.open(r.URL() + "/ui/holds?namespace=acme")
	press("deleting the reporter", `tr:has(input[value="prod-eu"]) button.danger`)
	b.wait("it is gone", `document.querySelector("#main").textContent.includes("Nobody reports")`)

	b.open(r.URL() + "/ui/users?q=newcomer")
	b.do("opening the account", chromedp.Click(chromedp.CSS("td summary")), chromedp.WaitVisible(chromedp.CSS("button[value=disable]")))
	press("disabling it", "button[value=disable]")
	b.wait("it is disabled", `document.querySelector("#results")?.textContent.includes("disabled")`)
	enters(http.StatusUnauthorized)
	b.checkPage("a disabled account")
}

// TestUIRoles logs in with several roles. Each sees and may change only what its role allows, and
// every page that links lead to works for it.
func TestUIRoles(t *testing.T) {
	r, _ := startClosed(t)
	push, blob := pushers(t, r, map[string]string{"Authorization": basic("admin", accountPassword)})
	fillForPages(t, r, push, blob)
	for _, c := range []struct {
		name  string
		sees  bool // the namespace acme
		works bool // may delete its tags
	}{{"admin", true, true}, {"reader", true, false}, {"stranger", false, false}} {
		t.Run(c.name, func(t *testing.T) {
			b := newBrowser(t)
			b.look(1280, 900, "light")
			b.logIn(r, "/ui/repositories/acme/web", c.name)
			if sees := strings.Contains(b.text(), "pr-58"); sees != c.sees {
				t.Errorf("%s sees the tags: %v, want %v", c.name, sees, c.sees)
			}
			if c.sees && !c.works {
				if n := eval[int](b, `document.querySelectorAll("input[name=tag], [data-needs-pick]").length`); n != 0 {
					t.Errorf("%s is offered to delete tags", c.name)
				}
			}
			if c.works {
				b.do("deleting a tag", chromedp.Click(chromedp.CSS(`input[value^="pr-59@"]`)))
				b.answer()
				b.do("deleting a tag", chromedp.Click(chromedp.CSS("[data-needs-pick]")), chromedp.WaitVisible(chromedp.CSS(".notice")))
				if eval[bool](b, `document.querySelector(".notice").classList.contains("bad")`) {
					t.Errorf("%s may not delete a tag", c.name)
				}
			}
			kinds := crawl(t, b, r)
			if operator := kinds["/ui/system?"] != ""; operator != (c.name == "admin") {
				t.Errorf("%s sees the operators' pages: %v", c.name, operator)
			}
		})
	}
}

// answer makes the browser answer the next question of a page with yes.
func (b *browser) answer() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.accept = true
}

// shoot keeps a picture of the whole page among the test's artifacts.
func (b *browser) shoot(name string) {
	b.t.Helper()
	picture, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
	if err != nil {
		b.t.Fatalf("taking a picture of %s: %v", name, err)
	}
	dir := b.t.ArtifactDir()
	if given := os.Getenv("PURSER_TEST_PICTURES"); given != "" {
		dir = given
	}
	if err := os.WriteFile(filepath.Join(dir, strings.NewReplacer("/", "_", ":", "_", "?", "_").Replace(name)+".png"), picture, 0o644); err != nil {
		b.t.Fatal(err)
	}
}

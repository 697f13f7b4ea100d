package ui_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/builtinpg/pgtest"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/server/servertest"
	"github.com/purser-registry/purser/internal/webhook"
)

// pruned is a registry with auto-pruning.
type pruned struct {
	*servertest.Registry
	pruner *autoprune.Pruner
}

func setupPruned(t *testing.T, change ...func(*servertest.Options)) pruned {
	t.Helper()
	dsn := dbtest.DSN(t)
	pool := dbtest.Open(t, dsn)
	var r pruned
	since := time.Now().AddDate(-1, 0, 0) // always the same: a plan to free bytes holds for these statistics
	change = append(change, func(o *servertest.Options) {
		var err error
		r.pruner, err = autoprune.New(autoprune.Options{
			DB: pool, Catalog: o.Catalog, Log: o.Log, Interval: time.Second,
			Pulls: func(context.Context) (judge.PullRecord, error) {
				return judge.PullRecord{Since: since}, nil
			},
			Used: func(context.Context, int64, []*judge.Tag) error { return nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		o.Management.Autoprune = r.pruner
		if o.Management.Webhooks, err = webhook.New(webhook.Options{DB: pool, Log: o.Log}); err != nil { // it sends nothing until it runs
			t.Fatal(err)
		}
	})
	r.Registry = servertest.NewReplica(t, dsn, pgtest.TempDir(t), change...)
	r.Listen(t)
	return r
}

// as returns the registry, to which requests are sent by an account.
func (r pruned) as(name string) pruned { return pruned{r.With(servertest.As(name)), r.pruner} }

// page gets a page and checks its status.
func (r pruned) page(t testing.TB, status int, path string) string {
	t.Helper()
	return string(r.Do(t, "GET", path, "").WantStatus(t, status).Content)
}

// send sends a form as the registry's own page would.
func (r pruned) send(t testing.TB, path string, form url.Values) servertest.Answer {
	t.Helper()
	return r.Do(t, "POST", path, form.Encode(), "Content-Type", "application/x-www-form-urlencoded", "Origin", r.URL)
}

// tags pushes tags that were pushed as many days ago as their names' numbers say.
func (r pruned) tags(t *testing.T, repository string, n int) {
	t.Helper()
	for i := range n {
		tag := fmt.Sprintf("pr-%d", i)
		r.Put(t, repository, tag, r.Simple(t, repository, repository+tag, nil))
		r.Exec(t, "UPDATE tags SET updated_at = now() - $1 * interval '1 day' WHERE name = $2", i, tag)
	}
}

func (r pruned) policies(t testing.TB, path string) []api.PolicyView {
	t.Helper()
	var list struct{ Policies []api.PolicyView }
	r.Manage(t, "GET", path+"/autoprunepolicy", "").Into(t, 200, &list)
	return list.Policies
}

// want checks that a page has each of the texts, and none of those that begin with "!".
func want(t testing.TB, page string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		absent := strings.HasPrefix(text, "!")
		if text = strings.TrimPrefix(text, "!"); strings.Contains(page, text) == absent {
			t.Errorf("the page has %q: %v, want %v", text, absent, !absent)
			t.Log(page)
		}
	}
}

// editor returns the fields of the editor's form in a page, as a browser would send them.
func editor(t testing.TB, page string) url.Values {
	t.Helper()
	_, page, ok := strings.Cut(page, `<form class="editor"`)
	page, _, _ = strings.Cut(page, "</form>")
	if !ok {
		t.Fatal("the page has no editor")
	}
	return fields(page)
}

func TestPolicyEditor(t *testing.T) {
	t.Parallel()
	r := setupPruned(t)
	r.tags(t, "acme/web", 6)
	for _, home := range []string{"/ui/namespaces/acme/-/policies", "/ui/repositories/acme/web/-/policies"} {
		api := "/organization/acme"
		if strings.Contains(home, "repositories") {
			api = "/repository/acme/web"
		}
		want(t, r.page(t, 200, home), "has no policies of its own", "Make a policy")
		form := editor(t, r.page(t, 200, home+"/new"))
		form.Set("olderThan", "2d")
		form.Set("tagPattern", "^pr-")
		form.Set("keep0.kind", "newest")
		form.Set("keep0.value", "4")
		form.Set("neverBelow", "2")
		form.Set("mode", "observe")
		form.Set("window0.from", "22:00")
		form.Set("window0.to", "06:00")
		form["window0.day"] = []string{"mon", "fri"}
		form.Set("others", `{"labels": {"stage": "test"}}`)
		r.send(t, home+"/new", form).WantStatus(t, 303)
		want(t, r.page(t, 200, home+"?done=created"), "pushed more than 2 days ago", "^pr-", "Keeps the newest 4", "observes", "The policy is saved", "labels stage=test")
		saved := r.policies(t, api)
		if len(saved) != 1 || saved[0].NeverBelow != 2 || saved[0].Labels["stage"] != "test" || saved[0].Windows[0].From != "22:00" || len(saved[0].Windows[0].Days) != 2 {
			t.Fatalf("saved %+v", saved)
		}
		// The editor sends back all that it read, also members without a field.
		page := home + "/" + saved[0].UUID
		r.send(t, page, editor(t, r.page(t, 200, page))).WantStatus(t, 303)
		before, after := saved[0], r.policies(t, api)[0]
		if after.Version != before.Version+1 {
			t.Errorf("version %d after %d", after.Version, before.Version)
		}
		before.Version, before.UpdatedAt = after.Version, after.UpdatedAt
		if a, b := servertest.Encode(t, before), servertest.Encode(t, after); a != b {
			t.Errorf("saved unchanged: %s, was %s", b, a)
		}
		// As JSON, and back.
		form = editor(t, r.page(t, 200, page))
		form.Set("switch", "json")
		asJSON := editor(t, string(r.send(t, page, form).WantStatus(t, 200).Content))
		var doc map[string]any
		if err := json.Unmarshal([]byte(asJSON.Get("document")), &doc); err != nil || doc["method"] != "creation_date" || doc["labels"] == nil || doc["keep"] == nil {
			t.Errorf("document %s: %v", asJSON.Get("document"), err)
		}
		asJSON.Set("switch", "form")
		again := editor(t, string(r.send(t, page, asJSON).WantStatus(t, 200).Content))
		for _, name := range []string{"olderThan", "keep0.value", "window0.from", "neverBelow", "version"} {
			if again.Get(name) != form.Get(name) {
				t.Errorf("%s is %q after JSON, was %q", name, again.Get(name), form.Get(name))
			}
		}
		// Deleting offers to save it again.
		gone := string(r.send(t, home, url.Values{"do": {"delete"}, "policy": {saved[0].UUID}}).WantStatus(t, 200).Content)
		want(t, gone, "The policy is deleted", ">Undo<")
		_, undo, _ := strings.Cut(gone, `role="status"`)
		undo, _, _ = strings.Cut(undo, "</form>")
		r.send(t, home+"/new", fields(undo)).WantStatus(t, 303)
		if back := r.policies(t, api); len(back) != 1 || back[0].Labels["stage"] != "test" || len(back[0].Keep) != 1 {
			t.Errorf("after the undo: %+v", back)
		}
	}
	want(t, r.page(t, 200, "/ui/repositories/acme/web/-/policies"), "These apply here too", "Of namespace acme")
}

func TestPolicyEditorRefusals(t *testing.T) {
	t.Parallel()
	r := setupPruned(t)
	r.tags(t, "acme/web", 1)
	home := "/ui/namespaces/acme/-/policies"
	form := editor(t, r.page(t, 200, home+"/new"))
	form.Set("olderThan", "0d")
	form.Set("tagPattern", `"><script>alert(1)</script>(`)
	page := string(r.send(t, home+"/new", form).WantStatus(t, 400).Content)
	want(t, page, `role="alert"`, "&lt;script&gt;", "!<script>alert")
	if kept := editor(t, page); kept.Get("olderThan") != "0d" || kept.Get("tagPattern") != form.Get("tagPattern") {
		t.Errorf("the form lost what was typed: %v", kept)
	}
	form.Set("tagPattern", "")
	want(t, string(r.send(t, home+"/new", form).WantStatus(t, 400).Content), `aria-invalid="true"`)
	form.Set("olderThan", "5d")
	form.Set("others", `{"olderThan": "9d"}`)
	want(t, string(r.send(t, home+"/new", form).WantStatus(t, 400).Content), "both are filled in: olderThan")
	form.Set("others", `{"nonsense": 1}`)
	want(t, string(r.send(t, home+"/new", form).WantStatus(t, 400).Content), "nonsense")
	want(t, string(r.send(t, home+"/new", url.Values{"as": {"json"}, "document": {"{"}}).WantStatus(t, 400).Content), "no object that can be read")
	if n := len(r.policies(t, "/organization/acme")); n != 0 {
		t.Errorf("%d policies were saved", n)
	}
	// The second of two pages doesn't silently replace what the first has saved.
	form.Set("others", "")
	r.send(t, home+"/new", form).WantStatus(t, 303)
	one := home + "/" + r.policies(t, "/organization/acme")[0].UUID
	first, second := editor(t, r.page(t, 200, one)), editor(t, r.page(t, 200, one))
	first.Set("olderThan", "6d")
	r.send(t, one, first).WantStatus(t, 303)
	second.Set("olderThan", "7d")
	page = string(r.send(t, one, second).WantStatus(t, 409).Content)
	want(t, page, "somebody else has saved this policy", "more than 6 days ago", `value="7d"`)
	if got := r.policies(t, "/organization/acme")[0].Value; got != "6d" {
		t.Errorf("the policy has the age %v", got)
	}
	r.send(t, one, editor(t, page)).WantStatus(t, 303)
	if got := r.policies(t, "/organization/acme")[0].Value; got != "7d" {
		t.Errorf("the policy has the age %v after saving again", got)
	}
}

func TestPolicyPreviewAndForecast(t *testing.T) {
	t.Parallel()
	r := setupPruned(t)
	r.tags(t, "acme/web", 6)
	home := "/ui/repositories/acme/web/-/policies"
	form := editor(t, r.page(t, 200, home+"/new"))
	form.Set("method", "number_of_tags")
	form.Set("numTags", "4")
	page := string(r.send(t, home+"/preview", form).WantStatus(t, 200).Content)
	want(t, page, `id="preview"`, "of 6 tags in 1 repository", "not among the newest 4", ">pr-5<", `value="4"`)
	form.Set("numTags", "none")
	want(t, string(r.send(t, home+"/preview", form).WantStatus(t, 200).Content), `<p class="bad">`, `value="none"`)
	want(t, r.page(t, 200, home+"/preview"), "of 6 tags in 1 repository")
	form.Set("numTags", "4")
	want(t, page, "Would be freed", "by garbage collection, later", "!being added up")
	form.Set("bytes", "later") // as the page's script asks first
	want(t, string(r.send(t, home+"/preview", form).WantStatus(t, 200).Content), ">pr-5<", "being added up", "!by garbage collection, later")
	form.Del("bytes")
	form.Set("mode", "on")
	r.send(t, home+"/new", form).WantStatus(t, 303)
	want(t, r.page(t, 200, home+"/preview"), ">pr-5<", `href="`+home+`/preview?bytes=yes" data-follow="preview"`, "!by garbage collection, later")
	want(t, r.page(t, 200, home+"/preview?bytes=yes"), ">pr-5<", "by garbage collection, later", "!data-follow")
	page = string(r.send(t, "/ui/repositories/acme/web/-/forecast", form).WantStatus(t, 200).Content)
	want(t, page, "Of this policy alone", "<svg", "<desc", "The same as a table", "If it had another setting")
	want(t, r.page(t, 200, "/ui/namespaces/acme/-/forecast?days=30"), "Of all policies that apply to acme")
}

// TestPolicyByBytes: the editor makes a policy by bytes of a size as people write it, and the live
// preview shows what it deletes.
func TestPolicyByBytes(t *testing.T) {
	t.Parallel()
	r := setupPruned(t)
	r.tags(t, "acme/web", 6)
	home := "/ui/repositories/acme/web/-/policies"
	form := editor(t, r.page(t, 200, home+"/new"))
	form.Set("method", "max_bytes")
	form.Set("olderThan", "5d") // the field that was shown before another method was chosen
	want(t, string(r.send(t, home+"/preview", form).WantStatus(t, 200).Content), `<p class="bad">`, "MaxBytes: it is missing")
	form.Set("maxBytes", "ten")
	want(t, string(r.send(t, home+"/new", form).WantStatus(t, 400).Content), `name="maxBytes" value="ten"`, `aria-invalid="true"`)
	form.Set("maxBytes", "10 GiB")
	form.Set("smallerThan", "1 TiB")
	want(t, string(r.send(t, home+"/preview", form).WantStatus(t, 200).Content), `id="preview"`, "of 6 tags in 1 repository", "<dt>Goes</dt><dd>0</dd>", `value="10GiB"`)
	form.Set("maxBytes", "1 kB")
	want(t, string(r.send(t, home+"/preview", form).WantStatus(t, 200).Content), "of 6 tags in 1 repository", ">pr-5<", "!<dt>Goes</dt><dd>0</dd>")
	page := string(r.send(t, home+"/new", form).WantStatus(t, 409).Content)
	want(t, page, "Not saved yet", "Last use is no proof", "no reporter says what runs in this namespace")
	form.Set("confirm", value(t, page, `<button name="confirm" value="`))
	r.send(t, home+"/new", form).WantStatus(t, 303)
	saved := r.policies(t, "/repository/acme/web")
	if len(saved) != 1 || saved[0].Method != "max_bytes" || saved[0].Value != "1kB" || saved[0].SmallerThan.String() != "1TiB" {
		t.Fatalf("saved %+v", saved)
	}
	want(t, r.page(t, 200, home), "least recently used tags of a repository that stores more than 1kB")
	page = r.page(t, 200, home+"/"+saved[0].UUID)
	want(t, page, `<option value="max_bytes" selected>`, `name="maxBytes" value="1kB"`)
	want(t, string(r.send(t, "/ui/repositories/acme/web/-/forecast", editor(t, page)).WantStatus(t, 200).Content), "If it had another setting", "10GiB")
}

func TestPoliciesByRole(t *testing.T) {
	t.Parallel()
	r := setupPruned(t, func(o *servertest.Options) { o.Access = &auth.Options{AnonymousPull: true} })
	r.AddAccount(t, "root", true)
	root := r.as("root")
	root.tags(t, "acme/web", 3)
	for name, role := range map[string]auth.Role{"writer": auth.Writer, "maintainer": auth.Maintainer} {
		r.AddAccount(t, name, false)
		r.Grant(t, "acme", name, role)
	}
	r.page(t, 303, "/ui/namespaces/acme/-/policies") // to the log-in
	r.as("writer").page(t, 403, "/ui/namespaces/acme/-/policies")
	maintainer := r.as("maintainer")
	form := editor(t, maintainer.page(t, 200, "/ui/repositories/acme/web/-/policies/new"))
	r.as("writer").send(t, "/ui/repositories/acme/web/-/policies/new", form).WantStatus(t, 403)
	maintainer.send(t, "/ui/repositories/acme/web/-/policies/new", form).WantStatus(t, 303)
	want(t, maintainer.page(t, 200, "/ui/runs"), "Choose a namespace", ">acme<")
	want(t, maintainer.page(t, 200, "/ui/runs?namespace=acme"), "There are no runs yet")
	want(t, maintainer.page(t, 200, "/ui/holds"), "Choose a namespace")
	want(t, root.page(t, 200, "/ui/holds"), "purser report kubernetes")
}

func TestAsksAndRuns(t *testing.T) {
	t.Parallel()
	r := setupPruned(t)
	r.tags(t, "acme/web", 8)
	servertest.Background(t, r.pruner.Run)
	r.Manage(t, "POST", "/organization/acme/autoprunepolicy", `{"method": "creation_date", "olderThan": "36h", "maxDeleted": 2}`).WantStatus(t, 201)
	home := "/ui/namespaces/acme/-/policies"
	var page string
	servertest.Eventually(t, "the policy asks", func() bool {
		page = r.page(t, 200, home)
		return strings.Contains(page, "Asks: it would delete 6 tags")
	})
	_, form, _ := strings.Cut(page, `class="ask"`)
	form, _, _ = strings.Cut(form, "</form>")
	approve := fields(form)
	approve.Set("do", "approve")
	want(t, string(r.send(t, home, approve).WantStatus(t, 200).Content), "Approved")
	var runs struct{ Runs []autoprune.RunSummary }
	servertest.Eventually(t, "a run deletes", func() bool {
		r.Manage(t, "GET", "/autoprune/runs?namespace=acme", "").Into(t, 200, &runs)
		for _, run := range runs.Runs {
			if run.Deleted == 6 && run.Ended != nil {
				runs.Runs = []autoprune.RunSummary{run}
				return true
			}
		}
		return false
	})
	want(t, r.page(t, 200, "/ui/runs"), runs.Runs[0].ID, ">acme<")
	path := "/ui/runs/" + runs.Runs[0].ID
	want(t, r.page(t, 200, path), "of 8 tags", "acme/web:pr-7", "pushed more than 36 hours ago", "Undo this run")
	want(t, string(r.send(t, path+"/undo", url.Values{}).WantStatus(t, 200).Content), "6 tags are back")
	r.page(t, 404, "/ui/runs/"+strings.Repeat("0", 8)+"-0000-0000-0000-000000000000")
}

// TestExceptionOnPage: a form makes a repository an exception and ends it, and both pages of policies
// say so.
func TestExceptionOnPage(t *testing.T) {
	t.Parallel()
	r := setupPruned(t)
	r.Put(t, "acme/app", "v1", r.Simple(t, "acme/app", 1, nil))
	r.Manage(t, "POST", "/organization/acme/autoprunepolicy", `{"method": "number_of_tags", "numTags": 10}`).WantStatus(t, 201)
	const page = "/ui/repositories/acme/app/-/policies"
	for _, step := range []struct{ do, says, namespace string }{
		{"except", "This repository is an exception", "In these repositories only their own policies delete"},
		{"unexcept", "Keep it from these policies", "This namespace"},
	} {
		r.send(t, page, url.Values{"do": {step.do}}).WantStatus(t, 200)
		if got := r.page(t, 200, page); !strings.Contains(got, step.says) {
			t.Errorf("after %s the page of the repository doesn't say %q", step.do, step.says)
		}
		got := r.page(t, 200, "/ui/namespaces/acme/-/policies")
		if strings.Contains(got, "In these repositories only") != (step.do == "except") {
			t.Errorf("after %s the page of the namespace has %s", step.do, got)
		}
	}
}

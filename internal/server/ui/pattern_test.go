package ui_test

import (
	"net/url"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/server/servertest"
)

const patternPage = "/ui/repositories/acme/web/-/pattern"

// expires returns when a tag is deleted, the zero time for never.
func (r pruned) expires(t testing.TB, repository, tag string) time.Time {
	t.Helper()
	var one struct {
		EndTS int64 `json:"end_ts"`
	}
	r.Manage(t, "GET", "/repository/"+repository+"/tag/"+tag, "").Into(t, 200, &one)
	if one.EndTS == 0 {
		return time.Time{}
	}
	return time.Unix(one.EndTS, 0)
}

// selected sends the form of the page for a pattern, and returns the form that confirms.
func (r pruned) selected(t *testing.T, form url.Values, texts ...string) url.Values {
	t.Helper()
	form.Set("do", "preview")
	page := string(r.send(t, patternPage, form).WantStatus(t, 200).Content)
	want(t, page, texts...)
	confirm := formAfter(t, page, "stay, and are named.")
	confirm.Set("do", "change")
	return confirm
}

// TestTagsByPattern: a page shows which tags a pattern selects. A second form gives these a date, takes
// it away or deletes them, and does nothing if they aren't what the page has shown.
func TestTagsByPattern(t *testing.T) {
	t.Parallel()
	r := setupPruned(t)
	r.tags(t, "acme/web", 3)
	for _, tag := range []string{"v1", "v2", "v3", "v4"} {
		r.Put(t, "acme/web", tag, r.Simple(t, "acme/web", tag, nil))
	}
	r.Manage(t, "POST", "/repository/acme/web/tagprotection", `{"pattern": "^pr-2$"}`).WantStatus(t, 201)
	want(t, r.page(t, 200, "/ui/repositories/acme/web"), `href="`+patternPage+`"`)
	r.page(t, 404, "/ui/repositories/acme/none/-/pattern")
	form := formAfter(t, r.page(t, 200, patternPage), `action="`+patternPage+`"`)
	if form.Get("when") != "in" {
		t.Errorf("the form begins with %v", form)
	}
	form.Set("do", "preview")
	form.Set("pattern", "<b>")
	want(t, string(r.send(t, patternPage, form).WantStatus(t, 400).Content), `role="alert"`, `value="&lt;b&gt;"`)
	form.Set("pattern", "none-*")
	form.Set("in", "2d")
	want(t, string(r.send(t, patternPage, form).WantStatus(t, 200).Content), "No tag matches", "!data-confirm")
	form.Set("in", "soon")
	want(t, string(r.send(t, patternPage, form).WantStatus(t, 400).Content), `role="alert"`, `value="soon"`)
	form.Set("when", "nothing")
	r.send(t, patternPage, form).WantStatus(t, 400)

	// A date, in minutes where months were meant perhaps, and none.
	form = url.Values{"pattern": {"pr-*"}, "when": {"in"}, "in": {"6m"}}
	r.selected(t, form, "3 tags would be deleted 6m from now", "6m is 6m0s", "/-/tags/pr-1", "!or more")
	form.Set("in", "2d")
	confirm := r.selected(t, form, "!m stands for minutes")
	if !r.expires(t, "acme/web", "pr-0").IsZero() {
		t.Fatal("a preview has set a date")
	}
	r.send(t, patternPage, url.Values{"do": {"change"}, "pattern": {"pr-*"}, "when": {"in"}, "in": {"2d"}, "count": {"3"}}).WantStatus(t, 400)
	page := string(r.send(t, patternPage, confirm).WantStatus(t, 200).Content)
	want(t, page, "2 tags will be deleted 2d from now", "1 tag stays", "Tags that stay", ">pr-2<", `role="alert"`)
	if left := time.Until(r.expires(t, "acme/web", "pr-1")) - 48*time.Hour; left > time.Minute || left < -10*time.Minute {
		t.Errorf("it expires in two days and %s", left)
	}
	form.Set("pattern", "pr-1")
	form.Set("when", "never")
	r.send(t, patternPage, r.selected(t, form, "1 tag would lose")).WantStatus(t, 200)
	if at := r.expires(t, "acme/web", "pr-1"); !at.IsZero() {
		t.Errorf("it expires at %s", at)
	}

	// Tags that were moved or pushed since the preview are shown again before anything is deleted.
	form = url.Values{"pattern": {"pr-*"}, "when": {"now"}}
	confirm = r.selected(t, form, "3 tags would be deleted now", `data-confirm="Delete 3 tags?`)
	r.Put(t, "acme/web", "pr-1", r.Simple(t, "acme/web", "moved", nil))
	page = string(r.send(t, patternPage, confirm).WantStatus(t, 409).Content)
	want(t, page, "look at them again", "3 tags would be deleted now")
	r.Put(t, "acme/web", "pr-9", r.Simple(t, "acme/web", "pushed", nil))
	confirm = formAfter(t, page, "stay, and are named.")
	confirm.Set("do", "change")
	page = string(r.send(t, patternPage, confirm).WantStatus(t, 409).Content)
	want(t, page, "4 tags would be deleted now", "half of the repository’s tags")
	if names := r.names(t, "acme/web"); names != "pr-0 pr-1 pr-2 pr-9 v1 v2 v3 v4" {
		t.Errorf("left are %s", names)
	}

	// Half of the tags need their number.
	confirm = formAfter(t, page, "stay, and are named.")
	confirm.Set("do", "change")
	if confirm.Get("count") != "" {
		t.Errorf("the page fills in the number: %v", confirm)
	}
	want(t, string(r.send(t, patternPage, confirm).WantStatus(t, 400).Content), "type the number", "Type 4 to confirm")
	confirm.Set("count", "3")
	want(t, string(r.send(t, patternPage, confirm).WantStatus(t, 409).Content), "Type 4 to confirm")
	confirm.Set("count", "4")
	page = string(r.send(t, patternPage, confirm).WantStatus(t, 200).Content)
	want(t, page, "3 tags were deleted", "1 tag stays", ">pr-2<", ">Undo<")
	if names := r.names(t, "acme/web"); names != "pr-2 v1 v2 v3 v4" {
		t.Errorf("left are %s", names)
	}

	// One click restores these tags, except the one that was pushed since, which the page names.
	back := formAfter(t, page, "3 tags were deleted")
	r.Put(t, "acme/web", "pr-0", r.Simple(t, "acme/web", "pushed since", nil))
	page = string(r.send(t, patternPage, back).WantStatus(t, 200).Content)
	want(t, page, "2 tags are back", "1 tag stays as it is", ">pr-0<", "pushed or restored since", `value="pr-*"`, "!>Undo<")
	if names := r.names(t, "acme/web"); names != "pr-0 pr-1 pr-2 pr-9 v1 v2 v3 v4" {
		t.Errorf("after the undo there are %s", names)
	}
	back.Set("deletion", "x")
	want(t, string(r.send(t, patternPage, back).WantStatus(t, 400).Content), `role="alert"`)
	back.Set("deletion", uuid.NewString())
	want(t, string(r.send(t, patternPage, back).WantStatus(t, 404).Content), `role="alert"`)
}

// TestUndoOfPickedTags: the undo of a deletion of picked tags restores them with their old times, and leaves
// alone what was pushed since, which the page names.
func TestUndoOfPickedTags(t *testing.T) {
	t.Parallel()
	r := setupPruned(t)
	r.tags(t, "acme/web", 3)
	pushed := func() (text string) {
		t.Helper()
		row := r.DB.Pool.QueryRow(t.Context(), "SELECT string_agg(concat_ws(' ', name, created_at, updated_at), '; ' ORDER BY name) FROM tags WHERE name <> 'pr-1'")
		if err := row.Scan(&text); err != nil {
			t.Fatal(err)
		}
		return text
	}
	before := pushed()
	const page = "/ui/repositories/acme/web/-/tags"
	text := string(r.send(t, page, url.Values{"do": {"delete"}, "tag": {"pr-0@x", "pr-1@x", "none@x"}}).WantStatus(t, 200).Content)
	want(t, text, "2 tags were deleted, 1 was not", ">Undo<")
	back := formAfter(t, text, "2 tags were deleted")
	r.Put(t, "acme/web", "pr-1", r.Simple(t, "acme/web", "pushed since", nil))
	text = string(r.send(t, page, back).WantStatus(t, 200).Content)
	want(t, text, "1 tag is back.", "pr-1 stays as it is: there is a tag of this name", `role="alert"`)
	if after := pushed(); after != before {
		t.Errorf("restored as %s, want %s", after, before)
	}
	back.Set("deletion", uuid.NewString())
	want(t, string(r.send(t, page, back).WantStatus(t, 200).Content), "knows no deletion", `role="alert"`)
}

// TestTagsByPatternGoOn: one form changes a bounded number of tags, and its answer has a form that goes
// on where it ended.
func TestTagsByPatternGoOn(t *testing.T) {
	t.Parallel()
	r := setupPruned(t)
	r.tags(t, "acme/web", 1)
	r.Exec(t, `INSERT INTO tags (top_level_namespace_id, repository_id, name, manifest_id)
		SELECT top_level_namespace_id, repository_id, 'many-' || lpad(i::text, 4, '0'), manifest_id FROM tags, generate_series(1, 700) i`)
	form := url.Values{"pattern": {"many-*"}, "when": {"at"}, "at": {"2090-01-02T15:04:05Z"}}
	confirm := r.selected(t, form, "700 tags would be deleted at 2090-01-02T15:04:05Z", "and more: 700 in all", "Type 700 to confirm")
	confirm.Set("count", "700")
	page := string(r.send(t, patternPage, confirm).WantStatus(t, 200).Content)
	want(t, page, "There are more.", ">Go on<")
	r.send(t, patternPage, formAfter(t, page, "There are more.")).WantStatus(t, 200)
	for _, tag := range []string{"many-0001", "many-0700"} {
		if at := r.expires(t, "acme/web", tag); at.Year() != 2090 {
			t.Errorf("%s expires at %s", tag, at)
		}
	}

	// The undo of a deletion in two requests is one.
	form = url.Values{"pattern": {"many-*"}, "when": {"now"}}
	confirm = r.selected(t, form, "700 tags would be deleted now")
	confirm.Set("count", "700")
	page = string(r.send(t, patternPage, confirm).WantStatus(t, 200).Content)
	want(t, page, "There are more.", ">Go on<", ">Undo<")
	page = string(r.send(t, patternPage, formAfter(t, page, "There are more.")).WantStatus(t, 200).Content)
	want(t, page, "!>Go on<", ">Undo<")
	page = string(r.send(t, patternPage, formAfter(t, page, "were deleted.")).WantStatus(t, 200).Content)
	want(t, page, "700 tags are back.", "!There are more.")
}

// TestTagsByPatternByRole: the page offers what the client may do, and nothing else.
func TestTagsByPatternByRole(t *testing.T) {
	t.Parallel()
	r := setupPruned(t, func(o *servertest.Options) { o.Access = &auth.Options{AnonymousPull: true} })
	r.AddAccount(t, "root", true)
	r.as("root").tags(t, "acme/web", 3)
	for name, role := range map[string]auth.Role{"reader": auth.Reader, "writer": auth.Writer, "maintainer": auth.Maintainer} {
		r.AddAccount(t, name, false)
		r.Grant(t, "acme", name, role)
	}
	var made api.TokenAnswer
	r.as("writer").Manage(t, "POST", "/user/apptoken", `{"title": "ci", "actions": ["pull", "push"]}`).Into(t, 200, &made)
	pushes := pruned{r.With(servertest.Basic("writer", made.Token.Code)), r.pruner} // and moves no tags
	const in, now = `<option value="in"`, `<option value="now"`
	want(t, r.as("reader").page(t, 200, patternPage), "You may neither delete tags", "!"+in, "!"+now)
	want(t, pushes.page(t, 200, patternPage), "You may neither delete tags", "!"+in, "!"+now)
	want(t, r.as("writer").page(t, 200, patternPage), in, "!"+now)
	want(t, r.as("maintainer").page(t, 200, patternPage), in, now)
	want(t, r.as("reader").page(t, 200, "/ui/repositories/acme/web"), "!Tags by a pattern")
	want(t, r.as("writer").page(t, 200, "/ui/repositories/acme/web"), "Tags by a pattern")
	form := url.Values{"do": {"preview"}, "pattern": {"pr-1"}, "when": {"now"}}
	r.as("writer").send(t, patternPage, form).WantStatus(t, 403)
	r.as("maintainer").send(t, patternPage, form).WantStatus(t, 200)
	form.Set("when", "never")
	pushes.send(t, patternPage, form).WantStatus(t, 403)
	r.page(t, 303, patternPage) // to the log-in
}

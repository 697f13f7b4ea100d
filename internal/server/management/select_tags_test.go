package management_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/catalog/browse"
	"github.com/purser-registry/purser/internal/oci"
)

// selectTags sends a request about the tags that a pattern selects.
func (r *registry) selectTags(t testing.TB, what, body string, status int) (out api.ChangedTags) {
	t.Helper()
	a := r.Manage(t, "POST", "/repository/acme/app/tags/"+what, body)
	if status != 200 {
		a.WantStatus(t, status)
		return out
	}
	a.Into(t, 200, &out)
	return out
}

// pushTo pushes an image to the tags.
func (r *registry) pushTo(t testing.TB, tags ...string) {
	t.Helper()
	for i, tag := range tags {
		r.Put(t, "acme/app", tag, r.Simple(t, "acme/app", i, nil))
	}
}

func (r *registry) names(t testing.TB) string {
	t.Helper()
	var list struct{ Tags []struct{ Name string } }
	r.Manage(t, "GET", "/repository/acme/app/tag/?sort=name&limit=100", "").Into(t, 200, &list)
	var names []string
	for _, tag := range list.Tags {
		names = append(names, tag.Name)
	}
	return strings.Join(names, " ")
}

// TestDeleteSelectedTags: a dry run says what a pattern selects; what is protected stays and is named;
// a pattern that selects half of all tags needs their number, and any number must be right.
func TestDeleteSelectedTags(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.pushTo(t, "pr-7-a", "pr-7-b", "pr-7-kept", "pr-70-a", "v1", "v2", "v3")
	r.Manage(t, "POST", "/repository/acme/app/tagprotection", `{"pattern": "kept$"}`).WantStatus(t, 201)
	if got := r.selectTags(t, "delete", `{"pattern": "pr-7-*", "dry_run": true}`, 200); got.Selected != 3 || got.Half || strings.Join(got.Tags, " ") != "pr-7-a pr-7-b pr-7-kept" || got.Changed != 0 {
		t.Errorf("%+v", got)
	}
	r.selectTags(t, "delete", `{"pattern": "pr-7-*", "count": 2}`, 409)
	got := r.selectTags(t, "delete", `{"pattern": "pr-7-*", "count": 3}`, 200)
	if got.Changed != 2 || len(got.Refused) != 1 || got.Refused[0].Tag != "pr-7-kept" || got.Next != "" {
		t.Errorf("%+v", got)
	}
	if names := r.names(t); names != "pr-7-kept pr-70-a v1 v2 v3" {
		t.Errorf("left are %s", names)
	}
	for _, pattern := range []string{"*", "v*", "*-*a", "pr-*"} {
		found := r.selectTags(t, "delete", fmt.Sprintf(`{"pattern": %q, "dry_run": true}`, pattern), 200)
		if want := pattern == "*" || pattern == "v*"; found.Half != want {
			t.Errorf("%s: %+v", pattern, found)
		}
	}
	r.selectTags(t, "delete", `{"pattern": "v*"}`, 409)
	r.selectTags(t, "delete", `{"pattern": "*"}`, 409)
	for _, pattern := range []string{"", "a b", "**", "v*/*", "v*é", strings.Repeat("a*", 6), strings.Repeat("a", 129)} {
		r.selectTags(t, "delete", fmt.Sprintf(`{"pattern": %q, "count": 0}`, pattern), 400)
	}
	if names := r.names(t); names != "pr-7-kept pr-70-a v1 v2 v3" {
		t.Errorf("left are %s", names)
	}
	if got := r.selectTags(t, "delete", `{"pattern": "v*", "count": 3}`, 200); got.Changed != 3 {
		t.Errorf("%+v", got)
	}
	if got := r.selectTags(t, "delete", `{"pattern": "none-*", "count": 0}`, 200); got.Selected != 0 || got.Changed != 0 {
		t.Errorf("%+v", got)
	}
	r.Manage(t, "POST", "/repository/acme/none/tags/delete", `{"pattern": "v*"}`).WantStatus(t, 404)
}

// TestUndoOfDeletedSelection: a deletion by a pattern is undone by its id: exactly its tags come back, in
// their old order and with their dates. What was pushed since, or whose manifest is gone, stays as it is and
// is named. Nothing else knows the id.
func TestUndoOfDeletedSelection(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.pushTo(t, "pr-7-a", "pr-7-b", "pr-7-c", "pr-7-d", "pr-8-a", "v1", "v2", "v3", "v4", "v5")
	r.Exec(t, "UPDATE tags SET created_at = now() - interval '9 days', updated_at = now() - interval '8 days' WHERE name = 'pr-7-a'")
	r.selectTags(t, "expire", `{"pattern": "pr-7-a", "in": "3d"}`, 200)
	state := func() (text string) {
		t.Helper()
		row := r.DB.Pool.QueryRow(t.Context(), "SELECT string_agg(concat_ws(' ', name, manifest_id, created_at, updated_at, expires_at), '; ' ORDER BY name) FROM tags")
		if err := row.Scan(&text); err != nil {
			t.Fatal(err)
		}
		return text
	}
	r.Manage(t, "DELETE", "/repository/acme/app/tag/pr-8-a", "").WantStatus(t, 204) // on its own
	var single struct{ Logs []struct{ Run *string } }
	r.Manage(t, "GET", "/repository/acme/app/logs?kind=delete_tag", "").Into(t, 200, &single)
	if len(single.Logs) != 1 || single.Logs[0].Run != nil {
		t.Errorf("a tag that was deleted on its own: %+v", single)
	}
	r.pushTo(t, "pr-8-a")
	before := state()
	first := r.selectTags(t, "delete", `{"pattern": "pr-7-*", "count": 4}`, 200)
	second := r.selectTags(t, "delete", `{"pattern": "v5"}`, 200)
	if first.Deletion == "" || second.Deletion == "" || first.Deletion == second.Deletion {
		t.Fatalf("the deletions are %q and %q", first.Deletion, second.Deletion)
	}
	if got := r.selectTags(t, "delete", `{"pattern": "none-*", "count": 0}`, 200); got.Deletion != "" {
		t.Errorf("a deletion of nothing has the id %s", got.Deletion)
	}
	undo := func(deletion string) (out api.RestoredTags) {
		t.Helper()
		r.Manage(t, "POST", "/repository/acme/app/tags/restore", `{"deletion": "`+deletion+`"}`).Into(t, 200, &out)
		return out
	}
	if got := undo(second.Deletion); got.Restored != 1 || len(got.Refused) != 0 || r.names(t) != "pr-8-a v1 v2 v3 v4 v5" {
		t.Errorf("%+v, and there are %s", got, r.names(t))
	}
	if got := undo(first.Deletion); got.Restored != 4 || len(got.Refused) != 0 || got.Next != "" || got.Deletion != first.Deletion {
		t.Errorf("%+v", got)
	}
	if after := state(); after != before {
		t.Errorf("restored as\n%s, want\n%s", after, before)
	}
	if got := undo(first.Deletion); got.Restored != 0 || len(got.Refused) != 4 || state() != before {
		t.Errorf("undone twice: %+v", got)
	}
	var log struct{ Logs []struct{ Kind, Tag string } }
	r.Manage(t, "GET", "/repository/acme/app/logs?limit=100&run="+first.Deletion, "").Into(t, 200, &log)
	kinds := make(map[string]int)
	for _, e := range log.Logs {
		kinds[e.Kind]++
	}
	if kinds["delete_tag"] != 4 || kinds["revert_tag"] != 4 || len(log.Logs) != 8 {
		t.Errorf("the audit log has %v of the deletion", kinds)
	}

	again := r.selectTags(t, "delete", `{"pattern": "pr-7-*", "count": 4}`, 200)
	r.Put(t, "acme/app", "pr-7-b", r.Simple(t, "acme/app", "pushed since", nil))
	pushed := state()
	r.Exec(t, "DELETE FROM manifests WHERE digest = $1", digest(r.Simple(t, "acme/app", 3, nil)).Bytes())
	got := undo(again.Deletion)
	if got.Restored != 2 || len(got.Refused) != 2 || got.Refused[0].Tag != "pr-7-b" || got.Refused[1].Tag != "pr-7-d" ||
		!strings.Contains(got.Refused[0].Reason, "pushed or restored since") || !strings.Contains(got.Refused[1].Reason, "garbage collection") {
		t.Errorf("%+v", got)
	}
	if r.names(t) != "pr-7-a pr-7-b pr-7-c pr-8-a v1 v2 v3 v4 v5" || !strings.Contains(state(), strings.Split(pushed, "; ")[0]) {
		t.Errorf("left are %s", state())
	}

	r.Put(t, "acme/other", "v1", r.Simple(t, "acme/other", 1, nil))
	for path, bodies := range map[string]map[string]int{
		"/repository/acme/other/tags/restore": {`{"deletion": "` + again.Deletion + `"}`: 404},
		"/repository/acme/none/tags/restore":  {`{"deletion": "` + again.Deletion + `"}`: 404},
		"/repository/acme/app/tags/restore": {`{"deletion": "x"}`: 400, `{"deletion": "00000000-0000-0000-0000-000000000000"}`: 400,
			`{"deletion": "` + uuid.NewString() + `"}`: 404, `{"deletion": "` + again.Deletion + `", "cursor": "x"}`: 400},
		"/repository/acme/app/tags/delete": {`{"pattern": "v1", "deletion": "x"}`: 400},
	} {
		for body, status := range bodies {
			r.Manage(t, "POST", path, body).WantStatus(t, status)
		}
	}
}

// TestUndoOfPagedDeletion: a deletion of more tags than one request deletes has one id, if the client goes on
// with it, and one undo, in pages. A client may choose the id, and so knows it if an answer is lost.
func TestUndoOfPagedDeletion(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.pushTo(t, "v1")
	r.Exec(t, `INSERT INTO tags (top_level_namespace_id, repository_id, name, manifest_id)
		SELECT top_level_namespace_id, repository_id, 'pr-' || lpad(i::text, 4, '0'), manifest_id FROM tags, generate_series(1, 1010) i`)
	id := uuid.NewString()
	body := fmt.Sprintf(`{"pattern": "pr-*", "count": 1010, "deletion": %q}`, id)
	for body != "" {
		got := r.selectTags(t, "delete", body, 200)
		if got.Deletion != id {
			t.Fatalf("%+v", got)
		}
		if body = ""; got.Next != "" {
			body = fmt.Sprintf(`{"pattern": "pr-*", "count": 1010, "after": %q, "deletion": %q}`, got.Next, got.Deletion)
		}
	}
	if names := r.names(t); names != "v1" {
		t.Fatalf("left are %s", names)
	}
	restored, requests, cursor := 0, 0, ""
	for more := true; more; more = cursor != "" {
		var out api.RestoredTags
		r.Manage(t, "POST", "/repository/acme/app/tags/restore", fmt.Sprintf(`{"deletion": %q, "cursor": %q}`, id, cursor)).Into(t, 200, &out)
		restored, requests, cursor = restored+out.Restored, requests+1, out.Next
	}
	var n int
	if err := r.DB.Pool.QueryRow(t.Context(), "SELECT count(*) FROM tags WHERE name LIKE 'pr-%'").Scan(&n); err != nil || n != 1010 || restored != 1010 || requests < 2 {
		t.Errorf("%d tags in %d requests, and there are %d: %v", restored, requests, n, err)
	}
}

// TestSelectionThatWasSeen: a request that sends the selection of a dry run back changes these tags
// and no others, also if there are as many others. It is refused if one of them points to another
// manifest since.
func TestSelectionThatWasSeen(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.pushTo(t, "pr-7-a", "pr-7-b", "v1", "v2", "v3", "v4")
	const dry = `{"pattern": "pr-7-*", "in": "2d", "dry_run": true}`
	request := func(seen string) string {
		return fmt.Sprintf(`{"pattern": "pr-7-*", "count": 2, "selection": %q}`, seen)
	}
	seen := r.selectTags(t, "expire", dry, 200).Selection
	if again := r.selectTags(t, "expire", dry, 200).Selection; seen == "" || again != seen {
		t.Errorf("the same tags are %q and %q", seen, again)
	}
	r.Manage(t, "DELETE", "/repository/acme/app/tag/pr-7-a", "").WantStatus(t, 204)
	r.pushTo(t, "pr-7-c")
	r.selectTags(t, "delete", request(seen), 409)
	seen = r.selectTags(t, "expire", dry, 200).Selection
	r.Put(t, "acme/app", "pr-7-c", r.Simple(t, "acme/app", "moved", nil))
	r.selectTags(t, "delete", request(seen), 409)
	if names := r.names(t); names != "pr-7-b pr-7-c v1 v2 v3 v4" {
		t.Errorf("left are %s", names)
	}
	seen = r.selectTags(t, "expire", dry, 200).Selection
	if got := r.selectTags(t, "delete", request(seen), 200); got.Changed != 2 || got.Selection != "" {
		t.Errorf("%+v", got)
	}
}

// TestExpireSelectedTags: tags get a date by the database's clock, or lose it.
func TestExpireSelectedTags(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.pushTo(t, "pr-7-a", "pr-7-b", "v1", "v2", "v3")
	if got := r.selectTags(t, "expire", `{"pattern": "pr-7-*", "in": "2d"}`, 200); got.Changed != 2 {
		t.Errorf("%+v", got)
	}
	for tag, want := range map[string]bool{"pr-7-a": true, "pr-7-b": true, "v1": false} {
		at := r.expires(t, "acme/app", tag)
		if off := time.Until(time.Unix(at, 0)) - 48*time.Hour; want != (at != 0) || want && (off > time.Minute || off < -10*time.Minute) {
			t.Errorf("%s expires at %d", tag, at)
		}
	}
	if got := r.selectTags(t, "expire", `{"pattern": "pr-7-a", "never": true}`, 200); got.Changed != 1 || r.expires(t, "acme/app", "pr-7-a") != 0 {
		t.Errorf("%+v", got)
	}
	for _, body := range []string{`{"pattern": "v1"}`, `{"pattern": "v1", "in": "2d", "never": true}`, `{"pattern": "v1", "in": "0d"}`, `{"pattern": "v1", "in": "soon"}`,
		`{"pattern": "v1", "at": "2001-01-01T00:00:00Z"}`, `{"pattern": "v1", "at": "tomorrow"}`} {
		r.selectTags(t, "expire", body, 400)
	}
}

// TestSelectedTagsArePaged: a request changes a bounded number of tags, and the next goes on.
func TestSelectedTagsArePaged(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.pushTo(t, "v1")
	r.Exec(t, `INSERT INTO tags (top_level_namespace_id, repository_id, name, manifest_id)
		SELECT top_level_namespace_id, repository_id, 'pr-' || lpad(i::text, 4, '0'), manifest_id FROM tags, generate_series(1, 1100) i`)
	seen := r.selectTags(t, "expire", `{"pattern": "pr-*", "in": "2d", "dry_run": true}`, 200).Selection
	body, total, requests := fmt.Sprintf(`{"pattern": "pr-*", "count": 1100, "selection": %q}`, seen), 0, 0
	for body != "" {
		got := r.selectTags(t, "expire", strings.Replace(body, "{", `{"in": "2d", `, 1), 200)
		total, requests = total+got.Changed, requests+1
		if body = ""; got.Next != "" {
			body = fmt.Sprintf(`{"pattern": "pr-*", "count": 1100, "after": %q, "selection": %q}`, got.Next, got.Selection)
		}
	}
	r.selectTags(t, "expire", `{"in": "2d", "pattern": "*", "after": "-"}`, 409) // every tag, and no number
	if total != 1100 || requests < 3 {
		t.Errorf("%d tags in %d requests", total, requests)
	}
}

// TestDeleteSelectedBesidePushes: while tags are deleted by a pattern, clients move them. A tag that
// was moved after it was selected stays.
func TestDeleteSelectedBesidePushes(t *testing.T) {
	t.Parallel()
	r := setup(t)
	other := r.Simple(t, "acme/app", "other", nil)
	for range 5 {
		r.pushTo(t, "pr-a", "pr-b", "pr-c", "v1", "v2", "v3", "v4")
		before, err := browse.New(r.Catalog).SelectTags(t.Context(), "acme/app", "pr-*")
		if err != nil {
			t.Fatal(err)
		}
		var group sync.WaitGroup
		group.Go(func() { r.Put(t, "acme/app", "pr-b", other) })
		group.Go(func() { r.selectTags(t, "delete", `{"pattern": "pr-*"}`, 200) })
		group.Wait()
		if names := r.names(t); names != "pr-b v1 v2 v3 v4" && names != "v1 v2 v3 v4" {
			t.Fatalf("left are %s", names)
		}
		r.Put(t, "acme/app", "pr-b", other)
		unmoved := catalog.Condition{Tag: "pr-b", IfMatch: &catalog.Validators{Digests: []oci.Digest{before.Tags[1].Digest}}}
		err = r.Catalog.DeleteTagIf(t.Context(), "acme/app", "pr-b", unmoved)
		if err == nil {
			t.Fatal("a tag that was moved meanwhile was deleted")
		}
	}
}

package management_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/catalog"
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
		before, err := r.Catalog.SelectTags(t.Context(), "acme/app", "pr-*")
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

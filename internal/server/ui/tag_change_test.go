package ui_test

import (
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// tagged is a registry with a repository acme/web that has two images, and accounts by role.
func tagged(t *testing.T) (r pruned, first, second oci.Digest) {
	t.Helper()
	r = setupPruned(t, func(o *servertest.Options) { o.Access = &auth.Options{} })
	r.AddAccount(t, "root", true)
	root := r.as("root")
	first = root.Put(t, "acme/web", "v1.0", root.Simple(t, "acme/web", 1, nil))
	second = root.Put(t, "acme/web", "v2.0", root.Simple(t, "acme/web", 2, nil))
	for name, role := range map[string]auth.Role{"reader": auth.Reader, "writer": auth.Writer, "maintainer": auth.Maintainer, "admin": auth.Administrator} {
		r.AddAccount(t, name, false)
		r.Grant(t, "acme", name, role)
	}
	return r, first, second
}

const taggedPage = "/ui/repositories/acme/web/-/tags/v1.0"

func (r pruned) tag(t *testing.T, name string) (tag api.ListedTag) {
	t.Helper()
	r.as("root").Manage(t, "GET", "/repository/acme%2Fweb/tag/"+name, "").Into(t, 200, &tag)
	return tag
}

func TestMoveTag(t *testing.T) {
	t.Parallel()
	r, first, second := tagged(t)
	writer := r.as("writer")
	want(t, r.as("reader").page(t, 200, taggedPage), "!Move the tag", "!Show the date", "!Protect this tag", "!Delete this tag", "!Why is it kept?", "!Who pulled it?", `!id="change"`)
	page := writer.page(t, 200, taggedPage)
	want(t, page, "Move the tag", "Show the date", "!Protect this tag", "!Delete this tag")
	form := formAfter(t, page, "<h3>Move</h3>")
	form.Set("do", "move")
	form.Set("to", "v3")
	want(t, string(writer.send(t, taggedPage, form).WantStatus(t, 400).Content), `id="wrong-move-to"`, "has no tag v3", `value="v3"`)
	form.Set("to", "sha256:12")
	want(t, string(writer.send(t, taggedPage, form).WantStatus(t, 400).Content), `id="wrong-move-to"`, `value="sha256:12"`)
	form.Set("to", servertest.Digest("none").String())
	want(t, string(writer.send(t, taggedPage, form).WantStatus(t, 400).Content), `id="wrong-move-to"`)
	form.Set("to", "v2.0")
	page = string(writer.send(t, taggedPage, form).WantStatus(t, 200).Content)
	want(t, page, "v1.0 points to "+second.String()[7:19]+" now")
	if got := r.tag(t, "v1.0").ManifestDigest; got != second {
		t.Fatalf("v1.0 points to %s", got)
	}
	// The form was made when the tag pointed to the first image: sent again, it changes nothing.
	form.Set("to", first.String())
	want(t, string(writer.send(t, taggedPage, form).WantStatus(t, 400).Content), "points there already")
	third := r.as("root").Put(t, "acme/web", "v1.0", r.as("root").Simple(t, "acme/web", 3, nil))
	undo := fields(between(t, page, `role="status"`, "</form>"))
	want(t, string(writer.send(t, taggedPage, undo).WantStatus(t, 412).Content), "Nothing was changed", "somebody else has moved")
	if got := r.tag(t, "v1.0").ManifestDigest; got != third {
		t.Errorf("v1.0 points to %s, which the page of the form had not shown", got)
	}
}

// between returns what stands in a page between two texts.
func between(t *testing.T, page, from, to string) string {
	t.Helper()
	_, page, ok := strings.Cut(page, from)
	page, _, closed := strings.Cut(page, to)
	if !ok || !closed {
		t.Fatalf("the page has nothing between %q and %q", from, to)
	}
	return page
}

func TestExpireTag(t *testing.T) {
	t.Parallel()
	r, first, second := tagged(t)
	writer := r.as("writer")
	for text, told := range map[string]string{"": "Write a period", "two": `id="wrong-expire-in"`} {
		want(t, string(writer.send(t, taggedPage, url.Values{"do": {"expire"}, "in": {text}}).WantStatus(t, 400).Content), told, `value="`+text+`"`)
	}
	want(t, string(writer.send(t, taggedPage, url.Values{"do": {"expire"}, "at": {"2020-01-02T03:04"}}).WantStatus(t, 400).Content), "has passed already", `value="2020-01-02T03:04"`)
	page := string(writer.send(t, taggedPage, url.Values{"do": {"expire"}, "at": {"2090-01-02T03:04"}}).WantStatus(t, 200).Content)
	want(t, page, "Delete this tag at 2090-01-02 03:04:00 UTC?")
	if r.tag(t, "v1.0").EndTS != 0 {
		t.Error("the tag has a date before somebody has confirmed it")
	}
	form := fields(between(t, page, `id="confirm"`, "</form>"))
	form.Set("do", "set-expiry")
	// Somebody moves the tag before the date is confirmed: the other image gets no date.
	r.as("root").Manage(t, "PUT", "/repository/acme%2Fweb/tag/v1.0", `{"manifest_digest": "`+second.String()+`"}`).WantStatus(t, 201)
	want(t, string(writer.send(t, taggedPage, form).WantStatus(t, 412).Content), "Nothing was changed")
	if r.tag(t, "v1.0").EndTS != 0 {
		t.Error("a tag that was moved meanwhile got the date")
	}
	r.as("root").Manage(t, "PUT", "/repository/acme%2Fweb/tag/v1.0", `{"manifest_digest": "`+first.String()+`"}`).WantStatus(t, 201)
	want(t, string(writer.send(t, taggedPage, form).WantStatus(t, 200).Content), "is deleted at 2090-01-02 03:04:00 UTC", "Take the date away")
	if at := time.Unix(r.tag(t, "v1.0").EndTS, 0).UTC(); at.Format(time.RFC3339) != "2090-01-02T03:04:00Z" {
		t.Errorf("it expires at %s", at)
	}
	form.Del("date")
	writer.send(t, taggedPage, form).WantStatus(t, 200)
	if r.tag(t, "v1.0").EndTS != 0 {
		t.Error("the tag still has its date")
	}
	want(t, string(writer.send(t, taggedPage, url.Values{"do": {"expire"}, "in": {"3d"}}).WantStatus(t, 200).Content), "Delete this tag at ", "That is in 3 days")
}

func TestProtectTag(t *testing.T) {
	t.Parallel()
	r, _, _ := tagged(t)
	maintainer := r.as("maintainer")
	r.as("root").Put(t, "acme/web", "v1x0", r.as("root").Simple(t, "acme/web", 4, nil))
	want(t, maintainer.page(t, 200, taggedPage), `^v1\.0$`, "Delete this tag")
	want(t, string(maintainer.send(t, taggedPage, url.Values{"do": {"protect"}}).WantStatus(t, 200).Content), "A rule protects it", `^v1\.0$ of repository acme/web`, `href="/ui/repositories/acme/web/-/settings#protected"`, "!Delete this tag", "!Move the tag")
	if !r.tag(t, "v1.0").IsProtected || r.tag(t, "v1x0").IsProtected {
		t.Error("the rule doesn't protect exactly this tag")
	}
	want(t, r.as("writer").page(t, 200, taggedPage), "A rule protects it", `!href="/ui/repositories/acme/web/-/settings`, "!Move the tag", "!Remove the rule first")
	r.as("writer").send(t, "/ui/repositories/acme/web/-/tags/v1x0", url.Values{"do": {"protect"}}).WantStatus(t, 403)

	r.as("root").Manage(t, "PUT", "/repository/acme%2Fweb/tag/v2.0", `{"immutable": true}`).WantStatus(t, 201)
	const immutable = "/ui/repositories/acme/web/-/tags/v2.0"
	want(t, maintainer.page(t, 200, immutable), "It is immutable", "!A rule protects it", "Let it be moved and deleted")
	want(t, string(maintainer.send(t, immutable, url.Values{"do": {"unlock"}}).WantStatus(t, 200).Content), "can be moved and deleted again", "Delete this tag")

	page := r.as("admin").page(t, 200, taggedPage)
	want(t, page, "Why is it kept?", "Who pulled it?")
	for _, m := range regexp.MustCompile(`class="button" href="(/ui/(?:gc|audit)[^"]*)"`).FindAllStringSubmatch(page, -1) {
		text := r.as("admin").page(t, 200, strings.ReplaceAll(m[1], "&amp;", "&"))
		want(t, text, "!No access")
	}
}

// TestDeleteTagAsShown: the page deletes and restores a tag only as it has shown it.
func TestDeleteTagAsShown(t *testing.T) {
	t.Parallel()
	r, first, second := tagged(t)
	maintainer := r.as("maintainer")
	form := url.Values{"do": {"delete"}, "seen": {second.String()}}
	want(t, string(maintainer.send(t, taggedPage, form).WantStatus(t, 412).Content), "Nothing was changed")
	form.Set("seen", first.String())
	page := string(maintainer.send(t, taggedPage, form).WantStatus(t, 200).Content)
	undo := fields(between(t, page, `role="status"`, "</form>"))
	third := r.as("root").Put(t, "acme/web", "v1.0", r.as("root").Simple(t, "acme/web", 3, nil))
	want(t, string(maintainer.send(t, taggedPage, undo).WantStatus(t, 412).Content), "Nothing was changed")
	if got := r.tag(t, "v1.0").ManifestDigest; got != third {
		t.Errorf("the undo has replaced what was pushed meanwhile by %s", got)
	}
}

// TestRestoreTagAsShown: the history of a repository restores a tag only if that points to what it did when
// the page was made, also a tag that was deleted, and one whose present state is on another page.
func TestRestoreTagAsShown(t *testing.T) {
	t.Parallel()
	r, first, second := tagged(t)
	root, maintainer := r.as("root"), r.as("maintainer")
	const history = "/ui/repositories/acme/web/-/history"
	push := func(tag string, n int) oci.Digest {
		t.Helper()
		return root.Put(t, "acme/web", tag, root.Simple(t, "acme/web", n, nil))
	}
	restore := func(path string, d oci.Digest) url.Values {
		t.Helper()
		return fields(between(t, maintainer.page(t, 200, path), `<input type="hidden" name="tag" value="v1.0"><input type="hidden" name="digest" value="`+d.String()+`">`, "</form>"))
	}
	refuses := func(form url.Values, d, stays oci.Digest) {
		t.Helper()
		form = merge(form, "do", "restore", "tag", "v1.0", "digest", d.String())
		want(t, string(maintainer.send(t, history, form).WantStatus(t, 200).Content), `class="notice bad"`, "v1.0 was not restored.")
		if got := r.tag(t, "v1.0").ManifestDigest; got != stays {
			t.Errorf("v1.0 points to %s, and was pushed as %s meanwhile", got, stays)
		}
	}
	root.Manage(t, "DELETE", "/repository/acme%2Fweb/tag/v1.0", "").WantStatus(t, 204)
	form := restore(history, first)
	third := push("v1.0", 3)
	refuses(form, first, third)
	refuses(url.Values{}, first, third)

	// The present state is on the first page, the former one on the second.
	for i := range 40 {
		root.Manage(t, "PUT", "/repository/acme%2Fweb/tag/other"+string(rune('a'+i%26))+string(rune('a'+i/26)), `{"manifest_digest": "`+second.String()+`"}`).WantStatus(t, 201)
	}
	fourth := push("v1.0", 4)
	next := regexp.MustCompile(`href="([^"]*)" rel="next"`).FindStringSubmatch(maintainer.page(t, 200, history))
	if next == nil {
		t.Fatal("the history has one page")
	}
	later := strings.ReplaceAll(next[1], "&amp;", "&")
	form = restore(later, first)
	fifth := push("v1.0", 5)
	refuses(form, first, fifth)
	form = merge(restore(later, first), "do", "restore", "tag", "v1.0", "digest", first.String())
	want(t, string(maintainer.send(t, history, form).WantStatus(t, 200).Content), "v1.0 points to ")
	if got := r.tag(t, "v1.0").ManifestDigest; got != first || fourth == fifth {
		t.Errorf("v1.0 points to %s", got)
	}
}

package ui

import (
	"cmp"
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/purser-registry/purser/internal/server/ui/chart"
	"github.com/purser-registry/purser/internal/server/ui/format"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/policy"
)

// tagPath is the page of a tag, to which its forms are sent too.
const tagPath = "/ui/repositories/{repository}/-/tags/{tag}"

// tagItem is a tag as inputs of the management API name it.
func tagItem(repository, tag string) api.TagItem {
	return api.TagItem{InRepository: repositoryOf(repository), Tag: tag}
}

// tagInfo is what the registry says about one tag.
type tagInfo struct {
	api.ListedTag
	Kind, Pulls string
	Expires     time.Time
}

// showTag shows a tag and its history, with a form that was refused, or a notice about what a form has
// done. A tag that was deleted has a page as long as the audit log knows it.
func (q *request) showTag(status int, refused typed, n *notice) error {
	if n == nil {
		n = refused.Notice()
	}
	repository, name := q.repository(), q.values["tag"]
	d := struct {
		Repository, Action string
		Tag                *tagInfo // nil: it was deleted
		History            historyList
		Pages              pages
		Clients            []client
		MayDelete          bool
		Seen               string      // what the page shows that the tag points to: a digest, or none
		Change             tagChanges  // of a tag that exists
		Plot               *chart.Plot // of pulls, nil if there is nothing to show
	}{Seen: "none", Repository: repository, Action: link(tagPath, repository, name), MayDelete: q.mayDelete(place{repository: repository})}
	found, missing := run(q, api.GetTag, tagItem(repository, name))
	if missing != nil && statusOf(missing) != http.StatusNotFound {
		return missing
	}
	if missing == nil {
		t := &tagInfo{ListedTag: found}
		d.Tag = t
		t.Kind = format.Clip(100, format.KindOf(t.MediaType, t.ArtifactType))
		if t.Pulls = "0 pulls"; t.PullDisplay != nil {
			t.Pulls = *t.PullDisplay + " pulls"
		}
		if t.PullCount != nil && *t.PullCount == 1 {
			t.Pulls = "1 pull"
		}
		if t.EndTS > 0 {
			t.Expires = time.Unix(t.EndTS, 0)
		}
		d.Clients = q.clients(pullOf(repository, found))
		d.Seen, d.Change = found.ManifestDigest.String(), q.tagChanges(repository, t, refused)
		var err error
		if d.Plot, err = pullPlot(q, api.GetTagHistory, api.TagHistory{TagItem: tagItem(repository, name), HistoryDays: lastDays}); err != nil {
			return err
		}
	}
	history, next, err := q.history(api.TagQuery{InRepository: repositoryOf(repository), Specific: name, Limit: 25})
	switch {
	case err != nil && !hidden(err):
		return err
	case missing != nil && len(history) == 0 && n == nil && q.query("page") == "":
		return missing
	}
	d.History = historyList{Repository: repository, Rows: history}
	for i := range history {
		history[i].Action, history[i].Seen = d.Action, d.Seen
		if d.Tag != nil && history[i].ManifestDigest == found.ManifestDigest {
			history[i].MayRestore = false
		}
	}
	d.Pages = q.pagesOf(nil, next)
	p := q.repositoryPage(repository, "none")
	p.Title, p.Heading, p.Tabs, p.Notice = repository+":"+name, name, nil, n
	p.Crumbs = append(p.Crumbs, crumb{repository, link("/ui/repositories/{repository}", repository)})
	if d.Tag == nil {
		p.Lead = "This tag doesn't exist now. The history shows what it pointed to, and restores it as long as that is here."
	}
	p.Data = d
	p.Same = []same{
		command("purser tag show %s:%s", repository, name), command("purser tag delete %s:%s", repository, name),
		command("purser tag move %s:%s DIGEST", repository, name), command("purser tag expire %s:%s --in 2w", repository, name),
		command("purser tag restore %s:%s DIGEST", repository, name),
		call("GET", apiPath("/repository/%s/tag/%s", repository, name)), call("PUT", apiPath("/repository/%s/tag/%s", repository, name)),
		call("GET", apiPath("/repository/%s/tag/%s/pull_statistics/history", repository, name)),
		call("GET", apiPath("/repository/%s/tag", repository)+"?onlyActiveTags=false&specificTag="+name),
	}
	return q.showStatus(status, "tag", p)
}

// historyList is a list of what tags point to, and what they pointed to before.
type historyList struct {
	Repository string
	Names      bool // of several tags
	Rows       []historyRow
}

// historyRow is a tag, or a former state of one: what it pointed to until it was moved or deleted.
type historyRow struct {
	api.ListedTag

	Action, Kind, Ended string
	Seen                string // what the tag points to when the page is made: a digest, or none
	Since, Until        time.Time
	MayRestore          bool // there is something to restore
}

// endings say how a tag's former state came to an end.
var endings = map[string]string{
	"move_tag": "moved", "revert_tag": "moved by a restore", "delete_tag": "deleted", "autoprune_tag_delete": "pruned by a policy",
}

// history lists the changes of a repository's tags, or of those that the input selects, the latest
// first.
func (q *request) history(in api.TagQuery) (rows []historyRow, next string, err error) {
	in.OnlyActive, in.NextPage = api.Some(false), q.query("page")
	mayRestore := q.may(auth.Maintain, auth.OfRepository(in.Repository))
	list, err := run(q, api.ListTags, in)
	if err != nil {
		return nil, "", err
	}
	for _, t := range list.Tags {
		r := historyRow{ListedTag: t, Action: link(tagPath, in.Repository, t.Name), Kind: format.Clip(100, format.KindOf(t.MediaType, t.ArtifactType))}
		if r.StartTS > 0 {
			r.Since = time.Unix(r.StartTS, 0)
		}
		if r.EndTS > 0 && r.EndedBy != "" {
			r.Until, r.MayRestore = time.Unix(r.EndTS, 0), !r.ManifestGone && mayRestore
			if r.Ended = endings[r.EndedBy]; r.Ended == "" {
				r.Ended = "ended"
			}
		}
		rows = append(rows, r)
	}
	return rows, list.NextPage, nil
}

// showHistory lists all changes of a repository's tags, with a notice about what a form has done.
func (q *request) showHistory(n *notice) error {
	repository := q.repository()
	rows, next, err := q.history(api.TagQuery{
		InRepository: repositoryOf(repository), NameFilter: api.NameFilter{Contains: q.query("q")}, Limit: 40,
	})
	if err != nil {
		return err
	}
	action, now := link("/ui/repositories/{repository}/-/history", repository), make(map[string]oci.Digest)
	for _, r := range rows {
		if r.EndedBy == "" {
			now[r.Name] = r.ManifestDigest
		}
	}
	if err := q.addPresent(repository, rows, now); err != nil {
		return err
	}
	for i := range rows {
		name := rows[i].Name
		rows[i].Action, rows[i].Seen = action, cmp.Or(now[name].String(), "none")
		rows[i].MayRestore = rows[i].MayRestore && now[name] != rows[i].ManifestDigest
	}
	p := q.repositoryPage(repository, "/-/history")
	p.Title, p.Heading, p.Notice = "History of "+repository, repository, n
	p.Data = struct {
		Repository, Action, Query string
		History                   historyList
		Pages                     pages
		ReadsLog                  bool
	}{repository, action, q.query("q"), historyList{repository, true, rows}, q.pagesOf(q.keep("q"), next), q.may(api.ListLogs.Access, auth.OfRepository(repository))}
	p.Same = []same{
		command("purser audit list --repo %s", repository), command("purser tag restore %s:TAG DIGEST", repository),
		call("GET", apiPath("/repository/%s/tag", repository)+"?onlyActiveTags=false"),
	}
	return q.show("history", p)
}

// addPresent adds to `now` what those tags point to whose present state isn't in the rows: it is on another page,
// or there is none.
func (q *request) addPresent(repository string, rows []historyRow, now map[string]oci.Digest) error {
	var names []string
	for _, r := range rows {
		if _, known := now[r.Name]; !known && r.MayRestore {
			names, now[r.Name] = append(names, r.Name), oci.Digest{}
		}
	}
	if names == nil {
		return nil
	}
	list, err := run(q, api.ListTags, api.TagQuery{InRepository: repositoryOf(repository), Names: names})
	if err != nil {
		return err
	}
	for _, t := range list.Tags {
		now[t.Name] = t.ManifestDigest
	}
	return nil
}

// changeHistory restores a former state of a tag.
func changeHistory(q *request) error {
	tag := q.form.Get("tag")
	n, err := q.restoreTag(q.repository(), tag, q.form.Get("digest"), api.SeenTag{IfDigest: q.form.Get("seen")})
	if err != nil {
		text := err.Error()
		if formStatus(err) == 0 {
			_, text = messageOf(q.Context(), err)
		}
		n = &notice{Bad: true, Text: format.Clip(128, tag) + " was not restored. " + format.Sentence(text)}
	}
	return q.showHistory(n)
}

// tagChanges are the forms of a tag's page. Each sends the digest that the page has shown, and the registry
// changes nothing if the tag points to another manifest by then.
type tagChanges struct {
	Typed    typed
	MayMove  bool      // and set a date: the client may push, and move tags
	Expires  time.Time // the date that the page asks to confirm, zero: none
	Guarded  string    // why nobody may move or delete the tag, "" if one may
	Rule     *crumb    // where the rule that protects the tag is managed, nil: there is none, or it is hidden
	Pattern  string    // of a rule that protects exactly this tag, "" if the client may not make one
	MayUndo  bool      // end that the tag is immutable
	Why, Log string    // the pages that say why its image is kept, and who pulled it; "" if the client may not see them
}

// tagChanges returns what the client may do with a tag.
func (q *request) tagChanges(repository string, t *tagInfo, refused typed) tagChanges {
	of := auth.OfRepository(repository)
	d := tagChanges{Typed: refused, Expires: refused.expires, MayMove: q.may(auth.Push, of) && q.ui.server.MayOverwrite(q.Context(), repository)}
	mayProtect := q.may(api.CreateProtection.Access, of)
	switch {
	case t.Immutable:
		d.Guarded, d.MayUndo = "It is immutable: nobody moves or deletes it.", mayProtect
	case t.IsProtected:
		d.Guarded = "A rule protects it: nobody moves or deletes it."
		d.Rule = q.ruleOf(repository, t.ProtectedBy)
	case mayProtect:
		d.Pattern = "^" + regexp.QuoteMeta(t.Name) + "$"
	}
	if q.may(api.ExplainManifest.Access, of) {
		d.Why = "/ui/gc/explain" + arguments("digest", repository+":"+t.Name)
	}
	if q.may(api.ListLogs.Access, of) {
		d.Log = "/ui/audit" + arguments("repository", repository, "tag", t.Name, "kind", "pull_repo")
	}
	return d
}

// ruleOf returns where the rule is managed that protects a tag, as the API names it: PATTERN of PLACE.
func (q *request) ruleOf(repository, protectedBy string) *crumb {
	if protectedBy == "" {
		return nil
	}
	namespace, _, _ := strings.Cut(repository, "/")
	const below = "/-/settings#protected"
	for _, p := range []place{{namespace, repository}, {namespace: namespace}} {
		kind := "repository "
		if p.IsNamespace() {
			kind = "namespace "
		}
		if strings.HasSuffix(protectedBy, " of "+kind+p.Name()) && q.may(api.ListProtection.Access, p.At().Resource()) {
			return &crumb{format.Clip(300, protectedBy), p.Home(below)}
		}
	}
	if strings.HasSuffix(protectedBy, " of the registry") && q.operator() {
		return &crumb{format.Clip(300, protectedBy), defaultsPath}
	}
	return &crumb{format.Clip(300, protectedBy), ""}
}

// changeTag runs a form of a tag's page.
func changeTag(q *request) error {
	repository, name, seen := q.repository(), q.values["tag"], api.SeenTag{IfDigest: q.form.Get("seen")}
	item := tagItem(repository, name)
	var n *notice
	var err error
	switch q.form.Get("do") {
	case "restore":
		n, err = q.restoreTag(repository, name, q.form.Get("digest"), seen)
	case "delete":
		n, err = q.deleteShown(item, seen)
	case "move":
		n, err = q.moveTag(item, seen)
	case "expire":
		return q.previewExpiry()
	case "set-expiry":
		n, err = q.setExpiry(item, seen)
	case "protect":
		pattern := "^" + regexp.QuoteMeta(name) + "$"
		_, err = run(q, api.CreateProtection, api.ProtectionNew{At: api.At{Repository: repository}, Body: api.NewProtectionRule{Pattern: pattern}})
		n = &notice{Text: "A rule of the repository protects this tag now: nobody moves or deletes it."}
	case "unlock":
		off := false
		_, err = run(q, api.ChangeTag, api.TagChange{TagItem: item, Body: api.MovedTag{Immutable: &off}})
		n = &notice{Text: "The tag can be moved and deleted again."}
	default:
		err = formError("The form doesn't say what to do.")
	}
	if err == nil {
		return q.showTag(http.StatusOK, typed{}, n)
	}
	return q.refusedTag(err)
}

// refusedTag shows the tag again, with the reason why a form didn't work.
func (q *request) refusedTag(err error) error {
	status := formStatus(err)
	switch {
	case status == 0:
		return err
	case status == http.StatusPreconditionFailed:
		return q.showTag(status, typed{form: q.form, why: "Nothing was changed: somebody else has moved or deleted this tag since the page was made. The page shows it as it is now; do it again if you still want to."}, nil)
	}
	t := q.typedForm(err, map[string]string{"manifest_digest": "to"})
	switch {
	case t.Is("delete"):
		t.why = "The tag was not deleted. " + t.why
	case t.Is("restore"):
		t.field, t.why = "", q.values["tag"]+" was not restored. "+format.Sentence(err.Error())
	}
	return q.showTag(status, t, nil)
}

// deleteShown deletes the tag if it is as the page has shown it.
func (q *request) deleteShown(item api.TagItem, seen api.SeenTag) (*notice, error) {
	before, err := q.digestOf(item.Repository, item.Tag)
	if err == nil {
		_, err = run(q, api.DeleteTag, api.TagDeletion{TagItem: item, SeenTag: seen})
	}
	if err != nil {
		return nil, err
	}
	n := &notice{Text: "The tag was deleted. Garbage collection keeps its image for a while, so it can be restored."}
	if !before.IsZero() && q.may(api.RestoreTag.Access, item.Resource()) {
		n.Undo = &undo{q.URL.EscapedPath(), "Undo", []field{{"do", "restore"}, {"digest", before.String()}, {"seen", "none"}}}
	}
	return n, nil
}

// moveTag points the tag to a manifest of the repository, which the form names by its digest or by another
// tag.
func (q *request) moveTag(item api.TagItem, seen api.SeenTag) (*notice, error) {
	to := strings.TrimSpace(q.form.Get("to"))
	if to == "" {
		return nil, fieldError{"to", "Write a digest, or another tag of this repository."}
	}
	digest := to
	if !strings.Contains(to, ":") {
		found, err := run(q, api.GetTag, tagItem(item.Repository, to))
		switch {
		case statusOf(err) == http.StatusNotFound, statusOf(err) == http.StatusBadRequest:
			return nil, fieldError{"to", "This repository has no tag " + format.Clip(128, to) + "."}
		case err != nil:
			return nil, err
		}
		digest = found.ManifestDigest.String()
	} else if _, err := oci.ParseDigest(to); err != nil {
		return nil, fieldError{"to", format.Sentence(err.Error())}
	}
	if digest == seen.IfDigest {
		return nil, fieldError{"to", "The tag points there already."}
	}
	if _, err := run(q, api.ChangeTag, api.TagChange{TagItem: item, SeenTag: seen, Body: api.MovedTag{ManifestDigest: digest}}); err != nil {
		if statusOf(err) == http.StatusNotFound {
			err = fieldError{"to", format.Sentence(err.Error())}
		}
		return nil, err
	}
	n := &notice{Text: item.Tag + " points to " + format.ShortDigest(digest) + " now."}
	if seen.IfDigest != "" {
		n.Undo = &undo{q.URL.EscapedPath(), "Undo", []field{{"do", "move"}, {"to", seen.IfDigest}, {"seen", digest}}}
	}
	return n, nil
}

// expiry reads the date of a form, which has a period or a day and time in UTC.
func (q *request) expiry(now time.Time) (at time.Time, err error) {
	in, date := strings.TrimSpace(q.form.Get("in")), strings.TrimSpace(q.form.Get("at"))
	switch {
	case in != "" && date != "":
		return at, fieldError{"at", "Write a period or a time, and not both."}
	case in != "":
		age, err := policy.ParseAge(in)
		if err != nil {
			return at, fieldError{"in", format.Sentence(err.Error())}
		}
		return now.Add(age.Duration()).UTC().Truncate(time.Second), nil
	case date == "":
		return at, fieldError{"in", "Write a period, such as 2w, or a time."}
	}
	for _, layout := range []string{"2006-01-02T15:04", "2006-01-02T15:04:05", time.RFC3339} {
		if at, err := time.Parse(layout, date); err == nil {
			return at.UTC(), nil
		}
	}
	return at, fieldError{"at", "“" + format.Clip(40, date) + "” is no time like 2030-01-02T15:04."}
}

// previewExpiry shows the date that a form means, before it is set.
func (q *request) previewExpiry() error {
	at, err := q.expiry(time.Now())
	if err == nil && !at.After(time.Now()) {
		err = fieldError{"at", format.Exact(at) + " has passed already."}
	}
	if err != nil {
		return q.refusedTag(err)
	}
	return q.showTag(http.StatusOK, typed{form: q.form, expires: at}, nil)
}

// setExpiry sets the date at which the tag is deleted, or takes it away.
func (q *request) setExpiry(item api.TagItem, seen api.SeenTag) (*notice, error) {
	value, n := api.TagExpiration("null"), &notice{Text: "The tag has no date of deletion any more."}
	if text := q.form.Get("date"); text != "" {
		at, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return nil, formError("The form has no date.")
		}
		quoted, _ := json.Marshal(at) // a time
		value, n.Text = quoted, "The tag is deleted at "+format.Exact(at)+". A push to it takes the date away."
	}
	_, err := run(q, api.ChangeTag, api.TagChange{TagItem: item, SeenTag: seen, Body: api.MovedTag{Expiration: &value}})
	return n, err
}

// digestOf returns the digest of the manifest to which a tag points, the zero one if there is no such tag.
func (q *request) digestOf(repository, tag string) (d oci.Digest, err error) {
	t, err := run(q, api.GetTag, tagItem(repository, tag))
	if statusOf(err) == http.StatusNotFound {
		return d, nil
	}
	return t.ManifestDigest, err
}

// restoreTag points a tag to a manifest that it had before, and returns what the page says of it.
func (q *request) restoreTag(repository, tag, digest string, seen api.SeenTag) (*notice, error) {
	if seen.IfDigest == "" {
		return nil, formError("The form doesn't say what the page had shown: open the page again.")
	}
	before, err := q.digestOf(repository, tag)
	if err == nil {
		in := api.TagRestoration{TagItem: tagItem(repository, tag), SeenTag: seen}
		if in.Body.ManifestDigest, err = digestIn("body.manifest_digest", digest); err == nil {
			_, err = run(q, api.RestoreTag, in)
		}
	}
	if err != nil {
		return nil, err
	}
	n := &notice{Text: tag + " points to " + format.ShortDigest(digest) + " again."}
	n.Undo = &undo{link(tagPath, repository, tag), "Undo", []field{{"do", "delete"}, {"seen", digest}}}
	if !before.IsZero() {
		n.Undo.Fields = []field{{"do", "restore"}, {"digest", before.String()}, {"seen", digest}}
	}
	return n, nil
}

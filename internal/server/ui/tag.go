package ui

import (
	"net/http"
	"time"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/oci"
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

// showTag shows a tag and its history, with a notice about what a form has done. A tag that was
// deleted has a page as long as the audit log knows it.
func (q *request) showTag(n *notice) error {
	repository, name := q.repository(), q.values["tag"]
	d := struct {
		Repository, Action string
		Tag                *tagInfo // nil: it was deleted
		History            historyList
		Pages              pages
		Clients            []client
		MayDelete          bool
		Plot               *plot // of pulls, nil if there is nothing to show
	}{Repository: repository, Action: link(tagPath, repository, name), MayDelete: q.mayDelete(place{repository: repository})}
	found, missing := run(q, api.GetTag, tagItem(repository, name))
	if missing != nil && statusOf(missing) != http.StatusNotFound {
		return missing
	}
	if missing == nil {
		t := &tagInfo{ListedTag: found}
		d.Tag = t
		t.Kind = clip(100, kindOf(t.MediaType, t.ArtifactType))
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
		history[i].Action = d.Action
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
		command("purser tag restore %s:%s DIGEST", repository, name),
		call("GET", apiPath("/repository/%s/tag/%s", repository, name)),
		call("GET", apiPath("/repository/%s/tag/%s/pull_statistics/history", repository, name)),
		call("GET", apiPath("/repository/%s/tag", repository)+"?onlyActiveTags=false&specificTag="+name),
	}
	return q.show("tag", p)
}

// changeTag deletes a tag, or points it to a manifest that it had before.
func changeTag(q *request) error {
	repository, name := q.repository(), q.values["tag"]
	if q.form.Get("do") == "restore" {
		return q.showTag(q.restoreTag(repository, name, q.form.Get("digest")))
	}
	before, err := q.digestOf(repository, name)
	if err == nil {
		_, err = run(q, api.DeleteTag, api.TagDeletion{TagItem: tagItem(repository, name)})
	}
	if err != nil {
		if statusOf(err) == 0 {
			return err
		}
		return q.showTag(&notice{Bad: true, Text: "The tag was not deleted. " + sentence(err.Error())})
	}
	n := &notice{Text: "The tag was deleted. Garbage collection keeps its image for a while, so it can be restored."}
	if before != "" {
		n.Undo = &undo{q.URL.EscapedPath(), "Undo", []field{{"do", "restore"}, {"digest", before}}}
	}
	return q.showTag(n)
}

// digestOf returns the digest of the manifest to which a tag points, "" if there is no such tag.
func (q *request) digestOf(repository, tag string) (string, error) {
	t, err := run(q, api.GetTag, tagItem(repository, tag))
	if statusOf(err) == http.StatusNotFound {
		err = nil
	}
	return t.ManifestDigest.String(), err
}

// restoreTag points a tag to a manifest that it had before, and returns what the page says of it.
func (q *request) restoreTag(repository, tag, digest string) *notice {
	before, err := q.digestOf(repository, tag)
	if err == nil {
		in := api.TagRestoration{TagItem: tagItem(repository, tag)}
		if in.Body.ManifestDigest, err = digestIn("body.manifest_digest", digest); err == nil {
			_, err = run(q, api.RestoreTag, in)
		}
	}
	if err != nil {
		_, text := messageOf(q.Context(), err)
		return &notice{Bad: true, Text: tag + " was not restored. " + sentence(text)}
	}
	n := &notice{Text: tag + " points to " + shortDigest(digest) + " again."}
	n.Undo = &undo{link(tagPath, repository, tag), "Undo", []field{{"do", "delete"}}}
	if before != "" {
		n.Undo.Fields = []field{{"do", "restore"}, {"digest", before}}
	}
	return n
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
		r := historyRow{ListedTag: t, Action: link(tagPath, in.Repository, t.Name), Kind: clip(100, kindOf(t.MediaType, t.ArtifactType))}
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
	for i := range rows {
		rows[i].Action = action
		rows[i].MayRestore = rows[i].MayRestore && now[rows[i].Name] != rows[i].ManifestDigest
	}
	p := q.repositoryPage(repository, "/-/history")
	p.Title, p.Heading, p.Notice = "History of "+repository, repository, n
	p.Data = struct {
		Repository, Action, Query string
		History                   historyList
		Pages                     pages
	}{repository, action, q.query("q"), historyList{repository, true, rows}, q.pagesOf(q.keep("q"), next)}
	p.Same = []same{
		command("purser audit list --repo %s", repository), command("purser tag restore %s:TAG DIGEST", repository),
		call("GET", apiPath("/repository/%s/tag", repository)+"?onlyActiveTags=false"),
	}
	return q.show("history", p)
}

// changeHistory restores a former state of a tag.
func changeHistory(q *request) error {
	return q.showHistory(q.restoreTag(q.repository(), q.form.Get("tag"), q.form.Get("digest")))
}

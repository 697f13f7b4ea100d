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
		Seen               string     // what the page shows that the tag points to: a digest, or none
		Change             tagChanges // of a tag that exists
		Plot               *plot      // of pulls, nil if there is nothing to show
	}{Seen: "none", Repository: repository, Action: link(tagPath, repository, name), MayDelete: q.mayDelete(place{repository: repository})}
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
	Seen                string // what the tag points to as the page shows it, "" if the page doesn't know
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
		if d, known := now[rows[i].Name]; known {
			rows[i].Seen = d.String()
		}
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
	tag := q.form.Get("tag")
	n, err := q.restoreTag(q.repository(), tag, q.form.Get("digest"), api.SeenTag{IfDigest: q.form.Get("seen")})
	if err != nil {
		_, text := messageOf(q.Context(), err)
		n = &notice{Bad: true, Text: clip(128, tag) + " was not restored. " + sentence(text)}
	}
	return q.showHistory(n)
}

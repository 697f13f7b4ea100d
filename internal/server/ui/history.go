package ui

import (
	"time"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/oci"
)

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

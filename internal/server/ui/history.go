package ui

import (
	"net/url"
	"strconv"
	"time"

	"github.com/purser-registry/purser/internal/auth"
)

// historyList is a list of what tags point to, and what they pointed to before.
type historyList struct {
	Repository string
	Names      bool // of several tags
	Rows       []historyRow
}

// historyRow is a tag, or a former state of one: what it pointed to until it was moved or deleted.
type historyRow struct {
	Name         string    `json:"name"`
	Digest       string    `json:"manifest_digest"`
	MediaType    string    `json:"media_type"`
	ArtifactType string    `json:"artifact_type"`
	Size         int64     `json:"size"`
	StartTS      int64     `json:"start_ts"`
	EndTS        int64     `json:"end_ts"`
	PushedAt     time.Time `json:"pushed_at"` // zero of a former state
	EndedBy      string    `json:"ended_by"`
	Gone         bool      `json:"manifest_gone"`

	Action, Kind, Ended string
	Since, Until        time.Time
	MayRestore          bool // there is something to restore
}

// endings say how a tag's former state came to an end.
var endings = map[string]string{
	"move_tag": "moved", "revert_tag": "moved by a restore", "delete_tag": "deleted", "autoprune_tag_delete": "pruned by a policy",
}

// history lists the changes of a repository's tags, the latest first, with further parameters of
// the query in turn with their values.
func (q *request) history(repository string, limit int, parameters ...string) (rows []historyRow, next string, err error) {
	query := url.Values{"onlyActiveTags": {"false"}, "limit": {strconv.Itoa(limit)}}
	for i := 0; i+1 < len(parameters); i += 2 {
		if parameters[i+1] != "" {
			query.Set(parameters[i], parameters[i+1])
		}
	}
	if page := q.query("page"); page != "" {
		query.Set("next_page", page)
	}
	mayRestore := q.may(auth.Maintain, auth.OfRepository(repository))
	var list struct {
		Tags     []historyRow `json:"tags"`
		NextPage string       `json:"next_page"`
	}
	if err := q.get(apiPath("/repository/%s/tag", repository), query, &list); err != nil {
		return nil, "", err
	}
	for i := range list.Tags {
		r := &list.Tags[i]
		r.Action, r.Kind = link(tagPath, repository, r.Name), clip(100, kindOf(r.MediaType, r.ArtifactType))
		if r.StartTS > 0 {
			r.Since = time.Unix(r.StartTS, 0)
		}
		if r.EndTS > 0 && r.EndedBy != "" {
			r.Until, r.MayRestore = time.Unix(r.EndTS, 0), !r.Gone && mayRestore
			if r.Ended = endings[r.EndedBy]; r.Ended == "" {
				r.Ended = "ended"
			}
		}
	}
	return list.Tags, list.NextPage, nil
}

// showHistory lists all changes of a repository's tags, with a notice about what a form has done.
func (q *request) showHistory(n *notice) error {
	repository := q.repository()
	rows, next, err := q.history(repository, 40, "contains", q.query("q"))
	if err != nil {
		return err
	}
	action, now := link("/ui/repositories/{repository}/-/history", repository), make(map[string]string)
	for _, r := range rows {
		if r.EndedBy == "" {
			now[r.Name] = r.Digest
		}
	}
	for i := range rows {
		rows[i].Action = action
		rows[i].MayRestore = rows[i].MayRestore && now[rows[i].Name] != rows[i].Digest
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

package ui

import (
	"cmp"
	"slices"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/oci"
)

// untaggedPath is the page of the manifests of a repository that have no tag.
const untaggedPath = "/ui/repositories/{repository}/-/untagged"

func (u *UI) addUntagged() {
	u.add(untaggedPath, func(q *request) error { return q.showUntagged(nil) }, deleteUntagged)
}

// A page of untagged manifests is made of up to untaggedAnswers answers of the API, and ends with the one
// that makes it untaggedRows long. The reasons of up to untaggedReasons of them are looked up.
const untaggedAnswers, untaggedRows, untaggedReasons = 5, 25, 25

// mostDeleted is how many manifests a form deletes at most.
const mostDeleted = 100

// untaggedRow is a manifest without a tag.
type untaggedRow struct {
	api.UntaggedManifest
	Kind, Link, Above string
	Other             *oci.Digest // the index that lists it, or its subject
	Why               string      // why it is kept, if nothing else refers to it and the client may know
	MayDelete         bool
}

type untaggedData struct {
	Repository, Action, Show string
	Rows                     []untaggedRow
	MayDelete                bool // some of them
	Pages                    pages
}

// showUntagged lists the manifests of a repository that have no tag, with a notice about what a form has done.
func (q *request) showUntagged(n *notice) error {
	repository := q.repository()
	d := untaggedData{Repository: repository, Action: link(untaggedPath, repository), Show: oneOf(q.query("show"), "alone", "all")}
	in := api.UntaggedQuery{InRepository: repositoryOf(repository), NextPage: q.query("page"), Limit: untaggedRows}
	mayDelete := q.may(api.DeleteManifest.Access, auth.OfRepository(repository))
	for range untaggedAnswers {
		list, err := run(q, api.ListUntagged, in)
		if err != nil {
			return err
		}
		for _, m := range list.Manifests {
			if m.Index != nil && d.Show == "alone" {
				continue
			}
			row := untaggedRow{UntaggedManifest: m, Kind: clip(100, kindOf(m.MediaType, m.ArtifactType)), Other: cmp.Or(m.Index, m.Subject), MayDelete: mayDelete && m.Index == nil}
			row.Link = link(manifestPath, repository, m.Digest.String())
			if row.Other != nil {
				row.Above = link(manifestPath, repository, row.Other.String())
			}
			d.Rows, d.MayDelete = append(d.Rows, row), d.MayDelete || row.MayDelete
		}
		if in.NextPage = list.NextPage; in.NextPage == "" || len(d.Rows) >= untaggedRows {
			break
		}
	}
	if err := q.addReasons(repository, d.Rows); err != nil {
		return err
	}
	d.Pages = q.pagesOf(q.keep("show"), in.NextPage)
	p := q.repositoryPage(repository, "/-/untagged")
	p.Title, p.Heading, p.Notice, p.Data = "Manifests of "+repository+" without tags", repository, n, d
	p.Same = []same{
		command("purser manifest untagged %s", repository), command("purser manifest delete %s@DIGEST", repository),
		call("GET", apiPath("/repository/%s/untagged", repository)), call("DELETE", apiPath("/repository/%s/manifest/{digest}", repository)+"?untagged=true"),
	}
	return q.show("untagged", p)
}

// addReasons adds why manifests are kept to which nothing refers, if the client may know.
func (q *request) addReasons(repository string, rows []untaggedRow) error {
	if !q.may(api.ExplainManifest.Access, auth.OfRepository(repository)) {
		return nil
	}
	asked := 0
	for i := range rows {
		if rows[i].Other != nil || asked == untaggedReasons {
			continue
		}
		asked++
		why, err := run(q, api.ExplainManifest, api.ManifestItem{InRepository: repositoryOf(repository), Digest: rows[i].Digest})
		if err != nil && !hidden(err) { // it may be deleted by now
			return err
		}
		if len(why.Explanation) > 0 {
			rows[i].Why = sentence(clip(300, why.Explanation[0]))
		}
	}
	return nil
}

// deleteUntagged deletes the manifests that were picked, unless they have got a tag since.
func deleteUntagged(q *request) error {
	repository, picked := q.repository(), slices.Compact(q.form["digest"])
	if len(picked) == 0 {
		return q.showUntagged(&notice{Bad: true, Text: "Pick the manifests to delete first."})
	}
	if len(picked) > mostDeleted {
		return q.showUntagged(&notice{Bad: true, Text: "Nothing was deleted: pick 100 manifests at most."})
	}
	deleted, failed := 0, ""
	for _, text := range picked {
		in := api.ManifestDeletion{ManifestItem: api.ManifestItem{InRepository: repositoryOf(repository)}, Untagged: true}
		var err error
		if in.Digest, err = digestIn("path.digest", text); err == nil {
			_, err = run(q, api.DeleteManifest, in)
		}
		if err != nil {
			failed = cmp.Or(failed, sentence(err.Error()))
			continue
		}
		deleted++
	}
	n := &notice{Text: plural(deleted, "manifest was deleted.", "manifests were deleted.") + " Garbage collection frees their blobs."}
	if failed != "" {
		n.Bad, n.Text = true, plural(deleted, "manifest was deleted", "manifests were deleted")+", "+plural(len(picked)-deleted, "was not", "were not")+". "+failed
	}
	return q.showUntagged(n)
}

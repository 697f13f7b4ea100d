package ui

import (
	"cmp"
	"net/http"
	"slices"
	"strings"

	"github.com/purser-registry/purser/internal/server/ui/chart"
	"github.com/purser-registry/purser/internal/server/ui/format"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/oci"
)

// fewLinks bounds the work for the size of a repository or a namespace. Reading all links to blobs
// that the API reads without it takes half a second.
var fewLinks = api.SizeLinks{Links: 2000}

// oneLink is for pages that ask whether a place can be seen, and don't show its size.
var oneLink = api.SizeLinks{Links: 1}

// repositoryOf returns a repository as inputs of the management API name it.
func repositoryOf(name string) api.InRepository { return api.InRepository{Repository: name} }

// repositoryPage returns the frame of a page that belongs to a repository. `current` is the link
// of the tab.
func (q *request) repositoryPage(repository, current string) page {
	home := link("/ui/repositories/{repository}", repository)
	namespace, _, _ := strings.Cut(repository, "/")
	p := page{Title: repository, Section: "repositories", Crumbs: []crumb{{"Repositories", "/ui/repositories"}, {namespace, q.namespaceLink(namespace)}}}
	p.Tabs = q.tabs(repositoryTabs, home, current, auth.OfRepository(repository))
	return p
}

// namespaceLink returns the page of a namespace or, for a client that may only see repositories of it, the list
// of these.
func (q *request) namespaceLink(name string) string {
	if q.may(api.GetNamespace.Access, auth.OfNamespace(name)) {
		return link("/ui/namespaces/{namespace}", name)
	}
	return "/ui/repositories" + arguments("namespace", name)
}

// repositoryTabs are the pages of each repository, with their paths below it.
var repositoryTabs = []placeTab{
	{"", "Tags", 0}, {"/-/untagged", "Untagged", 0}, {"/-/history", "History", 0}, {"/-/policies", "Policies", auth.Maintain}, {"/-/settings", "Settings", auth.Maintain},
}

func showRepository(q *request) error { return q.showTags(nil) }

// showTags lists the tags of a repository, with a notice about what a form has done.
func (q *request) showTags(n *notice) error {
	repository := q.repository()
	info, err := run(q, api.GetRepository, api.RepositorySizes{InRepository: repositoryOf(repository), SizeLinks: fewLinks})
	if err != nil {
		return err
	}
	sort := oneOf(q.query("sort"), "-pushed", "pushed", "name", "-name", "size", "-size", "last_pulled", "-last_pulled", "pull_count", "-pull_count")
	unused := q.query("unused")
	list, err := run(q, api.ListTags, api.TagQuery{
		InRepository: repositoryOf(repository), NameFilter: api.NameFilter{Contains: q.query("q"), NextPage: q.query("page")},
		NotPulled: api.Optional[string]{Value: unused, Given: unused != ""}, Sort: sort, Platforms: true,
	})
	refused := ""
	if err != nil {
		// Some orders and filters are refused on large repositories, or before pulls were counted for
		// long enough. The page then says so and keeps the form, so that one can ask differently.
		if status := statusOf(err); q.URL.RawQuery == "" || status != http.StatusConflict && status != http.StatusBadRequest && status != http.StatusServiceUnavailable {
			return err
		}
		refused = format.Sentence(err.Error())
	}
	keep := q.keep("q", "unused", "sort")
	type data struct {
		Info                         api.DescribedRepository
		Query, Unused, Sort, Refused string
		Address                      registryAddress
		Columns                      []column
		Tags                         []api.ListedTag
		Pages                        pages
		Clients                      []client
		MayDelete, MaySelect         bool        // tags; MaySelect: delete them or set their dates by a pattern
		Plot                         *chart.Plot // of pulls, nil if there is nothing to show
	}
	var pulls *chart.Plot
	if q.query("page") == "" && refused == "" {
		if pulls, err = pullPlot(q, api.GetRepositoryHistory, api.RepositoryHistory{InRepository: repositoryOf(repository), HistoryDays: lastDays}); err != nil {
			return err
		}
	}
	columns := q.columns(sort, keep, [][2]string{
		{"name", "Tag"}, {"", "Image"}, {"", "Platforms"}, {"-size", "Size"}, {"-pushed", "Pushed"}, {"-last_pulled", "Last pulled"}, {"-pull_count", "Pulls"},
	})
	columns[3].Number, columns[6].Number = true, true
	p := q.repositoryPage(repository, "")
	if p.Notice = n; n == nil && q.query("done") == "created" {
		p.Notice = &notice{Text: "The repository was created. It is empty: push an image to it."}
	}
	shown, err := q.exampleOf(repository, list.Tags, q.URL.RawQuery == "")
	if err != nil {
		return err
	}
	p.Data = data{
		Info: info, Address: q.registryAddress(), Query: q.query("q"), Unused: unused, Sort: sort, Refused: refused,
		Columns: columns, Tags: list.Tags, Pages: q.pagesOf(keep, list.NextPage),
		Clients: shown, MayDelete: q.mayDelete(place{repository: repository}), MaySelect: len(q.tagActions(repository)) > 0, Plot: pulls,
	}
	p.Same = []same{command("purser tag list %s", repository), command("purser tag delete %s:TAG", repository), call("GET", apiPath("/repository/%s/tag", repository))}
	return q.show("repository", p)
}

// changeTags deletes the tags that were picked, or restores those that were deleted.
func changeTags(q *request) error {
	repository, tags := q.repository(), q.form["tag"]
	if q.form.Get("do") == "restore" {
		return q.restoreTags(repository, q.form.Get("deletion"))
	}
	deletion := uuid.NewString()
	n := &notice{Undo: &undo{Action: q.URL.EscapedPath(), Text: "Undo", Fields: []field{{"do", "restore"}, {"deletion", deletion}}}}
	deleted, failed := 0, ""
	for _, picked := range tags {
		name, _, _ := strings.Cut(picked, "@")
		if _, err := run(q, api.DeleteTag, api.TagDeletion{TagItem: tagItem(repository, name), Deletion: deletion}); err != nil {
			failed = cmp.Or(failed, name+": "+format.Sentence(err.Error()))
			continue
		}
		deleted++
	}
	switch {
	case len(tags) == 0:
		n = &notice{Bad: true, Text: "Pick the tags to delete first."}
	case failed != "":
		n.Bad, n.Text = true, format.Plural(deleted, "tag was deleted", "tags were deleted")+", "+format.Plural(len(tags)-deleted, "was not", "were not")+". "+failed
	default:
		n.Text = format.Plural(deleted, "tag was deleted.", "tags were deleted.") + " Garbage collection keeps their images for a while, so they can be restored."
	}
	if deleted == 0 {
		n.Undo = nil
	}
	return q.showTags(n)
}

// restoreTags restores the tags of a deletion. Those that were pushed again since stay as they are.
func (q *request) restoreTags(repository, deletion string) error {
	in := api.TagsRestoration{InRepository: repositoryOf(repository), Body: api.UndoneDeletion{Deletion: deletion}}
	done, err := run(q, api.RestoreTags, in)
	if err != nil {
		return q.showTags(noticeOf(err, ""))
	}
	n := &notice{Text: format.Plural(done.Restored, "tag is back.", "tags are back.")}
	for _, r := range done.Refused[:min(len(done.Refused), 10)] {
		n.Bad, n.Text = true, n.Text+" "+format.Clip(128, r.Tag)+" stays as it is: "+r.Reason+"."
	}
	if len(done.Refused) > 10 {
		n.Text += " So do " + format.Number(len(done.Refused)-10) + " more."
	}
	return q.showTags(n)
}

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
			row := untaggedRow{UntaggedManifest: m, Kind: format.Clip(100, format.KindOf(m.MediaType, m.ArtifactType)), Other: cmp.Or(m.Index, m.Subject), MayDelete: mayDelete && m.Index == nil}
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
			rows[i].Why = format.Sentence(format.Clip(300, why.Explanation[0]))
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
			failed = cmp.Or(failed, format.Sentence(err.Error()))
			continue
		}
		deleted++
	}
	n := &notice{Text: format.Plural(deleted, "manifest was deleted.", "manifests were deleted.") + " Garbage collection frees their blobs."}
	if failed != "" {
		n.Bad, n.Text = true, format.Plural(deleted, "manifest was deleted", "manifests were deleted")+", "+format.Plural(len(picked)-deleted, "was not", "were not")+". "+failed
	}
	return q.showUntagged(n)
}

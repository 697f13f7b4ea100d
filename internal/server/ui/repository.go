package ui

import (
	"cmp"
	"net/http"
	"strings"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
)

// fewLinks bounds the work for the size of a repository or a namespace. Reading all links to blobs
// that the API reads without it takes half a second.
var fewLinks = api.SizeLinks{Links: 2000}

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
		refused = sentence(err.Error())
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
		MayDelete, MaySelect         bool  // tags; MaySelect: delete them or set their dates by a pattern
		Plot                         *plot // of pulls, nil if there is nothing to show
	}
	var pulls *plot
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
			failed = cmp.Or(failed, name+": "+sentence(err.Error()))
			continue
		}
		deleted++
	}
	switch {
	case len(tags) == 0:
		n = &notice{Bad: true, Text: "Pick the tags to delete first."}
	case failed != "":
		n.Bad, n.Text = true, plural(deleted, "tag was deleted", "tags were deleted")+", "+plural(len(tags)-deleted, "was not", "were not")+". "+failed
	default:
		n.Text = plural(deleted, "tag was deleted.", "tags were deleted.") + " Garbage collection keeps their images for a while, so they can be restored."
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
	n := &notice{Text: plural(done.Restored, "tag is back.", "tags are back.")}
	for _, r := range done.Refused[:min(len(done.Refused), 10)] {
		n.Bad, n.Text = true, n.Text+" "+clip(128, r.Tag)+" stays as it is: "+r.Reason+"."
	}
	if len(done.Refused) > 10 {
		n.Text += " So do " + formatNumber(len(done.Refused)-10) + " more."
	}
	return q.showTags(n)
}

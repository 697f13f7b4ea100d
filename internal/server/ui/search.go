package ui

import (
	"net/http"

	"github.com/purser-registry/purser/internal/server/ui/format"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/handbook"
	"github.com/purser-registry/purser/internal/server"
)

// searchPath is the page of the search, to which the box at the top of each page leads.
const searchPath = "/ui/search"

func (u *UI) addSearch() { u.add(searchPath, showSearch, nil) }

// searchData is what the page of the search shows.
type searchData struct {
	Query   string
	Refused string // why there was no search
	Parts   []foundPart
	More    bool // there may be more
}

// foundPart has the results of one kind.
type foundPart struct {
	Kind, Title string
	Items       []api.FoundItem
	More        string // what to do to find more, "" if these are all
}

// foundKinds are the kinds of results in the order of the page, with what finds more of each.
var foundKinds = []foundPart{
	{Kind: api.FoundNamespace, Title: "Namespaces", More: "There are more: write more of the name."},
	{Kind: api.FoundRepository, Title: "Repositories", More: "There are more: write more of the name."},
	{Kind: api.FoundTag, Title: "Tags", More: "There may be more: write how the name begins, or repository:tag."},
	{Kind: api.FoundManifest, Title: "Manifests", More: "There are more: write more of the digest, or repository@digest."},
}

// searchRows is how many results of each kind the page has.
const searchRows = 20

// showSearch searches for what was typed.
func showSearch(q *request) error {
	d := searchData{Query: q.query("q")}
	p := page{Title: "Search", Same: []same{command("purser find TEXT"), call("GET", "/find/all?query=TEXT")}}
	if d.Query != "" {
		found, err := run(q, api.Find, api.FindQuery{Query: d.Query, Limit: searchRows})
		switch {
		case err != nil && statusOf(err) == 0:
			return err
		case err != nil:
			d.Refused = format.Sentence(err.Error())
		default:
			d.fill(found)
		}
	}
	p.Data = d
	return q.show("search", p)
}

func (d *searchData) fill(found api.FoundItems) {
	for _, part := range foundKinds {
		if !found.Has(part.Kind) {
			part.More = ""
		}
		for _, i := range found.Results {
			if i.Kind == part.Kind {
				part.Items = append(part.Items, i)
			}
		}
		d.More = d.More || part.More != ""
		if len(part.Items) > 0 {
			d.Parts = append(d.Parts, part)
		}
	}
}

// addDocs adds the documentation, which everybody may read.
func (u *UI) addDocs() {
	u.add(handbook.Root, showDocs, nil)
	u.add(handbook.Root+"{page}", showDocs, nil)
}

// docsData is a page of the documentation, or what a search in it has found.
type docsData struct {
	Page  *handbook.Page
	Home  bool // the page is the table of contents
	Query string
	Hits  []handbook.Hit
}

// maxDocsQuery is how many bytes a search in the documentation may have.
const maxDocsQuery = 200

func showDocs(q *request) error {
	p := handbook.Get(q.values["page"])
	if p == nil || q.values["page"] != "" && p.Path() != q.URL.Path {
		return server.Refusal(http.StatusNotFound, "the documentation has no page %.60q: %s has the list of pages", q.values["page"], handbook.Root)
	}
	d := docsData{Page: p, Home: q.values["page"] == "", Query: q.query("q")}
	if len(d.Query) > maxDocsQuery {
		return server.Refusal(http.StatusBadRequest, "the text to look for has %d bytes and may have %d", len(d.Query), maxDocsQuery)
	}
	d.Hits = handbook.Search(d.Query)
	out := page{Title: p.Title, Section: "docs", Data: d}
	if !d.Home {
		out.Crumbs = []crumb{{"Documentation", handbook.Root}}
	}
	return q.show("docs", out)
}

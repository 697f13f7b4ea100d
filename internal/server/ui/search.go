package ui

import (
	"github.com/purser-registry/purser/internal/api"
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
			d.Refused = sentence(err.Error())
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

package ui

import (
	"net/http"

	"github.com/purser-registry/purser/internal/handbook"
	"github.com/purser-registry/purser/internal/server"
)

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

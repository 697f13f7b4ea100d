package ui

import (
	"maps"
	"net/url"
	"slices"

	"github.com/purser-registry/purser/internal/api"
)

// pages are the links below a list: to its first page, if this is a later one, and to the next.
type pages struct{ First, Next string }

// pagesOf returns the links of a list. `keep` has the parameters of the query that all pages
// have, and next is the cursor of the next page, "" on the last.
func (q *request) pagesOf(keep url.Values, next string) (p pages) {
	path := q.URL.EscapedPath()
	if q.query("page") != "" {
		p.First = path + suffix(keep)
	}
	if next != "" {
		further := maps.Clone(keep)
		if further == nil {
			further = make(url.Values)
		}
		further.Set("page", next)
		p.Next = path + suffix(further)
	}
	return p
}

// pagesIn returns the links of one of several lists on a page. The parameter `name` of the query is
// where the list begins, and `next` is where its next page does, "" on the last.
func (q *request) pagesIn(name, next string) (p pages) {
	path, query := q.URL.EscapedPath(), q.URL.Query()
	query.Del("done")
	if query.Get(name) != "" {
		first := maps.Clone(query)
		first.Del(name)
		p.First = path + suffix(first)
	}
	if next != "" {
		query.Set(name, next)
		p.Next = path + suffix(query)
	}
	return p
}

// paging returns the input for a page of a list of up to n entries. The parameter `name` of the
// request's query is where it begins.
func (q *request) paging(name string, n int) api.Paging {
	return api.Paging{Limit: n, NextPage: q.query(name)}
}

// nameFilter returns the search and the page of a list of names.
func (q *request) nameFilter() api.NameFilter {
	return api.NameFilter{Contains: q.query("q"), NextPage: q.query("page")}
}

// find is the search in a list of names that its page shows in part.
type find struct {
	Text   string
	Needed bool // there is more than the page shows, or less because of the search
}

func suffix(query url.Values) string {
	if len(query) == 0 {
		return ""
	}
	return "?" + query.Encode()
}

// keep returns those parameters of the query that are given and have one of the names.
func (q *request) keep(names ...string) url.Values {
	kept := make(url.Values)
	for name, values := range q.URL.Query() {
		if slices.Contains(names, name) && len(values) > 0 && values[0] != "" {
			kept.Set(name, values[0])
		}
	}
	return kept
}

// column is a column by which a list may be sorted.
type column struct {
	Text, Link string
	Sort       string // the attribute aria-sort, "" if the list isn't sorted by this column
	Number     bool
}

// columns returns the head of a sorted list. Each of `names` is a value of the parameter "sort",
// with the column's text, or "" for a column by which nobody can sort. The second click on a
// column reverses its order.
func (q *request) columns(current string, keep url.Values, names [][2]string) []column {
	list := make([]column, 0, len(names))
	for _, n := range names {
		c := column{Text: n[1]}
		if n[0] != "" {
			name, ascending := n[0], n[0][0] != '-'
			plain := name
			if !ascending {
				plain = name[1:]
			}
			to := name
			switch current {
			case plain:
				c.Sort, to = "ascending", "-"+plain
			case "-" + plain:
				c.Sort, to = "descending", plain
			}
			query := maps.Clone(keep)
			query.Set("sort", to)
			c.Link = q.URL.EscapedPath() + suffix(query)
		}
		list = append(list, c)
	}
	return list
}

// oneOf returns the value if it is in the list, else the list's first.
func oneOf(value string, list ...string) string {
	if slices.Contains(list, value) {
		return value
	}
	return list[0]
}

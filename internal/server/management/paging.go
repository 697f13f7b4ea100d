package management

import (
	"net/http"
	"slices"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/server"
)

// Paging has the query parameters of a list that comes in pages. It is exported because huma finds
// parameters only in exported types.
type Paging struct {
	Limit    int    `query:"limit" minimum:"0" doc:"Most entries of a page. 0, and more than 500, count as 500. A page has fewer if they are long"`
	NextPage string `query:"next_page" doc:"The next_page of the page before"`
}

// paged is an input with these parameters.
type paged interface{ page() Paging }

func (p Paging) page() Paging { return p }

// NameContains is the query parameter that selects entries of a list by their names. It is exported
// because huma finds parameters only in exported types.
type NameContains struct {
	Contains string `query:"contains" maxLength:"128" doc:"Only names that contain this"`
}

// nameFiltered is an input with this parameter.
type nameFiltered interface{ named() string }

func (c NameContains) named() string { return c.Contains }

// maxPage is the most entries of a page.
const maxPage = 500

// most returns how many entries the page has at most.
func (p Paging) most() int {
	if p.Limit == 0 {
		return maxPage
	}
	return min(p.Limit, maxPage)
}

// after returns the name after which the page begins, "" for the first page. `of` names the list.
func (p Paging) after(of string) (name string, err error) {
	_, err = parseCursor(p.NextPage, of, &name)
	return name, err
}

const (
	// listMemory is how many bytes of memory a page of a list takes at most: its rows as they are
	// read, what the API makes of them, and the answer.
	listMemory = 8 * db.PageBytes
	// rowMemory is the same for one row, as far as a short page is concerned.
	rowMemory = 64 << 10
	// describedMemory is for answers with a list that isn't a page, whose bounds are lower.
	describedMemory = 256 << 10
)

// pageRows returns how many rows a page of an operation has if the client doesn't say it, 0 if the
// operation's answers are no pages.
func pageRows(op *huma.Operation) int {
	i := slices.IndexFunc(op.Parameters, func(p *huma.Param) bool { return p.In == "query" && p.Name == "limit" })
	if i < 0 {
		return 0
	}
	if n, ok := op.Parameters[i].Schema.Default.(int); ok && n > 0 {
		return n
	}
	return maxPage
}

// reserve takes memory of the request's share for an answer that is a list. The result writes the
// answer, and gives back what turns out not to be needed.
func (o *operation) reserve(w http.ResponseWriter, r *http.Request) (http.ResponseWriter, error) {
	n := int64(describedMemory)
	switch {
	case o.rows > 0:
		rows := o.rows
		if asked, err := strconv.Atoi(r.URL.Query().Get("limit")); err == nil && asked > 0 {
			rows = asked
		}
		n = min(listMemory, int64(min(rows, maxPage))*rowMemory)
	case r.Method != http.MethodGet || len(o.Parameters) == 0:
		return w, nil
	}
	lease := server.Observed(r.Context()).Lease
	taken, err := lease.Take(r.Context(), n)
	if err != nil {
		return w, err
	}
	return &listAnswer{w, lease, taken}, nil
}

// listAnswer writes an answer for which memory was taken. The answer is written as a whole, and its
// length says how much it needs.
type listAnswer struct {
	http.ResponseWriter
	lease *limit.Lease
	taken int64
}

func (l *listAnswer) Write(p []byte) (int, error) {
	if spare := l.taken - 4*int64(len(p)); spare > 0 {
		l.lease.Give(spare)
	}
	l.taken = 0
	return l.ResponseWriter.Write(p)
}

// Unwrap returns the wrapped writer, for http.ResponseController.
func (l *listAnswer) Unwrap() http.ResponseWriter { return l.ResponseWriter }

package management

import (
	"net/http"
	"slices"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/server"
)

// maxPage is the most entries of a page.
const maxPage = api.MostOfPage

// pageAfter returns the name after which a page begins, "" for the first page. `of` names the list.
func pageAfter(p api.Paging, of string) (name string, err error) {
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
	limit, err := strconv.Atoi(r.URL.Query().Get("limit"))
	if err != nil {
		limit = 0
	}
	n := o.memory(limit)
	if n == 0 {
		return w, nil
	}
	lease := server.Observed(r.Context()).Lease
	taken, err := lease.Take(r.Context(), n)
	if err != nil {
		return w, err
	}
	return &listAnswer{w, lease, taken}, nil
}

// memory returns how many bytes of memory an answer may take, 0 if it isn't worth counting. `limit`
// is how many entries of a page the client wants, 0 if it hasn't said so.
func (o *operation) memory(limit int) int64 {
	switch {
	case o.rows > 0:
		rows := o.rows
		if limit > 0 {
			rows = limit
		}
		return min(listMemory, int64(min(rows, maxPage))*rowMemory)
	case o.Method != http.MethodGet || len(o.Parameters) == 0:
		return 0
	}
	return describedMemory
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

package management

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

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
	// describedMemory is for answers with a list that isn't a page, of which most are short.
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

// answersWithList says whether an answer of an operation that succeeded has a list: an array, or an
// object with any number of members.
func (a *API) answersWithList(op *huma.Operation) bool {
	for status, response := range op.Responses {
		content := response.Content["application/json"]
		if strings.HasPrefix(status, "2") && content != nil && a.hasList(content.Schema, nil) {
			return true
		}
	}
	return false
}

// hasList is answersWithList for a schema. It doesn't follow the references `in`, which have led to it.
func (a *API) hasList(s *huma.Schema, in []string) bool {
	if s != nil && s.Ref != "" {
		if slices.Contains(in, s.Ref) {
			return false
		}
		in, s = append(slices.Clip(in), s.Ref), a.huma.OpenAPI().Components.Schemas.SchemaFromRef(s.Ref)
	}
	if s == nil {
		return false
	}
	if _, named := s.AdditionalProperties.(*huma.Schema); named || s.Items != nil {
		return true
	}
	below := slices.Concat(s.OneOf, s.AnyOf, s.AllOf, slices.Collect(maps.Values(s.Properties)))
	return slices.ContainsFunc(below, func(s *huma.Schema) bool { return a.hasList(s, in) })
}

// reserve takes memory of the request's share for an answer that has a list, before the operation
// reads anything. The result writes the answer. Its caller must call `end` after the operation.
func (a *API) reserve(o *operation, w http.ResponseWriter, r *http.Request) (*listAnswer, error) {
	answer := &listAnswer{ResponseWriter: w, request: r, fail: func(err error) { a.server.Fail(w, r, err) }}
	asked, err := strconv.Atoi(r.URL.Query().Get("limit"))
	if err != nil {
		asked = 0
	}
	n := o.memory(asked)
	if n == 0 {
		return answer, nil
	}
	answer.lease = server.Observed(r.Context()).Lease
	answer.taken, err = answer.lease.Take(r.Context(), n)
	return answer, err
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
	case !o.lists:
		return 0
	}
	return describedMemory
}

// answerMemory is how many bytes of memory an answer takes for each of its bytes.
const answerMemory = 4

// listAnswer writes an answer for which memory was taken. The answer is written as a whole, and its
// length says how much it needs: listAnswer gives back what it doesn't need, or takes what is
// missing. If the request can't have that much, the client gets the error instead of the answer; only
// the answer to a change is sent in any case, since the change is made.
type listAnswer struct {
	http.ResponseWriter
	request *http.Request
	fail    func(error)  // answers with an error
	lease   *limit.Lease // nil: nothing is counted
	taken   int64
	status  int // 0: the operation has written none yet
	begun   bool
	failed  bool
}

// WriteHeader implements http.ResponseWriter. The status is sent with the answer.
func (l *listAnswer) WriteHeader(status int) { l.status = status }

// Write implements http.ResponseWriter.
func (l *listAnswer) Write(p []byte) (int, error) {
	if !l.begun {
		l.begin(answerMemory * int64(len(p)))
	}
	if l.failed {
		return len(p), nil
	}
	return l.ResponseWriter.Write(p)
}

// begin begins an answer that needs n bytes of memory.
func (l *listAnswer) begin(n int64) {
	l.begun = true
	missing := n - l.taken
	switch {
	case missing <= 0:
		l.lease.Give(-missing)
	case l.request.Method == http.MethodGet:
		l.lease.Give(l.taken) // Take grants at once as much as one client may have, and no more
		if _, err := l.lease.Take(l.request.Context(), n); err != nil {
			l.failed = true
			l.fail(err)
			return
		}
	default:
		l.lease.TryStream(missing)
	}
	if l.status != 0 {
		l.ResponseWriter.WriteHeader(l.status)
	}
}

// end sends the status of an answer without a body.
func (l *listAnswer) end() {
	if !l.begun && l.status != 0 {
		l.ResponseWriter.WriteHeader(l.status)
	}
}

// Unwrap returns the wrapped writer, for http.ResponseController.
func (l *listAnswer) Unwrap() http.ResponseWriter { return l.ResponseWriter }

// turn waits until the request may use much processor time (see limit.Turns). The caller must
// call done when it has ended.
func (a *API) turn(ctx context.Context) (done func(), err error) { return a.turnIn(ctx, a.turns) }

// turnIn is turn for requests that wait for others of their kind alone.
func (a *API) turnIn(ctx context.Context, turns *limit.Turns) (done func(), err error) {
	o := server.Observed(ctx)
	client := "address " + o.Client
	if share := o.Share(); share != "" {
		client = "account " + share
	}
	return turns.Wait(ctx, client)
}

// errTooLong says that a request was ended because it took longer than it may.
var errTooLong = errors.New("it took too long")

// runInTurn runs a costly part of a request when its turn has come, which it must wait for. Error:
// errTooLong if the part takes longer than `most`, so that those who wait are served.
func (a *API) runInTurn(ctx context.Context, turns *limit.Turns, most time.Duration, run func(ctx context.Context) error) error {
	done, err := a.turnIn(ctx, turns)
	if err != nil {
		return err
	}
	defer done()
	limited, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	err = run(limited)
	if err != nil && ctx.Err() == nil && errors.Is(limited.Err(), context.DeadlineExceeded) {
		return errTooLong
	}
	return err
}

package api

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/purser-registry/purser/internal/auth"
)

// Operation is an operation of the management API. The server binds it to a function and describes
// it in the OpenAPI document, the command line calls it over HTTP (Call), and a page of the UI runs
// it in its process (Runner): all of them take its path, its input, its answer and the access that it
// needs from here.
//
// I is the input: a struct whose fields have the tags "path" or "query" with the names of
// parameters, and whose field Body, if it has one, is the JSON body. A query parameter with the zero
// value is left out. O is the JSON body of the answer, or None.
type Operation[I, O any] struct {
	ID     string // unique, and the operationId of the OpenAPI document
	Method string
	Path   string // below /api/v1, with variables such as {orgname}
	// Places are where the operation exists, if that is more than one place. Each of its texts then has
	// parts of the Place: ID its Name for {Place}, Path its Path for {place}, and Summary and
	// Description its Words for {place}. The input embeds At.
	Places []Place
	Tag    string // the sections of the documentation, with commas between them
	// Access is what the client needs in the repository or the namespace of the path; in the whole
	// registry if the path has neither.
	Access auth.Access
	// Checks is the access for which the operation's function asks, where the path doesn't say what it
	// concerns. Access is auth.Ping then. 0: there is none.
	Checks      auth.Access
	Summary     string
	Description string
	Status      int   // of success; 0: 200, or 204 for None
	Errors      []int // statuses of errors that not all operations have
	NamedErrors []int // further ones, at those of the places whose path has a name
	// BodyExample is of an operation that refuses the body {} although its schema requires no member:
	// a body with the least that it accepts.
	BodyExample map[string]any

	// OwnBody says that the function checks the body, and the schema only describes it.
	OwnBody bool
	// OwnMemory says that the function takes the memory that its answer needs.
	OwnMemory bool
}

// Place is one of the places at which an operation exists.
type Place struct{ Name, Path, Words string }

// None says that an answer has no body.
type None struct{}

// Runner runs operations in the process of the registry for the client of the request that has the
// context. It checks the access, the input and the memory as for a request over HTTP. `in` is a
// pointer to the operation's input, and the result is a pointer to its answer.
type Runner interface {
	Run(ctx context.Context, id string, in any) (any, error)
}

// needing returns the operation with a BodyExample.
func (o Operation[I, O]) needing(body map[string]any) Operation[I, O] {
	o.BodyExample = body
	return o
}

// In returns the operation at one of its places.
func (o Operation[I, O]) In(p Place) Operation[I, O] {
	o.ID = strings.ReplaceAll(o.ID, "{Place}", p.Name)
	o.Path = strings.ReplaceAll(o.Path, "{place}", p.Path)
	o.Summary, o.Description = strings.ReplaceAll(o.Summary, "{place}", p.Words), strings.ReplaceAll(o.Description, "{place}", p.Words)
	if strings.Contains(p.Path, "{") {
		o.Errors = slices.Concat(o.Errors, o.NamedErrors)
	}
	o.Places = nil
	return o
}

// at returns the operation at the place that an input names.
func (o Operation[I, O]) at(in I) (Operation[I, O], error) {
	at, ok := any(in).(interface{ place() string })
	if !ok {
		return o, nil
	}
	for _, p := range o.Places {
		if p.Path == at.place() {
			return o.In(p), nil
		}
	}
	return o, fmt.Errorf("the operation %s needs the name of a repository or a namespace", strings.ReplaceAll(o.ID, "{Place}", ""))
}

// Run runs the operation in the process of the registry.
func (o Operation[I, O]) Run(ctx context.Context, r Runner, in I) (out O, err error) {
	o, err = o.at(in)
	if err != nil {
		return out, err
	}
	found, err := r.Run(ctx, o.ID, &in)
	if err != nil {
		return out, err
	}
	return *found.(*O), nil
}

// Call sends the operation to a registry. It reads no headers of the answer.
func (o Operation[I, O]) Call(ctx context.Context, c *Client, in I) (out O, err error) {
	o, err = o.at(in)
	if err != nil {
		return out, err
	}
	path, query, body := encode(o.Path, in)
	if _, none := any(out).(None); none || o.Status == http.StatusNoContent {
		return out, c.Do(ctx, o.Method, path, query, body, nil)
	}
	return out, c.Do(ctx, o.Method, path, query, body, &out)
}

// URL returns the path of the operation for an input, below /api/v1 and with the query.
func (o Operation[I, O]) URL(in I) string {
	if here, err := o.at(in); err == nil {
		o = here
	}
	path, query, _ := encode(o.Path, in)
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	return path
}

// Open sends the operation to a registry and returns the body of the answer, which may be too large
// for memory. The caller must close it.
func (o Operation[I, O]) Open(ctx context.Context, c *Client, in I) (io.ReadCloser, error) {
	o, err := o.at(in)
	if err != nil {
		return nil, err
	}
	path, query, body := encode(o.Path, in)
	return c.Open(ctx, o.Method, path, query, body)
}

// Page is an answer that is a page of a list: its entries, and where the next page begins, "" on the
// last.
type Page[T any] interface {
	Entries() (entries []T, next string)
}

// List fetches the entries of a list, page by page, until it has `limit` (0: all) or there are no
// more. It says whether the registry has more.
func List[I any, O Page[T], T any](ctx context.Context, c *Client, o Operation[I, O], in I, limit int) (list []T, more bool, err error) {
	return Collect(limit, func(next string, n int) ([]T, string, error) {
		setPaging(&in, n, next)
		out, err := o.Call(ctx, c, in)
		if err != nil {
			return nil, "", err
		}
		entries, next := out.Entries()
		return entries, next, nil
	})
}

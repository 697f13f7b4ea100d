package server

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

// apiRoute is a shape of path below apiRoot and what can be done there. A part
// in braces stands for any value; {repository} may be several parts, since names
// of repositories hold slashes.
type apiRoute struct {
	pattern string
	parts   []string
	methods map[string]*apiOperation
}

// apiOperation is what one method does, and how huma calls it.
type apiOperation struct {
	*huma.Operation
	handle func(huma.Context)
}

// Handle adds what an operation is called by. It is part of huma.Adapter.
func (a *api) Handle(op *huma.Operation, handle func(huma.Context)) {
	i := slices.IndexFunc(a.routes, func(rt *apiRoute) bool { return rt.pattern == op.Path })
	if i < 0 {
		i = len(a.routes)
		a.routes = append(a.routes, &apiRoute{
			pattern: op.Path, parts: pathParts(op.Path), methods: make(map[string]*apiOperation),
		})
	}
	a.routes[i].methods[op.Method] = &apiOperation{op, handle}
	slices.SortStableFunc(a.routes, (*apiRoute).compare)
}

// compare orders routes as they are tried: those with more parts first, so that
// the repository gets what no route wants, then those with fewer values.
func (rt *apiRoute) compare(other *apiRoute) int {
	if d := len(other.parts) - len(rt.parts); d != 0 {
		return d
	}
	return strings.Count(rt.pattern, "{") - strings.Count(other.pattern, "{")
}

// match finds the route of a path, which is escaped as the client sent it, the values
// in it, and of how many parts the repository's name is. Nil: there is none.
func (a *api) match(path string) (rt *apiRoute, values map[string]string, nameParts int) {
	parts := pathParts(path)
	for i, part := range parts {
		var err error
		if parts[i], err = url.PathUnescape(part); err != nil {
			return nil, nil, 0
		}
	}
	for _, rt := range a.routes {
		if values, ok := rt.match(parts); ok {
			return rt, values, len(parts) - len(rt.parts) + 1
		}
	}
	return nil, nil, 0
}

// pathParts splits a path. A slash at its end counts for nothing: Quay has it
// behind some paths and not behind others.
func pathParts(path string) []string {
	return strings.Split(strings.TrimSuffix(strings.TrimPrefix(path, "/"), "/"), "/")
}

func (rt *apiRoute) match(parts []string) (values map[string]string, ok bool) {
	more := len(parts) - len(rt.parts) // than the pattern has: part of the repository
	values = make(map[string]string)
	for _, want := range rt.parts {
		n := 1
		if want == "{repository}" {
			n += more
		}
		if n < 1 || n > len(parts) {
			return nil, false
		}
		value := strings.Join(parts[:n], "/")
		parts = parts[n:]
		if name, variable := strings.CutPrefix(want, "{"); variable {
			values[strings.TrimSuffix(name, "}")] = value
		} else if value != want {
			return nil, false
		}
	}
	return values, len(parts) == 0
}

// operation is what the route does for a method, nil for nothing.
func (rt *apiRoute) operation(method string) *apiOperation {
	if method == http.MethodHead { // the body is left out by net/http
		method = http.MethodGet
	}
	return rt.methods[method]
}

func (rt *apiRoute) allow() string {
	return strings.Join(slices.Sorted(maps.Keys(rt.methods)), ", ")
}

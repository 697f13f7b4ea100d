package management

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/auth"
)

// route is a path pattern with its operations by HTTP method. A variable in the pattern, such
// as {tag}, matches exactly one part of a path between slashes. The variable {repository} may
// match several parts, since repository names contain slashes.
type route struct {
	pattern string
	parts   []string
	methods map[string]*operation
}

// operation is an operation of the API, with the function by which huma parses its input, runs
// it and writes its output.
type operation struct {
	*huma.Operation
	handle func(huma.Context)
	rows   int  // of a page, unless the client says how many it wants; 0: the answer isn't a page
	lists  bool // the answer has a list
}

// Handle registers an operation and the function that runs it. huma calls it, since API
// implements huma.Adapter.
func (a *API) Handle(op *huma.Operation, handle func(huma.Context)) {
	a.makeBodyOptional(op)
	i := slices.IndexFunc(a.routes, func(rt *route) bool { return rt.pattern == op.Path })
	if i < 0 {
		i = len(a.routes)
		a.routes = append(a.routes, &route{
			pattern: op.Path, parts: pathParts(op.Path), methods: make(map[string]*operation),
		})
	}
	op.Parameters = slices.DeleteFunc(op.Parameters, func(p *huma.Param) bool {
		return p.In == "path" && !strings.Contains(op.Path, "{"+p.Name+"}") // api.At names all places
	})
	for _, p := range op.Parameters {
		p.Required = p.Required || p.In == "path"
	}
	o := &operation{Operation: op, handle: handle}
	if op.Metadata[ownMemoryKey] != true {
		o.rows, o.lists = pageRows(op), a.answersWithList(op)
	}
	a.routes[i].methods[op.Method] = o
	access, _ := op.Metadata[accessKey].(auth.Access)
	a.bound[op.OperationID] = &bound{operation: o, access: access}
	slices.SortStableFunc(a.routes, (*route).compare)
}

// needsBody marks an operation whose handler refuses the body {}, although no member is required by
// the schema: it needs one of several members, or its own error about a missing member says more than
// huma's would. So clients can't leave the body out. The document and the page show the example, which
// has as few members as the operation accepts.
func needsBody(op huma.Operation, example map[string]any) huma.Operation {
	if op.Metadata == nil {
		op.Metadata = make(map[string]any)
	}
	op.Metadata[bodyExampleKey] = example
	return op
}

// makeBodyOptional lets clients leave out the body of an operation if no member of it is required,
// unless needsBody has marked the operation. Their request is then handled like one with the body {},
// so that defaults apply. A body that is declared as optional stays as it is: its absence may mean
// something else than {}.
func (a *API) makeBodyOptional(op *huma.Operation) {
	if op.RequestBody == nil || !op.RequestBody.Required || op.RequestBody.Content["application/json"] == nil {
		return
	}
	if example, needed := op.Metadata[bodyExampleKey]; needed {
		op.RequestBody.Content["application/json"].Example = example
		return
	}
	schema := op.RequestBody.Content["application/json"].Schema
	if schema != nil && schema.Ref != "" {
		schema = a.huma.OpenAPI().Components.Schemas.SchemaFromRef(schema.Ref)
	}
	if schema == nil || schema.Type != huma.TypeObject || len(schema.Required) > 0 || len(schema.OneOf) > 0 {
		return
	}
	op.RequestBody.Required = false
	op.Metadata[absentBodyKey] = "{}"
}

// compare sorts routes into the order in which API.match tries them. Patterns with more parts
// come first; otherwise {repository} in a short pattern would match parts of the path that are
// fixed words in a longer pattern, such as "tag". Of two patterns with equally many parts, the
// one with fewer variables comes first.
func (rt *route) compare(other *route) int {
	if d := len(other.parts) - len(rt.parts); d != 0 {
		return d
	}
	return strings.Count(rt.pattern, "{") - strings.Count(other.pattern, "{")
}

// match returns the route for a path, which is still escaped as the client sent it, or nil if
// no route matches. `values` has the texts for the pattern's variables. `nameParts` is the
// number of parts of the path that belong to the repository's name.
func (a *API) match(path string) (rt *route, values map[string]string, nameParts int) {
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

// pathParts splits a path at its slashes. It ignores a trailing slash, since some of Quay's
// paths have one and others don't.
func pathParts(path string) []string {
	return strings.Split(strings.TrimSuffix(strings.TrimPrefix(path, "/"), "/"), "/")
}

func (rt *route) match(parts []string) (values map[string]string, ok bool) {
	more := len(parts) - len(rt.parts) // parts beyond the pattern's: they belong to the repository's name
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

// operation returns the operation of this route for an HTTP method. It returns nil if the route
// has none for this method.
func (rt *route) operation(method string) *operation {
	if method == http.MethodHead { // net/http leaves out the body
		method = http.MethodGet
	}
	return rt.methods[method]
}

func (rt *route) allow() string {
	return strings.Join(slices.Sorted(maps.Keys(rt.methods)), ", ")
}

package management

import (
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/server"
)

// route is a path with its operations by HTTP method.
type route = server.Route[methods]

type methods map[string]*operation

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
	routes := a.router.Routes()
	i := slices.IndexFunc(routes, func(rt *route) bool { return rt.Pattern == op.Path })
	var rt *route
	if i >= 0 {
		rt = routes[i]
	} else {
		rt = a.router.Add(op.Path, methods{})
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
	rt.Do[op.Method] = o
	access, _ := op.Metadata[accessKey].(auth.Access)
	a.bound[op.OperationID] = &bound{operation: o, access: access}
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

// of returns the operation of a route for an HTTP method. It returns nil if the route has none for this
// method.
func (m methods) of(method string) *operation {
	if method == http.MethodHead { // net/http leaves out the body
		method = http.MethodGet
	}
	return m[method]
}

func (m methods) allow() string {
	return strings.Join(slices.Sorted(maps.Keys(m)), ", ")
}

package management

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
)

// apiError is the body of an error in Quay's format: the format of RFC 7807, with additional
// members for older clients of Quay.
type apiError struct {
	Detail       string `json:"detail" doc:"The reason why this request failed"`
	ErrorMessage string `json:"error_message" doc:"The same as detail, for older clients of Quay"`
	ErrorType    string `json:"error_type" doc:"The kind of error" example:"not_found"`
	Title        string `json:"title" doc:"The same as error_type"`
	Type         string `json:"type" format:"uri-reference" doc:"Where the kind of error is described" example:"/api/v1/error/not_found"`
	Status       int    `json:"status" doc:"The HTTP status" example:"404"`
	Details      any    `json:"details,omitempty" doc:"Values that the error is about, by name, such as the id of a run"`
}

// errorTypes maps each kind of error to its description. Quay has all of these kinds, except
// for internal_error and unavailable, which only Purser has.
var errorTypes = map[string]string{
	"invalid_request":    "The request is wrong, or not possible now: detail says why.",
	"invalid_token":      "The request needs a log-in, or the one that it brings is not valid.",
	"insufficient_scope": "The account of the request may not do this.",
	"not_found":          "The request names something that doesn't exist.",
	"internal_error":     "The registry failed. Its log says why, under the request's X-Request-Id.",
	"unavailable":        "The registry can't do this now. The same request may succeed later.",
}

func errorType(status int) string {
	switch {
	case status == http.StatusUnauthorized:
		return "invalid_token"
	case status == http.StatusForbidden:
		return "insufficient_scope"
	case status == http.StatusNotFound:
		return "not_found"
	case status < 500:
		return "invalid_request"
	case status == http.StatusServiceUnavailable, status == http.StatusInsufficientStorage:
		return "unavailable"
	}
	return "internal_error"
}

// newAPIError converts e to the format of the management API.
func newAPIError(e *oci.Error) *apiError {
	text := e.Message
	text = cmp.Or(text, e.Code.Message())
	p := describeError(e.HTTPStatus(), text)
	p.Details = e.Detail
	return p
}

func describeError(status int, text string) *apiError {
	kind := errorType(status)
	return &apiError{
		Detail: text, ErrorMessage: text, ErrorType: kind, Title: kind, Type: apiRoot + "/error/" + kind, Status: status,
	}
}

// MarshalError encodes an error for a client of the management API.
func MarshalError(e *oci.Error) []byte { return newAPIError(e).marshal() }

// ErrorBody encodes an error in the format of the API to which the path belongs: the management
// API's below /api/, otherwise the OCI API's. It is for errors that the server answers before
// there is an http.Request, for example because the request's header is malformed.
func ErrorBody(path string, status int, message string) []byte {
	e := server.Refusal(status, "%s", message)
	if strings.HasPrefix(path, prefix) {
		return MarshalError(e)
	}
	return oci.MarshalErrors(e)
}

// Error returns the text for the log.
func (p *apiError) Error() string { return p.Detail }

// GetStatus returns the HTTP status for huma.
func (p *apiError) GetStatus() int { return p.Status }

// GetHeaders returns additional headers for huma to send.
func (p *apiError) GetHeaders() http.Header {
	if p.Status == http.StatusServiceUnavailable {
		return http.Header{"Retry-After": {"2"}}
	}
	return nil
}

func (p *apiError) marshal() []byte {
	b, err := json.Marshal(p)
	if err != nil { // p.Details can't be encoded: answer without them
		q := *p
		q.Details = nil
		b, _ = json.Marshal(q) // can't fail: only strings and numbers are left
	}
	return b
}

// huma makes its own errors through global variables such as huma.NewError. init replaces these
// variables, so that huma's errors have Quay's format too. No other package of this process
// uses huma.
func init() {
	huma.NewError = func(status int, text string, errs ...error) huma.StatusError {
		if status == http.StatusUnprocessableEntity { // Quay answers 400
			status = http.StatusBadRequest
		}
		return describeError(status, cmp.Or(detailsOf(errs), text))
	}
	huma.NewErrorWithContext = func(ctx huma.Context, status int, text string, errs ...error) huma.StatusError {
		p := huma.NewError(status, text, errs...)
		server.Observed(ctx.Context()).Err = p.(*apiError)
		return p
	}
}

// errorDescription describes a kind of error in Quay's format.
type errorDescription struct {
	Type        string `json:"type" format:"uri-reference" example:"/api/v1/error/not_found"`
	Title       string `json:"title" example:"not_found"`
	Description string `json:"description"`
}

// addErrorTypes adds the operation that describes a kind of error. The member "type" of each
// error answer is the URL at which this operation describes the kind of that error.
func (a *API) addErrorTypes() {
	type input struct {
		ErrorType string `path:"error_type" doc:"The kind of error" example:"not_found"`
	}
	type output struct{ Body errorDescription }
	add(a, auth.Anyone, huma.Operation{
		OperationID: "getErrorDescription", Method: http.MethodGet, Path: "/error/{error_type}", Tags: []string{"error"},
		Summary: "Describe a kind of error", Errors: []int{http.StatusNotFound},
	}, func(_ context.Context, in *input) (*output, error) {
		text, ok := errorTypes[in.ErrorType]
		if !ok {
			return nil, server.Refusal(http.StatusNotFound, "there is no kind of error that is called %q", in.ErrorType)
		}
		return &output{errorDescription{apiRoot + "/error/" + in.ErrorType, in.ErrorType, text}}, nil
	})
}

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

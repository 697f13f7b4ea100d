package management

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
)

// bound is an operation with the function that runs it.
type bound struct {
	operation *operation
	access    auth.Access
	run       func(ctx context.Context, in any) (any, error) // in and the result are pointers
}

// answer is an answer with a JSON body.
type answer[O any] struct{ Body O }

// serve binds an operation to the function that runs it, at each of its places.
func serve[I, O any](a *API, op api.Operation[I, O], run func(ctx context.Context, in *I) (*O, error)) {
	if reflect.TypeFor[O]() == reflect.TypeFor[api.None]() {
		serveAnswer(a, op, func(ctx context.Context, in *I) (*struct{}, error) {
			_, err := run(ctx, in)
			return nil, err
		}, nil)
		return
	}
	serveAnswer(a, op, func(ctx context.Context, in *I) (*answer[O], error) {
		out, err := run(ctx, in)
		if err != nil {
			return nil, err
		}
		return &answer[O]{*out}, nil
	}, func(out *answer[O]) *O { return &out.Body })
}

// serveAnswer is serve for an operation whose answer A has headers: fields with the tag "header"
// beside the field Body, which `body` returns. Pages get the body alone.
func serveAnswer[I, O, A any](a *API, op api.Operation[I, O], run func(ctx context.Context, in *I) (*A, error), body func(*A) *O) {
	for _, p := range op.Places {
		serveAnswer(a, op.In(p), run, body)
	}
	if op.Places != nil {
		return
	}
	register(a, op, run)
	a.bound[op.ID].run = func(ctx context.Context, in any) (any, error) {
		out, err := run(ctx, in.(*I))
		if out == nil || body == nil {
			return new(O), err
		}
		return body(out), err
	}
}

// register is add for an operation that is a value, at each of its places. The function's input In may
// have more than I, and its answer more than O.
func register[I, O, In, A any](a *API, op api.Operation[I, O], run func(ctx context.Context, in *In) (*A, error)) {
	for _, p := range op.Places {
		register(a, op.In(p), run)
	}
	if op.Places != nil {
		return
	}
	described := huma.Operation{
		OperationID: op.ID, Method: op.Method, Path: op.Path, Tags: strings.Split(op.Tag, ","), Summary: op.Summary, Description: op.Description,
		DefaultStatus: op.Status, Errors: slices.Clone(op.Errors), SkipValidateBody: op.OwnBody, Metadata: map[string]any{ownMemoryKey: op.OwnMemory},
	}
	if op.BodyExample != nil {
		described = needsBody(described, op.BodyExample)
	}
	if op.Checks != 0 {
		described.Extensions = checked(op.Checks)
	}
	add(a, op.Access, described, run)
}

// Run implements api.Runner.
func (a *API) Run(ctx context.Context, id string, in any) (any, error) {
	b := a.bound[id]
	if b == nil || b.run == nil {
		return nil, oci.Errorf(oci.NameUnknown, "this registry has no operation %s", id)
	}
	concerned := auth.Registry
	if scoped, ok := in.(api.Scoped); ok && b.access != auth.List {
		concerned = scoped.Resource()
	}
	if err := a.server.Authorize(ctx, b.access, concerned); err != nil {
		return nil, err
	}
	if err := a.check(b.operation, reflect.ValueOf(in).Elem()); err != nil {
		return nil, err
	}
	lease := server.Observed(ctx).Lease
	taken, err := lease.Take(ctx, b.operation.memory(limitOf(in)))
	if err != nil {
		return nil, err
	}
	out, err := b.run(ctx, in)
	if err != nil || taken == 0 {
		return out, err
	}
	switch missing := pageMemory*sizeOf(reflect.ValueOf(out)) - taken; {
	case missing <= 0:
		lease.Give(-missing)
	case b.operation.Method == http.MethodGet:
		_, err = lease.Take(ctx, missing)
	default:
		lease.TryStream(missing)
	}
	return out, err
}

// pageMemory is how many bytes of memory a page of the UI needs for each byte of the answers that it
// shows: the answers, and the page that is made of them.
const pageMemory = 4

// sizeOf returns about how many bytes a value holds.
func sizeOf(v reflect.Value) (n int64) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return 0
		}
		return sizeOf(v.Elem())
	case reflect.String:
		return int64(v.Len()) + 16
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() { // all times share their zones
			return 24
		}
		for i := range v.NumField() {
			n += sizeOf(v.Field(i))
		}
		return n
	case reflect.Slice, reflect.Array:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return int64(v.Len()) + 24
		}
		for i := range v.Len() {
			n += sizeOf(v.Index(i))
		}
		return n + 24
	case reflect.Map:
		for i := v.MapRange(); i.Next(); {
			n += sizeOf(i.Key()) + sizeOf(i.Value()) + 16
		}
		return n
	}
	return 8
}

// limitOf returns the parameter "limit" of an input, 0 if it has none.
func limitOf(in any) (limit int) {
	api.Parameters(reflect.ValueOf(in).Elem(), func(_, name string, field reflect.Value) {
		if name == "limit" {
			limit = int(field.Int())
		}
	})
	return limit
}

// check checks an input that didn't come over HTTP against the schemas of its parameters and its
// body, and sets parameters that have the zero value to their defaults. Its errors are those of a
// request over HTTP.
func (a *API) check(op *operation, in reflect.Value) error {
	schemas := a.huma.OpenAPI().Components.Schemas
	path, result := huma.NewPathBuffer(nil, 0), new(huma.ValidateResult)
	var wrong error
	api.Parameters(in, func(location, name string, field reflect.Value) {
		i := slices.IndexFunc(op.Parameters, func(p *huma.Param) bool { return p.In == location && p.Name == name })
		if i < 0 {
			return
		}
		schema := op.Parameters[i].Schema
		if field.IsZero() {
			switch {
			case schema.Default != nil:
				field.Set(reflect.ValueOf(schema.Default).Convert(field.Type()))
			case location == "path" && schema.Type == huma.TypeString:
				wrong = cmp.Or[error](wrong, missingPart(name))
			}
			return
		}
		if optional, ok := field.Addr().Interface().(huma.ParamWrapper); ok {
			field = optional.Receiver()
		}
		if field.Kind() == reflect.String {
			wrong = cmp.Or(wrong, server.CheckText(name, field.String()))
		}
		path.Reset()
		path.Push(location)
		path.Push(name)
		huma.Validate(schemas, schema, path, huma.ModeWriteToServer, plain(field), result)
	})
	if wrong != nil {
		return wrong
	}
	if scoped, ok := in.Interface().(api.Scoped); ok {
		if name := scoped.Resource().Repository; name != "" && oci.ValidateName(name) != nil {
			return oci.Errorf(oci.NameInvalid, "%v", oci.ValidateName(name))
		}
	}
	if err := a.checkInputBody(op, in, path, result); err != nil {
		return err
	}
	if len(result.Errors) > 0 {
		return server.Refusal(http.StatusBadRequest, "%s", detailsOf(result.Errors))
	}
	return nil
}

// checkInputBody checks the body of an input, which has text that people have typed into a form.
func (a *API) checkInputBody(op *operation, in reflect.Value, path *huma.PathBuffer, result *huma.ValidateResult) error {
	body := api.Body(in)
	if body == nil || op.RequestBody == nil {
		return nil
	}
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	if len(text) > maxBody {
		return server.Refusal(http.StatusRequestEntityTooLarge, "the body has more than %d bytes", maxBody)
	}
	if err := checkBody(text); err != nil {
		return err
	}
	if op.SkipValidateBody {
		return nil
	}
	var members any
	if err := json.Unmarshal(text, &members); err != nil {
		return err
	}
	path.Reset()
	path.Push("body")
	huma.Validate(a.huma.OpenAPI().Components.Schemas, op.RequestBody.Content["application/json"].Schema, path, huma.ModeWriteToServer, members, result)
	return nil
}

// plain returns a parameter as huma reads it from a request.
func plain(field reflect.Value) any {
	switch field.Kind() {
	case reflect.String:
		return field.String()
	case reflect.Int, reflect.Int64:
		return field.Int()
	case reflect.Struct: // such as a digest
		return fmt.Sprint(field.Interface())
	}
	return field.Interface()
}

// detailsOf joins what huma found wrong with an input.
func detailsOf(errs []error) string {
	list := make([]string, len(errs))
	for i, err := range errs {
		d, ok := err.(huma.ErrorDetailer)
		switch {
		case !ok:
			list[i] = err.Error()
		case d.ErrorDetail().Location == "":
			list[i] = d.ErrorDetail().Message
		default:
			list[i] = d.ErrorDetail().Location + ": " + d.ErrorDetail().Message
		}
	}
	return strings.Join(list, "; ")
}

// checkBody returns an error if a JSON body has a string that PostgreSQL can't store, because
// it contains the character NUL, which JSON writes as \u0000. checkBody accepts a body that
// isn't JSON, because the parser that reads the body afterwards refuses it. It accepts invalid
// UTF-8, because encoding/json replaces it by valid characters.
func checkBody(body []byte) error {
	var v any
	if err := json.Unmarshal(body, &v); err != nil {
		return nil
	}
	return checkMembers("the body", v)
}

func checkMembers(what string, v any) error {
	switch v := v.(type) {
	case string:
		return server.CheckText(what, v)
	case []any:
		for _, element := range v {
			if err := checkMembers(what, element); err != nil {
				return err
			}
		}
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			if err := server.CheckText("the name of a member of "+what, name); err != nil {
				return err
			}
			if err := checkMembers(strings.TrimPrefix(what+"."+name, "the body."), v[name]); err != nil {
				return err
			}
		}
	}
	return nil
}

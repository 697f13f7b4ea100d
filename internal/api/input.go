package api

import (
	"fmt"
	"net/url"
	"reflect"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/auth"
)

// Scoped is the input of an operation that concerns a repository or a namespace, which the path names.
type Scoped interface{ Resource() auth.Resource }

// InRepository is the part of an input that names a repository.
type InRepository struct {
	Repository string `path:"repository" doc:"Name of the repository" example:"library/alpine"`
}

// Resource returns the repository.
func (i InRepository) Resource() auth.Resource { return auth.OfRepository(i.Repository) }

// InNamespace is the part of an input that names a namespace.
type InNamespace struct {
	Namespace string `path:"orgname" doc:"Name of the namespace" example:"library"`
}

// Resource returns the namespace.
func (i InNamespace) Resource() auth.Resource { return auth.OfNamespace(i.Namespace) }

// At is the part of an input that says at which place an operation acts: in a repository, in a
// namespace, or, if it names neither, in the whole registry.
type At struct {
	Repository string `path:"repository" required:"false" doc:"Name of the repository" example:"library/alpine"`
	Namespace  string `path:"orgname" required:"false" doc:"Name of the namespace" example:"library"`
}

// Paths of the places.
const (
	OfRepository = "/repository/{repository}"
	OfNamespace  = "/organization/{orgname}"
	OfOwn        = "/user" // the namespace with the name of the client's account; the server sets At.Namespace
	OfRegistry   = ""
	OfSuperusers = "/superuser" // the whole registry, where Quay has this path for it
)

// AnonymousNamespace is the namespace at OfOwn for a client that isn't logged in.
const AnonymousNamespace = "library"

// ownNamespace has the words for OfOwn.
const ownNamespace = "the namespace of the client's account, which is " + AnonymousNamespace + " if nobody is logged in"

// Resource returns the place.
func (a At) Resource() auth.Resource {
	switch {
	case a.Repository != "":
		return auth.OfRepository(a.Repository)
	case a.Namespace != "":
		return auth.OfNamespace(a.Namespace)
	}
	return auth.Registry
}

func (a At) place() string {
	switch {
	case a.Repository != "":
		return OfRepository
	case a.Namespace != "":
		return OfNamespace
	}
	return OfRegistry
}

// Paging is the part of an input that selects a page of a list.
type Paging struct {
	Limit    int    `query:"limit" minimum:"0" doc:"Most entries of a page. 0, and more than 500, count as 500. A page has fewer if they are long"`
	NextPage string `query:"next_page" doc:"The next_page of the page before"`
}

// MostOfPage is the most entries of a page.
const MostOfPage = 500

// Most returns how many entries the page has at most.
func (p Paging) Most() int {
	if p.Limit == 0 {
		return MostOfPage
	}
	return min(p.Limit, MostOfPage)
}

// NameContains is the part of an input that selects entries of a list by their names.
type NameContains struct {
	Contains string `query:"contains" maxLength:"128" doc:"Only names that contain this"`
}

// Optional is a query parameter of which it matters whether it is given: the zero value means something
// else than none. The type of an input that has one implements huma.Resolver to set Given.
type Optional[T any] struct {
	Value T
	Given bool
}

// Some returns a parameter that is given.
func Some[T any](value T) Optional[T] { return Optional[T]{value, true} }

// String returns the value as text.
func (o Optional[T]) String() string { return fmt.Sprint(o.Value) }

// Receiver implements huma.ParamWrapper.
func (o *Optional[T]) Receiver() reflect.Value { return reflect.ValueOf(&o.Value).Elem() }

// Schema returns the schema of the value.
func (o Optional[T]) Schema(r huma.Registry) *huma.Schema {
	return huma.SchemaFromType(r, reflect.TypeFor[T]())
}

// Parameters calls f for each parameter of an input: "path" or "query", its name and its field. `in`
// is a struct, which must be addressable if f sets fields.
func Parameters(in reflect.Value, f func(location, name string, field reflect.Value)) {
	for i, t := 0, in.Type(); i < t.NumField(); i++ {
		field := t.Field(i)
		switch path, query := field.Tag.Get("path"), field.Tag.Get("query"); {
		case field.Anonymous && field.Type.Kind() == reflect.Struct:
			Parameters(in.Field(i), f)
		case path != "":
			f("path", path, in.Field(i))
		case query != "":
			name, _, _ := strings.Cut(query, ",")
			f("query", name, in.Field(i))
		}
	}
}

// Body returns the JSON body of an input, nil if it has none.
func Body(in reflect.Value) any {
	body := in.FieldByName("Body")
	if !body.IsValid() || body.Kind() == reflect.Pointer && body.IsNil() {
		return nil
	}
	return body.Interface()
}

// encode puts an input into a path, a query and a body.
func encode(path string, in any) (string, url.Values, any) {
	query := make(url.Values)
	Parameters(reflect.ValueOf(in), func(location, name string, field reflect.Value) {
		switch text := parameterText(field); {
		case location == "path":
			path = strings.ReplaceAll(path, "{"+name+"}", url.PathEscape(text))
		case !field.IsZero():
			query.Set(name, text)
		}
	})
	return path, query, Body(reflect.ValueOf(in))
}

// parameterText writes a parameter as the server reads it: lists have commas.
func parameterText(field reflect.Value) string {
	if field.Kind() != reflect.Slice {
		return fmt.Sprint(field.Interface())
	}
	texts := make([]string, field.Len())
	for i := range texts {
		texts[i] = fmt.Sprint(field.Index(i).Interface())
	}
	return strings.Join(texts, ",")
}

// setPaging sets the parameters of an input that say which page of a list it wants.
func setPaging(in any, limit int, next string) {
	Parameters(reflect.ValueOf(in).Elem(), func(_, name string, field reflect.Value) {
		switch name {
		case "limit":
			field.SetInt(int64(limit))
		case "next_page", "cursor":
			field.SetString(next)
		}
	})
}

// ReadOnly adds members of an answer to the schema of a request body. A client can then read a
// resource, change it and send it back with these members, which the registry ignores.
func ReadOnly(s *huma.Schema, members ...string) *huma.Schema {
	for _, name := range members {
		if s.Properties[name] == nil {
			s.Properties[name] = &huma.Schema{ReadOnly: true, Description: "Read-only: it is ignored in requests"}
		}
	}
	return s
}

// Nullable marks the given properties of a schema as ones that may be null. It is for properties
// that refer to another schema; huma has no struct tag for these.
func Nullable(s *huma.Schema, properties ...string) *huma.Schema {
	for _, name := range properties {
		s.Properties[name] = &huma.Schema{OneOf: []*huma.Schema{s.Properties[name], {Type: "null"}}}
	}
	return s
}

package management

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/auth"
)

// tags are the groups into which the OpenAPI document and the HTML page divide the operations.
var tags = []*huma.Tag{
	{Name: "autoprune", Description: "Policies that delete tags, previews of them, their runs"},
	{Name: "check", Description: "Comparison of the database with the blob store"},
	{Name: "error", Description: "The kinds of errors and their meaning"},
	{Name: "gc", Description: "Garbage collection: its state, runs by hand, why something is kept"},
	{Name: "hold", Description: "What is deployed somewhere and stays: reports, and who holds what"},
	{Name: "logs", Description: "The audit log"},
	{Name: "loosefk", Description: "Cleaning up after deleted repositories and namespaces"},
	{Name: "manifest", Description: "What manifests consist of, and what refers to them"},
	{Name: "namespace", Description: "Namespaces, which are Quay's organizations: the first parts of repositories' names"},
	{Name: "pullstatistics", Description: "Statistics of pulls"},
	{Name: "permission", Description: "Roles of accounts and teams in repositories and namespaces"},
	{Name: "trash", Description: "Deleted repositories and namespaces that can be restored"},
	{Name: "quota", Description: "Limits on the bytes, repositories and tags of namespaces"},
	{Name: "repository", Description: "Repositories"},
	{Name: "robot", Description: "Robots, which are accounts for programs, and the tokens of other issuers that log in as them"},
	{Name: "system", Description: "The health of the registry"},
	{Name: "tag", Description: "Tags"},
	{Name: "tagprotection", Description: "Rules that keep tags as they are"},
	{Name: "team", Description: "Teams of namespaces, and the people who have rights there"},
	{Name: "token", Description: "Personal tokens and log-ins of the client's account"},
	{Name: "user", Description: "People's accounts"},
	{Name: "webhook", Description: "Webhooks, which are told of pushes, pulls, deletions and garbage collection in a namespace"},
}

// securitySchemes are the ways in which clients authenticate.
var securitySchemes = map[string]*huma.SecurityScheme{
	"basic": {Type: "http", Scheme: "basic",
		Description: "Name and password of an account, or its name and a personal token. For a robot: its name and its secret. " +
			"A registry without access control ignores it"},
	"bearer": {Type: "http", Scheme: "bearer",
		Description: "A personal token, or the secret of a robot. A registry without access control ignores it"},
	"session": {Type: "apiKey", In: "cookie", Name: "__Host-purser_session",
		Description: "The log-in of a browser. A registry without access control ignores it"},
}

// requiredSecurity says in the OpenAPI document that a client must authenticate in one of these
// ways. optionalSecurity says that it needn't, as far as public repositories are concerned: the
// first of the alternatives is empty (OpenAPI 3.1, "Security Requirement Object").
var (
	requiredSecurity = []map[string][]string{{"basic": {}}, {"bearer": {}}, {"session": {}}}
	optionalSecurity = append([]map[string][]string{{}}, requiredSecurity...)
)

//go:embed page.html
var apiPageText string

var pageTemplate = template.Must(template.New("api").Parse(apiPageText))

// pageTag is a section of the HTML page about the API: the operations that have the same tag in
// the OpenAPI document.
type pageTag struct {
	Name       string
	Operations []pageOperation
}

// pageOperation is an operation on the API page.
type pageOperation struct {
	ID, Method, Path     string
	Summary, Description string
	Access               string
	Parts                []string // of the path, each with its leading slash
	Parameters           []pageField
	Body                 []pageField
	BodyRequired         bool
	Answers              []pageAnswer
	Example              string
}

// pageField is a parameter of an operation, or a member of a body, on the HTML page. Depth is 0
// for a member at the top of the body, and 1 more for each object that encloses the member.
type pageField struct {
	Name, In, Type, Doc string
	Note                string // whether it is required
	Depth               int
}

type pageAnswer struct {
	Status, Doc string
	Type        string // of a body that isn't an object
	Fields      []pageField
}

// addPage adds the operation that serves an HTML page, which describes all operations of the
// OpenAPI document.
func (a *API) addPage() {
	render := sync.OnceValues(a.renderPage)
	add(a, auth.Anyone, huma.Operation{
		OperationID: "getAPIPage", Method: http.MethodGet, Path: "/", Summary: "Read about the API", Hidden: true,
	}, func(context.Context, *struct{}) (*page, error) {
		text, err := render()
		return &page{"text/html; charset=utf-8", "default-src 'none'; style-src 'unsafe-inline'", text}, err
	})
}

// page is the HTML page about the API, with its headers. The page has no scripts and loads
// nothing from other URLs.
type page struct {
	ContentType string `header:"Content-Type"`
	Policy      string `header:"Content-Security-Policy"`
	Body        []byte
}

func (a *API) renderPage() ([]byte, error) {
	doc := a.huma.OpenAPI()
	byTag := make(map[string][]pageOperation)
	for path, item := range doc.Paths {
		for _, op := range []*huma.Operation{item.Get, item.Post, item.Put, item.Patch, item.Delete} {
			if op == nil || op.Hidden {
				continue
			}
			tag := "other"
			if len(op.Tags) > 0 {
				tag = op.Tags[0]
			}
			byTag[tag] = append(byTag[tag], newPageOperation(doc, path, op))
		}
	}
	var tags []pageTag
	for _, name := range slices.Sorted(maps.Keys(byTag)) {
		slices.SortFunc(byTag[name], func(a, b pageOperation) int {
			return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(methodOrder(a.Method), methodOrder(b.Method)))
		})
		tags = append(tags, pageTag{name, byTag[name]})
	}
	var out bytes.Buffer
	err := pageTemplate.Execute(&out, map[string]any{
		"Title": doc.Info.Title, "Description": doc.Info.Description, "Tags": tags, "Errors": slices.Sorted(maps.Keys(errorTypes)),
	})
	return out.Bytes(), err
}

func methodOrder(method string) int {
	return slices.Index([]string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}, method)
}

func newPageOperation(doc *huma.OpenAPI, path string, op *huma.Operation) pageOperation {
	access, _ := op.Extensions["x-access"].(string)
	p := pageOperation{
		ID: op.OperationID, Method: op.Method, Path: path, Parts: strings.Split(path, "/")[1:], Summary: op.Summary, Description: op.Description, Access: access,
	}
	for _, param := range op.Parameters {
		field := pageField{
			Name: param.Name, In: param.In, Type: typeOf(doc, param.Schema), Doc: cmp.Or(param.Description, param.Schema.Description),
		}
		if param.Required {
			field.Note = "required"
		}
		p.Parameters = append(p.Parameters, field)
	}
	if op.RequestBody != nil {
		p.BodyRequired = op.RequestBody.Required
		if s := jsonSchema(op.RequestBody.Content); s != nil {
			p.Body = fieldsOf(doc, s, notes{"required", ""}, nil)
		}
	}
	p.Example = exampleOf(doc, path, op)
	for _, status := range slices.Sorted(maps.Keys(op.Responses)) {
		r := op.Responses[status]
		answer := pageAnswer{Status: status, Doc: r.Description}
		if s := jsonSchema(r.Content); s != nil && status < "400" {
			if answer.Fields = fieldsOf(doc, s, notes{"", "may be missing"}, nil); answer.Fields == nil {
				answer.Type = typeOf(doc, s)
			}
		}
		p.Answers = append(p.Answers, answer)
	}
	return p
}

func jsonSchema(content map[string]*huma.MediaType) *huma.Schema {
	if m := content["application/json"]; m != nil {
		return m.Schema
	}
	return nil
}

// resolve returns the schema to which the reference `s` points, or `s` itself if it isn't a
// reference. For a schema that may be null, it returns the alternative other than null.
func resolve(doc *huma.OpenAPI, s *huma.Schema) *huma.Schema {
	if s != nil && s.Ref != "" {
		s = doc.Components.Schemas.SchemaFromRef(s.Ref)
	}
	if s != nil && len(s.OneOf) > 0 {
		return resolve(doc, s.OneOf[0])
	}
	return s
}

// typeOf describes the type of a value for people.
func typeOf(doc *huma.OpenAPI, given *huma.Schema) string {
	s := resolve(doc, given)
	if s == nil {
		return "any"
	}
	text := s.Type
	switch {
	case s.Type == huma.TypeArray:
		text = "list of " + plural(typeOf(doc, s.Items))
	case s.Type == huma.TypeString && s.Format != "":
		text = s.Format
	case s.Type == "":
		text = "any"
	}
	var limits []string
	if len(s.Enum) > 0 {
		limits = append(limits, strings.Trim(strings.ReplaceAll(fmt.Sprint(s.Enum), " ", ", "), "[]"))
	}
	if s.Minimum != nil && s.Maximum != nil {
		limits = append(limits, fmt.Sprintf("%v to %v", *s.Minimum, *s.Maximum))
	}
	if s.Default != nil {
		limits = append(limits, fmt.Sprintf("default %v", s.Default))
	}
	if len(limits) > 0 {
		text += " (" + strings.Join(limits, "; ") + ")"
	}
	if s.Nullable || given != nil && len(given.OneOf) > 0 {
		text += " or null"
	}
	return text
}

func plural(name string) string {
	if name == huma.TypeObject || name == huma.TypeString {
		return name + "s"
	}
	return name
}

// notes has the remarks that the page shows beside members: one for required members, one for
// optional members.
type notes struct{ required, optional string }

// fieldsOf lists the members of an object with the schema `given`. Each member that is itself
// an object is followed by its own members. `above` has the schemas that enclose `given`. If
// `given` is among them, it contains itself; then fieldsOf doesn't list its members again.
func fieldsOf(doc *huma.OpenAPI, given *huma.Schema, n notes, above []*huma.Schema) (list []pageField) {
	s := resolve(doc, given)
	for s != nil && s.Type == huma.TypeArray {
		s = resolve(doc, s.Items)
	}
	if s == nil || s.Type != huma.TypeObject || slices.Contains(above, s) {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		member := s.Properties[name]
		field := pageField{Name: name, Type: typeOf(doc, member), Doc: member.Description, Depth: len(above), Note: n.optional}
		if slices.Contains(s.Required, name) {
			field.Note = n.required
		}
		list = append(list, field)
		list = append(list, fieldsOf(doc, member, n, append(slices.Clone(above), s))...)
	}
	return list
}

// exampleOf returns a curl command that calls the operation `op` with example values for its
// parameters and body.
func exampleOf(doc *huma.OpenAPI, path string, op *huma.Operation) string {
	for _, param := range op.Parameters {
		if param.In == "path" {
			path = strings.ReplaceAll(path, "{"+param.Name+"}", exampleText(doc, param))
		}
	}
	text := "curl"
	if op.Method != http.MethodGet {
		text += " -X " + op.Method
	}
	if op.RequestBody != nil && op.RequestBody.Required {
		example := exampleValue(doc, jsonSchema(op.RequestBody.Content))
		if m := op.RequestBody.Content["application/json"]; m != nil && m.Example != nil {
			example = m.Example
		}
		if body, err := json.Marshal(example); err == nil {
			text += " -H 'Content-Type: application/json' \\\n  -d '" + string(body) + "' \\\n "
		}
	}
	return text + " http://127.0.0.1:5000" + path
}

func exampleText(doc *huma.OpenAPI, param *huma.Param) string {
	if param.Example != nil {
		return fmt.Sprint(param.Example)
	}
	if s := resolve(doc, param.Schema); s != nil && len(s.Examples) > 0 {
		return fmt.Sprint(s.Examples[0])
	}
	return "{" + param.Name + "}"
}

// exampleValue returns an example for a schema: the schema's own example if it has one, an
// object with its required members, or a value of the schema's type.
func exampleValue(doc *huma.OpenAPI, given *huma.Schema) any {
	s := resolve(doc, given)
	switch {
	case s == nil:
		return nil
	case len(s.Examples) > 0:
		return s.Examples[0]
	case s.Type == huma.TypeObject:
		members := make(map[string]any)
		for _, name := range s.Required {
			members[name] = exampleValue(doc, s.Properties[name])
		}
		return members
	case s.Type == huma.TypeArray:
		return []any{exampleValue(doc, s.Items)}
	case len(s.Enum) > 0:
		return s.Enum[0]
	case s.Type == huma.TypeInteger, s.Type == huma.TypeNumber:
		return 1
	case s.Type == huma.TypeBoolean:
		return true
	}
	return "…"
}

// addDocument adds the operations that serve the OpenAPI document as JSON and YAML. The
// document describes all operations except for these two and the HTML page.
func (a *API) addDocument() {
	for _, form := range []struct {
		ending, contentType string
		of                  func(document) []byte
	}{
		{"json", "application/json", func(d document) []byte { return d.json }},
		{"yaml", "application/yaml", func(d document) []byte { return d.yaml }},
	} {
		add(a, auth.Anyone, huma.Operation{
			OperationID: "getOpenAPI-" + form.ending, Method: http.MethodGet, Path: "/openapi." + form.ending,
			Summary: "Describe the API", Hidden: true,
		}, func(context.Context, *struct{}) (*raw, error) {
			d, err := a.document()
			if err != nil {
				return nil, err
			}
			return &raw{form.contentType, form.of(d)}, nil
		})
	}
}

package server

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"mime"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/loosefk"
)

const (
	// apiRoot is the prefix of every path of the management API.
	apiRoot = "/api/v1"
	// maxAPIBody limits the body of a request to the management API, in bytes.
	maxAPIBody = 64 << 10
)

func isManagement(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, "/api/") }

// api is the management API. Before an operation runs, api itself finds its route,
// checks its access and reads its body. huma then parses and validates the operation's
// input, writes its output, and describes both in the OpenAPI document.
type api struct {
	server   *Server
	huma     huma.API
	routes   []*apiRoute // in the order in which they are tried
	document func() (document, error)
	gc       *runs[gcReport]
	checks   *runs[checkReport]
	loose    *runs[*loosefk.Result]
}

// newAPI makes the management API with all its operations.
func newAPI(s *Server) *api {
	a := &api{
		server: s,
		gc:     newRuns[gcReport]("garbage collection", s.log),
		checks: newRuns[checkReport]("a check", s.log),
		loose:  newRuns[*loosefk.Result]("a run of loose foreign keys", s.log),
	}
	a.document = sync.OnceValues(a.describe)
	a.huma = huma.NewAPI(huma.Config{
		OpenAPI: &huma.OpenAPI{
			Info: &huma.Info{
				Title: "Purser", Version: "1",
				Description: "The management API of the Purser registry. Where Quay has a route for something, it is Quay's. " +
					"The slashes of a repository's name may be written as they are or as %2F.",
			},
			Tags:       apiTags,
			Components: &huma.Components{SecuritySchemes: securitySchemes},
		},
		Formats: huma.DefaultFormats, DefaultFormat: "application/json",
		// An unknown parameter is an error: a misspelt dry_run must not start a real
		// run.
		RejectUnknownQueryParameters: true,
	}, a)
	if s.external != nil {
		a.huma.OpenAPI().Servers = []*huma.Server{{URL: s.external.url}}
	}
	a.addDocument()
	a.addPage()
	a.addErrorTypes()
	a.addTags()
	a.addRepositories()
	a.addNamespaces()
	a.addRepositoryList()
	a.addRepository()
	a.addVisibility()
	a.addStars()
	a.addUser()
	a.addTagList()
	a.addTag()
	a.addManifest()
	a.addSystem()
	a.addGC()
	a.addChecks()
	a.addPolicies()
	a.addPruning()
	a.addLogs()
	a.addExports()
	a.addProtection()
	a.addWebhooks()
	a.addPulls()
	return a
}

// close cancels the runs that operators have started and waits until they end, or until
// ctx ends.
func (a *api) close(ctx context.Context) {
	a.gc.close(ctx)
	a.checks.close(ctx)
	a.loose.close(ctx)
}

const accessKey = "access"

// add registers an operation at a path below apiRoot, with the access that it requires.
// Its handler returns an error and never writes one itself. op.Errors lists only the
// statuses that are particular to this operation.
func add[I, O any](a *api, access Access, op huma.Operation, handle func(ctx context.Context, in *I) (*O, error)) {
	op.Path = apiRoot + op.Path
	op.Metadata = map[string]any{accessKey: access}
	op.Extensions = map[string]any{"x-access": access.String()}
	if access != AccessAny {
		op.Security = optionalSecurity
	}
	op.Errors = append(op.Errors, http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden,
		http.StatusServiceUnavailable)
	op.Responses = make(map[string]*huma.Response)
	// The body has been read into memory before huma sees it. A read deadline, which
	// huma would set, would end the handler.
	op.BodyReadTimeout = -1
	huma.Register(a.huma, op, func(ctx context.Context, in *I) (*O, error) {
		out, err := handle(ctx, in)
		if err != nil {
			observed(ctx).err = err
			return nil, newAPIError(a.server.answer(ctx, err))
		}
		return out, nil
	})
	delete(op.Responses, "422") // huma's own status for invalid input; here it is 400
}

// nullable marks properties as nullable whose schemas are references; huma has no
// struct tag for these.
func nullable(s *huma.Schema, properties ...string) *huma.Schema {
	for _, name := range properties {
		s.Properties[name] = &huma.Schema{OneOf: []*huma.Schema{s.Properties[name], {Type: "null"}}}
	}
	return s
}

// readOnly lets a request body contain members that only answers have, so that a client
// can send back a resource as it read it. Their values are ignored.
func readOnly(s *huma.Schema, members ...string) *huma.Schema {
	for _, name := range members {
		if s.Properties[name] == nil {
			s.Properties[name] = &huma.Schema{ReadOnly: true, Description: "As it was read; what it says is passed over"}
		}
	}
	return s
}

// ServeHTTP answers one request. It implements huma.Adapter.
func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	op, err := a.admit(w, r)
	if err != nil {
		a.server.fail(w, r, err)
		return
	}
	op.handle(humago.NewContext(op.Operation, r, w))
}

// admit finds the operation for a request, checks path, query and access, and then
// reads the body.
func (a *api) admit(w http.ResponseWriter, r *http.Request) (*apiOperation, error) {
	o := observed(r.Context())
	rt, values, nameParts := a.match(r.URL.EscapedPath())
	if rt == nil {
		return nil, nothingAt(r)
	}
	o.route = rt.pattern
	op := rt.operation(r.Method)
	if op == nil {
		if nameParts > 1 && values["repository"] != "" {
			if err := a.checkName(r, AccessPull, values["repository"]); err != nil {
				return nil, err
			}
		}
		w.Header().Set("Allow", rt.allow())
		return nil, refusal(http.StatusMethodNotAllowed, "%s is not possible at %s, but %s", r.Method, rt.pattern, rt.allow())
	}
	o.method = r.Method
	err := checkParameters(r, values)
	if err != nil {
		return nil, err
	}
	repository, named := values["repository"]
	access, _ := op.Metadata[accessKey].(Access)
	switch {
	case named && nameParts > 2:
		err = a.checkName(r, access, repository)
	case named && oci.ValidateName(repository) != nil:
		err = oci.Errorf(oci.NameInvalid, "%v", oci.ValidateName(repository))
	default:
		err = a.server.authorize(r, access, repository)
	}
	if err != nil {
		return nil, err
	}
	for name, value := range values {
		r.SetPathValue(name, value)
	}
	return op, a.readBody(w, r)
}

func nothingAt(r *http.Request) error {
	return refusal(http.StatusNotFound, "there is nothing at %s", r.URL.Path)
}

// checkName checks a repository's name that came with unescaped slashes. The end of
// such a path may have been meant as an operation that doesn't exist, so the request is
// refused unless a repository of this name exists.
func (a *api) checkName(r *http.Request, access Access, repository string) error {
	if oci.ValidateName(repository) != nil {
		return nothingAt(r)
	}
	if err := a.server.authorize(r, access, repository); err != nil {
		return err
	}
	known, err := a.server.catalog.HasRepository(r.Context(), repository)
	if err == nil && !known {
		err = refusal(http.StatusNotFound, "there is nothing at %s: no operation has this path, and repository %s is not known to this registry "+
			"(write %%2F for the slashes of its name if that is meant)", r.URL.Path, repository)
	}
	return err
}

// checkParameters checks that path and query parameters hold only text that PostgreSQL
// can store.
func checkParameters(r *http.Request, values map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if err := checkText(name, values[name]); err != nil {
			return err
		}
	}
	return checkRawQuery(r.URL.RawQuery)
}

// readBody reads the body into memory. Its Content-Type must be JSON, which an HTML
// form on another site's page can't send.
func (a *api) readBody(w http.ResponseWriter, r *http.Request) error {
	given := r.Header.Get("Content-Type")
	if r.Method == http.MethodGet || r.Method == http.MethodHead || r.ContentLength == 0 && given == "" {
		r.Body = http.NoBody
		return nil
	}
	if t, _, err := mime.ParseMediaType(given); err != nil || t != "application/json" {
		return refusal(http.StatusUnsupportedMediaType, "the Content-Type is %q and should be application/json", given)
	}
	tooLong := refusal(http.StatusRequestEntityTooLarge, "the body has more than %d bytes", maxAPIBody)
	if r.ContentLength > maxAPIBody {
		return tooLong
	}
	in := a.server.newIntake(&call{ResponseWriter: w, r: r})
	body := in.hold(maxAPIBody+1, 1)
	if err := in.lostError(); err != nil {
		return err
	}
	if len(body) > maxAPIBody {
		return tooLong
	}
	if err := checkBody(body); err != nil {
		return err
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.Header.Set("Content-Type", "application/json") // huma compares the value literally
	return nil
}

// document is the OpenAPI document as JSON and as YAML.
type document struct{ json, yaml []byte }

func (a *api) describe() (d document, err error) {
	if d.json, err = json.Marshal(a.huma.OpenAPI()); err != nil {
		return d, err
	}
	d.yaml, err = a.huma.OpenAPI().YAML()
	return d, err
}

// raw is an answer whose body is already encoded.
type raw struct {
	ContentType string `header:"Content-Type"`
	Body        []byte
}

// addDocument adds the operations that serve the OpenAPI document. The document
// describes all operations but these.
func (a *api) addDocument() {
	for _, form := range []struct {
		ending, contentType string
		of                  func(document) []byte
	}{
		{"json", "application/json", func(d document) []byte { return d.json }},
		{"yaml", "application/yaml", func(d document) []byte { return d.yaml }},
	} {
		add(a, AccessAny, huma.Operation{
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

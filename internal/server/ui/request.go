package ui

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
)

// apiRoot is the prefix of the management API's paths.
const apiRoot = "/api/v1"

// request is a request for a page, or a form that was sent.
type request struct {
	*http.Request
	ui     *UI
	w      http.ResponseWriter
	values map[string]string // of the variables of the route's pattern
	form   url.Values        // nil for GET

	refused typed // the form, if the registry refused it and the page shows it again
}

// apiError is a refusal of the management API.
type apiError struct {
	status     int
	message    string
	details    json.RawMessage // values that it is about, by name
	retryAfter string          // the header Retry-After, "": none
}

func (e *apiError) Error() string { return e.message }

// statusOf returns the status of a refusal of the management API, 0 for other errors and nil.
func statusOf(err error) int {
	if e, ok := errors.AsType[*apiError](err); ok {
		return e.status
	}
	return 0
}

// hidden says that the client may not see what it asked the management API for, or that the
// registry has it switched off. A page then leaves out the part that would show it.
func hidden(err error) bool {
	switch statusOf(err) {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound:
		return true
	}
	return false
}

// formStatus returns the status of the page that says why a form didn't work, 0 for errors that aren't
// about what was sent.
func formStatus(err error) int {
	if _, ok := errors.AsType[formError](err); ok {
		return http.StatusBadRequest
	}
	if _, ok := errors.AsType[fieldError](err); ok {
		return http.StatusBadRequest
	}
	return statusOf(err)
}

// run runs an operation of the management API as the client of the request.
func run[I, O any](q *request, op api.Operation[I, O], in I) (O, error) {
	out, err := op.Run(q.Context(), q.ui.operations, in)
	if err == nil {
		return out, nil
	}
	server.Observed(q.Context()).Err = err // for the log
	e, retry := server.Answer(q.Context(), err), make(http.Header)
	server.SetRetry(retry, e)
	refused := &apiError{retryAfter: retry.Get("Retry-After")}
	refused.status, refused.message = messageOf(q.Context(), err)
	if details, err := json.Marshal(e.Detail); err == nil && e.Detail != nil {
		refused.details = details
	}
	return out, refused
}

// readForm reads the body of a form.
func (q *request) readForm() error {
	if kind, _, _ := strings.Cut(q.Header.Get("Content-Type"), ";"); strings.TrimSpace(kind) != "application/x-www-form-urlencoded" {
		return server.Refusal(http.StatusUnsupportedMediaType, "the Content-Type is %q and should be that of a form", q.Header.Get("Content-Type"))
	}
	body := q.ui.server.Body(q.w, q.Request)
	content := body.Hold(maxForm+1, 2)
	switch {
	case body.LostError() != nil:
		return body.LostError()
	case len(content) > maxForm:
		return server.Refusal(http.StatusRequestEntityTooLarge, "the form has more than %d bytes", maxForm)
	}
	var err error
	if q.form, err = url.ParseQuery(string(content)); err != nil {
		return server.Refusal(http.StatusBadRequest, "the form can't be read: %v", err)
	}
	return nil
}

// digestIn reads the text of a digest, which people may have changed. Its error is that of the
// management API for the parameter or the member of this name.
func digestIn(name, text string) (oci.Digest, error) {
	d, err := oci.ParseDigest(text)
	if err != nil {
		err = &apiError{status: http.StatusBadRequest, message: name + ": " + err.Error()}
	}
	return d, err
}

// repository returns the value of the variable {repository}.
func (q *request) repository() string { return q.values["repository"] }

// query returns a parameter of the query, without space around it.
func (q *request) query(name string) string { return strings.TrimSpace(q.URL.Query().Get(name)) }

// redirect sends the browser to another page of the UI after a form.
func (q *request) redirect(to string) error {
	q.w.Header().Set("Location", to)
	q.w.WriteHeader(http.StatusSeeOther)
	return nil
}

// account returns the name of the account that is logged in, "" if none is.
func (q *request) account() string { return server.Observed(q.Context()).Account() }

// operator says that the client may do everything in the registry.
func (q *request) operator() bool {
	return q.open() || server.Observed(q.Context()).Principal.Superuser
}

// open says that the registry has no access control.
func (q *request) open() bool { return q.ui.server.Auth() == nil }

// messageOf returns the text of an error for people.
func messageOf(ctx context.Context, err error) (status int, text string) {
	if e, ok := errors.AsType[*apiError](err); ok {
		return e.status, e.message
	}
	e := server.Answer(ctx, err)
	text = e.Message
	if text == "" {
		text = e.Code.Message()
	}
	if e.Code == oci.Unknown && e.Message == "" {
		text = "Something went wrong in the registry. Its log says what; the request's id is " + server.Observed(ctx).ID + "."
	}
	return e.HTTPStatus(), text
}

// place is a repository or, if repository is "", a namespace. Policies, rules and roles belong to
// places of both kinds, and their pages share handlers.
type place struct{ namespace, repository string }

// place returns the repository or namespace to which the request's path belongs.
func (q *request) place() place {
	if repository := q.repository(); repository != "" {
		namespace, _, _ := strings.Cut(repository, "/")
		return place{namespace, repository}
	}
	return place{namespace: q.values["namespace"]}
}

// Name returns the name of the repository or namespace.
func (p place) Name() string {
	if p.repository != "" {
		return p.repository
	}
	return p.namespace
}

// Namespace returns the name of the namespace.
func (p place) Namespace() string { return p.namespace }

// IsNamespace says whether the place is a namespace.
func (p place) IsNamespace() bool { return p.repository == "" }

// Home returns the path of the place's first page, followed by the given path below it.
func (p place) Home(below string) string {
	if p.repository != "" {
		return link("/ui/repositories/{repository}", p.repository) + below
	}
	return link("/ui/namespaces/{namespace}", p.namespace) + below
}

// At returns the place as inputs of the management API name it.
func (p place) At() api.At {
	if p.repository != "" {
		return api.At{Repository: p.repository}
	}
	return api.At{Namespace: p.namespace}
}

// PolicyAt is At for the operations on policies.
func (p place) PolicyAt() api.PolicyAt { return api.PolicyAt(p.At()) }

// whole returns the namespace as inputs of the operations on auto-pruning name it.
func (p place) whole() api.PruneNamespace { return api.PruneNamespace{Namespace: p.namespace} }

// api returns a path of the management API below the place. Each argument takes the place of a %s.
func (p place) api(format string, values ...string) string {
	if p.repository != "" {
		return apiPath("/repository/%s", p.repository) + apiPath(format, values...)
	}
	return apiPath("/organization/%s", p.namespace) + apiPath(format, values...)
}

// placePage returns the frame of a page of the place. `current` is the link of the tab.
func (q *request) placePage(p place, current string) page {
	if p.repository != "" {
		return q.repositoryPage(p.repository, current)
	}
	out := page{Title: p.namespace, Section: "namespaces", Crumbs: []crumb{{"Namespaces", "/ui/namespaces"}}}
	out.Tabs = q.tabs(namespaceTabs, p.Home(""), current, auth.OfNamespace(p.namespace))
	return out
}

// namespaceTabs are the pages of each namespace, with their paths below it.
var namespaceTabs = []placeTab{
	{"", "Overview", 0}, {"/-/policies", "Policies", auth.Maintain}, {"/-/teams", "Teams", auth.Administer},
	{"/-/robots", "Robots", auth.Administer}, {"/-/webhooks", "Webhooks", auth.Administer}, {"/-/settings", "Settings", auth.Maintain},
}

// placeTab is a page of a namespace or a repository: its path below the place's own page, and the
// access without which the page shows nothing, 0 for none.
type placeTab struct {
	path, text string
	access     auth.Access
}

// tabs returns the tabs of a place that lead the client somewhere. The pages themselves don't rely
// on that: the management API decides what they show.
func (q *request) tabs(list []placeTab, home, current string, place auth.Resource) (out []tab) {
	for _, t := range list {
		if t.access == 0 || q.may(t.access, place) {
			out = append(out, tab{t.text, home + t.path, t.path == current})
		}
	}
	return out
}

// may says whether the client has an access to a repository or a namespace. Pages use it to leave
// out what the API would refuse, and for nothing else.
func (q *request) may(access auth.Access, of auth.Resource) bool {
	err := q.ui.server.Authorize(q.Context(), access, of)
	q.w.Header().Del("WWW-Authenticate") // Authorize sets it for clients that aren't logged in
	return err == nil
}

// mayDelete says whether the client may delete the place.
func (q *request) mayDelete(p place) bool {
	if p.repository != "" {
		return q.may(auth.Delete, auth.OfRepository(p.repository))
	}
	return q.may(auth.Administer, auth.OfNamespace(p.namespace))
}

// addPlace adds a page, or a form, to all repositories and all namespaces.
func (u *UI) addPlace(path string, get, post func(q *request) error) {
	u.add("/ui/repositories/{repository}/-"+path, get, post)
	u.add("/ui/namespaces/{namespace}/-"+path, get, post)
}

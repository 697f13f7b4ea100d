package ui

import (
	"context"
	"encoding/json"
	"errors"
	"html/template"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/purser-registry/purser/internal/server/ui/format"

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
	{"/-/robots", "Robots", auth.Administer}, {"/-/webhooks", "Webhooks", auth.Administer}, {"/-/usage", "Storage", auth.Maintain}, {"/-/settings", "Settings", auth.Maintain},
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

// typed is a form that the registry refused. The page shows it again as it was typed, with the reason
// beside the field that is wrong, if the registry has named it. The zero value is a page without such
// a form, whose fields have their defaults.
type typed struct {
	form  url.Values
	field string // that was refused, "" if nobody knows
	why   string
	whole string // the reason as the registry has given it

	expires time.Time // the date of a tag that the form means, which is to be confirmed; zero: none
}

// fault is why a field was refused. ID is that of the element with the reason, and Whole is the reason with
// the name of the member that it is about.
type fault struct{ ID, Text, Whole string }

// fieldError is an error of a form's field, which the page shows beside it.
type fieldError struct{ field, text string }

func (e fieldError) Error() string { return e.text }

// typedForm returns the form of the request with the reason for which it was refused. `fields` has the
// names of fields by the members of the API under which they are sent, where these differ.
func (q *request) typedForm(err error, fields map[string]string) typed {
	t := typed{form: q.form, why: format.Sentence(err.Error()), whole: format.Sentence(err.Error())}
	if e, ok := errors.AsType[fieldError](err); ok {
		t.field = e.field
		return t
	}
	member, why := memberOfError(err)
	if name, ok := fields[member]; ok {
		member = name
	}
	if q.form.Has(member) && member != "" && member != "do" {
		t.field, t.why = member, format.Sentence(why)
	}
	return t
}

// refuse keeps the form of the request for the page, as typedForm does, and returns what stands at the top
// of the page.
func (q *request) refuse(err error, fields map[string]string) *notice {
	q.refused = q.typedForm(err, fields)
	return q.refused.Notice()
}

// memberOfError returns the member or the parameter of the API that an error is about, with the rest
// of the error's text; "" if it names none.
func memberOfError(err error) (member, why string) {
	member, why, found := strings.Cut(err.Error(), ": ")
	if !found || strings.ContainsAny(member, " \"") {
		member, why = "", err.Error()
	}
	var details struct{ Field string }
	if e, ok := errors.AsType[*apiError](err); ok && json.Unmarshal(e.details, &details) == nil && details.Field != "" {
		member = details.Field
	}
	for _, prefix := range []string{"body.", "path.", "query."} {
		member = strings.TrimPrefix(member, prefix)
	}
	member, _, _ = strings.Cut(member, "[") // of an element of a list
	return member, why
}

// Is says whether the refused form is the one whose field "do" has this value.
func (t typed) Is(do string) bool { return t.form != nil && t.form.Get("do") == do }

// Value returns what was typed in a field of a form, else its default.
func (t typed) Value(do, name, otherwise string) string {
	if t.Is(do) {
		return t.form.Get(name)
	}
	return otherwise
}

// Values returns what was typed in the fields of a name, nil if the form wasn't refused.
func (t typed) Values(do, name string) []string {
	if t.Is(do) {
		return t.form[name]
	}
	return nil
}

// Checked says whether a box was checked, else whether it is by default.
func (t typed) Checked(do, name string, otherwise bool) bool {
	if t.Is(do) {
		return t.form.Get(name) != ""
	}
	return otherwise
}

// At returns why a field was refused, nil if it wasn't.
func (t typed) At(do, name string) *fault {
	if !t.Is(do) || t.field != name {
		return nil
	}
	return &fault{"wrong-" + do + "-" + name, t.why, t.whole}
}

// Mark returns the attributes of a field that was refused: it has the focus, and its reason describes it.
// Templates give it names that stand in them, never text of clients.
func (t typed) Mark(do, name string) template.HTMLAttr {
	f := t.At(do, name)
	if f == nil {
		return ""
	}
	return template.HTMLAttr(`aria-invalid="true" autofocus aria-describedby="` + f.ID + `"`) //nolint:gosec // names of templates
}

// Notice returns what stands at the top of the page.
func (t typed) Notice() *notice {
	switch {
	case t.form == nil, !t.expires.IsZero():
		return nil
	case t.field != "":
		return &notice{Bad: true, Text: "Nothing was changed: a field below says why.", Beside: t.At(t.form.Get("do"), t.field)}
	}
	return &notice{Bad: true, Text: t.why}
}

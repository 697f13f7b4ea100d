// Package ui serves the web UI under /ui/, and the documentation under /docs/: pages of HTML that are made on the server, with a
// style sheet and a small script of our own. A page works without the script, which adds search
// while typing, copy buttons and figures that renew themselves.
//
// Rules of the package:
//
//   - The UI reads and changes nothing by itself. For each page and each form it runs operations
//     of the management API within the process, as the client that sent the request (run). So
//     the UI shows and allows exactly what the API does, and every page can name the call and the
//     command that do the same.
//   - A page loads nothing from elsewhere, and its policy forbids inline scripts, and inline styles but the
//     style sheet.
//     Text from clients reaches a page only through html/template.
//   - GET changes nothing. Forms send POST, which the server accepts only from its own pages.
package ui

import (
	"cmp"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"strings"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/handbook"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
)

// root is the prefix of all paths of the UI.
const root = "/ui/"

// maxForm limits the body of a form, in bytes.
const maxForm = 256 << 10

// contentPolicy allows what the registry itself serves, and of what stands in a page the style sheet alone.
var contentPolicy = "default-src 'none'; style-src 'self' '" + styleDigest + "'; script-src 'self'; connect-src 'self'; img-src 'self' data:; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// Options configure a UI.
type Options struct {
	Server     *server.Server // required, with the management API mounted
	Operations api.Runner     // the management API, required
	Version    string         // of Purser, for the foot of each page
	Log        *slog.Logger   // default slog.Default()
}

// UI serves the pages.
type UI struct {
	server     *server.Server
	operations api.Runner
	version    string
	log        *slog.Logger
	router     server.Router[handlers]
}

// New makes the UI.
func New(o Options) (*UI, error) {
	if o.Server == nil || o.Operations == nil {
		return nil, errors.New("ui: a server and the operations of the management API are required")
	}
	u := &UI{server: o.Server, operations: o.Operations, version: o.Version, log: cmp.Or(o.Log, slog.Default())}
	templates() // now, and not when the first page is asked for
	u.addRoutes()
	return u, nil
}

// Mounts returns how a server mounts the UI, and the redirection of browsers that ask for "/".
func (u *UI) Mounts() []server.Mount {
	header := http.Header{
		"Content-Security-Policy": {contentPolicy}, "X-Frame-Options": {"DENY"}, "Cache-Control": {"no-store"},
		// Without a referrer, browsers would send "Origin: null" with forms.
		"Referrer-Policy": {"same-origin"},
	}
	marshal := func(e *oci.Error) []byte { return oci.MarshalErrors(e) }
	return []server.Mount{
		{Prefix: root, Handler: u, MarshalError: marshal, Header: header, ReadsAreLogged: true, Browsers: true, Compress: true},
		{Prefix: handbook.Root, Handler: u, MarshalError: marshal, Header: header, Browsers: true, Compress: true},
		{Prefix: "/", Exact: true, Handler: u.redirection(root), MarshalError: marshal, Browsers: true},
		{Prefix: "/ui", Exact: true, Handler: u.redirection(root), MarshalError: marshal, Browsers: true},
		{Prefix: "/docs", Exact: true, Handler: u.redirection(handbook.Root), MarshalError: marshal, Browsers: true},
	}
}

// redirection sends browsers from a path without a page to one that has one.
func (u *UI) redirection(to string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			u.server.Fail(w, r, server.NothingAt(r))
			return
		}
		o := server.Observed(r.Context())
		o.Route, o.Method = r.URL.Path, r.Method
		w.Header().Set("Location", to)
		w.WriteHeader(http.StatusFound)
	})
}

// ServeHTTP answers a request for a page, a form or a static file.
func (u *UI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.URL.Path, staticRoot) {
		u.serveStatic(w, r)
		return
	}
	q := &request{ui: u, w: w, Request: r}
	if err := u.serve(q); err != nil {
		u.fail(q, err)
	}
}

// serve finds the route of a request and calls its handler.
func (u *UI) serve(q *request) error {
	found := u.router.Match(q.URL.EscapedPath())
	rt, values := found.Route, found.Values
	if rt == nil {
		return server.NothingAt(q.Request)
	}
	o := server.Observed(q.Context())
	o.Route, q.values = rt.Pattern, values
	for name, value := range values {
		if err := server.CheckText(name, value); err != nil {
			return err
		}
	}
	if err := server.CheckRawQuery(q.URL.RawQuery); err != nil {
		return err
	}
	handler := rt.Do.get
	switch q.Method {
	case http.MethodGet, http.MethodHead:
	case http.MethodPost:
		handler = rt.Do.post
	default:
		handler = nil
	}
	if handler == nil {
		q.w.Header().Set("Allow", rt.Do.allow())
		return server.Refusal(http.StatusMethodNotAllowed, "%s is not possible at %s, but %s", q.Method, q.URL.Path, rt.Do.allow())
	}
	o.Method = q.Method
	if q.Method == http.MethodPost {
		if err := q.readForm(); err != nil {
			return err
		}
	}
	return handler(q)
}

// handlers answer GET and POST of a path. A nil handler is a method that the path doesn't have.
type handlers struct{ get, post func(q *request) error }

func (u *UI) add(pattern string, get, post func(q *request) error) {
	u.router.Add(pattern, handlers{get, post})
}

func (h handlers) allow() string {
	switch {
	case h.post == nil:
		return http.MethodGet + ", " + http.MethodHead
	case h.get == nil:
		return http.MethodPost
	}
	return http.MethodGet + ", " + http.MethodHead + ", " + http.MethodPost
}

// link returns the path of a page. Each argument takes the place of a variable of the pattern, in
// order; a repository's slashes stay as they are.
func link(pattern string, values ...string) string {
	parts := strings.Split(strings.TrimPrefix(pattern, "/"), "/")
	for i, part := range parts {
		if !strings.HasPrefix(part, "{") || len(values) == 0 {
			continue
		}
		names := []string{values[0]}
		if part == "{repository}" {
			names = strings.Split(values[0], "/")
		}
		for j := range names {
			names[j] = url.PathEscape(names[j])
		}
		parts[i], values = strings.Join(names, "/"), values[1:]
	}
	return "/" + strings.Join(parts, "/")
}

// apiPath returns a path of the management API below its root. Each argument takes the place of a
// %s, escaped as one part of a path.
func apiPath(format string, values ...string) string {
	for _, value := range values {
		format = strings.Replace(format, "%s", strings.ReplaceAll(url.PathEscape(value), "%", "\x00"), 1)
	}
	return strings.ReplaceAll(format, "\x00", "%")
}

// addRoutes lists all pages and forms.
func (u *UI) addRoutes() {
	// The pages of a repository or a namespace follow "/-/" in a path, which no repository's name can contain.
	u.router = server.Router[handlers]{Name: "repository", Escaped: true, NameEnd: "-"}
	u.addOverview()
	u.addGarbage()
	u.addAudit()
	u.addSearch()
	u.addAccounts()
	u.addSystem()
	u.addUsage()
	u.addCreation()
	u.add("/ui/repositories/{repository}", showRepository, nil)
	u.add("/ui/repositories/{repository}/-/tags", nil, changeTags)
	u.addPattern()
	u.addUntagged()
	u.addDefaults()
	u.addImages()
	u.addPolicies()
	u.addRuns()
	u.addFree()
	u.addHolds()
	u.addSettings()
	u.addTrash()
	u.addNamespace()
	u.addDocs()
	u.addWebhooks()
}

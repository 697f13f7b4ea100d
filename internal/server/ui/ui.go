// Package ui serves the web UI under /ui/: pages of HTML that are made on the server, with a
// style sheet and a small script of our own. A page works without the script, which adds search
// while typing, copy buttons and figures that renew themselves.
//
// Rules of the package:
//
//   - The UI reads and changes nothing by itself. For each page and each form it runs operations
//     of the management API within the process, as the client that sent the request (run). So
//     the UI shows and allows exactly what the API does, and every page can name the call and the
//     command that do the same.
//   - A page loads nothing from elsewhere, and its policy forbids inline scripts and styles.
//     Text from clients reaches a page only through html/template.
//   - GET changes nothing. Forms send POST, which the server accepts only from its own pages.
package ui

import (
	"cmp"
	"errors"
	"log/slog"
	"net/http"
	"strings"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
)

// root is the prefix of all paths of the UI.
const root = "/ui/"

// maxForm limits the body of a form, in bytes.
const maxForm = 256 << 10

// contentPolicy allows what the registry itself serves, and nothing inline.
const contentPolicy = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self' data:; " +
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
	routes     []*route
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
		{Prefix: root, Handler: u, MarshalError: marshal, Header: header, ReadsAreLogged: true, Browsers: true},
		{Prefix: "/", Exact: true, Handler: http.HandlerFunc(u.serveRoot), MarshalError: marshal, Browsers: true},
		{Prefix: "/ui", Exact: true, Handler: http.HandlerFunc(u.serveRoot), MarshalError: marshal, Browsers: true},
	}
}

// serveRoot sends browsers from "/" and "/ui" to the UI.
func (u *UI) serveRoot(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		u.server.Fail(w, r, server.NothingAt(r))
		return
	}
	o := server.Observed(r.Context())
	o.Route, o.Method = r.URL.Path, r.Method
	w.Header().Set("Location", root)
	w.WriteHeader(http.StatusFound)
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
	rt, values := u.match(q.URL.EscapedPath())
	if rt == nil {
		return server.NothingAt(q.Request)
	}
	o := server.Observed(q.Context())
	o.Route, q.route, q.values = rt.pattern, rt, values
	for name, value := range values {
		if err := server.CheckText(name, value); err != nil {
			return err
		}
	}
	if err := server.CheckRawQuery(q.URL.RawQuery); err != nil {
		return err
	}
	handler := rt.get
	switch q.Method {
	case http.MethodGet, http.MethodHead:
	case http.MethodPost:
		handler = rt.post
	default:
		handler = nil
	}
	if handler == nil {
		q.w.Header().Set("Allow", rt.allow())
		return server.Refusal(http.StatusMethodNotAllowed, "%s is not possible at %s, but %s", q.Method, q.URL.Path, rt.allow())
	}
	o.Method = q.Method
	if q.Method == http.MethodPost {
		if err := q.readForm(); err != nil {
			return err
		}
	}
	return handler(q)
}

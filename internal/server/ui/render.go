package ui

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/server"
)

//go:embed templates
var templateFiles embed.FS

// templates has for each page its template with the layout and the shared parts. A page is the
// file templates/NAME.html; shared are layout.html and the files whose names begin with "part-". Only a
// server needs them, and to parse them takes longer than most commands.
var templates = sync.OnceValue(func() map[string]*template.Template {
	shared := template.Must(template.New("layout").Funcs(functions).ParseFS(templateFiles, "templates/layout.html", "templates/part-*.html"))
	names, err := fs.Glob(templateFiles, "templates/*.html")
	if err != nil {
		panic(err)
	}
	pages := make(map[string]*template.Template)
	for _, path := range names {
		name := strings.TrimSuffix(strings.TrimPrefix(path, "templates/"), ".html")
		if name == "layout" || strings.HasPrefix(name, "part-") {
			continue
		}
		pages[name] = template.Must(template.Must(shared.Clone()).ParseFS(templateFiles, path))
	}
	return pages
})

// page is what the layout shows around a page's content.
type page struct {
	Title string // of the browser's tab, and the heading unless Heading is set
	// Heading is the page's heading. Lead is a sentence below it.
	Heading, Lead string
	Section       string // of the navigation, such as "repositories"
	Crumbs        []crumb
	Tabs          []tab
	Notice        *notice
	// Same names the command and the API call that do the same as the page.
	Same []same
	Data any

	Path     string // of the page, for the log-in
	Account  string // "": nobody is logged in
	Open     bool   // there is no access control
	Operator bool
	Version  string
	// OnlyInsecure is the address that Docker's daemon must be told to use over http, "" if it needn't.
	OnlyInsecure string
}

// crumb is a page above the current one.
type crumb struct{ Text, Link string }

// tab is a page beside the current one.
type tab struct {
	Text, Link string
	Current    bool
}

// notice tells what a form has done, or why it could not.
type notice struct {
	Bad  bool
	Text string
	// Undo is a form that takes the change back or goes on with it, nil: there is none.
	Undo *undo
	// Also is a second form, beside Undo.
	Also *undo
	// To is a page that goes on with it, nil: there is none.
	To *crumb
	// Beside is the fault that the page shows beside a field instead of the text; nil: there is none. If the
	// page has no such field, the text is that of the fault.
	Beside *fault
}

// undo is a form with hidden fields.
type undo struct {
	Action, Text string
	Fields       []field
}

type field struct{ Name, Value string }

// same is a command or an API call that does the same as a page.
type same struct{ Kind, Text string }

func command(format string, args ...any) same { return same{"CLI", fmt.Sprintf(format, args...)} }

func call(method, path string) same { return same{"API", method + " " + apiRoot + path} }

// show answers with the page that a template makes.
func (q *request) show(name string, p page) error { return q.showStatus(http.StatusOK, name, p) }

func (q *request) showStatus(status int, name string, p page) error {
	t := templates()[name]
	if t == nil {
		return fmt.Errorf("there is no page %q", name)
	}
	p.Path, p.Open, p.Version = q.URL.RequestURI(), q.open(), q.ui.version
	if q.Method == http.MethodPost {
		p.Path = q.URL.Path
	}
	p.Account, p.Operator = q.account(), q.operator()
	if u, err := url.Parse(q.registryAddress().URL()); err == nil {
		p.OnlyInsecure = api.DockerRefuses(u)
	}
	if p.Heading == "" {
		p.Heading = p.Title
	}
	var b bytes.Buffer
	if err := t.ExecuteTemplate(&b, "layout.html", p); err != nil {
		return fmt.Errorf("making page %s: %w", name, err)
	}
	if n := p.Notice; n != nil && n.Beside != nil && !bytes.Contains(b.Bytes(), []byte(`id="`+n.Beside.ID+`"`)) {
		p.Notice = &notice{Bad: true, Text: n.Beside.Whole}
		b.Reset()
		if err := t.ExecuteTemplate(&b, "layout.html", p); err != nil {
			return fmt.Errorf("making page %s: %w", name, err)
		}
	}
	h := q.w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Length", strconv.Itoa(b.Len()))
	q.w.WriteHeader(status)
	if q.Method == http.MethodHead {
		return nil
	}
	_, err := q.w.Write(b.Bytes())
	if err != nil {
		server.Observed(q.Context()).Err = err
	}
	return nil
}

// fail answers with a page that says what went wrong. A browser without a log-in is sent to the
// log-in page where that may help.
func (u *UI) fail(q *request, err error) {
	status, text := messageOf(q.Context(), err)
	o := server.Observed(q.Context())
	if statusOf(err) == 0 { // otherwise the operation has told its error to the log
		o.Err = err
	}
	q.w.Header().Del("WWW-Authenticate") // browsers would ask for a password by a window of their own
	if status == http.StatusUnauthorized && q.account() == "" && !q.open() && q.Method != http.MethodPost {
		q.w.Header().Set("Location", "/auth/login?"+url.Values{"next": {q.URL.RequestURI()}}.Encode())
		q.w.WriteHeader(http.StatusSeeOther)
		return
	}
	if status == http.StatusForbidden || status == http.StatusUnauthorized {
		text = "You have no access to this, or it doesn't exist. The registry says: " + text
	}
	server.SetRetry(q.w.Header(), server.Answer(q.Context(), err))
	if e, ok := errors.AsType[*apiError](err); ok && e.retryAfter != "" {
		q.w.Header().Set("Retry-After", e.retryAfter)
	}
	p := page{Title: problemTitle(status), Data: problem{Status: status, Text: text, ID: o.ID}}
	if shown := q.showStatus(status, "problem", p); shown != nil {
		u.server.Fail(q.w, q.Request, errors.Join(err, shown))
	}
}

type problem struct {
	Status int
	Text   string
	ID     string // of the request
}

func problemTitle(status int) string {
	switch status {
	case http.StatusNotFound:
		return "Not found"
	case http.StatusForbidden, http.StatusUnauthorized:
		return "No access"
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		return "Not now"
	case http.StatusBadRequest, http.StatusConflict, http.StatusMethodNotAllowed:
		return "That doesn't work"
	}
	return "Something went wrong"
}

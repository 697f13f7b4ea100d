package ui

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/purser-registry/purser/internal/server/ui/format"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
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
	Style    template.CSS // "": the browser has the file
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
	p.Path, p.Open, p.Version, p.Style = q.URL.RequestURI(), q.open(), q.ui.version, q.style()
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

// pages are the links below a list: to its first page, if this is a later one, and to the next.
type pages struct{ First, Next string }

// pagesOf returns the links of a list. `keep` has the parameters of the query that all pages
// have, and next is the cursor of the next page, "" on the last.
func (q *request) pagesOf(keep url.Values, next string) (p pages) {
	path := q.URL.EscapedPath()
	if q.query("page") != "" {
		p.First = path + suffix(keep)
	}
	if next != "" {
		further := maps.Clone(keep)
		if further == nil {
			further = make(url.Values)
		}
		further.Set("page", next)
		p.Next = path + suffix(further)
	}
	return p
}

// pagesIn returns the links of one of several lists on a page. The parameter `name` of the query is
// where the list begins, and `next` is where its next page does, "" on the last.
func (q *request) pagesIn(name, next string) (p pages) {
	path, query := q.URL.EscapedPath(), q.URL.Query()
	query.Del("done")
	if query.Get(name) != "" {
		first := maps.Clone(query)
		first.Del(name)
		p.First = path + suffix(first)
	}
	if next != "" {
		query.Set(name, next)
		p.Next = path + suffix(query)
	}
	return p
}

// paging returns the input for a page of a list of up to n entries. The parameter `name` of the
// request's query is where it begins.
func (q *request) paging(name string, n int) api.Paging {
	return api.Paging{Limit: n, NextPage: q.query(name)}
}

// nameFilter returns the search and the page of a list of names.
func (q *request) nameFilter() api.NameFilter {
	return api.NameFilter{Contains: q.query("q"), NextPage: q.query("page")}
}

// find is the search in a list of names that its page shows in part.
type find struct {
	Text   string
	Needed bool // there is more than the page shows, or less because of the search
}

func suffix(query url.Values) string {
	if len(query) == 0 {
		return ""
	}
	return "?" + query.Encode()
}

// keep returns those parameters of the query that are given and have one of the names.
func (q *request) keep(names ...string) url.Values {
	kept := make(url.Values)
	for name, values := range q.URL.Query() {
		if slices.Contains(names, name) && len(values) > 0 && values[0] != "" {
			kept.Set(name, values[0])
		}
	}
	return kept
}

// column is a column by which a list may be sorted.
type column struct {
	Text, Link string
	Sort       string // the attribute aria-sort, "" if the list isn't sorted by this column
	Number     bool
}

// columns returns the head of a sorted list. Each of `names` is a value of the parameter "sort",
// with the column's text, or "" for a column by which nobody can sort. The second click on a
// column reverses its order.
func (q *request) columns(current string, keep url.Values, names [][2]string) []column {
	list := make([]column, 0, len(names))
	for _, n := range names {
		c := column{Text: n[1]}
		if n[0] != "" {
			name, ascending := n[0], n[0][0] != '-'
			plain := name
			if !ascending {
				plain = name[1:]
			}
			to := name
			switch current {
			case plain:
				c.Sort, to = "ascending", "-"+plain
			case "-" + plain:
				c.Sort, to = "descending", plain
			}
			query := maps.Clone(keep)
			query.Set("sort", to)
			c.Link = q.URL.EscapedPath() + suffix(query)
		}
		list = append(list, c)
	}
	return list
}

// oneOf returns the value if it is in the list, else the list's first.
func oneOf(value string, list ...string) string {
	if slices.Contains(list, value) {
		return value
	}
	return list[0]
}

// functions are those of the templates.
var functions = template.FuncMap{
	"ago": format.Ago, "exact": format.Exact, "stamp": format.Stamp, "bytes": format.Bytes, "number": format.Number, "short": format.ShortDigest,
	"link": link, "static": func(name string) string { return staticPaths[name] }, "plural": format.Plural,
	"clip": format.Clip, "duration": format.Duration, "join": strings.Join, "args": arguments, "sentence": format.Sentence,
	"navlink": func(p page, section, link, text string) navLink { return navLink{text, link, p.Section == section} },
	"lines":   func(text string) []string { return strings.Split(text, "\n") },
	"list":    func(list ...string) []string { return list },
	"age":     func(age string) string { return ages[age] },
	"kind":    format.Kind,
	// dockersetting returns the member of daemon.json that lets Docker use an address over http.
	"dockersetting": api.DockerSetting,
	"kindof":        format.KindOf,
	"day":           format.Day,
	"list64":        func(a int64, b *int64) []int64 { return []int64{a, *b} },
	"policylist": func(p place, rows []policyRow) any {
		return struct {
			Place place
			Rows  []policyRow
		}{p, rows}
	},
	"roles":       func() []field { return teamRoles },
	"actions":     actions,
	"teamrole":    teamRole,
	"nolimits":    func() limitFields { return limitFields{} },
	"agent":       format.Agent,
	"robot":       shortRobot,
	"inown":       inOwn,
	"webhookname": webhookName,
	// none says whether a limit allows nothing. Nil is no limit.
	"none":     none,
	"rolename": roleName,
	"runclass": func(s api.RunState) string { return runClasses[s] },
	"share":    func(part float64) int { return int(100 * part) },
	"percent":  func(part, whole int64) int64 { return 100 * part / max(whole, 1) },
	// quotalines are the limits of a quota, and quotaeffect is what it does now.
	"quotalines": quotaLines, "quotaeffect": quotaEffect,
}

// actions returns all that a robot or a token may be limited to: a form that left one out would
// take it away, or take the whole limit away.
func actions() []string {
	var list []string
	for _, a := range auth.Actions() {
		list = append(list, string(a))
	}
	return list
}

// ages are the ages that pages offer, as people say them.
var ages = map[string]string{"7d": "7 days", "30d": "30 days", "90d": "90 days", "1y": "a year"}

// navLink is an entry of the navigation.
type navLink struct {
	Text, Link string
	Current    bool
}

// arguments makes a query of names and values, in turn, with the leading "?". Empty values are
// left out.
func arguments(pairs ...string) string {
	query := make(url.Values)
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			query.Set(pairs[i], pairs[i+1])
		}
	}
	if len(query) == 0 {
		return "?"
	}
	return "?" + query.Encode()
}

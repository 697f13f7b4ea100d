package ui

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/purser-registry/purser/internal/api"
)

func (u *UI) addAudit() { u.add("/ui/audit", showAudit, nil) }

// logEntry is an entry of the audit log.
type logEntry struct{ api.LogEntry }

// logEntries returns entries as pages show them.
func logEntries(list []api.LogEntry) []logEntry {
	out := make([]logEntry, len(list))
	for i, e := range list {
		out[i] = logEntry{e}
	}
	return out
}

// PolicyID returns the UUID of the policy that did it, "" for none.
func (e logEntry) PolicyID() string {
	policy, _ := e.IDs()
	return policy
}

// Actor says who did it.
func (e logEntry) Actor() string {
	switch {
	case e.Performer != nil:
		return e.Performer.Name
	case e.IP == "":
		return "the registry"
	}
	return "not logged in"
}

// Words says what happened.
func (e logEntry) Words() string {
	text := kindWords(string(e.Kind))
	if e.Pulls > 1 {
		text += fmt.Sprintf(" (%d times)", e.Pulls)
	}
	return text
}

// shownDetails is how many details of an entry the page shows.
const shownDetails = 12

// Details has what the entry says beside the columns, by name.
func (e logEntry) Details() (list []field) {
	shown := map[string]bool{"namespace": true, "repo": true, "tag": true, "manifest_digest": true, "user-agent": true, "performer": true}
	for _, name := range slices.Sorted(maps.Keys(e.Metadata)) {
		if shown[name] || len(list) == shownDetails {
			continue
		}
		value, isText := e.Metadata[name].(string)
		if !isText {
			if text, err := json.Marshal(e.Metadata[name]); err == nil {
				value = string(text)
			}
		}
		list = append(list, field{name, value})
	}
	policy, run := e.IDs()
	for _, f := range []field{{"digest", e.Digest.String()}, {"policy", policy}, {"run", run}, {"address", e.IP}, {"client", e.UserAgent}, {"request", e.RequestID}} {
		if f.Value != "" {
			list = append(list, f)
		}
	}
	return list
}

// filterOf returns the parameters by which the API selects entries. A day "to" is the last one.
func (q *request) filterOf() (f api.LogFilter, problem string) {
	f = api.LogFilter{Actor: q.query("actor"), Tag: q.query("tag"), Run: q.query("run"), Policy: q.query("policy"), Digest: q.query("digest")}
	if kinds := q.query("kind"); kinds != "" {
		f.Kinds = strings.Split(kinds, ",")
	}
	for name, to := range map[string]*string{"from": &f.From, "to": &f.To} {
		text := q.query(name)
		if text == "" {
			continue
		}
		day, err := time.Parse(time.DateOnly, text)
		if err != nil {
			return f, text + " is not a day like 2026-03-05."
		}
		if name == "to" {
			day = day.AddDate(0, 0, 1)
		}
		*to = day.Format(time.DateOnly)
	}
	return f, ""
}

// kindGroup are the kinds of entries about one subject.
type kindGroup struct {
	Name  string
	Kinds []field
}

// showAudit lists the audit log, newest first.
func showAudit(q *request) error {
	scope := api.LogAt{Repository: strings.Trim(q.query("repository"), "/")}
	if scope.Repository == "" {
		scope.Namespace = q.query("namespace")
	}
	all := api.LogExport{LogAt: scope}
	in := api.LogQuery{LogExport: all, NextPage: q.query("page"), Limit: 50}
	var refused string
	in.LogFilter, refused = q.filterOf()
	var list api.LogList
	if refused == "" {
		var err error
		if list, err = run(q, api.ListLogs, in); err != nil {
			status := statusOf(err)
			again := status == http.StatusBadRequest || status == http.StatusServiceUnavailable || status == http.StatusNotFound ||
				status == http.StatusForbidden && (q.account() != "" || q.open())
			if !again {
				return err
			}
			refused = sentence(err.Error())
			if status == http.StatusForbidden && scope == (api.LogAt{}) {
				refused = "Only administrators of the registry may see the whole log. Name a namespace or a repository that you administer."
			}
		}
	}
	keep := q.keep("namespace", "repository", "kind", "actor", "tag", "run", "policy", "digest", "from", "to")
	type data struct {
		Query           map[string]string
		Groups          []kindGroup
		Refused, Export string
		Filtered        bool
		Logs            []logEntry
		Pages           pages
	}
	d := data{Query: map[string]string{"kind": ""}, Groups: kindGroups, Refused: refused, Filtered: len(keep) > 0, Logs: logEntries(list.Logs), Pages: q.pagesOf(keep, list.NextPage)}
	if refused == "" {
		d.Export = apiRoot + api.ExportLogs.URL(in.LogExport)
	}
	for name := range keep {
		d.Query[name] = keep.Get(name)
	}
	p := page{
		Title: "Audit log", Section: "audit", Lead: "Who did what and when, newest first. What was deleted keeps its log. Times and days are UTC.", Data: d,
		Same: []same{command("purser audit list"), command("purser audit export"), call("GET", api.ListLogs.URL(api.LogQuery{LogExport: all})), call("GET", api.ExportLogs.URL(all))},
	}
	switch {
	case scope.Repository != "":
		p.Crumbs = []crumb{{scope.Repository, link("/ui/repositories/{repository}", scope.Repository)}}
	case scope.Namespace != "":
		p.Crumbs = []crumb{{scope.Namespace, link("/ui/namespaces/{namespace}", scope.Namespace)}}
	}
	return q.show("audit", p)
}

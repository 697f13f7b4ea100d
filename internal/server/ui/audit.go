package ui

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

func (u *UI) addAudit() { u.add("/ui/audit", showAudit, nil) }

// logEntry is an entry of the audit log.
type logEntry struct {
	Kind       string         `json:"kind"`
	Metadata   map[string]any `json:"metadata"`
	IP         string         `json:"ip"`
	Time       time.Time      `json:"time"`
	Namespace  string         `json:"namespace_name"`
	Repository string         `json:"repository"`
	Tag        string         `json:"tag"`
	Digest     string         `json:"digest"`
	Policy     string         `json:"policy"`
	Run        string         `json:"run"`
	UserAgent  string         `json:"user_agent"`
	RequestID  string         `json:"request_id"`
	Pulls      int64          `json:"pulls"`
	ID         int64          `json:"id"`
	Performer  *struct {
		Kind    string `json:"kind"`
		Name    string `json:"name"`
		IsRobot bool   `json:"is_robot"`
	} `json:"performer"`
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
	text := kindWords(e.Kind)
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
	for _, f := range []field{{"digest", e.Digest}, {"policy", e.Policy}, {"run", e.Run}, {"address", e.IP}, {"client", e.UserAgent}, {"request", e.RequestID}} {
		if f.Value != "" {
			list = append(list, f)
		}
	}
	return list
}

// auditScope is the part of the log that a page shows.
type auditScope struct{ namespace, repository string }

// path returns the path of the scope's operations in the API.
func (s auditScope) path() string {
	switch {
	case s.repository != "":
		return apiPath("/repository/%s", s.repository)
	case s.namespace != "":
		return apiPath("/organization/%s", s.namespace)
	}
	return "/superuser"
}

// filterOf returns the parameters by which the API selects entries. A day "to" is the last one.
func (q *request) filterOf() (query url.Values, problem string) {
	query = make(url.Values)
	for _, name := range []string{"kind", "actor", "tag", "run", "policy", "digest"} {
		if value := q.query(name); value != "" {
			query.Set(name, value)
		}
	}
	for name, more := range map[string]int{"from": 0, "to": 1} {
		text := q.query(name)
		if text == "" {
			continue
		}
		day, err := time.Parse(time.DateOnly, text)
		if err != nil {
			return query, text + " is not a day like 2026-03-05."
		}
		query.Set(name, day.AddDate(0, 0, more).Format(time.DateOnly))
	}
	return query, ""
}

// kindGroup are the kinds of entries about one subject.
type kindGroup struct {
	Name  string
	Kinds []field
}

// showAudit lists the audit log, newest first.
func showAudit(q *request) error {
	scope := auditScope{q.query("namespace"), strings.Trim(q.query("repository"), "/")}
	query, refused := q.filterOf()
	export := apiRoot + scope.path() + "/logs/export" + suffix(query)
	var list struct {
		Logs     []logEntry `json:"logs"`
		NextPage string     `json:"next_page"`
	}
	if refused == "" {
		asked := url.Values{"limit": {"50"}}
		maps.Copy(asked, query)
		if cursor := q.query("page"); cursor != "" {
			asked.Set("next_page", cursor)
		}
		if err := q.get(scope.path()+"/logs", asked, &list); err != nil {
			status := statusOf(err)
			again := status == http.StatusBadRequest || status == http.StatusServiceUnavailable || status == http.StatusNotFound ||
				status == http.StatusForbidden && (q.account() != "" || q.open())
			if !again {
				return err
			}
			refused = sentence(err.Error())
			if status == http.StatusForbidden && scope == (auditScope{}) {
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
	d := data{Query: map[string]string{"kind": ""}, Groups: kindGroups, Refused: refused, Filtered: len(keep) > 0, Logs: list.Logs, Pages: q.pagesOf(keep, list.NextPage)}
	if refused == "" {
		d.Export = export
	}
	for name := range keep {
		d.Query[name] = keep.Get(name)
	}
	p := page{
		Title: "Audit log", Section: "audit", Lead: "Who did what and when, newest first. What was deleted keeps its log. Times and days are UTC.", Data: d,
		Same: []same{command("purser audit list"), command("purser audit export"), call("GET", scope.path()+"/logs"), call("GET", scope.path()+"/logs/export")},
	}
	switch {
	case scope.repository != "":
		p.Crumbs = []crumb{{scope.repository, link("/ui/repositories/{repository}", scope.repository)}}
	case scope.namespace != "":
		p.Crumbs = []crumb{{scope.namespace, link("/ui/namespaces/{namespace}", scope.namespace)}}
	}
	return q.show("audit", p)
}

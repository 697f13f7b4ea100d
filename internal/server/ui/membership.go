package ui

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

func (u *UI) addMembership() {
	u.add("/ui/namespaces/{namespace}/-/teams", func(q *request) error { return q.showTeams(nil) }, changeTeams)
	u.add("/ui/namespaces/{namespace}/-/robots", func(q *request) error { return q.showRobots(nil, nil) }, changeRobots)
}

// newPassword makes a password of 26 letters and digits, of 130 random bits.
func newPassword() string { return strings.ToLower(rand.Text()) }

// addLimits adds the limits of a form to the body of a request for a token or a robot. An empty list
// allows nothing, and the form has a box of its own for it: no entry at all is no limit.
func (q *request) addLimits(body map[string]any) error {
	for _, limit := range []struct {
		member, noun string
		list         []string
	}{{"actions", "action", q.form["action"]}, {"repositories", "repository", strings.Fields(q.form.Get("repositories"))}} {
		switch none := q.form.Get("no-"+limit.member) == "true"; {
		case none && len(limit.list) > 0:
			return fmt.Errorf("%q is picked beside %s: leave one of them out", "no "+limit.noun, strings.Join(limit.list, ", "))
		case none:
			body[limit.member] = []string{}
		case len(limit.list) > 0:
			body[limit.member] = limit.list
		}
	}
	if text := q.form.Get("expires"); text != "" {
		day, err := time.Parse(time.DateOnly, text)
		if err != nil {
			return errors.New(text + " is not a day like 2026-03-05")
		}
		body["expires_at"] = day.AddDate(0, 0, 1).Format(time.RFC3339) // the day itself is included
	}
	return nil
}

// membershipPage returns the frame of a page about who belongs to a namespace. `tab` is the page's
// path below that of the namespace.
func (q *request) membershipPage(namespace, title, tab string, n *notice) page {
	p := q.placePage(place{namespace: namespace}, tab)
	p.Title, p.Heading, p.Notice = title+" of "+namespace, namespace, n
	return p
}

// teamRoles are the roles of teams in a whole namespace, with what they allow.
var teamRoles = []field{
	{"member", "none (only in single repositories)"}, {"reader", "read"}, {"creator", "write: push"}, {"maintainer", "maintain: delete, policies"}, {"admin", "administer"},
}

// teamRole says what a role of a team in a whole namespace allows.
func teamRole(name string) string {
	for _, r := range teamRoles {
		if r.Name == name {
			return r.Value
		}
	}
	return name
}

// teamRow is a team with its members.
type teamRow struct {
	Name        string `json:"name"`
	Description string `json:"description"`
	Role        string `json:"role"`
	Count       int    `json:"member_count"`
	Synced      bool   `json:"is_synced"`
	Members     []memberRow
	Pages       pages // of the members
}

// memberRow is a member of a team.
type memberRow struct {
	Name    string `json:"name"`
	IsRobot bool   `json:"is_robot"`
	Synced  bool   `json:"synced"`
}

// shownTeams and shownMembers are how many teams, and members of all of them together, the page of
// teams shows. Each team costs a call.
const (
	shownTeams   = 30
	shownMembers = 120
)

func (q *request) showTeams(n *notice) error {
	namespace := q.values["namespace"]
	query := q.pageOf("page", shownTeams)
	if text := q.query("q"); text != "" {
		query.Set("contains", text)
	}
	var list struct {
		Teams    []teamRow `json:"teams"`
		NextPage string    `json:"next_page"`
	}
	if err := q.get(apiPath("/organization/%s/team", namespace), query, &list); err != nil {
		return err
	}
	var d struct {
		Off, Namespace string
		Teams          []teamRow
		Find           find
		Pages          pages
	}
	d.Namespace, d.Teams = namespace, list.Teams
	d.Pages, d.Find.Text = q.pagesOf(q.keep("q"), list.NextPage), q.query("q")
	d.Find.Needed = d.Find.Text != "" || d.Pages != (pages{})
	if q.open() {
		d.Off = noAccounts
	}
	for i := range d.Teams {
		if err := q.showMembers(namespace, &d.Teams[i], shownMembers/len(d.Teams)); err != nil {
			return err
		}
	}
	p := q.membershipPage(namespace, "Teams", "/-/teams", n)
	p.Data, p.Same = d, []same{
		command("purser team list %s", namespace), command("purser team create %s TEAM", namespace), command("purser team add %s TEAM ACCOUNT", namespace),
		call("GET", apiPath("/organization/%s/team", namespace)), call("PUT", apiPath("/organization/%s/team/{teamname}", namespace)),
	}
	return q.show("teams", p)
}

// showMembers reads up to n members of a team. The parameter "members" of the query is where the
// members of the team in the parameter "team" begin; the page shows more of that team.
func (q *request) showMembers(namespace string, t *teamRow, n int) error {
	query := url.Values{"limit": {strconv.Itoa(n)}}
	if q.query("team") == t.Name {
		query = q.pageOf("members", shownMembers)
	}
	var out struct {
		Members  []memberRow `json:"members"`
		NextPage string      `json:"next_page"`
	}
	// A team that was deleted meanwhile has no members.
	if err := q.get(apiPath("/organization/%s/team/%s/members", namespace, t.Name), query, &out); err != nil && statusOf(err) != http.StatusNotFound {
		return err
	}
	t.Members = out.Members
	if q.query("team") == t.Name {
		t.Pages.First = q.URL.EscapedPath() + suffix(url.Values{"q": {t.Name}})
	}
	if out.NextPage != "" {
		t.Pages.Next = q.URL.EscapedPath() + suffix(url.Values{"q": {t.Name}, "team": {t.Name}, "members": {out.NextPage}})
	}
	return nil
}

// changeTeams creates, changes and deletes teams, and adds and removes members.
func changeTeams(q *request) error {
	namespace, team, member := q.values["namespace"], strings.TrimSpace(q.form.Get("team")), strings.TrimSpace(q.form.Get("member"))
	path := apiPath("/organization/%s/team/%s", namespace, team)
	var err error
	var text string
	switch q.form.Get("do") {
	case "save":
		body := map[string]any{"role": q.form.Get("role")}
		if q.form.Has("description") {
			body["description"] = strings.TrimSpace(q.form.Get("description"))
		}
		err, text = q.call(http.MethodPut, path, body, nil), "The team "+team+" was saved."
	case "delete":
		err, text = q.call(http.MethodDelete, path, nil, nil), "The team "+team+" was deleted. Its members have lost the roles that they had by it."
	case "add":
		err, text = q.call(http.MethodPut, path+apiPath("/members/%s", member), nil, nil), member+" is a member of "+team+"."
	case "remove":
		err, text = q.call(http.MethodDelete, path+apiPath("/members/%s", member), nil, nil), member+" is no longer a member of "+team+"."
	default:
		return q.showTeams(&notice{Bad: true, Text: "The form doesn't say what to do."})
	}
	if err != nil {
		return q.showTeams(failure(err))
	}
	return q.showTeams(&notice{Text: text})
}

// robotRow is a robot.
type robotRow struct {
	Name         string     `json:"name"`
	Description  string     `json:"description"`
	Token        string     `json:"token"`
	Enabled      bool       `json:"enabled"`
	Repositories []string   `json:"repositories"`
	Actions      []string   `json:"actions"`
	CreatedAt    time.Time  `json:"created_at"`
	LastUsedAt   *time.Time `json:"last_used_at"`
}

// Short is the robot's name without its namespace.
func (r robotRow) Short() string {
	_, short, _ := strings.Cut(r.Name, "+")
	return short
}

func (q *request) showRobots(n *notice, made *secret) error {
	namespace := q.values["namespace"]
	query := url.Values{"limit": {"40"}}
	for from, to := range map[string]string{"q": "contains", "page": "next_page"} {
		if value := q.query(from); value != "" {
			query.Set(to, value)
		}
	}
	var list struct {
		Robots   []robotRow `json:"robots"`
		NextPage string     `json:"next_page"`
	}
	if err := q.get(apiPath("/organization/%s/robots", namespace), query, &list); err != nil {
		return err
	}
	var d struct {
		Off, Namespace string
		Made           *secret
		Robots         []robotRow
		Find           find
		Pages          pages
	}
	if q.open() {
		d.Off = noAccounts
	}
	d.Namespace, d.Made = namespace, made
	d.Robots, d.Pages = list.Robots, q.pagesOf(q.keep("q"), list.NextPage)
	d.Find.Text = q.query("q")
	d.Find.Needed = d.Find.Text != "" || d.Pages != (pages{})
	p := q.membershipPage(namespace, "Robots", "/-/robots", n)
	p.Data, p.Same = d, []same{
		command("purser robot list %s", namespace), command("purser robot create %s+NAME", namespace), command("purser robot rotate %s+NAME", namespace), command("purser robot limit %s+NAME", namespace),
		call("GET", apiPath("/organization/%s/robots", namespace)), call("PUT", apiPath("/organization/%s/robots/{robot_shortname}", namespace)),
	}
	return q.show("robots", p)
}

// changeRobots creates, changes and deletes robots.
func changeRobots(q *request) error {
	namespace, name := q.values["namespace"], strings.TrimSpace(q.form.Get("robot"))
	path := apiPath("/organization/%s/robots/%s", namespace, name)
	shown := func(text string, made robotRow) error {
		return q.showRobots(&notice{Text: text}, &secret{made.Name, "secret", made.Token, "docker login -u '" + made.Name + "' " + q.registryAddress().Host})
	}
	var made robotRow
	var err error
	var text string
	switch do := q.form.Get("do"); do {
	case "create":
		body := map[string]any{"description": strings.TrimSpace(q.form.Get("description"))}
		if err = q.addLimits(body); err == nil {
			err = q.call(http.MethodPut, path, body, &made)
		}
		if err == nil {
			return shown("The robot was created.", made)
		}
	case "rotate":
		body := map[string]any{}
		if q.form.Get("overlap") == "true" {
			body["overlap"] = int(24 * time.Hour / time.Second)
		}
		if err = q.call(http.MethodPost, path+"/regenerate", body, &made); err == nil {
			return shown("The robot has a new secret.", made)
		}
	case "limit":
		body := map[string]any{"repositories": nil, "actions": nil}
		if err = q.addLimits(body); err == nil {
			err, text = q.call(http.MethodPatch, path, body, nil), "The limits of "+name+" were saved."
		}
	case "enable", "disable":
		err = q.call(http.MethodPatch, path, map[string]bool{"enabled": do == "enable"}, nil)
		text = map[string]string{"enable": name + " can log in again.", "disable": name + " can no longer log in."}[do]
	case "delete":
		err, text = q.call(http.MethodDelete, path, nil, nil), "The robot "+name+" was deleted with its secrets and roles."
	default:
		return q.showRobots(&notice{Bad: true, Text: "The form doesn't say what to do."}, nil)
	}
	if err != nil {
		return q.showRobots(failure(err), nil)
	}
	return q.showRobots(&notice{Text: text}, nil)
}

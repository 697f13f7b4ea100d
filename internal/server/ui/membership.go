package ui

import (
	"crypto/rand"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/purser-registry/purser/internal/api"
)

func (u *UI) addMembership() {
	u.add("/ui/namespaces/{namespace}/-/teams", func(q *request) error { return q.showTeams(nil) }, changeTeams)
	u.add("/ui/namespaces/{namespace}/-/robots", func(q *request) error { return q.showRobots(nil, nil) }, changeRobots)
}

// newPassword makes a password of 26 letters and digits, of 130 random bits.
func newPassword() string { return strings.ToLower(rand.Text()) }

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
	api.TeamView
	Members []api.MemberView
	Pages   pages // of the members
}

// shownTeams and shownMembers are how many teams, and members of all of them together, the page of
// teams shows. Each team costs a call.
const (
	shownTeams   = 30
	shownMembers = 120
)

func (q *request) showTeams(n *notice) error {
	namespace := q.values["namespace"]
	list, err := run(q, api.ListTeams, api.TeamQuery{
		InNamespace: api.InNamespace{Namespace: namespace}, Paging: q.paging("page", shownTeams), NameContains: api.NameContains{Contains: q.query("q")},
	})
	if err != nil {
		return err
	}
	var d struct {
		Off, Namespace string
		Teams          []teamRow
		Find           find
		Pages          pages
	}
	d.Namespace = namespace
	d.Pages, d.Find.Text = q.pagesOf(q.keep("q"), list.NextPage), q.query("q")
	d.Find.Needed = d.Find.Text != "" || d.Pages != (pages{})
	if q.open() {
		d.Off = noAccounts
	}
	for _, t := range list.Teams {
		row := teamRow{TeamView: t}
		if err := q.showMembers(namespace, &row, shownMembers/len(list.Teams)); err != nil {
			return err
		}
		d.Teams = append(d.Teams, row)
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
	paging := api.Paging{Limit: n}
	if q.query("team") == t.Name {
		paging = q.paging("members", shownMembers)
	}
	out, err := run(q, api.ListTeamMembers, api.TeamMemberQuery{TeamItem: api.TeamOf(namespace, t.Name), Paging: paging})
	// A team that was deleted meanwhile has no members.
	if err != nil && statusOf(err) != http.StatusNotFound {
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
	item := api.TeamOf(namespace, team)
	var err error
	var text string
	switch q.form.Get("do") {
	case "save":
		form := api.TeamForm{Role: q.form.Get("role")}
		if q.form.Has("description") {
			description := strings.TrimSpace(q.form.Get("description"))
			form.Description = &description
		}
		_, err = run(q, api.PutTeam, api.TeamChange{TeamItem: item, Body: form})
		text = "The team " + team + " was saved."
	case "delete":
		_, err = run(q, api.DeleteTeam, item)
		text = "The team " + team + " was deleted. Its members have lost the roles that they had by it."
	case "add":
		_, err = run(q, api.AddTeamMember, api.TeamMemberItem{TeamItem: item, Member: member})
		text = member + " is a member of " + team + "."
	case "remove":
		_, err = run(q, api.RemoveTeamMember, api.TeamMemberItem{TeamItem: item, Member: member})
		text = member + " is no longer a member of " + team + "."
	default:
		return q.showTeams(&notice{Bad: true, Text: "The form doesn't say what to do."})
	}
	if err != nil {
		return q.showTeams(failure(err))
	}
	return q.showTeams(&notice{Text: text})
}

func (q *request) showRobots(n *notice, made *secret) error {
	namespace := q.values["namespace"]
	list, err := run(q, api.ListRobots, api.RobotQuery{
		At: api.At{Namespace: namespace}, Paging: q.paging("page", 40), NameContains: api.NameContains{Contains: q.query("q")},
	})
	if err != nil {
		return err
	}
	var d struct {
		Off, Namespace string
		Made           *secret
		Robots         []api.RobotView
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

// shortRobot returns the name of a robot without its namespace.
func shortRobot(name string) string {
	_, short, _ := strings.Cut(name, "+")
	return short
}

// changeRobots creates, changes and deletes robots.
func changeRobots(q *request) error {
	name := strings.TrimSpace(q.form.Get("robot"))
	item := api.RobotItem{At: api.At{Namespace: q.values["namespace"]}, Robot: name}
	shown := func(text string, made api.RobotView) error {
		return q.showRobots(&notice{Text: text}, &secret{made.Name, "secret", made.Token, "docker login -u '" + made.Name + "' " + q.registryAddress().Host})
	}
	change := func(form api.RobotChangeForm) error {
		_, err := run(q, api.ChangeRobot, api.RobotChange{RobotItem: item, Body: form})
		return err
	}
	l, err := q.limits()
	var text string
	switch do := q.form.Get("do"); do {
	case "create":
		var made api.RobotView
		if err == nil {
			made, err = run(q, api.CreateRobot, api.RobotNew{RobotItem: item, Body: &api.NewRobotForm{
				Description: strings.TrimSpace(q.form.Get("description")), Repositories: l.repositories, Actions: l.actions, ExpiresAt: l.end,
			}})
		}
		if err == nil {
			return shown("The robot was created.", made)
		}
	case "rotate":
		form := new(api.RobotRegeneration)
		if q.form.Get("overlap") == "true" {
			form.Overlap = int(24 * time.Hour / time.Second)
		}
		var made api.RobotView
		if made, err = run(q, api.RegenerateRobot, api.RobotRenewal{RobotItem: item, Body: form}); err == nil {
			return shown("The robot has a new secret.", made)
		}
	case "limit":
		if err == nil {
			err = change(api.RobotChangeForm{Repositories: api.Limit{Set: true, Values: l.repositories}, Actions: api.Limit{Set: true, Values: l.actions}})
		}
		text = "The limits of " + name + " were saved."
	case "enable", "disable":
		enabled := do == "enable"
		err = change(api.RobotChangeForm{Enabled: &enabled})
		text = map[bool]string{true: name + " can log in again.", false: name + " can no longer log in."}[enabled]
	case "delete":
		_, err = run(q, api.DeleteRobot, item)
		text = "The robot " + name + " was deleted with its secrets and roles."
	default:
		return q.showRobots(&notice{Bad: true, Text: "The form doesn't say what to do."}, nil)
	}
	if err != nil {
		return q.showRobots(failure(err), nil)
	}
	return q.showRobots(&notice{Text: text}, nil)
}

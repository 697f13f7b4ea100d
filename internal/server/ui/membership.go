package ui

import (
	"crypto/rand"
	"net/http"
	"net/url"
	"strings"

	"github.com/purser-registry/purser/internal/api"
)

func (u *UI) addMembership() {
	u.add("/ui/namespaces/{namespace}/-/teams", func(q *request) error { return q.showTeams(nil) }, changeTeams)
	u.add(teamPath, func(q *request) error { return q.showTeam(http.StatusOK, q.doneNotice(teamDone)) }, changeTeam)
	u.addRobots()
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
		Typed          typed
	}
	d.Namespace, d.Typed = namespace, q.refused
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
	case "save", "create":
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
		return q.showTeams(q.refuse(namedError(err, "team"), map[string]string{"teamname": "team", "membername": "member"}))
	}
	return q.showTeams(&notice{Text: text})
}

package ui

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/purser-registry/purser/internal/server/ui/format"

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
	case "create":
		err = q.createTeam(item)
		text = "The team " + team + " was created."
	case "save":
		text = "The team " + team + " was saved."
		var saved bool
		if saved, err = q.saveTeam(item); !saved {
			text = unchangedText
		}
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

// createTeam creates a team. The API would change a team that has the name already.
func (q *request) createTeam(item api.TeamItem) error {
	_, err := q.teamGroups(item)
	switch {
	case err == nil:
		return fieldError{"team", "A team with this name exists already."}
	case statusOf(err) != http.StatusNotFound && formStatus(err) != http.StatusBadRequest:
		return err
	}
	description := strings.TrimSpace(q.form.Get("description"))
	_, err = run(q, api.PutTeam, api.TeamChange{TeamItem: item, Body: api.TeamForm{Role: q.form.Get("role"), Description: &description}})
	return err
}

// saveTeam changes the role of a team in the whole namespace, if it differs from what the page had shown. The
// API would create a team that was deleted meanwhile.
func (q *request) saveTeam(item api.TeamItem) (saved bool, err error) {
	if err := checkShown(q.form, "role"); err != nil {
		return false, err
	}
	if _, err := q.teamGroups(item); err != nil || !changed(q.form, "role") {
		return false, err
	}
	_, err = run(q, api.PutTeam, api.TeamChange{TeamItem: item, Body: api.TeamForm{Role: q.form.Get("role")}})
	return true, err
}

// teamPath is the page of a team: its roles, and the groups that decide who is in it.
const teamPath = "/ui/namespaces/{namespace}/-/teams/{team}"

// teamDone has the sentences about what a form has done, by the value of the parameter "done".
var teamDone = map[string]string{
	"give": "The team has the role.", "take": "The role was taken away.",
	"sync":   "The groups were saved. Their members join the team when they log in.",
	"unsync": "No group decides who is in the team now. Those whom groups had made members have left it.",
}

// groupSources are where groups come from, with the words for their fields.
var groupSources = []struct{ Source, Text, Like string }{
	{"oidc", "Groups of OpenID Connect, one on a line", "developers"}, {"ldap", "Groups of LDAP, one on a line: the DN, or the name", "cn=developers,ou=groups,dc=example,dc=com"},
}

// groupField is the field of a form for the groups of a source.
type groupField struct {
	Source, Text, Like, Value string
}

// teamData is the page of a team.
type teamData struct {
	Off, Action, Namespace, Team, Members string
	Groups                                []api.TeamGroup // now
	Seen                                  string          // stands for these
	Fields                                []groupField    // as they are, or as they were typed
	Typed                                 bool
	Roles                                 roleTable
}

// showTeam shows the roles and the groups of a team.
func (q *request) showTeam(status int, n *notice) error {
	item := api.TeamOf(q.values["namespace"], q.values["team"])
	roles, err := run(q, api.ListTeamRoles, api.TeamRoleQuery{TeamItem: item, Paging: q.paging("roles", shownRolesOf)})
	if err != nil {
		return err
	}
	groups, err := q.teamGroups(item)
	if err != nil {
		return err
	}
	d := teamData{
		Action: link(teamPath, item.Namespace, item.Team), Namespace: item.Namespace, Team: item.Team,
		Members: link("/ui/namespaces/{namespace}/-/teams", item.Namespace) + suffix(url.Values{"q": {item.Team}}), Groups: groups, Seen: seenGroups(groups), Typed: q.form.Get("do") == "sync",
	}
	if q.open() {
		d.Off = noAccounts
	}
	for _, s := range groupSources {
		text := strings.Join(namesOf(groups, s.Source), "\n")
		if d.Typed {
			text = q.form.Get(s.Source)
		}
		d.Fields = append(d.Fields, groupField{s.Source, s.Text, s.Like, text})
	}
	d.Roles = q.roleTable(d.Action, roles)
	d.Roles.Elsewhere = true
	p := q.membershipPage(item.Namespace, item.Team, "/-/teams", n)
	p.Heading, p.Data = item.Team, d
	p.Crumbs = append(p.Crumbs, crumb{item.Namespace, link("/ui/namespaces/{namespace}", item.Namespace)}, crumb{"Teams", link("/ui/namespaces/{namespace}/-/teams", item.Namespace)})
	at := apiPath("/organization/%s/team/%s", item.Namespace, item.Team)
	p.Same = []same{
		command("purser team members %s %s", item.Namespace, item.Team), command("purser team groups %s %s", item.Namespace, item.Team),
		command("purser grant set %s/REPOSITORY reader --team %s", item.Namespace, item.Team),
		call("GET", at+"/permissions"), call("POST", at+"/syncing"), call("DELETE", at+"/syncing"),
	}
	return q.showStatus(status, "team", p)
}

// teamGroups returns the groups that decide who is in a team.
func (q *request) teamGroups(item api.TeamItem) ([]api.TeamGroup, error) {
	members, err := run(q, api.ListTeamMembers, api.TeamMemberQuery{TeamItem: item, Paging: api.Paging{Limit: 1}})
	if err != nil || members.Synced == nil {
		return nil, err
	}
	return members.Synced.Groups, nil
}

// namesOf returns the names of the groups of a source, in their order.
func namesOf(groups []api.TeamGroup, source string) (names []string) {
	for _, g := range groups {
		if g.Source == source {
			names = append(names, g.Name)
		}
	}
	slices.Sort(names)
	return names
}

// seenGroups returns a text that stands for the groups that a page shows.
func seenGroups(groups []api.TeamGroup) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q", groups))
	return hex.EncodeToString(sum[:16])
}

// changeTeam runs a form of the page of a team.
func changeTeam(q *request) error {
	item, do := api.TeamOf(q.values["namespace"], q.values["team"]), q.form.Get("do")
	var err error
	switch do {
	case "give", "take":
		err = q.changeRole(api.TeamRoles, api.RoleItem{Team: item.Team}, do == "give")
	case "sync":
		err = q.syncTeam(item)
	case "unsync":
		_, err = run(q, api.EndTeamSync, item)
	default:
		err = formError("The form doesn't say what to do.")
	}
	if err == nil {
		return q.redirect(link(teamPath, item.Namespace, item.Team) + "?done=" + url.QueryEscape(do))
	}
	if status := formStatus(err); status != 0 {
		return q.showTeam(status, failure(err))
	}
	return err
}

// syncTeam lets the groups of a form decide who is in a team, unless the team has other groups than the
// page had shown.
func (q *request) syncTeam(item api.TeamItem) error {
	now, err := q.teamGroups(item)
	if err != nil {
		return err
	}
	if q.form.Get("seen") != seenGroups(now) {
		return &apiError{status: http.StatusConflict, message: "the groups were changed meanwhile, so nothing was saved: look at them, and save again"}
	}
	var groups []api.TeamGroup
	for _, s := range groupSources {
		for line := range strings.Lines(q.form.Get(s.Source)) {
			g := api.TeamGroup{Source: s.Source, Name: strings.TrimSpace(line)}
			if g.Name != "" && !slices.Contains(groups, g) {
				groups = append(groups, g)
			}
		}
	}
	if len(groups) == 0 {
		return formError("Name a group. To let no group decide, end the synchronisation.")
	}
	_, err = run(q, api.SetTeamSync, api.TeamSyncChange{TeamItem: item, Body: api.TeamSync{Groups: groups}})
	return err
}

// roleTable are the roles of a robot or a team in a namespace, with the forms that give and take them.
type roleTable struct {
	Action, Namespace string
	// Whole is the role in the whole namespace, "" for none. Elsewhere says that another page changes it.
	Whole     string
	Elsewhere bool
	Roles     []api.RobotPermission
	Pages     pages
	Typed     url.Values // of the form that gives a role, if it was refused
}

// Options returns the roles that can be given.
func (t roleTable) Options() []option { return roleNames }

// roleName returns the name of a role for people.
func roleName(name string) string {
	for _, r := range roleNames {
		if r.Value == name {
			return r.Text
		}
	}
	return name
}

// shownRolesOf is how many roles of a robot or a team its page shows at a time.
const shownRolesOf = 60

// roleTable puts the roles of a robot or a team into a table.
func (q *request) roleTable(action string, list api.Permissions) roleTable {
	t := roleTable{Action: action, Namespace: q.values["namespace"], Whole: list.NamespaceRole, Roles: list.Permissions, Pages: q.pagesIn("roles", list.NextPage)}
	if q.form.Get("do") == "give" {
		t.Typed = q.form
	}
	return t
}

// rolePlace returns where the role of a form holds: in the namespace of the request's path, or in one of
// its repositories.
func (q *request) rolePlace() (api.At, error) {
	namespace, repository := q.values["namespace"], strings.TrimSpace(q.form.Get("repository"))
	switch where := q.form.Get("where"); {
	case where == "namespace" && repository != "":
		return api.At{}, formError("The whole namespace is picked, and the repository " + format.Clip(100, repository) + " is named: leave one of them out.")
	case where == "namespace":
		return api.At{Namespace: namespace}, nil
	case where != "repository":
		return api.At{}, formError("The form doesn't say where the role holds.")
	case !strings.HasPrefix(repository, namespace+"/"):
		return api.At{}, formError("Name a repository of this namespace, such as " + namespace + "/app.")
	}
	return api.At{Repository: repository}, nil
}

// changeRole gives or takes the role of a form.
func (q *request) changeRole(of api.RoleOperations, item api.RoleItem, give bool) (err error) {
	if item.At, err = q.rolePlace(); err != nil {
		return err
	}
	if give {
		_, err = run(q, of.Change, api.RoleChange{RoleItem: item, Body: api.RoleForm{Role: q.form.Get("role")}})
	} else {
		_, err = run(q, of.Delete, item)
	}
	return err
}

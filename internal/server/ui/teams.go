package ui

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/purser-registry/purser/internal/api"
)

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

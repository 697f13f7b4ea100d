package management

import (
	"context"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/auth/identity"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/server"
)

// TeamItem and TeamMemberItem are the parts of a path that name a team and one of its members.
// They are exported because huma finds parameters only in exported types.
type (
	TeamItem struct {
		api.InNamespace
		Team string `path:"teamname" doc:"Name of the team" example:"developers"`
	}
	TeamMemberItem struct {
		TeamItem
		Member string `path:"membername" doc:"Name of the account" example:"alice"`
	}
)

// teamRoles are the names of roles in Quay's routes for teams. Quay has no names for readers and
// maintainers there.
var teamRoles = [...]string{"member", "reader", "creator", "maintainer", "admin"}

func parseTeamRole(name string) (auth.Role, error) {
	for i, known := range teamRoles {
		if name == known {
			return auth.Role(i), nil //nolint:gosec // there are five
		}
	}
	role, err := auth.ParseRole(name)
	if err != nil {
		err = server.Refusal(http.StatusBadRequest, "role: %v", err)
	}
	return role, err
}

func viewTeam(t auth.Team) api.TeamView {
	return api.TeamView{
		Name: t.Name, Description: t.Description, Role: teamRoles[t.Role], CanView: true, MemberCount: t.Members, IsSynced: t.Synced,
	}
}

// namespaceDetails is a namespace, for its administrators with its teams.
type namespaceDetails struct {
	catalog.NamespaceDetails
	IsAdmin      bool                    `json:"is_admin,omitempty" doc:"Whether the client administers the namespace"`
	Teams        map[string]api.TeamView `json:"teams,omitempty" doc:"Its first 100 teams by their names, for its administrators"`
	OrderedTeams []string                `json:"ordered_teams,omitempty" maxItems:"100" doc:"The names of these teams in their order, for its administrators"`
	NextTeams    string                  `json:"teams_next_page,omitempty" doc:"Where the list of teams (listOrganizationTeams) goes on; missing if these are all"`
}

// describedTeams is how many teams the description of a namespace has.
const describedTeams = 100

// listTeams adds the first teams of a namespace to its description.
func (a *API) listTeams(ctx context.Context, out *namespaceDetails) error {
	found, more, err := a.opt.Accounts.Teams(ctx, out.Name, "", "", describedTeams)
	if more {
		out.NextTeams = cursor("team", found[len(found)-1].Name)
	}
	out.IsAdmin, out.Teams = true, map[string]api.TeamView{}
	for _, t := range found {
		out.Teams[t.Name] = viewTeam(t)
		out.OrderedTeams = append(out.OrderedTeams, t.Name)
	}
	return err
}

// TeamForm is the body of a request to create or change a team. It is exported because huma makes
// JSON schemas only of exported types.
type TeamForm struct {
	api.TeamRequest
}

// TransformSchema adds the read-only members of a team.
func (TeamForm) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return api.ReadOnly(s, "name", "can_view", "new_team", "member_count", "is_synced", "groups", "avatar", "repo_count")
}

type teamOutput struct{ Body api.TeamView }

// addTeams adds Quay's routes for the teams of a namespace.
func (a *API) addTeams() {
	const path = "/organization/{orgname}/team/{teamname}"
	a.addTeamList()
	type putInput struct {
		TeamItem
		Body TeamForm
	}
	put := accessOperation("team", "updateOrganizationTeam", http.MethodPut, path, "Create or change a team")
	put.Description = "Its members get the role in the whole namespace. Of Quay's names, member is no role, creator is writer and admin is administrator."
	add(a, auth.Administer, put, func(ctx context.Context, in *putInput) (*teamOutput, error) {
		role, err := parseTeamRole(in.Body.Role)
		if err != nil {
			return nil, err
		}
		created, err := a.opt.Accounts.PutTeam(ctx, in.Namespace, in.Team, role, in.Body.Description)
		if err != nil {
			return nil, err
		}
		out, err := a.team(ctx, in.TeamItem)
		out.NewTeam = created
		return &teamOutput{out}, err
	})
	remove := accessOperation("team", "deleteOrganizationTeam", http.MethodDelete, path, "Delete a team")
	remove.Description = "Its members lose the roles that they have by it."
	add(a, auth.Administer, remove, func(ctx context.Context, in *TeamItem) (*struct{}, error) {
		return nil, a.opt.Accounts.DeleteTeam(ctx, in.Namespace, in.Team)
	})
	type rolesInput struct {
		TeamItem
		api.Paging
	}
	type rolesOutput struct{ Body api.Permissions }
	add(a, auth.Administer, accessOperation("team", "getOrganizationTeamPermissions", http.MethodGet, path+"/permissions", "List the roles of a team"),
		func(ctx context.Context, in *rolesInput) (*rolesOutput, error) {
			t, err := a.opt.Accounts.Team(ctx, in.Namespace, in.Team)
			if err != nil {
				return nil, err
			}
			out, err := a.permissionsOf(ctx, in.Namespace, "", in.Team, in.Paging)
			if role, e := auth.ParseRole(out.NamespaceRole); e != nil || role < t.Role {
				out.NamespaceRole = t.Role.Quay()
			}
			return &rolesOutput{out}, err
		})
	a.addTeamMembers(path + "/members")
	a.addTeamSync(path + "/syncing")
}

// team describes a team with its groups.
func (a *API) team(ctx context.Context, in TeamItem) (api.TeamView, error) {
	t, err := a.opt.Accounts.Team(ctx, in.Namespace, in.Team)
	if err != nil {
		return api.TeamView{}, err
	}
	out := viewTeam(t)
	out.Groups, err = a.groups(ctx, in)
	return out, err
}

func (a *API) groups(ctx context.Context, in TeamItem) (list []api.TeamGroup, err error) {
	found, err := a.opt.Accounts.TeamGroups(ctx, in.Namespace, in.Team)
	for _, g := range found {
		list = append(list, api.TeamGroup{Source: g.Source, Name: g.Name})
	}
	return list, err
}

// memberList is Quay's description of the members of a team.
type memberList struct {
	Name    string           `json:"name" doc:"Of the team"`
	Members []api.MemberView `json:"members" nullable:"false" doc:"In the order of their names"`
	CanEdit bool             `json:"can_edit" doc:"Always true"`
	Synced  *memberSync      `json:"synced,omitempty" doc:"Absent: no group decides who its members are"`

	NextPage string `json:"next_page,omitempty" doc:"Where the next page begins; missing on the last page"`
}

// memberSync says which groups decide who is in a team.
type memberSync struct {
	Service string          `json:"service" enum:"oidc,ldap" doc:"The source of the first group"`
	Groups  []api.TeamGroup `json:"groups" nullable:"false"`
}

// addTeamMembers adds the operations on the members of a team.
func (a *API) addTeamMembers(path string) {
	type listInput struct {
		TeamItem
		api.Paging
		Pending bool `query:"includePending" doc:"Quay's clients send it; there are no invitations"`
	}
	type listOutput struct{ Body memberList }
	add(a, auth.Administer, accessOperation("team", "getOrganizationTeamMembers", http.MethodGet, path, "List the members of a team"),
		func(ctx context.Context, in *listInput) (*listOutput, error) {
			after, err := pageAfter(in.Paging, "member")
			if err != nil {
				return nil, err
			}
			found, more, err := a.opt.Accounts.Members(ctx, in.Namespace, in.Team, after, in.Most())
			if err != nil {
				return nil, err
			}
			out := memberList{Name: in.Team, CanEdit: true, Members: []api.MemberView{}}
			for _, m := range found {
				out.Members = append(out.Members, api.MemberView{Name: m.Account, Kind: "user", IsRobot: m.Robot, Synced: m.Synced})
			}
			if more {
				out.NextPage = cursor("member", found[len(found)-1].Account)
			}
			groups, err := a.groups(ctx, in.TeamItem)
			if len(groups) > 0 {
				out.Synced = &memberSync{groups[0].Source, groups}
			}
			return &listOutput{out}, err
		})
	path += "/{membername}"
	type output struct{ Body api.MemberView }
	put := accessOperation("team", "updateOrganizationTeamMember", http.MethodPut, path, "Make an account a member of a team")
	put.Description = "A robot can be a member of teams of its own namespace only."
	add(a, auth.Administer, put, func(ctx context.Context, in *TeamMemberItem) (*output, error) {
		err := a.opt.Accounts.AddMember(ctx, in.Namespace, in.Team, in.Member)
		return &output{api.MemberView{Name: in.Member, Kind: "user", IsRobot: strings.Contains(in.Member, "+")}}, err
	})
	add(a, auth.Administer, accessOperation("team", "deleteOrganizationTeamMember", http.MethodDelete, path, "Remove a member from a team"),
		func(ctx context.Context, in *TeamMemberItem) (*struct{}, error) {
			return nil, a.opt.Accounts.RemoveMember(ctx, in.Namespace, in.Team, in.Member)
		})
}

// addTeamSync adds the operations by which groups of OpenID Connect or LDAP decide who is in a
// team.
func (a *API) addTeamSync(path string) {
	type input struct {
		TeamItem
		Body api.TeamSync
	}
	set := accessOperation("team", "enableOrganizationTeamSync", http.MethodPost, path, "Let groups decide who is in a team")
	set.Description = "The members of the groups become members of the team when they log in, and stop being members when they log in without the group. " +
		"Replaces the groups that the team has. Other members stay."
	set = needsBody(set, map[string]any{"groups": []api.TeamGroup{{Source: auth.SourceOIDC, Name: "developers"}}})
	add(a, auth.Administer, set, func(ctx context.Context, in *input) (*teamOutput, error) {
		groups, err := syncGroups(in.Body)
		if err != nil {
			return nil, err
		}
		if err := a.opt.Accounts.SetTeamGroups(ctx, in.Namespace, in.Team, groups); err != nil {
			return nil, err
		}
		out, err := a.team(ctx, in.TeamItem)
		return &teamOutput{out}, err
	})
	end := accessOperation("team", "disableOrganizationTeamSync", http.MethodDelete, path, "Let no groups decide who is in a team")
	end.DefaultStatus, end.Description = http.StatusOK, "Members by groups stop being members."
	add(a, auth.Administer, end, func(ctx context.Context, in *TeamItem) (*teamOutput, error) {
		if err := a.opt.Accounts.SetTeamGroups(ctx, in.Namespace, in.Team, nil); err != nil {
			return nil, err
		}
		out, err := a.team(ctx, *in)
		return &teamOutput{out}, err
	})
}

// syncGroups returns the groups that a request names.
func syncGroups(in api.TeamSync) (list []auth.TeamGroup, err error) {
	for _, g := range in.Groups {
		name := g.Name
		if g.Source == auth.SourceLDAP {
			if name, err = identity.GroupOf(name); err != nil {
				return nil, server.Refusal(http.StatusBadRequest, "groups: %v", err)
			}
		}
		list = append(list, auth.TeamGroup{Source: g.Source, Name: name})
	}
	if in.GroupName != "" {
		list = append(list, auth.TeamGroup{Source: auth.SourceOIDC, Name: in.GroupName})
	}
	if in.GroupDN != "" {
		name, err := identity.GroupOf(in.GroupDN)
		if err != nil {
			return nil, server.Refusal(http.StatusBadRequest, "group_dn: %v", err)
		}
		list = append(list, auth.TeamGroup{Source: auth.SourceLDAP, Name: name})
	}
	if len(list) == 0 {
		return nil, server.Refusal(http.StatusBadRequest, "name at least one group: groups, group_dn or group_name")
	}
	return list, nil
}

// addMembers adds Quay's routes for the people who have rights in a namespace.
func (a *API) addMembers() {
	type input struct {
		api.InNamespace
		api.Paging
	}
	type membersBody struct {
		Members  []api.NamespaceMember `json:"members" nullable:"false" doc:"In the order of their names"`
		NextPage string                `json:"next_page,omitempty" doc:"Where the next page begins; missing on the last page"`
	}
	type membersOutput struct{ Body membersBody }
	members := accessOperation("team", "getOrganizationMembers", http.MethodGet, "/organization/{orgname}/members", "List the members of a namespace")
	members.Description = "Members are people who are in one of its teams, or have a role in the whole namespace."
	add(a, auth.Administer, members, func(ctx context.Context, in *input) (*membersOutput, error) {
		found, next, err := a.namespaceMembers(ctx, in.Namespace, false, in.Paging)
		out := membersBody{[]api.NamespaceMember{}, next}
		for _, m := range found {
			view := api.NamespaceMember{Name: m.Account, Kind: "user", Teams: []api.TeamName{}, Repositories: allBelow(m.Repositories), Role: m.Role.Quay(),
				MoreTeams: m.MoreTeams, MoreRepositories: m.MoreRepositories}
			for _, t := range m.Teams {
				view.Teams = append(view.Teams, api.TeamName{Name: t})
			}
			out.Members = append(out.Members, view)
		}
		return &membersOutput{out}, err
	})
	type collaboratorsBody struct {
		Collaborators []api.Collaborator `json:"collaborators" nullable:"false" doc:"In the order of their names"`
		NextPage      string             `json:"next_page,omitempty" doc:"Where the next page begins; missing on the last page"`
	}
	type collaboratorsOutput struct{ Body collaboratorsBody }
	others := accessOperation("team", "getOrganizationCollaborators", http.MethodGet, "/organization/{orgname}/collaborators", "List the collaborators of a namespace")
	others.Description = "Collaborators are people who aren't members, and have roles in single repositories."
	add(a, auth.Administer, others, func(ctx context.Context, in *input) (*collaboratorsOutput, error) {
		found, next, err := a.namespaceMembers(ctx, in.Namespace, true, in.Paging)
		out := collaboratorsBody{[]api.Collaborator{}, next}
		for _, m := range found {
			out.Collaborators = append(out.Collaborators, api.Collaborator{Name: m.Account, Kind: "user", Repositories: allBelow(m.Repositories), More: m.MoreRepositories})
		}
		return &collaboratorsOutput{out}, err
	})
}

// namespaceMembers lists members or collaborators of a namespace. `next` is the cursor of the next
// page.
func (a *API) namespaceMembers(ctx context.Context, namespace string, collaborators bool, p api.Paging) (list []auth.NamespaceMember, next string, err error) {
	of := "namespace member"
	if collaborators {
		of = "collaborator"
	}
	after, err := pageAfter(p, of)
	if err != nil {
		return nil, "", err
	}
	if err := a.opt.Accounts.CheckNamespace(ctx, namespace); err != nil {
		return nil, "", err
	}
	list, more, err := a.opt.Accounts.NamespaceMembers(ctx, namespace, collaborators, after, p.Most())
	if more {
		next = cursor(of, list[len(list)-1].Account)
	}
	return list, next, err
}

func allBelow(paths []string) []string {
	names := make([]string, len(paths))
	for i, path := range paths {
		names[i] = below(path)
	}
	return names
}

// addTeamList adds the operation that lists teams. Quay lists them in the answer about a
// namespace; here, that answer is also for clients that may only read.
func (a *API) addTeamList() {
	type input struct {
		api.InNamespace
		api.Paging
		api.NameContains
	}
	type teamList struct {
		Teams    []api.TeamView `json:"teams" nullable:"false" doc:"In the order of their names"`
		NextPage string         `json:"next_page,omitempty" doc:"Where the next page begins; missing on the last page"`
	}
	type output struct{ Body teamList }
	add(a, auth.Administer, accessOperation("team", "listOrganizationTeams", http.MethodGet, "/organization/{orgname}/team", "List the teams of a namespace"),
		func(ctx context.Context, in *input) (*output, error) {
			if err := isText("contains", in.Contains); err != nil {
				return nil, err
			}
			after, err := pageAfter(in.Paging, "team")
			if err != nil {
				return nil, err
			}
			if err := a.opt.Accounts.CheckNamespace(ctx, in.Namespace); err != nil {
				return nil, err
			}
			found, more, err := a.opt.Accounts.Teams(ctx, in.Namespace, in.Contains, after, in.Most())
			out := teamList{Teams: []api.TeamView{}}
			for _, t := range found {
				out.Teams = append(out.Teams, viewTeam(t))
			}
			if more {
				out.NextPage = cursor("team", found[len(found)-1].Name)
			}
			return &output{out}, err
		})
}

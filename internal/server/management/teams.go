package management

import (
	"context"
	"net/http"
	"strings"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/auth/identity"
	"github.com/purser-registry/purser/internal/server"
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

// describedTeams is how many teams the description of a namespace has.
const describedTeams = 100

// listTeams adds the first teams of a namespace to its description.
func (a *API) listTeams(ctx context.Context, out *api.NamespaceDetails) error {
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

// addTeams binds the operations on the teams of namespaces.
func (a *API) addTeams() {
	serve(a, api.ListTeams, a.teams)
	serve(a, api.PutTeam, func(ctx context.Context, in *api.TeamChange) (*api.TeamView, error) {
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
		return &out, err
	})
	serve(a, api.DeleteTeam, func(ctx context.Context, in *api.TeamItem) (*api.None, error) {
		return nil, a.opt.Accounts.DeleteTeam(ctx, in.Namespace, in.Team)
	})
	serve(a, api.ListTeamRoles, func(ctx context.Context, in *api.TeamRoleQuery) (*api.Permissions, error) {
		t, err := a.opt.Accounts.Team(ctx, in.Namespace, in.Team)
		if err != nil {
			return nil, err
		}
		out, err := a.permissionsOf(ctx, in.Namespace, "", in.Team, in.Paging)
		if err != nil {
			return nil, err
		}
		if role, e := auth.ParseRole(out.NamespaceRole); e != nil || role < t.Role {
			out.NamespaceRole = t.Role.Quay()
		}
		return out, nil
	})
	serve(a, api.ListTeamMembers, a.teamMembers)
	serve(a, api.AddTeamMember, func(ctx context.Context, in *api.TeamMemberItem) (*api.MemberView, error) {
		err := a.opt.Accounts.AddMember(ctx, in.Namespace, in.Team, in.Member)
		return &api.MemberView{Name: in.Member, Kind: "user", IsRobot: strings.Contains(in.Member, "+")}, err
	})
	serve(a, api.RemoveTeamMember, func(ctx context.Context, in *api.TeamMemberItem) (*api.None, error) {
		return nil, a.opt.Accounts.RemoveMember(ctx, in.Namespace, in.Team, in.Member)
	})
	serve(a, api.SetTeamSync, func(ctx context.Context, in *api.TeamSyncChange) (*api.TeamView, error) {
		groups, err := syncGroups(in.Body)
		if err != nil {
			return nil, err
		}
		return a.syncTeam(ctx, in.TeamItem, groups)
	})
	serve(a, api.EndTeamSync, func(ctx context.Context, in *api.TeamItem) (*api.TeamView, error) { return a.syncTeam(ctx, *in, nil) })
}

func (a *API) teams(ctx context.Context, in *api.TeamQuery) (*api.TeamList, error) {
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
	out := &api.TeamList{Teams: []api.TeamView{}}
	for _, t := range found {
		out.Teams = append(out.Teams, viewTeam(t))
	}
	if more {
		out.NextPage = cursor("team", found[len(found)-1].Name)
	}
	return out, err
}

// team describes a team with its groups.
func (a *API) team(ctx context.Context, in api.TeamItem) (api.TeamView, error) {
	t, err := a.opt.Accounts.Team(ctx, in.Namespace, in.Team)
	if err != nil {
		return api.TeamView{}, err
	}
	out := viewTeam(t)
	out.Groups, err = a.groups(ctx, in)
	return out, err
}

func (a *API) groups(ctx context.Context, in api.TeamItem) (list []api.TeamGroup, err error) {
	found, err := a.opt.Accounts.TeamGroups(ctx, in.Namespace, in.Team)
	for _, g := range found {
		list = append(list, api.TeamGroup{Source: g.Source, Name: g.Name})
	}
	return list, err
}

// teamMembers lists the members of a team.
func (a *API) teamMembers(ctx context.Context, in *api.TeamMemberQuery) (*api.MemberList, error) {
	after, err := pageAfter(in.Paging, "member")
	if err != nil {
		return nil, err
	}
	found, more, err := a.opt.Accounts.Members(ctx, in.Namespace, in.Team, after, in.Most())
	if err != nil {
		return nil, err
	}
	out := &api.MemberList{Name: in.Team, CanEdit: true, Members: []api.MemberView{}}
	for _, m := range found {
		out.Members = append(out.Members, api.MemberView{Name: m.Account, Kind: "user", IsRobot: m.Robot, Synced: m.Synced})
	}
	if more {
		out.NextPage = cursor("member", found[len(found)-1].Account)
	}
	groups, err := a.groups(ctx, in.TeamItem)
	if len(groups) > 0 {
		out.Synced = &api.MemberSync{Service: groups[0].Source, Groups: groups}
	}
	return out, err
}

// syncTeam lets groups decide who is in a team; with none, no groups decide.
func (a *API) syncTeam(ctx context.Context, in api.TeamItem, groups []auth.TeamGroup) (*api.TeamView, error) {
	if err := a.opt.Accounts.SetTeamGroups(ctx, in.Namespace, in.Team, groups); err != nil {
		return nil, err
	}
	out, err := a.team(ctx, in)
	return &out, err
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

// addMembers binds the operations on the people who have rights in a namespace.
func (a *API) addMembers() {
	serve(a, api.ListNamespaceMembers, func(ctx context.Context, in *api.NamespaceMemberQuery) (*api.MembersBody, error) {
		found, next, err := a.namespaceMembers(ctx, in, false)
		out := &api.MembersBody{Members: []api.NamespaceMember{}, NextPage: next}
		for _, m := range found {
			view := api.NamespaceMember{Name: m.Account, Kind: "user", Teams: []api.TeamName{}, Repositories: allBelow(m.Repositories), Role: m.Role.Quay(),
				MoreTeams: m.MoreTeams, MoreRepositories: m.MoreRepositories}
			for _, t := range m.Teams {
				view.Teams = append(view.Teams, api.TeamName{Name: t})
			}
			out.Members = append(out.Members, view)
		}
		return out, err
	})
	serve(a, api.ListCollaborators, func(ctx context.Context, in *api.NamespaceMemberQuery) (*api.CollaboratorsBody, error) {
		found, next, err := a.namespaceMembers(ctx, in, true)
		out := &api.CollaboratorsBody{Collaborators: []api.Collaborator{}, NextPage: next}
		for _, m := range found {
			out.Collaborators = append(out.Collaborators, api.Collaborator{Name: m.Account, Kind: "user", Repositories: allBelow(m.Repositories), More: m.MoreRepositories})
		}
		return out, err
	})
}

// namespaceMembers lists members or collaborators of a namespace. `next` is the cursor of the next
// page.
func (a *API) namespaceMembers(ctx context.Context, in *api.NamespaceMemberQuery, collaborators bool) (list []auth.NamespaceMember, next string, err error) {
	of := "namespace member"
	if collaborators {
		of = "collaborator"
	}
	after, err := pageAfter(in.Paging, of)
	if err != nil {
		return nil, "", err
	}
	if err := a.opt.Accounts.CheckNamespace(ctx, in.Namespace); err != nil {
		return nil, "", err
	}
	list, more, err := a.opt.Accounts.NamespaceMembers(ctx, in.Namespace, collaborators, after, in.Most())
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

package api

import (
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/auth"
)

// TeamView is a team of a namespace in answers.
type TeamView struct {
	Name        string      `json:"name" example:"developers"`
	Description string      `json:"description"`
	Role        string      `json:"role" enum:"member,reader,creator,maintainer,admin" doc:"Of its members in the whole namespace. member is none, creator is writer, admin is administrator; Quay has no other ones"`
	CanView     bool        `json:"can_view" doc:"Always true"`
	NewTeam     bool        `json:"new_team" doc:"Whether this request has created it"`
	MemberCount int         `json:"member_count"`
	IsSynced    bool        `json:"is_synced" doc:"Whether groups of OpenID Connect or LDAP decide who its members are"`
	Groups      []TeamGroup `json:"groups,omitempty" doc:"These groups; only in answers about a single team"`
}

// TeamList is a page of the teams of a namespace.
type TeamList struct {
	Teams    []TeamView `json:"teams" nullable:"false" doc:"In the order of their names"`
	NextPage string     `json:"next_page,omitempty" doc:"Where the next page begins; missing on the last page"`
}

// Entries implements Page.
func (l TeamList) Entries() ([]TeamView, string) { return l.Teams, l.NextPage }

// TeamForm is the body of a request to create or change a team.
type TeamForm struct {
	Role        string  `json:"role" enum:"member,creator,admin,reader,writer,maintainer,administrator" doc:"Of its members in the whole namespace: member is none, creator is writer, admin is administrator"`
	Description *string `json:"description,omitempty" maxLength:"1000" doc:"Absent: it stays as it is"`
}

// TransformSchema adds the read-only members of a team.
func (TeamForm) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return ReadOnly(s, "name", "can_view", "new_team", "member_count", "is_synced", "groups", "avatar", "repo_count")
}

// TeamGroup is a group whose members become members of a team when they log in.
type TeamGroup struct {
	Source string `json:"source" enum:"oidc,ldap"`
	Name   string `json:"name" minLength:"1" maxLength:"1024" doc:"As the provider names it" example:"developers"`
}

// TeamSync is the body of a request to let groups decide who is in a team.
type TeamSync struct {
	Groups    []TeamGroup `json:"groups,omitempty" maxItems:"100"`
	GroupDN   string      `json:"group_dn,omitempty" maxLength:"1024" doc:"Quay's member for a group of LDAP: its DN, or its name"`
	GroupName string      `json:"group_name,omitempty" maxLength:"1024" doc:"Quay's member for a group of OpenID Connect"`
}

// MemberView is a member of a team.
type MemberView struct {
	Name    string `json:"name" example:"alice"`
	Kind    string `json:"kind" enum:"user"`
	IsRobot bool   `json:"is_robot"`
	Invited bool   `json:"invited" doc:"Always false: members are added at once"`
	Synced  bool   `json:"synced" doc:"Whether a group has made it a member"`
}

// MemberList is a page of Quay's description of the members of a team.
type MemberList struct {
	Name    string       `json:"name" doc:"Of the team"`
	Members []MemberView `json:"members" nullable:"false" doc:"In the order of their names"`
	CanEdit bool         `json:"can_edit" doc:"Always true"`
	Synced  *MemberSync  `json:"synced,omitempty" doc:"Absent: no group decides who its members are"`

	NextPage string `json:"next_page,omitempty" doc:"Where the next page begins; missing on the last page"`
}

// Entries implements Page.
func (l MemberList) Entries() ([]MemberView, string) { return l.Members, l.NextPage }

// MemberSync says which groups decide who is in a team.
type MemberSync struct {
	Service string      `json:"service" enum:"oidc,ldap" doc:"The source of the first group"`
	Groups  []TeamGroup `json:"groups" nullable:"false"`
}

// NamespaceMember is a person who has rights in a namespace.
type NamespaceMember struct {
	Name         string     `json:"name" example:"alice"`
	Kind         string     `json:"kind" enum:"user"`
	Teams        []TeamName `json:"teams" nullable:"false" maxItems:"100" doc:"The person's teams in the namespace, up to 100"`
	Repositories []string   `json:"repositories" nullable:"false" maxItems:"100" doc:"Names, below the namespace, of the repositories in which the person has a role of its own, up to 100"`
	// MoreTeams and MoreRepositories say that the person has more than are listed.
	MoreTeams        bool   `json:"more_teams,omitempty" doc:"Whether there are more teams"`
	MoreRepositories bool   `json:"more_repositories,omitempty" doc:"Whether there are more repositories"`
	Role             string `json:"role,omitempty" enum:"read,write,maintain,admin," doc:"The person's own role in the whole namespace; absent: none"`
}

// TeamName names a team.
type TeamName struct {
	Name string `json:"name"`
}

// Collaborator is a person who has roles in single repositories of a namespace only.
type Collaborator struct {
	Name         string   `json:"name" example:"alice"`
	Kind         string   `json:"kind" enum:"user"`
	Repositories []string `json:"repositories" nullable:"false" maxItems:"100" doc:"Their names below the namespace, up to 100"`
	More         bool     `json:"more_repositories,omitempty" doc:"Whether there are more repositories"`
}

// MembersBody and CollaboratorsBody are pages of the members and the collaborators of a namespace.
type (
	MembersBody struct {
		Members  []NamespaceMember `json:"members" nullable:"false" doc:"In the order of their names"`
		NextPage string            `json:"next_page,omitempty" doc:"Where the next page begins; missing on the last page"`
	}
	CollaboratorsBody struct {
		Collaborators []Collaborator `json:"collaborators" nullable:"false" doc:"In the order of their names"`
		NextPage      string         `json:"next_page,omitempty" doc:"Where the next page begins; missing on the last page"`
	}
)

// Inputs of the operations on teams and their members.
type (
	NamespaceMemberQuery struct {
		InNamespace
		Paging
	}
	TeamQuery struct {
		InNamespace
		Paging
		NameContains
	}
	TeamItem struct {
		InNamespace
		Team string `path:"teamname" doc:"Name of the team" example:"developers"`
	}
	TeamChange struct {
		TeamItem
		Body TeamForm
	}
	TeamRoleQuery struct {
		TeamItem
		Paging
	}
	TeamMemberQuery struct {
		TeamItem
		Paging
		Pending bool `query:"includePending" doc:"Quay's clients send it; there are no invitations"`
	}
	TeamMemberItem struct {
		TeamItem
		Member string `path:"membername" doc:"Name of the account" example:"alice"`
	}
	TeamSyncChange struct {
		TeamItem
		Body TeamSync
	}
)

// TeamOf returns the input that names a team of a namespace.
func TeamOf(namespace, team string) TeamItem { return TeamItem{InNamespace{namespace}, team} }

// teamOperation describes an operation on the teams and the members of a namespace.
func teamOperation[I, O any](id, method, path, summary, description string) Operation[I, O] {
	return accessOperation[I, O]("team", id, method, "/organization/{orgname}"+path, auth.Administer, summary, description)
}

// The operations on teams, which have Quay's paths. Quay lists teams in the answer about a namespace;
// here, that answer is also for clients that may only read.
var (
	ListTeams = teamOperation[TeamQuery, TeamList]("listOrganizationTeams", http.MethodGet, "/team", "List the teams of a namespace", "")
	PutTeam   = teamOperation[TeamChange, TeamView]("updateOrganizationTeam", http.MethodPut, "/team/{teamname}", "Create or change a team",
		"Its members get the role in the whole namespace. Of Quay's names, member is no role, creator is writer and admin is administrator.")
	DeleteTeam    = teamOperation[TeamItem, None]("deleteOrganizationTeam", http.MethodDelete, "/team/{teamname}", "Delete a team", "Its members lose the roles that they have by it.")
	ListTeamRoles = teamOperation[TeamRoleQuery, Permissions]("getOrganizationTeamPermissions", http.MethodGet, "/team/{teamname}/permissions", "List the roles of a team", "")

	ListTeamMembers = teamOperation[TeamMemberQuery, MemberList]("getOrganizationTeamMembers", http.MethodGet, "/team/{teamname}/members", "List the members of a team", "")
	AddTeamMember   = teamOperation[TeamMemberItem, MemberView]("updateOrganizationTeamMember", http.MethodPut, "/team/{teamname}/members/{membername}",
		"Make an account a member of a team", "A robot can be a member of teams of its own namespace only.")
	RemoveTeamMember = teamOperation[TeamMemberItem, None]("deleteOrganizationTeamMember", http.MethodDelete, "/team/{teamname}/members/{membername}",
		"Remove a member from a team", "")

	SetTeamSync = teamOperation[TeamSyncChange, TeamView]("enableOrganizationTeamSync", http.MethodPost, "/team/{teamname}/syncing", "Let groups decide who is in a team",
		"The members of the groups become members of the team when they log in, and stop being members when they log in without the group. "+
			"Replaces the groups that the team has. Other members stay.").
		needing(map[string]any{"groups": []TeamGroup{{Source: auth.SourceOIDC, Name: "developers"}}})
	EndTeamSync = teamOperation[TeamItem, TeamView]("disableOrganizationTeamSync", http.MethodDelete, "/team/{teamname}/syncing", "Let no groups decide who is in a team",
		"Members by groups stop being members.")

	ListNamespaceMembers = teamOperation[NamespaceMemberQuery, MembersBody]("getOrganizationMembers", http.MethodGet, "/members", "List the members of a namespace",
		"Members are people who are in one of its teams, or have a role in the whole namespace.")
	ListCollaborators = teamOperation[NamespaceMemberQuery, CollaboratorsBody]("getOrganizationCollaborators", http.MethodGet, "/collaborators", "List the collaborators of a namespace",
		"Collaborators are people who aren't members, and have roles in single repositories.")
)

package api

import (
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/auth"
)

// PermissionView is the role of an account or a team in a repository or a namespace.
type PermissionView struct {
	Name        string    `json:"name" doc:"Of the account or the team" example:"alice"`
	Role        string    `json:"role" enum:"read,write,maintain,admin"`
	IsRobot     *bool     `json:"is_robot,omitempty" doc:"Whether the account is a robot; absent for teams"`
	IsOrgMember *bool     `json:"is_org_member,omitempty" doc:"Whether the account is in a team of the namespace, or a robot of it; absent for teams"`
	CreatedAt   time.Time `json:"created_at"`
}

// PermissionMap is a page of the roles in a repository or a namespace.
type PermissionMap struct {
	Permissions map[string]PermissionView `json:"permissions" doc:"By the names of those who have the roles, in the order of which they come in pages"`
	NextPage    string                    `json:"next_page,omitempty" doc:"Where the next page begins; missing on the last page"`
}

// Entries implements Page.
func (m PermissionMap) Entries() ([]PermissionView, string) {
	list := make([]PermissionView, 0, len(m.Permissions))
	for _, name := range slices.Sorted(maps.Keys(m.Permissions)) {
		list = append(list, m.Permissions[name])
	}
	return list, m.NextPage
}

// RoleForm is the body of a request to give a role.
type RoleForm struct {
	Role string `json:"role" enum:"read,write,maintain,admin,reader,writer,maintainer,administrator" doc:"Quay's name or Purser's: read is reader, write is writer, maintain is maintainer, admin is administrator"`
}

// TransformSchema adds the read-only members of a role.
func (RoleForm) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return ReadOnly(s, "name", "is_robot", "is_org_member", "created_at", "avatar")
}

// RoleList has the role of an account by whatever way.
type RoleList struct {
	Permissions []Role `json:"permissions" nullable:"false" maxItems:"1"`
}

// Role is a role.
type Role struct {
	Role string `json:"role" enum:"read,write,maintain,admin"`
}

// Inputs of the operations on roles.
type (
	RoleQuery struct {
		At
		Paging
		NameContains
	}
	// RoleItem names who has a role: an account or a team.
	RoleItem struct {
		At
		User string `path:"username" required:"false" doc:"Name of the account: a person's or a robot's" example:"alice"`
		Team string `path:"teamname" required:"false" doc:"Name of the team" example:"developers"`
	}
	RoleChange struct {
		RoleItem
		Body RoleForm
	}
	TransitiveRole struct {
		InRepository
		User string `path:"username" doc:"Name of the account: a person's or a robot's" example:"alice"`
	}
)

// RoleOperations are the operations on the roles of accounts, or on those of teams.
type RoleOperations struct {
	List   Operation[RoleQuery, PermissionMap]
	Get    Operation[RoleItem, PermissionView]
	Change Operation[RoleChange, PermissionView]
	Delete Operation[RoleItem, None]
}

// roleOperations describes the operations on the roles of those who hold them, which `name`, `kind`
// and `who` are words for. `variable` is the path's part that names one of them.
func roleOperations(name, kind, variable, who string) RoleOperations {
	const inRepository, inNamespace = "a repository", "a whole namespace"
	listed := []Place{{"Repo", OfRepository, inRepository}, {"Org", OfNamespace, inNamespace}}
	single := []Place{{"", OfRepository, inRepository}, {"Org", OfNamespace, inNamespace}}
	path := "{place}/permissions/" + kind
	missing := []int{http.StatusNotFound}
	return RoleOperations{
		List: Operation[RoleQuery, PermissionMap]{
			ID: "list{Place}" + name + "Permissions", Method: http.MethodGet, Path: path, Places: listed,
			Tag: "permission", Access: auth.Administer, Summary: "List the roles of " + who + " in {place}", Errors: missing,
		},
		Get: Operation[RoleItem, PermissionView]{
			ID: "get{Place}" + name + "Permissions", Method: http.MethodGet, Path: path + variable, Places: single,
			Tag: "permission", Access: auth.Administer, Summary: "Get a role of one of the " + who + " in {place}", Errors: missing,
		},
		Change: Operation[RoleChange, PermissionView]{
			ID: "change{Place}" + name + "Permissions", Method: http.MethodPut, Path: path + variable, Places: single,
			Tag: "permission", Access: auth.Administer, Summary: "Give one of the " + who + " a role in {place}",
			Description: "Instead of the role that it has there. A robot can get roles in its own namespace only.",
			Errors:      []int{http.StatusNotFound, http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType},
		},
		Delete: Operation[RoleItem, None]{
			ID: "delete{Place}" + name + "Permissions", Method: http.MethodDelete, Path: path + variable, Places: single,
			Tag: "permission", Access: auth.Administer, Summary: "Take a role of one of the " + who + " in {place} away",
			Status: http.StatusNoContent, Errors: missing,
		},
	}
}

// The operations on roles in a repository, which have Quay's paths, and on those in a whole namespace.
var (
	UserRoles         = roleOperations("User", "user", "/{username}", "accounts")
	TeamRoles         = roleOperations("Team", "team", "/{teamname}", "teams")
	GetTransitiveRole = Operation[TransitiveRole, RoleList]{
		ID: "getUserTransitivePermission", Method: http.MethodGet, Path: "/repository/{repository}/permissions/user/{username}/transitive",
		Tag: "permission", Access: auth.Administer, Summary: "Get the role that an account has in a repository by whatever way",
		Description: "The greatest of its own roles and those of its teams, in the repository and the namespace. It doesn't tell whether the account administers the registry. " +
			"404 if it has none; it may still pull if the repository is public.",
		Errors: []int{http.StatusNotFound},
	}
)

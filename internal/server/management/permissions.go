package management

import (
	"context"
	"errors"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/server"
)

// UserOf and TeamOf are the parts of a path that name who has a role. RoleBody is the body of a
// request to give one, which is a RoleForm. They are exported because huma finds parameters and
// makes schemas only of exported types.
type (
	UserOf struct {
		User string `path:"username" doc:"Name of the account: a person's or a robot's" example:"alice"`
	}
	TeamOf struct {
		Team string `path:"teamname" doc:"Name of the team" example:"developers"`
	}
	RoleBody struct{ Body RoleForm }
	RoleForm struct{ api.PermissionRequest }
)

// TransformSchema adds the read-only members of a role.
func (RoleForm) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return readOnly(s, "name", "is_robot", "is_org_member", "created_at", "avatar")
}

func (s ScopeOfRepository) resource() auth.Resource { return auth.OfRepository(s.Repository) }
func (s ScopeOfNamespace) resource() auth.Resource  { return auth.OfNamespace(s.Namespace) }

func (u UserOf) grantee() (account, team string) { return u.User, "" }
func (t TeamOf) grantee() (account, team string) { return "", t.Team }

func (b RoleBody) role() string { return b.Body.Role }

type (
	// located is an input that names a repository or a namespace.
	located interface{ resource() auth.Resource }
	// grantee is an input that names an account or a team, and roleGiver one that names a role.
	grantee   interface{ grantee() (account, team string) }
	roleGiver interface{ role() string }
	// granted is an input that names a role of somebody in a repository or a namespace.
	granted interface {
		located
		grantee
	}
	// granting is a granted with a new role.
	granting interface {
		granted
		roleGiver
	}
)

// roleRoutes are the texts by which the operations on roles differ.
type roleRoutes struct {
	list, one      string // operation ids: list, and what comes after a verb
	path, variable string
	who, where     string
}

// addPermissions adds Quay's routes for roles in a repository, and the same for roles in a whole
// namespace.
func (a *API) addPermissions() {
	const inRepository, inNamespace = "/repository/{repository}/permissions", "/organization/{orgname}/permissions"
	addRoles[struct {
		ScopeOfRepository
		Paging
		NameContains
	}, struct {
		ScopeOfRepository
		UserOf
	}, struct {
		ScopeOfRepository
		UserOf
		RoleBody
	}](a, roleRoutes{"listRepoUserPermissions", "UserPermissions", inRepository + "/user", "/{username}", "accounts", "a repository"})
	addRoles[struct {
		ScopeOfRepository
		Paging
		NameContains
	}, struct {
		ScopeOfRepository
		TeamOf
	}, struct {
		ScopeOfRepository
		TeamOf
		RoleBody
	}](a, roleRoutes{"listRepoTeamPermissions", "TeamPermissions", inRepository + "/team", "/{teamname}", "teams", "a repository"})
	addRoles[struct {
		ScopeOfNamespace
		Paging
		NameContains
	}, struct {
		ScopeOfNamespace
		UserOf
	}, struct {
		ScopeOfNamespace
		UserOf
		RoleBody
	}](a, roleRoutes{"listOrgUserPermissions", "OrgUserPermissions", inNamespace + "/user", "/{username}", "accounts", "a whole namespace"})
	addRoles[struct {
		ScopeOfNamespace
		Paging
		NameContains
	}, struct {
		ScopeOfNamespace
		TeamOf
	}, struct {
		ScopeOfNamespace
		TeamOf
		RoleBody
	}](a, roleRoutes{"listOrgTeamPermissions", "OrgTeamPermissions", inNamespace + "/team", "/{teamname}", "teams", "a whole namespace"})

	type input struct {
		ScopeOfRepository
		UserOf
	}
	type role struct {
		Role string `json:"role" enum:"read,write,maintain,admin"`
	}
	type roleList struct {
		Permissions []role `json:"permissions" nullable:"false" maxItems:"1"`
	}
	type output struct{ Body roleList }
	all := accessOperation("permission", "getUserTransitivePermission", http.MethodGet, inRepository+"/user/{username}/transitive", "Get the role that an account has in a repository by whatever way")
	all.Description = "The greatest of its own roles and those of its teams, in the repository and the namespace. It doesn't tell whether the account administers the registry. " +
		"404 if it has none; it may still pull if the repository is public."
	add(a, auth.Administer, all, func(ctx context.Context, in *input) (*output, error) {
		if err := a.hasRepository(ctx, in.resource()); err != nil {
			return nil, err
		}
		found, err := a.opt.Accounts.RoleIn(ctx, in.User, in.resource())
		if err == nil && found == auth.NoRole {
			err = server.Refusal(http.StatusNotFound, "%s has no role in repository %s", in.User, in.Repository)
		}
		return &output{roleList{[]role{{found.Quay()}}}}, err
	})
}

// keepsRole returns an error, with status 409, if the client would take its own role as an
// administrator of a namespace away. Nobody but an administrator of the registry could give it
// back if there were no other in the namespace.
func (a *API) keepsRole(ctx context.Context, r auth.Resource, account string, role auth.Role) error {
	own := account != "" && account == server.Observed(ctx).Principal.Name
	if !own || r.Repository != "" || role == auth.Administrator || a.may(ctx, auth.Operate, auth.Registry) {
		return nil
	}
	switch g, err := a.opt.Accounts.Grant(ctx, r, account, ""); {
	case errors.Is(err, auth.ErrUnknown) || err == nil && g.Role != auth.Administrator:
		return nil
	case err != nil:
		return err
	}
	return server.Refusal(http.StatusConflict, "an administrator can't take this role from itself: ask another administrator of namespace %s to do it", r.Namespace)
}

// hasRepository returns an error with status 404 unless the resource exists.
func (a *API) hasRepository(ctx context.Context, r auth.Resource) error {
	if r.Repository == "" {
		return a.opt.Accounts.CheckNamespace(ctx, r.Namespace)
	}
	known, err := a.catalog.HasRepository(ctx, r.Repository)
	if err == nil && !known {
		err = server.Refusal(http.StatusNotFound, "repository %s is not known to this registry", r.Repository)
	}
	return err
}

func viewPermission(g auth.Grant) api.PermissionView {
	out := api.PermissionView{Name: g.Account + g.Team, Role: g.Role.Quay(), CreatedAt: g.Created.UTC()}
	if g.Team == "" {
		out.IsRobot, out.IsOrgMember = &g.Robot, &g.Member
	}
	return out
}

// permissionMap is the answer to a request for a list of roles.
type permissionMap struct {
	Permissions map[string]api.PermissionView `json:"permissions" doc:"By the names of those who have the roles, in the order of which they come in pages"`
	NextPage    string                        `json:"next_page,omitempty" doc:"Where the next page begins; missing on the last page"`
}

type (
	permissionsOutput struct{ Body permissionMap }
	permissionOutput  struct{ Body api.PermissionView }
)

// addRoles adds the operations on the roles of accounts or teams in a repository or a namespace.
// L is the input of the list, I that of a single role, P that with a new role.
func addRoles[L interface {
	located
	paged
	nameFiltered
}, I granted, P granting](a *API, texts roleRoutes) {
	add(a, auth.Administer, accessOperation("permission", texts.list, http.MethodGet, texts.path, "List the roles of "+texts.who+" in "+texts.where),
		func(ctx context.Context, in *L) (*permissionsOutput, error) {
			if err := a.hasRepository(ctx, (*in).resource()); err != nil {
				return nil, err
			}
			after, err := (*in).page().after(texts.who)
			if err != nil {
				return nil, err
			}
			contains := (*in).named()
			if err := isText("contains", contains); err != nil {
				return nil, err
			}
			found, more, err := a.opt.Accounts.Grants(ctx, (*in).resource(), texts.who == "teams", contains, after, (*in).page().most())
			out := permissionMap{Permissions: map[string]api.PermissionView{}}
			for _, g := range found {
				out.Permissions[g.Account+g.Team] = viewPermission(g)
			}
			if more {
				last := found[len(found)-1]
				out.NextPage = cursor(texts.who, last.Account+last.Team)
			}
			return &permissionsOutput{out}, err
		})
	path := texts.path + texts.variable
	add(a, auth.Administer, accessOperation("permission", "get"+texts.one, http.MethodGet, path, "Get a role of one of the "+texts.who+" in "+texts.where),
		func(ctx context.Context, in *I) (*permissionOutput, error) {
			account, team := (*in).grantee()
			g, err := a.opt.Accounts.Grant(ctx, (*in).resource(), account, team)
			return &permissionOutput{viewPermission(g)}, err
		})
	put := accessOperation("permission", "change"+texts.one, http.MethodPut, path, "Give one of the "+texts.who+" a role in "+texts.where)
	put.Description = "Instead of the role that it has there. A robot can get roles in its own namespace only."
	add(a, auth.Administer, put, func(ctx context.Context, in *P) (*permissionOutput, error) {
		role, err := auth.ParseRole((*in).role())
		if err != nil {
			return nil, server.Refusal(http.StatusBadRequest, "role: %v", err)
		}
		account, team := (*in).grantee()
		if err := a.keepsRole(ctx, (*in).resource(), account, role); err != nil {
			return nil, err
		}
		if err := a.opt.Accounts.SetGrant(ctx, (*in).resource(), account, team, role); err != nil {
			return nil, err
		}
		g, err := a.opt.Accounts.Grant(ctx, (*in).resource(), account, team)
		return &permissionOutput{viewPermission(g)}, err
	})
	add(a, auth.Administer, accessOperation("permission", "delete"+texts.one, http.MethodDelete, path, "Take a role of one of the "+texts.who+" in "+texts.where+" away"),
		func(ctx context.Context, in *I) (*struct{}, error) {
			account, team := (*in).grantee()
			if err := a.keepsRole(ctx, (*in).resource(), account, auth.NoRole); err != nil {
				return nil, err
			}
			return nil, a.opt.Accounts.SetGrant(ctx, (*in).resource(), account, team, auth.NoRole)
		})
}

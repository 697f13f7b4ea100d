package management

import (
	"context"
	"errors"
	"net/http"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/server"
)

// addPermissions binds the operations on roles in repositories and namespaces.
func (a *API) addPermissions() {
	a.addRoles(api.UserRoles, "accounts")
	a.addRoles(api.TeamRoles, "teams")
	serve(a, api.GetTransitiveRole, func(ctx context.Context, in *api.TransitiveRole) (*api.RoleList, error) {
		if err := a.hasRepository(ctx, in.Resource()); err != nil {
			return nil, err
		}
		found, err := a.opt.Accounts.RoleIn(ctx, in.User, in.Resource())
		if err == nil && found == auth.NoRole {
			err = server.Refusal(http.StatusNotFound, "%s has no role in repository %s", in.User, in.Repository)
		}
		return &api.RoleList{Permissions: []api.Role{{Role: found.Quay()}}}, err
	})
}

// addRoles binds the operations on the roles of accounts or of teams, which `who` says.
func (a *API) addRoles(of api.RoleOperations, who string) {
	serve(a, of.List, func(ctx context.Context, in *api.RoleQuery) (*api.PermissionMap, error) {
		return a.listRoles(ctx, in, who)
	})
	serve(a, of.Get, func(ctx context.Context, in *api.RoleItem) (*api.PermissionView, error) {
		g, err := a.opt.Accounts.Grant(ctx, in.Resource(), in.User, in.Team)
		out := viewPermission(g)
		return &out, err
	})
	serve(a, of.Change, a.changeRole)
	serve(a, of.Delete, func(ctx context.Context, in *api.RoleItem) (*api.None, error) {
		if err := a.keepsRole(ctx, in.Resource(), in.User, auth.NoRole); err != nil {
			return nil, err
		}
		return nil, a.opt.Accounts.SetGrant(ctx, in.Resource(), in.User, in.Team, auth.NoRole)
	})
}

func (a *API) listRoles(ctx context.Context, in *api.RoleQuery, who string) (*api.PermissionMap, error) {
	if err := a.hasRepository(ctx, in.Resource()); err != nil {
		return nil, err
	}
	after, err := pageAfter(in.Paging, who)
	if err != nil {
		return nil, err
	}
	if err := isText("contains", in.Contains); err != nil {
		return nil, err
	}
	found, more, err := a.opt.Accounts.Grants(ctx, in.Resource(), who == "teams", in.Contains, after, in.Most())
	out := &api.PermissionMap{Permissions: map[string]api.PermissionView{}}
	for _, g := range found {
		out.Permissions[g.Account+g.Team] = viewPermission(g)
	}
	if more {
		last := found[len(found)-1]
		out.NextPage = cursor(who, last.Account+last.Team)
	}
	return out, err
}

func (a *API) changeRole(ctx context.Context, in *api.RoleChange) (*api.PermissionView, error) {
	role, err := auth.ParseRole(in.Body.Role)
	if err != nil {
		return nil, server.Refusal(http.StatusBadRequest, "role: %v", err)
	}
	if err := a.keepsRole(ctx, in.Resource(), in.User, role); err != nil {
		return nil, err
	}
	if err := a.opt.Accounts.SetGrant(ctx, in.Resource(), in.User, in.Team, role); err != nil {
		return nil, err
	}
	g, err := a.opt.Accounts.Grant(ctx, in.Resource(), in.User, in.Team)
	out := viewPermission(g)
	return &out, err
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

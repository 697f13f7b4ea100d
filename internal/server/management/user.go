package management

import (
	"context"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
)

// addUser binds Quay's route that describes the user. Quay's clients call this route to find out
// whether they are logged in.
func (a *API) addUser() { serve(a, api.GetOwnUser, a.user) }

// user describes the client, with a page of its namespaces.
func (a *API) user(ctx context.Context, page *api.Paging) (*api.QuayUser, error) {
	out := &api.QuayUser{
		Anonymous: true, Username: anonymousNamespace, Verified: true, CanCreateRepo: true, PreferredNamespace: true,
		Organizations: []api.QuayOrganization{}, Logins: []api.QuayLogin{},
	}
	p := server.Observed(ctx).Principal
	switch {
	case p.IsOpen():
		return out, nil
	case !p.LoggedIn():
		return out, a.server.Authorize(ctx, auth.LoggedIn, auth.Registry)
	}
	account, err := a.opt.Accounts.Account(ctx, p.Name)
	if err == nil && account.ID != p.ID {
		err = oci.Errorf(oci.Unauthorized, "the log-in of %s has ended: log in again", p.Name)
	}
	if err != nil {
		return out, err
	}
	out.Anonymous, out.IsMe, out.Username, out.Email = false, true, p.Name, account.Email
	out.Superuser, out.HasPassword, out.Robot = account.Superuser, account.HasPassword(), account.Robot
	if account.Source != auth.SourceLocal {
		out.Logins = append(out.Logins, api.QuayLogin{Service: account.Source, Identifier: account.Subject})
	}
	after, err := pageAfter(*page, "organization")
	if err != nil {
		return out, err
	}
	found, more, err := a.opt.Accounts.Namespaces(ctx, p.ID, after, page.Most())
	for _, n := range found {
		out.Organizations = append(out.Organizations, api.QuayOrganization{
			Name: n.Name, IsOrgAdmin: n.Role >= auth.Administrator, CanCreateRepo: n.Role >= auth.Writer, PreferredNamespace: n.Name == p.Name,
		})
	}
	if more {
		out.NextPage = cursor("organization", found[len(found)-1].Name)
	}
	return out, err
}

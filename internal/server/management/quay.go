package management

import (
	"cmp"
	"context"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
)

// anonymousNamespace is the namespace on which Quay's routes below /user act for a client that
// isn't logged in.
const anonymousNamespace = api.AnonymousNamespace

// userNamespace returns the namespace on which Quay's routes below /user act: the one with the
// name of the client's account.
func userNamespace(ctx context.Context) string {
	return cmp.Or(server.Observed(ctx).Principal.Name, anonymousNamespace)
}

// warnPrivate is the warning for a client that sets a repository's visibility to private in a
// registry without access control.
const warnPrivate = "access control is off: whoever reaches the registry may pull from this repository"

// changedVisibility is the answer to a change of a repository's visibility.
type changedVisibility struct {
	Warning []string `header:"Warning" doc:"Without access control: a warning that private has no effect, as 299 - \"…\""`
	Body    api.QuaySuccess
}

// addVisibility binds the operation that changes a repository's visibility.
func (a *API) addVisibility() {
	serveAnswer(a, api.ChangeVisibility, func(ctx context.Context, in *api.VisibilityChange) (*changedVisibility, error) {
		warnings, err := a.setVisibility(ctx, in.Repository, in.Body.Visibility)
		return &changedVisibility{warnings, api.QuaySuccess{Success: true}}, err
	}, func(out *changedVisibility) *api.QuaySuccess { return &out.Body })
}

// setVisibility sets a repository's visibility. It returns warnings for the client.
func (a *API) setVisibility(ctx context.Context, path, visibility string) (warnings []string, err error) {
	if visibility == catalog.Private && a.server.Auth() == nil {
		warnings = warningHeaders([]string{warnPrivate})
	}
	defer a.server.Forget()
	return warnings, a.catalog.SetVisibility(ctx, path, visibility)
}

// newStar is the body of a request to give a repository a star.
type newStar struct {
	_          struct{} `additionalProperties:"true"`
	Namespace  string   `json:"namespace" example:"library"`
	Repository string   `json:"repository" doc:"Its name below the namespace" example:"alpine"`
}

// addStars adds Quay's routes for stars.
func (a *API) addStars() {
	type createInput struct{ Body newStar }
	type star struct {
		Namespace  string `json:"namespace"`
		Repository string `json:"repository"`
	}
	type createOutput struct{ Body star }
	add(a, auth.LoggedIn, huma.Operation{
		OperationID: "createStar", Method: http.MethodPost, Path: "/user/starred", Tags: []string{"repository"},
		Summary: "Give a repository a star", DefaultStatus: http.StatusCreated,
		Description: "Each account has stars of its own; all requests without an account share one. GET /repository?starred=true lists the repositories that have a star.",
		Errors:      []int{http.StatusNotFound, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType},
	}, func(ctx context.Context, in *createInput) (*createOutput, error) {
		path := strings.TrimSuffix(in.Body.Namespace+"/"+in.Body.Repository, "/")
		if err := a.server.Authorize(ctx, auth.Pull, auth.OfRepository(path)); err != nil {
			return nil, err
		}
		return &createOutput{star{in.Body.Namespace, in.Body.Repository}}, a.catalog.SetStar(ctx, server.Observed(ctx).Principal.ID, path, true)
	})
	type listInput struct {
		Limit    int    `query:"limit" minimum:"1" default:"50" doc:"Most entries of a page. More than 100 counts as 100"`
		NextPage string `query:"next_page" doc:"Where to go on: next_page of the answer before"`
		Page     int    `query:"page" minimum:"1" default:"1" doc:"Quay's clients send it; the registry ignores it and uses next_page"`
	}
	type listOutput struct{ Body api.RepositoryList }
	add(a, auth.LoggedIn, huma.Operation{
		OperationID: "listStarredRepos", Method: http.MethodGet, Path: "/user/starred", Tags: []string{"repository"},
		Summary: "List the repositories that have a star", Description: "The same as GET /repository?starred=true.",
	}, func(ctx context.Context, in *listInput) (*listOutput, error) {
		out, err := a.repositories(ctx, &api.RepositoryQuery{NameFilter: api.NameFilter{NextPage: in.NextPage}, Sort: "name", Limit: in.Limit, Starred: true})
		if err != nil {
			return nil, err
		}
		return &listOutput{*out}, nil
	})
	type input struct {
		Repository string `path:"repository" doc:"Name of the repository" example:"library/alpine"`
	}
	// The access to the repository comes first, so that checkName tells nobody else whether the
	// repository exists.
	add(a, auth.Pull, huma.Operation{
		OperationID: "deleteStar", Method: http.MethodDelete, Path: "/user/starred/{repository}", Tags: []string{"repository"},
		Summary: "Take a repository's star away", DefaultStatus: http.StatusNoContent, Errors: []int{http.StatusNotFound},
	}, func(ctx context.Context, in *input) (*struct{}, error) {
		if err := a.server.Authorize(ctx, auth.LoggedIn, auth.OfRepository(in.Repository)); err != nil {
			return nil, err
		}
		return nil, a.catalog.SetStar(ctx, server.Observed(ctx).Principal.ID, in.Repository, false)
	})
}

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
	found, more, err := a.opt.Accounts.Namespaces(ctx, p.ID, auth.NoRole, after, page.Most())
	for _, n := range found {
		out.Organizations = append(out.Organizations, api.QuayOrganization{
			Name: n.Name, IsOrgAdmin: n.Role >= auth.Administrator, MayMaintain: n.Role >= auth.Maintainer, CanCreateRepo: n.Role >= auth.Writer, PreferredNamespace: n.Name == p.Name,
		})
	}
	if more {
		out.NextPage = cursor("organization", found[len(found)-1].Name)
	}
	return out, err
}

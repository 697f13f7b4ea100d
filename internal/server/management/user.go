package management

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/server"
)

// quayUser is Quay's description of the client's user.
type quayUser struct {
	Anonymous          bool               `json:"anonymous" doc:"Whether nobody is logged in: always true in a registry without access control"`
	Username           string             `json:"username" doc:"The namespace that the routes below /user are about" example:"library"`
	Verified           bool               `json:"verified" doc:"Always true"`
	CanCreateRepo      bool               `json:"can_create_repo" doc:"Always true"`
	PreferredNamespace bool               `json:"preferred_namespace" doc:"Always true"`
	Organizations      []quayOrganization `json:"organizations" nullable:"false" doc:"The namespaces in which the account has a role, in the order of their names. Empty if nobody is logged in"`
	Logins             []quayLogin        `json:"logins" nullable:"false" maxItems:"1" doc:"The other source of the account's identity, if there is one"`

	Superuser   bool   `json:"super_user,omitempty" doc:"Whether the account administers the registry"`
	IsMe        bool   `json:"is_me,omitempty" doc:"True if somebody is logged in"`
	Email       string `json:"email,omitempty"`
	HasPassword bool   `json:"has_password_set,omitempty" doc:"Whether the account has a password that Purser checks"`
	Robot       bool   `json:"robot,omitempty" doc:"Whether the account is a robot"`
	NextPage    string `json:"next_page,omitempty" doc:"Where the next page of organizations begins; missing on the last page"`
}

// quayOrganization is a namespace in which the client has a role.
type quayOrganization struct {
	Name               string `json:"name" example:"acme"`
	IsOrgAdmin         bool   `json:"is_org_admin" doc:"Whether the account administers it"`
	CanCreateRepo      bool   `json:"can_create_repo" doc:"Whether the account may push to new repositories of it"`
	Public             bool   `json:"public" doc:"Always false"`
	PreferredNamespace bool   `json:"preferred_namespace" doc:"Whether it has the name of the account"`
}

// quayLogin is an identity at another source.
type quayLogin struct {
	Service    string `json:"service" enum:"htpasswd,oidc,ldap"`
	Identifier string `json:"service_identifier"`
}

// addUser adds Quay's route that describes the user. Quay's clients call this route to find out
// whether they are logged in.
func (a *API) addUser() {
	type output struct{ Body quayUser }
	add(a, auth.Anyone, huma.Operation{
		OperationID: "getLoggedInUser", Method: http.MethodGet, Path: "/user", Tags: []string{"user"},
		Summary: "Get the account of the request",
		Description: "A registry without access control answers that nobody is logged in, and names the namespace " + anonymousNamespace +
			". With access control, the answer to a request without credentials is 401.",
	}, func(ctx context.Context, in *api.Paging) (*output, error) {
		user, err := a.user(ctx, *in)
		return &output{user}, err
	})
}

// user describes the client, with a page of its namespaces.
func (a *API) user(ctx context.Context, page api.Paging) (quayUser, error) {
	out := quayUser{
		Anonymous: true, Username: anonymousNamespace, Verified: true, CanCreateRepo: true, PreferredNamespace: true,
		Organizations: []quayOrganization{}, Logins: []quayLogin{},
	}
	p := server.Observed(ctx).Principal
	switch {
	case p.IsOpen():
		return out, nil
	case !p.LoggedIn():
		return out, a.server.Authorize(ctx, auth.LoggedIn, auth.Registry)
	}
	account, err := a.opt.Accounts.Account(ctx, p.Name)
	if err != nil {
		return out, err
	}
	out.Anonymous, out.IsMe, out.Username, out.Email = false, true, p.Name, account.Email
	out.Superuser, out.HasPassword, out.Robot = account.Superuser, account.HasPassword(), account.Robot
	if account.Source != auth.SourceLocal {
		out.Logins = append(out.Logins, quayLogin{account.Source, account.Subject})
	}
	after, err := pageAfter(page, "organization")
	if err != nil {
		return out, err
	}
	found, more, err := a.opt.Accounts.Namespaces(ctx, p.ID, after, page.Most())
	for _, n := range found {
		out.Organizations = append(out.Organizations, quayOrganization{
			Name: n.Name, IsOrgAdmin: n.Role >= auth.Administrator, CanCreateRepo: n.Role >= auth.Writer, PreferredNamespace: n.Name == p.Name,
		})
	}
	if more {
		out.NextPage = cursor("organization", found[len(found)-1].Name)
	}
	return out, err
}

package management

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/auth/session"
	"github.com/purser-registry/purser/internal/server"
)

// soon is how long before its end a token counts as expiring.
const soon = 7 * 24 * time.Hour

// NewTokenForm is the body of a request to make a personal token. It is exported because huma
// makes JSON schemas only of exported types.
type NewTokenForm struct {
	api.NewToken
}

// TransformSchema adds the read-only members of a token.
func (NewTokenForm) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return api.ReadOnly(s, "uuid", "kind", "last_accessed", "created", "expiration", "token_code", "created_at", "last_used_at")
}

// TokenItem is the part of a path that names a token. It is exported because huma finds
// parameters only in exported types.
type TokenItem struct {
	UUID string `path:"token_uuid" doc:"Identifier of the token" example:"f6d1a7b0-9a8c-4a7e-9b0e-3a4f6f1c2d3e"`
}

func viewToken(c auth.Credential) api.TokenView {
	return api.TokenView{
		UUID: c.ID.String(), Title: c.Title, LastAccessed: quayTimeOf(c.LastUsed), Created: quayTime(c.Created), Expiration: quayTimeOf(c.Expires),
		Kind:         string(c.Kind),
		Repositories: c.Limits.Repositories, Actions: actionNames(c.Limits.Actions),
		CreatedAt: c.Created.UTC(), ExpiresAt: inUTC(c.Expires), LastUsedAt: inUTC(c.LastUsed),
	}
}

// addTokens adds Quay's routes for the tokens of the client's account. Quay calls personal tokens
// app specific tokens. It has no refresh tokens; here the routes list and revoke them too, so that
// people see what a lost disk may have.
func (a *API) addTokens() {
	const path = "/user/apptoken"
	type listInput struct {
		api.Paging
		Expiring bool `query:"expiring" doc:"True: only tokens that end within 7 days"`
	}
	type tokenList struct {
		Tokens       []api.TokenView `json:"tokens" nullable:"false" doc:"Newest first"`
		OnlyExpiring bool            `json:"only_expiring"`
		NextPage     string          `json:"next_page,omitempty" doc:"Where the next page begins; missing on the last page"`
	}
	type listOutput struct{ Body tokenList }
	add(a, auth.LoggedIn, accessOperation("token", "listAppTokens", http.MethodGet, path, "List the personal tokens and the refresh tokens of the client's account"),
		func(ctx context.Context, in *listInput) (*listOutput, error) {
			p, err := a.person(ctx)
			if err != nil {
				return nil, err
			}
			query := auth.TokenQuery{Account: p.Name, Kinds: ownTokens}
			if in.Expiring {
				query.Before = time.Now().Add(soon)
			}
			var after auth.TokenPlace
			switch further, err := parseCursor(in.NextPage, "token", &after); {
			case err != nil:
				return nil, err
			case further:
				query.After = &after
			}
			found, more, err := a.opt.Accounts.Tokens(ctx, query, in.Most())
			out := tokenList{Tokens: []api.TokenView{}, OnlyExpiring: in.Expiring}
			for _, c := range found {
				out.Tokens = append(out.Tokens, viewToken(c))
			}
			if more {
				last := found[len(found)-1]
				out.NextPage = cursor("token", auth.TokenPlace{Created: last.Created, ID: last.ID})
			}
			return &listOutput{out}, err
		})
	type input struct{ Body NewTokenForm }
	type output struct{ Body api.TokenAnswer }
	create := accessOperation("token", "createAppToken", http.MethodPost, path, "Make a personal token of the client's account")
	create.Description = "It stands in for the password, with the roles of the account as far as its limits allow. Only this answer has it. " +
		"A token can make only tokens with the same limits or narrower ones, which end when it ends or earlier; they inherit what the request leaves out."
	add(a, auth.LoggedIn, create, func(ctx context.Context, in *input) (*output, error) {
		p, err := a.person(ctx)
		if err != nil {
			return nil, err
		}
		limits := inherit(p, in.Body.NewToken)
		end, err := checkNew(ctx, limits, in.Body.ExpiresAt)
		if err != nil {
			return nil, err
		}
		c, secret, err := a.opt.Accounts.CreateToken(ctx, p, in.Body.Title, limits, end)
		view := viewToken(c)
		view.Code = secret
		return &output{api.TokenAnswer{Token: view}}, err
	})
	add(a, auth.LoggedIn, accessOperation("token", "getAppToken", http.MethodGet, path+"/{token_uuid}", "Get a personal token or a refresh token of the client's account"),
		func(ctx context.Context, in *TokenItem) (*output, error) {
			c, err := a.token(ctx, in.UUID)
			return &output{api.TokenAnswer{Token: viewToken(c)}}, err
		})
	add(a, auth.LoggedIn, accessOperation("token", "revokeAppToken", http.MethodDelete, path+"/{token_uuid}", "Revoke a personal token or a refresh token of the client's account"),
		func(ctx context.Context, in *TokenItem) (*struct{}, error) {
			c, err := a.token(ctx, in.UUID)
			if err != nil {
				return nil, err
			}
			return nil, a.opt.Accounts.RevokeToken(ctx, server.Observed(ctx).Principal.Name, c.ID)
		})
}

// inherit returns the limits of a new token: those that the request names, else those of the
// client.
func inherit(p *auth.Principal, n api.NewToken) auth.Limits {
	l := p.Limits()
	if n.Repositories != nil {
		l.Repositories = n.Repositories
	}
	if n.Actions != nil {
		l.Actions = actions(n.Actions)
	}
	return l
}

// ownTokens are the kinds of credentials that people list and revoke.
var ownTokens = []auth.CredentialKind{auth.PersonalToken, auth.RefreshToken}

// token returns a personal token or a refresh token of the client's account.
func (a *API) token(ctx context.Context, text string) (c auth.Credential, err error) {
	p, err := a.person(ctx)
	if err != nil {
		return c, err
	}
	id, err := uuid.Parse(text)
	if err == nil {
		c, err = a.opt.Accounts.Token(ctx, p.Name, id, ownTokens...)
		if err != nil && !errors.Is(err, auth.ErrUnknown) {
			return c, err
		}
	}
	if err != nil {
		err = server.Refusal(http.StatusNotFound, "your account has no token %s", text)
	}
	return c, err
}

// addSessions adds the operations on the log-ins of browsers.
func (a *API) addSessions() {
	type sessionList struct {
		Sessions []api.SessionView `json:"sessions" nullable:"false" doc:"Newest first"`
		NextPage string            `json:"next_page,omitempty" doc:"Where the next page begins; missing on the last page"`
	}
	type output struct{ Body sessionList }
	add(a, auth.LoggedIn, accessOperation("token", "listSessions", http.MethodGet, "/user/sessions", "List the log-ins of browsers to the client's account"),
		func(ctx context.Context, in *api.Paging) (*output, error) {
			p, err := a.person(ctx)
			if err != nil {
				return nil, err
			}
			var after *session.Place
			if _, err := parseCursor(in.NextPage, "session", &after); err != nil {
				return nil, err
			}
			out := sessionList{Sessions: []api.SessionView{}}
			sessions := a.server.Auth().Sessions()
			if sessions == nil {
				return &output{out}, nil
			}
			found, more, err := sessions.List(ctx, p.ID, after, in.Most())
			if more {
				last := found[len(found)-1]
				out.NextPage = cursor("session", session.Place{Created: last.Created, ID: last.ID})
			}
			for _, s := range found {
				out.Sessions = append(out.Sessions, api.SessionView{
					ID: s.ID.String(), CreatedAt: s.Created.UTC(), LastUsedAt: s.LastUsed.UTC(), ExpiresAt: s.Expires.UTC(),
					Address: s.Address, UserAgent: s.UserAgent, Current: s.ID.String() == p.Session(),
				})
			}
			return &output{out}, err
		})
	type input struct {
		ID string `path:"session_id" doc:"Identifier of the log-in" example:"f6d1a7b0-9a8c-4a7e-9b0e-3a4f6f1c2d3e"`
	}
	add(a, auth.LoggedIn, accessOperation("token", "endSession", http.MethodDelete, "/user/sessions/{session_id}", "End a log-in of a browser"),
		func(ctx context.Context, in *input) (*struct{}, error) {
			p, err := a.person(ctx)
			if err != nil {
				return nil, err
			}
			id, err := pathUUID(in.ID)
			if err != nil {
				return nil, err
			}
			ended := false
			if sessions := a.server.Auth().Sessions(); sessions != nil {
				if ended, err = sessions.Revoke(ctx, p.ID, id); err != nil {
					return nil, err
				}
			}
			if !ended {
				return nil, server.Refusal(http.StatusNotFound, "your account has no log-in %s", id)
			}
			return nil, a.logAct(ctx, audit.LogoutSuccess, map[string]any{"session": id})
		})
}

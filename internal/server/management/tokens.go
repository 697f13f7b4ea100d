package management

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/auth/session"
	"github.com/purser-registry/purser/internal/server"
)

// soon is how long before its end a token counts as expiring.
const soon = 7 * 24 * time.Hour

func viewToken(c auth.Credential) api.TokenView {
	return api.TokenView{
		UUID: c.ID.String(), Title: c.Title, LastAccessed: quayTimeOf(c.LastUsed), Created: quayTime(c.Created), Expiration: quayTimeOf(c.Expires),
		Kind:         string(c.Kind),
		Repositories: c.Limits.Repositories, Actions: actionNames(c.Limits.Actions),
		CreatedAt: c.Created.UTC(), ExpiresAt: inUTC(c.Expires), LastUsedAt: inUTC(c.LastUsed),
	}
}

// addTokens binds the operations on the tokens of the client's account.
func (a *API) addTokens() {
	serve(a, api.ListTokens, a.listTokens)
	serve(a, api.CreateToken, func(ctx context.Context, in *api.TokenNew) (*api.TokenAnswer, error) {
		p, err := a.person(ctx)
		if err != nil {
			return nil, err
		}
		limits := inherit(p, in.Body)
		end, err := checkNew(ctx, limits, in.Body.ExpiresAt)
		if err != nil {
			return nil, err
		}
		c, secret, err := a.opt.Accounts.CreateToken(ctx, p, in.Body.Title, limits, end)
		view := viewToken(c)
		view.Code = secret
		return &api.TokenAnswer{Token: view}, err
	})
	serve(a, api.GetToken, func(ctx context.Context, in *api.TokenItem) (*api.TokenAnswer, error) {
		c, err := a.token(ctx, in.UUID)
		return &api.TokenAnswer{Token: viewToken(c)}, err
	})
	serve(a, api.RevokeToken, func(ctx context.Context, in *api.TokenItem) (*api.None, error) {
		c, err := a.token(ctx, in.UUID)
		if err != nil {
			return nil, err
		}
		return nil, a.opt.Accounts.RevokeToken(ctx, server.Observed(ctx).Principal.Name, c.ID)
	})
}

func (a *API) listTokens(ctx context.Context, in *api.TokenQuery) (*api.TokenList, error) {
	p, err := a.person(ctx)
	if err != nil {
		return nil, err
	}
	query := auth.TokenQuery{Account: p.Name, ID: p.ID, Kinds: ownTokens}
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
	out := &api.TokenList{Tokens: []api.TokenView{}, OnlyExpiring: in.Expiring}
	for _, c := range found {
		out.Tokens = append(out.Tokens, viewToken(c))
	}
	if more {
		last := found[len(found)-1]
		out.NextPage = cursor("token", auth.TokenPlace{Created: last.Created, ID: last.ID})
	}
	return out, err
}

// inherit returns the limits of a new token: those that the request names, else those of the
// client.
func inherit(p *auth.Principal, n api.NewTokenForm) auth.Limits {
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
	if err != nil || c.Account != p.ID { // another account may have the name by now
		c, err = auth.Credential{}, server.Refusal(http.StatusNotFound, "your account has no token %s", text)
	}
	return c, err
}

// addSessions binds the operations on the log-ins of browsers.
func (a *API) addSessions() {
	serve(a, api.ListSessions, a.listSessions)
	serve(a, api.EndSession, func(ctx context.Context, in *api.SessionItem) (*api.None, error) {
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

func (a *API) listSessions(ctx context.Context, in *api.Paging) (*api.SessionList, error) {
	p, err := a.person(ctx)
	if err != nil {
		return nil, err
	}
	var after *session.Place
	if _, err := parseCursor(in.NextPage, "session", &after); err != nil {
		return nil, err
	}
	out := &api.SessionList{Sessions: []api.SessionView{}}
	sessions := a.server.Auth().Sessions()
	if sessions == nil {
		return out, nil
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
	return out, err
}

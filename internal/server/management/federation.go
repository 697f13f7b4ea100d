package management

import (
	"context"
	"maps"
	"net/http"
	"net/url"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/auth/identity"
	"github.com/purser-registry/purser/internal/server"
)

// addFederation binds the operations on the rules by which tokens of other issuers log in as a robot.
func (a *API) addFederation() {
	serve(a, api.GetFederation, func(ctx context.Context, in *api.RobotItem) (*api.FederationRules, error) {
		return a.federation(ctx, in.Name())
	})
	serve(a, api.SetFederation, a.setFederation)
	serve(a, api.DeleteFederation, func(ctx context.Context, in *api.RobotItem) (*api.None, error) {
		return nil, a.opt.Accounts.SetFederations(ctx, in.Name(), nil)
	})
}

func (a *API) setFederation(ctx context.Context, in *api.FederationChange) (*api.FederationRules, error) {
	r, err := a.opt.Accounts.Robot(ctx, in.Name())
	if err != nil {
		return nil, err
	}
	if err := checkLimits(ctx, r.Limits); err != nil {
		return nil, err
	}
	if err := checkEndless(ctx, "a rule"); err != nil {
		return nil, err
	}
	list, err := a.federations(in.Body)
	if err != nil {
		return nil, err
	}
	if err := a.opt.Accounts.SetFederations(ctx, in.Name(), list); err != nil {
		return nil, err
	}
	return a.federation(ctx, in.Name())
}

// federation lists the rules of a robot.
func (a *API) federation(ctx context.Context, robot string) (*api.FederationRules, error) {
	if _, err := a.opt.Accounts.Robot(ctx, robot); err != nil {
		return nil, err
	}
	found, err := a.opt.Accounts.Federations(ctx, robot)
	list := api.FederationRules{}
	for _, f := range found {
		rule := api.FederationRule{Issuer: f.Issuer, Audience: f.Audience, Subject: f.Claims["sub"], ID: f.ID.String()}
		delete(f.Claims, "sub")
		rule.Claims = f.Claims
		list = append(list, rule)
	}
	return &list, err
}

// federations checks rules and converts them for the store.
func (a *API) federations(rules []api.FederationRule) ([]auth.Federation, error) {
	list := make([]auth.Federation, 0, len(rules))
	for i, r := range rules {
		claims := map[string]string{}
		maps.Copy(claims, r.Claims)
		if r.Subject != "" {
			if other, ok := claims["sub"]; ok && other != r.Subject {
				return nil, server.Refusal(http.StatusBadRequest, "[%d]: subject and claims.sub differ", i)
			}
			claims["sub"] = r.Subject
		}
		if r.Audience == "" {
			r.Audience = a.host()
		}
		rule := identity.Rule{Issuer: r.Issuer, Audience: r.Audience, Claims: claims}
		err := rule.Check()
		if c := a.server.Auth(); c != nil {
			err = c.CheckFederation(rule)
		}
		if err != nil {
			return nil, server.Refusal(http.StatusBadRequest, "[%d]: %v", i, err)
		}
		list = append(list, auth.Federation{Issuer: rule.Issuer, Audience: rule.Audience, Claims: claims})
	}
	return list, nil
}

// host returns the host of the registry's external URL, "" if it isn't known.
func (a *API) host() string {
	u, err := url.Parse(a.server.ExternalURL())
	if err != nil {
		return ""
	}
	return u.Host
}

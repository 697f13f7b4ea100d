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

type federationOutput struct {
	Body []api.FederationRule `nullable:"false"`
}

// addFederation adds the operations on the rules by which tokens of other issuers log in as a
// robot. I is an input without a body, F the input with rules.
func addFederation[I oneRobot, F interface {
	oneRobot
	federationRules
}](a *API, texts robotRoutes) {
	path := texts.path + "/{robot_shortname}/federation"
	add(a, auth.Administer, accessOperation("robot", "get"+texts.name+"RobotFederation", http.MethodGet, path, "List the rules by which other issuers' tokens log in as a robot of "+texts.of),
		func(ctx context.Context, in *I) (*federationOutput, error) {
			out, err := a.federation(ctx, robotName(*in))
			return &federationOutput{out}, err
		})
	set := accessOperation("robot", "create"+texts.name+"RobotFederation", http.MethodPost, path, "Set the rules by which other issuers' tokens log in as a robot of "+texts.of)
	set.Description = "Replaces all rules. Tokens that clients got by the rules before end."
	add(a, auth.Administer, set, func(ctx context.Context, in *F) (*federationOutput, error) {
		name := robotName(*in)
		r, err := a.opt.Accounts.Robot(ctx, name)
		if err != nil {
			return nil, err
		}
		if err := checkLimits(ctx, r.Limits); err != nil {
			return nil, err
		}
		if err := checkEndless(ctx, "a rule"); err != nil {
			return nil, err
		}
		list, err := a.federations((*in).rules())
		if err != nil {
			return nil, err
		}
		if err := a.opt.Accounts.SetFederations(ctx, name, list); err != nil {
			return nil, err
		}
		out, err := a.federation(ctx, name)
		return &federationOutput{out}, err
	})
	remove := accessOperation("robot", "delete"+texts.name+"RobotFederation", http.MethodDelete, path, "Delete the rules by which other issuers' tokens log in as a robot of "+texts.of)
	add(a, auth.Administer, remove, func(ctx context.Context, in *I) (*struct{}, error) {
		return nil, a.opt.Accounts.SetFederations(ctx, robotName(*in), nil)
	})
}

// federation lists the rules of a robot.
func (a *API) federation(ctx context.Context, robot string) ([]api.FederationRule, error) {
	if _, err := a.opt.Accounts.Robot(ctx, robot); err != nil {
		return nil, err
	}
	found, err := a.opt.Accounts.Federations(ctx, robot)
	list := []api.FederationRule{}
	for _, f := range found {
		rule := api.FederationRule{Issuer: f.Issuer, Audience: f.Audience, Subject: f.Claims["sub"], ID: f.ID.String()}
		delete(f.Claims, "sub")
		rule.Claims = f.Claims
		list = append(list, rule)
	}
	return list, err
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

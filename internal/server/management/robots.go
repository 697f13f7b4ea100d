package management

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/auth/identity"
	"github.com/purser-registry/purser/internal/server"
)

// addRobots binds the operations on the robots of namespaces.
func (a *API) addRobots() {
	serve(a, api.ListRobots, a.listRobots)
	serve(a, api.GetRobot, func(ctx context.Context, in *api.RobotItem) (*api.RobotView, error) { return a.robot(ctx, in.Name()) })
	serve(a, api.CreateRobot, a.createRobot)
	serve(a, api.ChangeRobot, func(ctx context.Context, in *api.RobotChange) (*api.RobotView, error) {
		if err := a.changeRobot(ctx, in.Name(), in.Body); err != nil {
			return nil, err
		}
		return a.robot(ctx, in.Name())
	})
	serve(a, api.DeleteRobot, func(ctx context.Context, in *api.RobotItem) (*api.None, error) {
		return nil, a.opt.Accounts.DeleteRobot(ctx, in.Name())
	})
	serve(a, api.RegenerateRobot, a.regenerateRobot)
	serve(a, api.ListRobotRoles, func(ctx context.Context, in *api.RobotRoleQuery) (*api.Permissions, error) {
		if _, err := a.opt.Accounts.Robot(ctx, in.Name()); err != nil {
			return nil, err
		}
		return a.permissionsOf(ctx, in.Namespace, in.Name(), "", in.Paging)
	})
	a.addFederation()
}

func (a *API) listRobots(ctx context.Context, in *api.RobotQuery) (*api.RobotList, error) {
	if err := isText("contains", in.Contains); err != nil {
		return nil, err
	}
	after, err := pageAfter(in.Paging, "robot")
	if err != nil {
		return nil, err
	}
	if err := a.opt.Accounts.CheckNamespace(ctx, in.Namespace); err != nil {
		return nil, err
	}
	found, more, err := a.opt.Accounts.Robots(ctx, in.Namespace, in.Contains, after, in.Most())
	out := &api.RobotList{Robots: []api.RobotView{}}
	for _, r := range found {
		out.Robots = append(out.Robots, viewRobot(r))
	}
	if more {
		out.NextPage = cursor("robot", found[len(found)-1].Name)
	}
	return out, err
}

func (a *API) createRobot(ctx context.Context, in *api.RobotNew) (*api.RobotView, error) {
	form := cmp.Or(in.Body, &api.NewRobotForm{})
	limits := auth.Limits{Repositories: form.Repositories, Actions: actions(form.Actions)}
	end, err := checkNew(ctx, limits, form.ExpiresAt)
	if err != nil {
		return nil, err
	}
	r, secret, err := a.opt.Accounts.CreateRobot(ctx, in.Namespace, in.Robot, form.Description, limits, end)
	out := viewRobot(r)
	out.Token, out.ExpiresAt = secret, inUTC(end)
	return &out, err
}

// maxSecrets is how many of a robot's secrets its description has: the newest.
const maxSecrets = 100

// robot describes a robot with its secrets.
func (a *API) robot(ctx context.Context, name string) (*api.RobotView, error) {
	r, err := a.opt.Accounts.Robot(ctx, name)
	if err != nil {
		return nil, err
	}
	secrets, _, err := a.opt.Accounts.Tokens(ctx, auth.TokenQuery{Account: name, Kinds: []auth.CredentialKind{auth.RobotSecret}}, maxSecrets)
	out := viewRobot(r)
	for _, s := range secrets {
		out.Secrets = append(out.Secrets, api.SecretView{CreatedAt: s.Created.UTC(), ExpiresAt: inUTC(s.Expires), LastUsedAt: inUTC(s.LastUsed)})
	}
	return &out, err
}

func (a *API) changeRobot(ctx context.Context, name string, form api.RobotChangeForm) error {
	r, err := a.opt.Accounts.Robot(ctx, name)
	if err != nil {
		return err
	}
	c := auth.RobotChange{Description: form.Description}
	if form.Enabled != nil {
		disabled := !*form.Enabled
		c.Disabled = &disabled
	}
	limits := r.Limits
	if form.Repositories.Set {
		c.Repositories, limits.Repositories = &form.Repositories.Values, form.Repositories.Values
	}
	if form.Actions.Set {
		list := actions(form.Actions.Values)
		c.Actions, limits.Actions = &list, list
	}
	if form.Repositories.Set || form.Actions.Set {
		if err := checkLimits(ctx, limits); err != nil {
			return err
		}
	}
	return a.opt.Accounts.ChangeRobot(ctx, name, c)
}

func (a *API) regenerateRobot(ctx context.Context, in *api.RobotRenewal) (*api.RobotView, error) {
	form, name := cmp.Or(in.Body, &api.RobotRegeneration{}), in.Name()
	r, err := a.opt.Accounts.Robot(ctx, name)
	if err != nil {
		return nil, err
	}
	end, err := checkNew(ctx, r.Limits, form.ExpiresAt)
	if err != nil {
		return nil, err
	}
	secret, err := a.opt.Accounts.RotateRobot(ctx, name, time.Duration(form.Overlap)*time.Second, end)
	if err != nil {
		return nil, err
	}
	out, err := a.robot(ctx, name)
	if err != nil {
		// Nobody can read the secret later, and the one before may have ended. So it is told without the others.
		a.log.WarnContext(ctx, "reading a robot whose secret was made", "robot", name, "error", err)
		view := viewRobot(r)
		out = &view
	}
	out.Token, out.ExpiresAt = secret, inUTC(end)
	return out, nil
}

// permissionsOf lists the roles of a robot or a team of a namespace.
func (a *API) permissionsOf(ctx context.Context, namespace, account, team string, p api.Paging) (*api.Permissions, error) {
	after, err := pageAfter(p, "permissions")
	if err != nil {
		return nil, err
	}
	whole, err := a.opt.Accounts.Grant(ctx, auth.OfNamespace(namespace), account, team)
	if err != nil && !errors.Is(err, auth.ErrUnknown) {
		return nil, err
	}
	out := &api.Permissions{Permissions: []api.RobotPermission{}, NamespaceRole: whole.Role.Quay()}
	found, more, err := a.opt.Accounts.GrantsOf(ctx, namespace, account, team, after, p.Most())
	for _, g := range found {
		out.Permissions = append(out.Permissions, api.RobotPermission{
			Repository: api.PermissionRepository{Name: below(g.Repository), IsPublic: a.isPublic(g.Public)}, Role: g.Role.Quay(),
		})
	}
	if more {
		out.NextPage = cursor("permissions", found[len(found)-1].Repository)
	}
	return out, err
}

// below returns the name of a repository below its namespace.
func below(path string) string {
	_, name, _ := strings.Cut(path, "/")
	return name
}

// isPublic says whether everybody may pull from a repository with this visibility of its own.
func (a *API) isPublic(visibility *bool) bool {
	c := a.server.Auth()
	switch {
	case c == nil:
		return true
	case visibility == nil:
		return c.PublicByDefault()
	}
	return *visibility
}

func viewRobot(r auth.Account) api.RobotView {
	return api.RobotView{
		Name: r.Name, Description: r.Description, Created: quayTime(r.Created), LastAccessed: quayTimeOf(r.LastUsed), Metadata: map[string]any{},
		Enabled: !r.Disabled, Repositories: r.Limits.Repositories, Actions: actionNames(r.Limits.Actions),
		CreatedAt: r.Created.UTC(), LastUsedAt: inUTC(r.LastUsed),
	}
}

// actionNames converts a limit of actions, in which nil means that there is no limit.
func actionNames(list []auth.Action) []string {
	if list == nil {
		return nil
	}
	names := make([]string, len(list))
	for i, action := range list {
		names[i] = string(action)
	}
	return names
}

// actions is the inverse of actionNames. The store checks the names.
func actions(names []string) []auth.Action {
	if names == nil {
		return nil
	}
	list := make([]auth.Action, len(names))
	for i, name := range names {
		list[i] = auth.Action(name)
	}
	return list
}

// checkNew returns an error if the limits or the end of a secret or token that the client makes
// aren't possible, or would allow more or for longer than the client's own credential. It returns
// the end: the one that the request names, else that of the client's credential.
func checkNew(ctx context.Context, l auth.Limits, expires *time.Time) (end *time.Time, err error) {
	if expires != nil && !expires.After(time.Now()) {
		return nil, server.Refusal(http.StatusBadRequest, "expires_at: %s isn't in the future", expires.Format(time.RFC3339))
	}
	if err := l.Check(); err != nil {
		return nil, server.Refusal(http.StatusBadRequest, "%v", err)
	}
	if err := checkLimits(ctx, l); err != nil {
		return nil, err
	}
	until := server.Observed(ctx).Principal.Expires()
	switch {
	case until == nil:
		return expires, nil
	case expires == nil:
		return until, nil
	case expires.After(*until):
		return nil, server.Refusal(http.StatusForbidden, "expires_at: the token of this request ends at %s, and it can make only what ends by then", until.UTC().Format(time.RFC3339))
	}
	return expires, nil
}

// checkEndless returns an error if the client's own credential ends. The client is about to make
// something by which somebody can log in, and which has no end.
func checkEndless(ctx context.Context, what string) error {
	p := server.Observed(ctx).Principal
	if until := p.Expires(); until != nil {
		return server.Refusal(http.StatusForbidden, "the token of this request ends at %s, and %s would last longer: use a password, or a token without an end", until.UTC().Format(time.RFC3339), what)
	}
	return nil
}

// checkUnbounded is checkEndless for what has no limits either.
func checkUnbounded(ctx context.Context, what string) error {
	if !(auth.Limits{}).Within(server.Observed(ctx).Principal.Limits()) {
		return server.Refusal(http.StatusForbidden, "the token of this request has limits, and %s would have none: use a password, or a token without limits", what)
	}
	return checkEndless(ctx, what)
}

// checkLimits returns an error if the limits of something that the client makes would allow more
// than the limits of the client itself.
func checkLimits(ctx context.Context, l auth.Limits) error {
	if l.Within(server.Observed(ctx).Principal.Limits()) {
		return nil
	}
	return server.Refusal(http.StatusForbidden, "the token or robot of this request has limits, and it can make only what has the same limits or narrower ones: name repositories and actions")
}

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
	if !in.Replaces.Given {
		err = a.opt.Accounts.SetFederations(ctx, in.Name(), list)
	} else {
		var seen []uuid.UUID
		for _, text := range strings.FieldsFunc(in.Replaces.Value, func(c rune) bool { return c == ',' }) {
			id, err := uuid.Parse(text)
			if err != nil {
				return nil, badQuery("replaces", "%q is not a UUID", text)
			}
			seen = append(seen, id)
		}
		err = a.opt.Accounts.ReplaceFederations(ctx, in.Name(), seen, list)
	}
	if err != nil {
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

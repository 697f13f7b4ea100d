package management

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/server"
)

// RobotsOfNamespace and RobotsOfUser are inputs of operations on the robots of a namespace: the
// one in the path, or the client's own. RobotItem is the part of a path that names a robot. The
// types are exported because huma finds parameters only in exported types.
type (
	RobotsOfNamespace struct{ api.InNamespace }
	RobotsOfUser      struct{ NamespaceOfUser }
	RobotItem         struct {
		Robot string `path:"robot_shortname" doc:"Name of the robot, without its namespace" example:"ci"`
	}
)

func (r RobotsOfNamespace) of() string { return r.Namespace }
func (r RobotsOfUser) of() string      { return r.namespace }
func (r RobotItem) short() string      { return r.Robot }

type (
	robotScope interface{ of() string }
	robotShort interface{ short() string }
	oneRobot   interface {
		robotScope
		robotShort
	}
	// The other interfaces have what the inputs of single operations add.
	robotForm         interface{ form() api.NewRobot }
	robotChange       interface{ change() api.RobotChange }
	robotRegeneration interface {
		regeneration() api.RobotRegeneration
	}
	federationRules interface{ rules() []api.FederationRule }
	robotQuery      interface{ asked() RobotListQuery }
	paged           interface{ Paged() api.Paging }
)

func robotName(in oneRobot) string { return in.of() + "+" + in.short() }

// NewRobotForm and RobotChangeForm are bodies of requests to create and to change a robot. They
// are exported because huma makes JSON schemas only of exported types.
type (
	NewRobotForm    struct{ api.NewRobot }
	RobotChangeForm struct{ api.RobotChange }
)

var readOnlyOfRobots = []string{"name", "created", "last_accessed", "token", "enabled", "created_at", "last_used_at", "secrets",
	"unstructured_metadata", "expires_at"}

// TransformSchema adds the read-only members of a robot.
func (NewRobotForm) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return api.ReadOnly(s, readOnlyOfRobots...)
}

// TransformSchema adds the read-only members of a robot, and describes the limits.
func (RobotChangeForm) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	for name, doc := range map[string]string{
		"repositories": "The only repositories that it may use, as patterns; null: no such limit. Absent: it stays as it is",
		"actions":      "The only actions that it may do; null: no such limit. Absent: it stays as it is",
	} {
		s.Properties[name] = &huma.Schema{Type: huma.TypeArray, Items: &huma.Schema{Type: huma.TypeString}, Nullable: true, Description: doc}
	}
	return api.ReadOnly(s, readOnlyOfRobots...)
}

// robotRoutes are the texts by which the operations on the robots of a namespace differ from
// those on the client's own.
type robotRoutes struct{ name, path, of string }

// addRobots adds Quay's routes for the robots of a namespace.
func (a *API) addRobots() {
	namespace := robotRoutes{"Org", "/organization/{orgname}/robots", "a namespace"}
	addRobotList[struct {
		RobotsOfNamespace
		RobotListQuery
	}](a, namespace)
	addRobot[struct {
		RobotsOfNamespace
		RobotItem
	}, struct {
		RobotsOfNamespace
		RobotItem
		NewRobotBody
	}, struct {
		RobotsOfNamespace
		RobotItem
		RobotChangeBody
	}](a, namespace)
	addRobotSecrets[struct {
		RobotsOfNamespace
		RobotItem
		RegenerationBody
	}](a, namespace)
	addRobotPermissions[struct {
		RobotsOfNamespace
		RobotItem
		api.Paging
	}](a, namespace)
	addFederation[struct {
		RobotsOfNamespace
		RobotItem
	}, struct {
		RobotsOfNamespace
		RobotItem
		FederationBody
	}](a, namespace)
	own := robotRoutes{"User", "/user/robots", "the namespace of the client's account"}
	addRobotList[struct {
		RobotsOfUser
		RobotListQuery
	}](a, own)
	addRobot[struct {
		RobotsOfUser
		RobotItem
	}, struct {
		RobotsOfUser
		RobotItem
		NewRobotBody
	}, struct {
		RobotsOfUser
		RobotItem
		RobotChangeBody
	}](a, own)
	addRobotSecrets[struct {
		RobotsOfUser
		RobotItem
		RegenerationBody
	}](a, own)
	addRobotPermissions[struct {
		RobotsOfUser
		RobotItem
		api.Paging
	}](a, own)
	addFederation[struct {
		RobotsOfUser
		RobotItem
	}, struct {
		RobotsOfUser
		RobotItem
		FederationBody
	}](a, own)
}

// NewRobotBody, RobotChangeBody, RegenerationBody and FederationBody are the bodies of requests
// about robots. The first and the third may be left out, as in Quay.
type (
	NewRobotBody struct {
		Body *NewRobotForm `required:"false"`
	}
	RobotChangeBody  struct{ Body RobotChangeForm }
	RegenerationBody struct {
		Body *api.RobotRegeneration `required:"false"`
	}
	FederationBody struct{ Body []api.FederationRule }
)

func (b NewRobotBody) form() (n api.NewRobot) {
	if b.Body != nil {
		n = b.Body.NewRobot
	}
	return n
}

func (b RobotChangeBody) change() api.RobotChange { return b.Body.RobotChange }

func (b RegenerationBody) regeneration() (r api.RobotRegeneration) {
	if b.Body != nil {
		r = *b.Body
	}
	return r
}

func (b FederationBody) rules() []api.FederationRule { return b.Body }

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

// RobotListQuery has the query parameters of lists of robots. It is exported because huma finds
// parameters only in exported types.
type RobotListQuery struct {
	Contains string `query:"contains" maxLength:"128" doc:"Only names that contain this"`
	api.Paging
	Token       bool `query:"token" doc:"Quay's clients send it; secrets can't be read"`
	Permissions bool `query:"permissions" doc:"Quay's clients send it; the operation permissions has a robot's roles"`
}

func (q RobotListQuery) asked() RobotListQuery { return q }

// robotList is the answer to a request for a list of robots.
type robotList struct {
	Robots   []api.RobotView `json:"robots" nullable:"false" doc:"In the order of their names"`
	NextPage string          `json:"next_page,omitempty" doc:"Where the next page begins; missing on the last page"`
}

type robotsOutput struct{ Body robotList }

// addRobotList adds the operation that lists robots.
func addRobotList[L interface {
	robotScope
	robotQuery
}](a *API, texts robotRoutes) {
	op := accessOperation("robot", "get"+texts.name+"Robots", http.MethodGet, texts.path, "List the robots of "+texts.of)
	add(a, auth.Administer, op, func(ctx context.Context, in *L) (*robotsOutput, error) {
		namespace, query := (*in).of(), (*in).asked()
		if err := isText("contains", query.Contains); err != nil {
			return nil, err
		}
		after, err := pageAfter(query.Paging, "robot")
		if err != nil {
			return nil, err
		}
		if err := a.opt.Accounts.CheckNamespace(ctx, namespace); err != nil {
			return nil, err
		}
		found, more, err := a.opt.Accounts.Robots(ctx, namespace, query.Contains, after, query.Most())
		out := robotList{Robots: []api.RobotView{}}
		for _, r := range found {
			out.Robots = append(out.Robots, viewRobot(r))
		}
		if more {
			out.NextPage = cursor("robot", found[len(found)-1].Name)
		}
		return &robotsOutput{out}, err
	})
}

type robotOutput struct{ Body api.RobotView }

// addRobot adds the operations that show, create, change and delete a robot. I is their input
// without a body, C that with a new robot, U that with a change.
func addRobot[I oneRobot, C interface {
	oneRobot
	robotForm
}, U interface {
	oneRobot
	robotChange
}](a *API, texts robotRoutes) {
	path := texts.path + "/{robot_shortname}"
	add(a, auth.Administer, accessOperation("robot", "get"+texts.name+"Robot", http.MethodGet, path, "Get a robot of "+texts.of),
		func(ctx context.Context, in *I) (*robotOutput, error) {
			out, err := a.robot(ctx, robotName(*in))
			return &robotOutput{out}, err
		})
	create := accessOperation("robot", "create"+texts.name+"Robot", http.MethodPut, path, "Create a robot of "+texts.of)
	create.DefaultStatus = http.StatusCreated
	create.Description = "Only this answer has the robot's secret. A robot has no rights until it gets roles or becomes a member of a team."
	add(a, auth.Administer, create, func(ctx context.Context, in *C) (*robotOutput, error) {
		form := (*in).form()
		limits := auth.Limits{Repositories: form.Repositories, Actions: actions(form.Actions)}
		end, err := checkNew(ctx, limits, form.ExpiresAt)
		if err != nil {
			return nil, err
		}
		r, secret, err := a.opt.Accounts.CreateRobot(ctx, (*in).of(), (*in).short(), form.Description, limits, end)
		out := viewRobot(r)
		out.Token, out.ExpiresAt = secret, inUTC(end)
		return &robotOutput{out}, err
	})
	update := accessOperation("robot", "change"+texts.name+"Robot", http.MethodPatch, path, "Change a robot of "+texts.of)
	update.Description = "Members that the body leaves out stay as they are. Read-only members are ignored."
	add(a, auth.Administer, update, func(ctx context.Context, in *U) (*robotOutput, error) {
		name := robotName(*in)
		if err := a.changeRobot(ctx, name, (*in).change()); err != nil {
			return nil, err
		}
		out, err := a.robot(ctx, name)
		return &robotOutput{out}, err
	})
	remove := accessOperation("robot", "delete"+texts.name+"Robot", http.MethodDelete, path, "Delete a robot of "+texts.of)
	remove.Description = "Its secrets and roles end."
	add(a, auth.Administer, remove, func(ctx context.Context, in *I) (*struct{}, error) {
		return nil, a.opt.Accounts.DeleteRobot(ctx, robotName(*in))
	})
}

// maxSecrets is how many of a robot's secrets its description has: the newest.
const maxSecrets = 100

// robot describes a robot with its secrets.
func (a *API) robot(ctx context.Context, name string) (api.RobotView, error) {
	r, err := a.opt.Accounts.Robot(ctx, name)
	if err != nil {
		return api.RobotView{}, err
	}
	secrets, _, err := a.opt.Accounts.Tokens(ctx, auth.TokenQuery{Account: name, Kinds: []auth.CredentialKind{auth.RobotSecret}}, maxSecrets)
	out := viewRobot(r)
	for _, s := range secrets {
		out.Secrets = append(out.Secrets, api.SecretView{CreatedAt: s.Created.UTC(), ExpiresAt: inUTC(s.Expires), LastUsedAt: inUTC(s.LastUsed)})
	}
	return out, err
}

func (a *API) changeRobot(ctx context.Context, name string, form api.RobotChange) error {
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

// addRobotSecrets adds the operation that gives a robot a new secret, of which R is the input.
func addRobotSecrets[R interface {
	oneRobot
	robotRegeneration
}](a *API, texts robotRoutes) {
	path := texts.path + "/{robot_shortname}"
	again := accessOperation("robot", "regenerate"+texts.name+"RobotToken", http.MethodPost, path+"/regenerate", "Give a robot of "+texts.of+" a new secret")
	again.Description = "Only this answer has the secret. With overlap, the other secrets stay valid for a while, so that clients can change over."
	add(a, auth.Administer, again, func(ctx context.Context, in *R) (*robotOutput, error) {
		form, name := (*in).regeneration(), robotName(*in)
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
		out.Token, out.ExpiresAt = secret, inUTC(end)
		return &robotOutput{out}, err
	})
}

// addRobotPermissions adds the operation that lists the roles of a robot.
func addRobotPermissions[L interface {
	oneRobot
	paged
}](a *API, texts robotRoutes) {
	type output struct{ Body api.Permissions }
	add(a, auth.Administer, accessOperation("robot", "get"+texts.name+"RobotPermissions", http.MethodGet, texts.path+"/{robot_shortname}/permissions", "List the roles of a robot of "+texts.of),
		func(ctx context.Context, in *L) (*output, error) {
			name := robotName(*in)
			if _, err := a.opt.Accounts.Robot(ctx, name); err != nil {
				return nil, err
			}
			out, err := a.permissionsOf(ctx, (*in).of(), name, "", (*in).Paged())
			return &output{out}, err
		})
}

// permissionsOf lists the roles of a robot or a team of a namespace.
func (a *API) permissionsOf(ctx context.Context, namespace, account, team string, p api.Paging) (out api.Permissions, err error) {
	out.Permissions = []api.RobotPermission{}
	after, err := pageAfter(p, "permissions")
	if err != nil {
		return out, err
	}
	whole, err := a.opt.Accounts.Grant(ctx, auth.OfNamespace(namespace), account, team)
	if err != nil && !errors.Is(err, auth.ErrUnknown) {
		return out, err
	}
	out.NamespaceRole = whole.Role.Quay()
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

package api

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/auth"
)

// RobotView is a robot in answers. The members that Quay's API has too come first, then Purser's
// own.
type RobotView struct {
	Name         string         `json:"name" doc:"Its namespace, a plus sign and its own name, which is the user name to log in with" example:"acme+ci"`
	Description  string         `json:"description"`
	Created      string         `json:"created" doc:"created_at in Quay's format"`
	LastAccessed *string        `json:"last_accessed" doc:"last_used_at in Quay's format"`
	Metadata     map[string]any `json:"unstructured_metadata" doc:"Always empty"`
	Token        string         `json:"token,omitempty" doc:"Its secret. Only the answers to the robot's creation and to regenerate have it"`

	ExpiresAt    *time.Time   `json:"expires_at,omitempty" doc:"When the secret in token ends; absent: never"`
	Enabled      bool         `json:"enabled" doc:"False: nobody can log in with it"`
	Repositories []string     `json:"repositories" doc:"The only repositories that it may use, as patterns; null: no such limit" example:"[\"acme/app\",\"acme/tools/**\"]"`
	Actions      []string     `json:"actions" doc:"The only actions that it may do; null: no such limit" example:"[\"pull\",\"push\"]"`
	CreatedAt    time.Time    `json:"created_at"`
	LastUsedAt   *time.Time   `json:"last_used_at" doc:"To within some minutes; null: never"`
	Secrets      []SecretView `json:"secrets,omitempty" doc:"Its secrets, without the secrets themselves. Lists leave them out"`
}

// SecretView describes a secret of a robot, without the secret.
type SecretView struct {
	CreatedAt  time.Time  `json:"created_at"`
	ExpiresAt  *time.Time `json:"expires_at" doc:"Null: never"`
	LastUsedAt *time.Time `json:"last_used_at" doc:"To within some minutes; null: never"`
}

// RobotList is a page of the robots of a namespace.
type RobotList struct {
	Robots   []RobotView `json:"robots" nullable:"false" doc:"In the order of their names"`
	NextPage string      `json:"next_page,omitempty" doc:"Where the next page begins; missing on the last page"`
}

// Entries implements Page.
func (l RobotList) Entries() ([]RobotView, string) { return l.Robots, l.NextPage }

// NewRobotForm is the body of a request to create a robot.
type NewRobotForm struct {
	Description  string     `json:"description,omitempty" maxLength:"255"`
	Repositories []string   `json:"repositories,omitzero" maxItems:"100" doc:"The only repositories that it may use: paths, in which * stands for any characters but a slash and ** for any characters. Absent or null: no such limit; an empty list: none" example:"[\"acme/app\",\"acme/tools/**\"]"`
	Actions      []string   `json:"actions,omitzero" doc:"The only actions that it may do, of pull, push, overwrite, delete, maintain, admin, operate. Absent or null: no such limit; an empty list: none" example:"[\"pull\",\"push\"]"`
	ExpiresAt    *time.Time `json:"expires_at,omitempty" doc:"When its secret ends. Absent or null: never, or with the token of the request"`
	Metadata     any        `json:"unstructured_metadata,omitempty" doc:"Quay's clients send it; the registry ignores it"`
}

var readOnlyOfRobots = []string{"name", "created", "last_accessed", "token", "enabled", "created_at", "last_used_at", "secrets",
	"unstructured_metadata", "expires_at"}

// TransformSchema adds the read-only members of a robot.
func (NewRobotForm) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return ReadOnly(s, readOnlyOfRobots...)
}

// RobotChangeForm is the body of a request to change a robot. Absent members stay as they are.
type RobotChangeForm struct {
	Description  *string `json:"description,omitempty" maxLength:"255"`
	Enabled      *bool   `json:"enabled,omitempty" doc:"False: nobody can log in with it"`
	Repositories Limit   `json:"repositories,omitzero"`
	Actions      Limit   `json:"actions,omitzero"`
}

// TransformSchema adds the read-only members of a robot, and describes the limits.
func (RobotChangeForm) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	for name, doc := range map[string]string{
		"repositories": "The only repositories that it may use, as patterns; null: no such limit. Absent: it stays as it is",
		"actions":      "The only actions that it may do; null: no such limit. Absent: it stays as it is",
	} {
		s.Properties[name] = &huma.Schema{Type: huma.TypeArray, Items: &huma.Schema{Type: huma.TypeString}, Nullable: true, Description: doc}
	}
	return ReadOnly(s, readOnlyOfRobots...)
}

// Limit is a list in a request to change something, which may be absent, null or a list.
type Limit struct {
	Set    bool     // it isn't absent
	Values []string // nil: null
}

// UnmarshalJSON implements json.Unmarshaler.
func (l *Limit) UnmarshalJSON(b []byte) error {
	l.Set, l.Values = true, nil
	return json.Unmarshal(b, &l.Values)
}

// MarshalJSON implements json.Marshaler.
func (l Limit) MarshalJSON() ([]byte, error) { return json.Marshal(l.Values) }

// RobotRegeneration is the body of a request for a new secret of a robot.
type RobotRegeneration struct {
	Overlap   int        `json:"overlap,omitempty" minimum:"0" maximum:"2592000" doc:"How many seconds the other secrets of the robot stay valid. Default 0: they end at once"`
	ExpiresAt *time.Time `json:"expires_at,omitempty" doc:"When the new secret ends. Absent or null: never, or with the token of the request"`
}

// FederationRule lets tokens of another issuer, such as a build pipeline's, log in as a robot.
type FederationRule struct {
	Issuer   string            `json:"issuer" doc:"The token's claim iss" example:"https://token.actions.githubusercontent.com"`
	Subject  string            `json:"subject,omitempty" doc:"Pattern of the claim sub: * stands for any characters but a slash, ** for any characters. Needed unless claims has others" example:"repo:acme/app:ref:refs/heads/main"`
	Audience string            `json:"audience,omitempty" doc:"Must be in the token's claim aud. Default: the host of http.external_url, if that is set" example:"registry.example.com"`
	Claims   map[string]string `json:"claims,omitempty" doc:"Patterns of further claims, by name"`
	ID       string            `json:"id,omitempty" doc:"Identifier of the rule. Requests may contain it; the registry ignores it"`
}

// FederationRules are the rules of a robot in answers, which have a list in any case.
type FederationRules []FederationRule

// TransformSchema says that the list isn't null.
func (FederationRules) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	s.Nullable = false
	return s
}

// RobotPermission is a role of a robot or a team in a repository, as Quay shows it.
type RobotPermission struct {
	Repository PermissionRepository `json:"repository"`
	Role       string               `json:"role" enum:"read,write,maintain,admin"`
}

// PermissionRepository is the repository of a role.
type PermissionRepository struct {
	Name     string `json:"name" doc:"Its name below the namespace" example:"app"`
	IsPublic bool   `json:"is_public" doc:"Whether everybody may pull"`
}

// Permissions are the roles of a robot or a team.
type Permissions struct {
	Permissions   []RobotPermission `json:"permissions" nullable:"false" doc:"Roles in repositories"`
	NamespaceRole string            `json:"namespace_role,omitempty" enum:"read,write,maintain,admin," doc:"The role in the whole namespace; absent: none"`
	NextPage      string            `json:"next_page,omitempty" doc:"Where the next page begins; missing on the last page"`
}

// Entries implements Page.
func (p Permissions) Entries() ([]RobotPermission, string) { return p.Permissions, p.NextPage }

// Inputs of the operations on robots.
type (
	RobotQuery struct {
		At
		NameContains
		Paging
		Token       bool `query:"token" doc:"Quay's clients send it; secrets can't be read"`
		Permissions bool `query:"permissions" doc:"Quay's clients send it; the operation permissions has a robot's roles"`
	}
	RobotItem struct {
		At
		Robot string `path:"robot_shortname" doc:"Name of the robot, without its namespace" example:"ci"`
	}
	RobotNew struct {
		RobotItem
		Body *NewRobotForm `required:"false"`
	}
	RobotChange struct {
		RobotItem
		Body RobotChangeForm
	}
	RobotRenewal struct {
		RobotItem
		Body *RobotRegeneration `required:"false"`
	}
	RobotRoleQuery struct {
		RobotItem
		Paging
	}
	FederationChange struct {
		RobotItem
		Replaces Optional[string] `query:"replaces" maxLength:"40000" doc:"The identifiers of the rules that the client has seen, with commas between them; empty if there were none. If the robot has other rules by now, nothing is changed, and the answer is 409"`
		Body     []FederationRule
	}
)

// Resolve records whether the request has the parameter replaces, even if it is empty. It implements
// huma.Resolver.
func (in *FederationChange) Resolve(ctx huma.Context) []error {
	u := ctx.URL()
	in.Replaces.Given = u.Query().Has("replaces")
	return nil
}

// Seen returns the value of FederationChange.Replaces for rules as GetFederation returned them.
func (r FederationRules) Seen() Optional[string] {
	ids := make([]string, len(r))
	for i, rule := range r {
		ids[i] = rule.ID
	}
	return Some(strings.Join(ids, ","))
}

// Name returns the name by which the robot logs in, such as acme+ci.
func (i RobotItem) Name() string { return i.Namespace + "+" + i.Robot }

var robotPlaces = []Place{{"Org", OfNamespace, "a namespace"}, {"User", OfOwn, "the namespace of the client's account"}}

// robotOperation describes an operation on the robots of a namespace, at a path below theirs.
func robotOperation[I, O any](id, method, path, summary, description string) Operation[I, O] {
	op := accessOperation[I, O]("robot", id, method, "{place}/robots"+path, auth.Administer, summary, description)
	op.Places = robotPlaces
	return op
}

// The operations on robots, which have Quay's paths.
var (
	ListRobots  = robotOperation[RobotQuery, RobotList]("get{Place}Robots", http.MethodGet, "", "List the robots of {place}", "")
	GetRobot    = robotOperation[RobotItem, RobotView]("get{Place}Robot", http.MethodGet, "/{robot_shortname}", "Get a robot of {place}", "")
	CreateRobot = Operation[RobotNew, RobotView]{
		ID: "create{Place}Robot", Method: http.MethodPut, Path: "{place}/robots/{robot_shortname}", Places: robotPlaces,
		Tag: "robot", Access: auth.Administer, Summary: "Create a robot of {place}", Status: http.StatusCreated,
		Description: "Only this answer has the robot's secret. A robot has no rights until it gets roles or becomes a member of a team.",
		Errors:      []int{http.StatusNotFound, http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType},
	}
	ChangeRobot = robotOperation[RobotChange, RobotView]("change{Place}Robot", http.MethodPatch, "/{robot_shortname}", "Change a robot of {place}",
		"Members that the body leaves out stay as they are. Read-only members are ignored.")
	DeleteRobot     = robotOperation[RobotItem, None]("delete{Place}Robot", http.MethodDelete, "/{robot_shortname}", "Delete a robot of {place}", "Its secrets and roles end.")
	RegenerateRobot = robotOperation[RobotRenewal, RobotView]("regenerate{Place}RobotToken", http.MethodPost, "/{robot_shortname}/regenerate",
		"Give a robot of {place} a new secret",
		"Only this answer has the secret. With overlap, the other secrets stay valid for a while, so that clients can change over.")
	ListRobotRoles = robotOperation[RobotRoleQuery, Permissions]("get{Place}RobotPermissions", http.MethodGet, "/{robot_shortname}/permissions",
		"List the roles of a robot of {place}", "")

	GetFederation = robotOperation[RobotItem, FederationRules]("get{Place}RobotFederation", http.MethodGet, "/{robot_shortname}/federation",
		"List the rules by which other issuers' tokens log in as a robot of {place}", "")
	SetFederation = robotOperation[FederationChange, FederationRules]("create{Place}RobotFederation", http.MethodPost, "/{robot_shortname}/federation",
		"Set the rules by which other issuers' tokens log in as a robot of {place}", "Replaces all rules. Tokens that clients got by the rules before end.")
	DeleteFederation = robotOperation[RobotItem, None]("delete{Place}RobotFederation", http.MethodDelete, "/{robot_shortname}/federation",
		"Delete the rules by which other issuers' tokens log in as a robot of {place}", "")
)

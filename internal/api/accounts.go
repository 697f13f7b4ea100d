package api

import (
	"encoding/json"
	"time"
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

// NewRobot is the body of a request to create a robot.
type NewRobot struct {
	Description  string     `json:"description,omitempty" maxLength:"255"`
	Repositories []string   `json:"repositories,omitzero" maxItems:"100" doc:"The only repositories that it may use: paths, in which * stands for any characters but a slash and ** for any characters. Absent or null: no such limit; an empty list: none" example:"[\"acme/app\",\"acme/tools/**\"]"`
	Actions      []string   `json:"actions,omitzero" doc:"The only actions that it may do, of pull, push, overwrite, delete, maintain, admin, operate. Absent or null: no such limit; an empty list: none" example:"[\"pull\",\"push\"]"`
	ExpiresAt    *time.Time `json:"expires_at,omitempty" doc:"When its secret ends. Absent or null: never, or with the token of the request"`
	Metadata     any        `json:"unstructured_metadata,omitempty" doc:"Quay's clients send it; the registry ignores it"`
}

// RobotChange is the body of a request to change a robot. Absent members stay as they are.
type RobotChange struct {
	Description  *string `json:"description,omitempty" maxLength:"255"`
	Enabled      *bool   `json:"enabled,omitempty" doc:"False: nobody can log in with it"`
	Repositories Limit   `json:"repositories,omitzero" doc:"The only repositories that it may use; null: no such limit"`
	Actions      Limit   `json:"actions,omitzero" doc:"The only actions that it may do; null: no such limit"`
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

// TeamView is a team of a namespace in answers.
type TeamView struct {
	Name        string      `json:"name" example:"developers"`
	Description string      `json:"description"`
	Role        string      `json:"role" enum:"member,reader,creator,maintainer,admin" doc:"Of its members in the whole namespace. member is none, creator is writer, admin is administrator; Quay has no other ones"`
	CanView     bool        `json:"can_view" doc:"Always true"`
	NewTeam     bool        `json:"new_team" doc:"Whether this request has created it"`
	MemberCount int         `json:"member_count"`
	IsSynced    bool        `json:"is_synced" doc:"Whether groups of OpenID Connect or LDAP decide who its members are"`
	Groups      []TeamGroup `json:"groups,omitempty" doc:"These groups; only in answers about a single team"`
}

// TeamRequest is the body of a request to create or change a team.
type TeamRequest struct {
	Role        string  `json:"role" enum:"member,creator,admin,reader,writer,maintainer,administrator" doc:"Of its members in the whole namespace: member is none, creator is writer, admin is administrator"`
	Description *string `json:"description,omitempty" maxLength:"1000" doc:"Absent: it stays as it is"`
}

// TeamGroup is a group whose members become members of a team when they log in.
type TeamGroup struct {
	Source string `json:"source" enum:"oidc,ldap"`
	Name   string `json:"name" minLength:"1" maxLength:"1024" doc:"As the provider names it" example:"developers"`
}

// TeamSync is the body of a request to let groups decide who is in a team.
type TeamSync struct {
	Groups    []TeamGroup `json:"groups,omitempty" maxItems:"100"`
	GroupDN   string      `json:"group_dn,omitempty" maxLength:"1024" doc:"Quay's member for a group of LDAP: its DN, or its name"`
	GroupName string      `json:"group_name,omitempty" maxLength:"1024" doc:"Quay's member for a group of OpenID Connect"`
}

// MemberView is a member of a team.
type MemberView struct {
	Name    string `json:"name" example:"alice"`
	Kind    string `json:"kind" enum:"user"`
	IsRobot bool   `json:"is_robot"`
	Invited bool   `json:"invited" doc:"Always false: members are added at once"`
	Synced  bool   `json:"synced" doc:"Whether a group has made it a member"`
}

// NamespaceMember is a person who has rights in a namespace.
type NamespaceMember struct {
	Name         string     `json:"name" example:"alice"`
	Kind         string     `json:"kind" enum:"user"`
	Teams        []TeamName `json:"teams" nullable:"false" maxItems:"100" doc:"The person's teams in the namespace, up to 100"`
	Repositories []string   `json:"repositories" nullable:"false" maxItems:"100" doc:"Names, below the namespace, of the repositories in which the person has a role of its own, up to 100"`
	// MoreTeams and MoreRepositories say that the person has more than are listed.
	MoreTeams        bool   `json:"more_teams,omitempty" doc:"Whether there are more teams"`
	MoreRepositories bool   `json:"more_repositories,omitempty" doc:"Whether there are more repositories"`
	Role             string `json:"role,omitempty" enum:"read,write,maintain,admin," doc:"The person's own role in the whole namespace; absent: none"`
}

// TeamName names a team.
type TeamName struct {
	Name string `json:"name"`
}

// Collaborator is a person who has roles in single repositories of a namespace only.
type Collaborator struct {
	Name         string   `json:"name" example:"alice"`
	Kind         string   `json:"kind" enum:"user"`
	Repositories []string `json:"repositories" nullable:"false" maxItems:"100" doc:"Their names below the namespace, up to 100"`
	More         bool     `json:"more_repositories,omitempty" doc:"Whether there are more repositories"`
}

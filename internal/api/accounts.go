package api

import (
	"encoding/json"
	"time"
)

// UserView is a person's account as administrators of the registry see it. The members that
// Quay's API has too come first, then Purser's own.
type UserView struct {
	Kind      string `json:"kind" enum:"user"`
	Name      string `json:"name" doc:"The same as username"`
	Username  string `json:"username" example:"alice"`
	Email     string `json:"email" doc:"Empty: unknown"`
	Verified  bool   `json:"verified" doc:"Always true"`
	Superuser bool   `json:"super_user" doc:"Whether it administers the registry"`
	Enabled   bool   `json:"enabled" doc:"False: nobody can log in with it"`

	Source      string     `json:"source" enum:"local,htpasswd,oidc,ldap" doc:"Who checks the password or the identity"`
	Subject     string     `json:"subject,omitempty" doc:"Of oidc and ldap: the identity at the source, such as the DN of the directory's entry"`
	EntryID     string     `json:"entry_id,omitempty" doc:"Of ldap: the id of the directory's entry to which the account belongs" example:"entryuuid=597ae2f6-16a6-1027-98f4-d28b5365dc14"`
	Awaits      bool       `json:"awaits_entry,omitempty" doc:"Of ldap: true if it belongs to no entry, and goes to the next one that logs in by its name"`
	HasPassword bool       `json:"has_password" doc:"Whether it has a password that Purser checks"`
	CreatedAt   time.Time  `json:"created_at"`
	LastUsedAt  *time.Time `json:"last_used_at" doc:"To within some minutes; null: never"`
}

// NewUser is the body of a request to create an account.
type NewUser struct {
	Username  string `json:"username" minLength:"1" maxLength:"128" doc:"Lower-case letters, digits and . _ @ -, of which a letter or a digit is the first" example:"alice"`
	Email     string `json:"email,omitempty" maxLength:"255"`
	Password  string `json:"password,omitempty" maxLength:"1024" doc:"8 bytes at least. Absent: the registry makes one"`
	Superuser bool   `json:"super_user,omitempty" doc:"True: it administers the registry"`
}

// UserMade is the answer to the creation of an account.
type UserMade struct {
	Username  string `json:"username"`
	Email     string `json:"email"`
	Password  string `json:"password,omitempty" doc:"The password that the registry has made. Only this answer has it"`
	Superuser bool   `json:"super_user"`
}

// UserChange is the body of a request to change an account. Absent members stay as they are.
type UserChange struct {
	Email     *string `json:"email,omitempty" maxLength:"255" doc:"Empty: none"`
	Password  *string `json:"password,omitempty" maxLength:"1024" doc:"A new password, which ends all log-ins and refresh tokens of the account. Its personal tokens stay"`
	Enabled   *bool   `json:"enabled,omitempty" doc:"False: nobody can log in with it, and its log-ins end"`
	Superuser *bool   `json:"super_user,omitempty" doc:"Whether it administers the registry"`
}

// OwnChange is the body of a request to change the account of the request. Absent members stay
// as they are.
type OwnChange struct {
	Email           *string `json:"email,omitempty" maxLength:"255" doc:"Empty: none"`
	Password        *string `json:"password,omitempty" maxLength:"1024" doc:"A new password, which ends all log-ins and refresh tokens of the account. Its personal tokens stay"`
	CurrentPassword string  `json:"current_password,omitempty" maxLength:"1024" doc:"The password until now; needed for a new one"`
}

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

// TokenView is a personal token or a refresh token in answers. The members that Quay's API has too come first, then
// Purser's own.
type TokenView struct {
	UUID         string  `json:"uuid" format:"uuid"`
	Title        string  `json:"title"`
	LastAccessed *string `json:"last_accessed" doc:"last_used_at in Quay's format"`
	Created      string  `json:"created" doc:"created_at in Quay's format"`
	Expiration   *string `json:"expiration" doc:"expires_at in Quay's format"`
	Code         string  `json:"token_code,omitempty" doc:"The token itself. Only the answer to its creation has it"`

	Kind         string     `json:"kind" enum:"personal,refresh" doc:"Whether the person has made it, or a client such as docker has got it at a log-in by password"`
	Repositories []string   `json:"repositories" doc:"The only repositories that it may use, as patterns; null: no such limit"`
	Actions      []string   `json:"actions" doc:"The only actions that it may do; null: no such limit"`
	CreatedAt    time.Time  `json:"created_at"`
	ExpiresAt    *time.Time `json:"expires_at" doc:"Null: never"`
	LastUsedAt   *time.Time `json:"last_used_at" doc:"To within some minutes; null: never"`
}

// LogInsEnded says what an operator has ended of an account.
type LogInsEnded struct {
	Sessions       int `json:"sessions" doc:"Log-ins of browsers"`
	RefreshTokens  int `json:"refresh_tokens"`
	PersonalTokens int `json:"personal_tokens"`
}

// Rebinding is the body of a request to bind an account to another entry of the directory.
type Rebinding struct {
	DirectoryName string `json:"directory_name,omitempty" maxLength:"255" doc:"The name by which the entry logs in. Absent or empty: the account goes to the next entry that logs in by the account's name" example:"anna"`
	KeepTokens    bool   `json:"keep_personal_tokens,omitempty" doc:"True: the account's personal tokens stay, for the person who has made them"`
}

// NewToken is the body of a request to make a personal token.
type NewToken struct {
	Title        string     `json:"title" minLength:"1" maxLength:"255" doc:"A line for people" example:"laptop"`
	Repositories []string   `json:"repositories,omitzero" maxItems:"100" doc:"The only repositories that it may use: paths, in which * stands for any characters but a slash and ** for any characters. Absent or null: no such limit; an empty list: none" example:"[\"acme/app\",\"acme/tools/**\"]"`
	Actions      []string   `json:"actions,omitzero" doc:"The only actions that it may do, of pull, push, overwrite, delete, maintain, admin, operate. Absent or null: no such limit; an empty list: none" example:"[\"pull\"]"`
	ExpiresAt    *time.Time `json:"expires_at,omitempty" doc:"When it ends. Absent or null: never, or with the token of the request"`
}

// TokenAnswer is the answer about a personal token.
type TokenAnswer struct {
	Token TokenView `json:"token"`
}

// SessionView is a log-in of a browser.
type SessionView struct {
	ID         string    `json:"id" format:"uuid"`
	CreatedAt  time.Time `json:"created_at"`
	LastUsedAt time.Time `json:"last_used_at" doc:"To within some minutes"`
	ExpiresAt  time.Time `json:"expires_at" doc:"It ends then, or earlier if it isn't used"`
	Address    string    `json:"address" doc:"From where the person has logged in"`
	UserAgent  string    `json:"user_agent" doc:"The browser, as it names itself"`
	Current    bool      `json:"current" doc:"Whether this request was sent with it"`
}

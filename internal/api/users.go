package api

import (
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/auth"
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

// UserList is a page of people's accounts.
type UserList struct {
	Users    []UserView `json:"users" nullable:"false" doc:"In the order of their names"`
	NextPage string     `json:"next_page,omitempty" doc:"Where the next page begins; missing on the last page"`
}

// Entries implements Page.
func (l UserList) Entries() ([]UserView, string) { return l.Users, l.NextPage }

// NewUserForm is the body of a request to create an account.
type NewUserForm struct {
	Username  string `json:"username" minLength:"1" maxLength:"128" doc:"Lower-case letters, digits and . _ @ -, of which a letter or a digit is the first" example:"alice"`
	Email     string `json:"email,omitempty" maxLength:"255"`
	Password  string `json:"password,omitempty" maxLength:"1024" doc:"8 bytes at least. Absent: the registry makes one"`
	Superuser bool   `json:"super_user,omitempty" doc:"True: it administers the registry"`
}

// TransformSchema adds the read-only members of an account.
func (NewUserForm) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return ReadOnly(s, "kind", "name", "verified", "enabled", "source", "subject", "entry_id", "awaits_entry", "has_password", "created_at", "last_used_at")
}

// UserMade is the answer to the creation of an account.
type UserMade struct {
	Username  string `json:"username"`
	Email     string `json:"email"`
	Password  string `json:"password,omitempty" doc:"The password that the registry has made. Only this answer has it"`
	Superuser bool   `json:"super_user"`
}

// UserChangeForm is the body of a request to change an account. Absent members stay as they are.
type UserChangeForm struct {
	Email     *string `json:"email,omitempty" maxLength:"255" doc:"Empty: none"`
	Password  *string `json:"password,omitempty" maxLength:"1024" doc:"A new password, which ends all log-ins and refresh tokens of the account. Its personal tokens stay"`
	Enabled   *bool   `json:"enabled,omitempty" doc:"False: nobody can log in with it, and its log-ins end"`
	Superuser *bool   `json:"super_user,omitempty" doc:"Whether it administers the registry"`
}

// TransformSchema adds the read-only members of an account.
func (UserChangeForm) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return ReadOnly(s, "kind", "name", "username", "verified", "source", "subject", "entry_id", "awaits_entry", "has_password", "created_at", "last_used_at")
}

// LogInsEnded says what an operator has ended of an account.
type LogInsEnded struct {
	Sessions       int `json:"sessions" doc:"Log-ins of browsers"`
	RefreshTokens  int `json:"refresh_tokens"`
	PersonalTokens int `json:"personal_tokens"`
}

// RebindForm is the body of a request to bind an account to another entry of the directory.
type RebindForm struct {
	DirectoryName string `json:"directory_name,omitempty" maxLength:"255" doc:"The name by which the entry logs in. Absent or empty: the account goes to the next entry that logs in by the account's name" example:"anna"`
	KeepTokens    bool   `json:"keep_personal_tokens,omitempty" doc:"True: the account's personal tokens stay, for the person who has made them"`
}

// QuayUser is Quay's description of the client's user.
type QuayUser struct {
	Anonymous          bool               `json:"anonymous" doc:"Whether nobody is logged in: always true in a registry without access control"`
	Username           string             `json:"username" doc:"The namespace that the routes below /user are about" example:"library"`
	Verified           bool               `json:"verified" doc:"Always true"`
	CanCreateRepo      bool               `json:"can_create_repo" doc:"Always true"`
	PreferredNamespace bool               `json:"preferred_namespace" doc:"Always true"`
	Organizations      []QuayOrganization `json:"organizations" nullable:"false" doc:"The namespaces in which the account has a role, in the order of their names. Empty if nobody is logged in"`
	Logins             []QuayLogin        `json:"logins" nullable:"false" maxItems:"1" doc:"The other source of the account's identity, if there is one"`

	Superuser   bool   `json:"super_user,omitempty" doc:"Whether the account administers the registry"`
	IsMe        bool   `json:"is_me,omitempty" doc:"True if somebody is logged in"`
	Email       string `json:"email,omitempty"`
	HasPassword bool   `json:"has_password_set,omitempty" doc:"Whether the account has a password that Purser checks"`
	Robot       bool   `json:"robot,omitempty" doc:"Whether the account is a robot"`
	NextPage    string `json:"next_page,omitempty" doc:"Where the next page of organizations begins; missing on the last page"`
}

// QuayOrganization is a namespace in which the client has a role.
type QuayOrganization struct {
	Name               string `json:"name" example:"acme"`
	IsOrgAdmin         bool   `json:"is_org_admin" doc:"Whether the account administers it"`
	MayMaintain        bool   `json:"may_maintain" doc:"Whether the account maintains it: it may delete tags, change policies and read the audit log"`
	CanCreateRepo      bool   `json:"can_create_repo" doc:"Whether the account may push to new repositories of it"`
	Public             bool   `json:"public" doc:"Always false"`
	PreferredNamespace bool   `json:"preferred_namespace" doc:"Whether it has the name of the account"`
}

// QuayLogin is an identity at another source.
type QuayLogin struct {
	Service    string `json:"service" enum:"htpasswd,oidc,ldap"`
	Identifier string `json:"service_identifier"`
}

// OwnChangeForm is the body of a request to change the account of the request. Absent members stay
// as they are.
type OwnChangeForm struct {
	Email           *string `json:"email,omitempty" maxLength:"255" doc:"Empty: none"`
	Password        *string `json:"password,omitempty" maxLength:"1024" doc:"A new password, which ends all log-ins and refresh tokens of the account. Its personal tokens stay"`
	CurrentPassword string  `json:"current_password,omitempty" maxLength:"1024" doc:"The password until now; needed for a new one"`
}

// TransformSchema adds the members of Quay's answer that can't be changed.
func (OwnChangeForm) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return ReadOnly(s, "anonymous", "username", "verified", "can_create_repo", "preferred_namespace", "organizations", "next_page", "logins",
		"super_user", "is_me", "has_password_set", "robot")
}

// Inputs of the operations on accounts.
type (
	UserQuery struct {
		Disabled bool   `query:"disabled" default:"true" doc:"False: only accounts that aren't disabled. Pages may then have fewer entries"`
		Contains string `query:"contains" maxLength:"128" doc:"Only names that contain this"`
		Limit    int    `query:"limit" minimum:"1" default:"100" doc:"Most entries of a page. More than 1000 counts as 1000"`
		NextPage string `query:"next_page" doc:"The next_page of the page before"`
	}
	UserNew  struct{ Body NewUserForm }
	UserItem struct {
		Username string `path:"username" doc:"Name of the account" example:"alice"`
	}
	UserChange struct {
		UserItem
		Body UserChangeForm
	}
	LogInsEnd struct {
		UserItem
		Personal bool `query:"personal_tokens" doc:"True: the personal tokens too"`
	}
	Rebinding struct {
		UserItem
		Body *RebindForm `required:"false"`
	}
	OwnChange struct{ Body OwnChangeForm }
)

// userOperation describes an operation on people's accounts.
func userOperation[I, O any](id, method, path, summary, description string) Operation[I, O] {
	return accessOperation[I, O]("user", id, method, "/superuser"+path, auth.Operate, summary, description)
}

// accessOperation describes an operation on accounts and their rights.
func accessOperation[I, O any](tag, id, method, path string, access auth.Access, summary, description string) Operation[I, O] {
	op := Operation[I, O]{
		ID: id, Method: method, Path: path, Tag: tag, Access: access, Summary: summary, Description: description, Errors: []int{http.StatusNotFound},
	}
	switch method {
	case http.MethodPost, http.MethodPut, http.MethodPatch:
		op.Errors = append(op.Errors, http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType)
	}
	return op
}

// The operations on people's accounts, and on the client's own.
var (
	ListUsers  = userOperation[UserQuery, UserList]("listAllUsers", http.MethodGet, "/users", "List people's accounts", "Robots are listed by their namespaces.")
	CreateUser = userOperation[UserNew, UserMade]("createInstallUser", http.MethodPost, "/users", "Create a person's account",
		"If people have namespaces of their own, the namespace with the account's name is created too, and the account administers it.")
	GetUser    = userOperation[UserItem, UserView]("getInstallUser", http.MethodGet, "/users/{username}", "Get a person's account", "")
	ChangeUser = userOperation[UserChange, UserView]("changeInstallUser", http.MethodPut, "/users/{username}", "Change a person's account",
		"The registry always keeps an administrator who is not disabled: a change that would leave none is refused with 409.")
	DeleteUser = Operation[UserItem, None]{
		ID: "deleteInstallUser", Method: http.MethodDelete, Path: "/superuser/users/{username}", Tag: "user", Access: auth.Operate,
		Summary: "Delete a person's account", Description: "Its roles, tokens and log-ins end. Namespaces and repositories stay.",
		Errors: []int{http.StatusNotFound, http.StatusConflict},
	}
	EndLogIns = userOperation[LogInsEnd, LogInsEnded]("revokeInstallUser", http.MethodPost, "/users/{username}/revoke", "End all log-ins of a person's account",
		"The account's sessions of browsers and refresh tokens end, and with personal_tokens=true its personal tokens. "+
			"Whoever has the password can log in again: change that too, or disable the account.")
	RebindUser = userOperation[Rebinding, LogInsEnded]("rebindInstallUser", http.MethodPost, "/users/{username}/rebind", "Bind an account of the directory to another entry",
		"An account of LDAP belongs to the entry that has logged in with it first, by the entry's id. This gives it to another entry, "+
			"or takes its entry away: the next one that logs in by the account's name then gets it. The account's sessions, refresh tokens and personal tokens end. "+
			"400: the account isn't one of the directory. 409: another account has the entry, or the name by which it logs in.")
	RotateTokenKeys = userOperation[struct{}, None]("rotateTokenKeys", http.MethodPost, "/tokenkeys/rotate", "Replace the keys that sign registry tokens",
		"For an operator who wants the keys replaced before their time. Tokens that are in use stay valid until they expire, after some minutes.")

	GetOwnUser = Operation[Paging, QuayUser]{
		ID: "getLoggedInUser", Method: http.MethodGet, Path: "/user", Tag: "user", Access: auth.Anyone, Summary: "Get the account of the request",
		Description: "A registry without access control answers that nobody is logged in, and names the namespace library. " +
			"With access control, the answer to a request without credentials is 401.",
	}
	ChangeOwnUser = accessOperation[OwnChange, QuayUser]("user", "changeUserDetails", http.MethodPut, "/user", auth.LoggedIn, "Change the account of the request",
		"A new password needs the current one, and ends all log-ins and refresh tokens of the account.")
)

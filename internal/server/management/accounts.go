package management

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"
	"unicode"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/auth/password"
	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
)

// addAccess adds the operations on accounts, robots, teams, roles and tokens, if the registry
// has a store of accounts. With access control, that is the store of the access control, so that
// its caches learn of changes.
func (a *API) addAccess() {
	if c := a.server.Auth(); c != nil {
		a.opt.Accounts, a.opt.Passwords = c.Store, c.Passwords()
	}
	if a.opt.Accounts == nil {
		return
	}
	a.addOwnAccount()
	a.addUsers()
	a.addUserChanges()
	a.addEndLogIns()
	a.addRebind()
	a.addTokenKeys()
	a.addRobots()
	a.addTeams()
	a.addMembers()
	a.addPermissions()
	a.addTokens()
	a.addSessions()
}

// accessOperation describes an operation on accounts and their rights.
func accessOperation(tag, id, method, path, summary string) huma.Operation {
	op := huma.Operation{
		OperationID: id, Method: method, Path: path, Tags: []string{tag}, Summary: summary,
		Errors: []int{http.StatusNotFound},
	}
	switch method {
	case http.MethodDelete:
		op.DefaultStatus = http.StatusNoContent
	case http.MethodPost, http.MethodPut, http.MethodPatch:
		op.Errors = append(op.Errors, http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType)
	}
	return op
}

// may says whether the client of the request has the access to the resource. It doesn't change
// the answer.
func (a *API) may(ctx context.Context, access auth.Access, r auth.Resource) bool {
	c := a.server.Auth()
	return c == nil || c.Authorize(ctx, server.Observed(ctx).Principal, access, r) == nil
}

// person returns the client of a request that needs a person's account. It returns an error for
// robots and, in a registry without access control, for everybody.
func (a *API) person(ctx context.Context) (*auth.Principal, error) {
	p := server.Observed(ctx).Principal
	switch {
	case p.IsOpen():
		return nil, server.Refusal(http.StatusBadRequest, "the registry has no access control, so this request has no account")
	case p.Robot:
		return nil, oci.Errorf(oci.Denied, "%s is a robot: only people's accounts have this", p.Name)
	}
	return p, nil
}

// quayTimeOf formats a time that may be missing as Quay does.
func quayTimeOf(t *time.Time) *string {
	if t == nil {
		return nil
	}
	text := quayTime(*t)
	return &text
}

// checkEmail returns an error if an address can't be shown in a line.
func checkEmail(email string) error {
	if strings.ContainsFunc(email, func(r rune) bool { return unicode.IsControl(r) || unicode.IsSpace(r) }) {
		return server.Refusal(http.StatusBadRequest, "email: the address contains a space or a control character")
	}
	return nil
}

// hash returns the hash of a new password of an account. Its errors are for the client.
func (a *API) hash(ctx context.Context, name, text string) (string, error) {
	if err := password.Check(name, text); err != nil {
		return "", server.Refusal(http.StatusBadRequest, "password: %v", err)
	}
	who := limit.Caller{Account: server.Observed(ctx).Account(), Known: true} // nobody sets a password without a log-in
	h, err := a.opt.Passwords.Hash(limit.WithCaller(ctx, who), text)
	if errors.Is(err, password.ErrBusy) {
		err = oci.Errorf(oci.TooManyRequests, "the registry checks too many passwords now: try again in a moment").WithRetryAfter(time.Second)
	}
	return h, err
}

// keepsPassword returns an error unless Purser keeps the passwords of the account.
func keepsPassword(account auth.Account) error {
	if account.Source == auth.SourceLDAP || account.Source == auth.SourceHtpasswd {
		return server.Refusal(http.StatusBadRequest, "the password of %s is kept by its source %s: change it there", account.Name, account.Source)
	}
	return nil
}

// OwnChangeForm is the body of a request to change the account of the request. It is exported
// because huma makes JSON schemas only of exported types.
type OwnChangeForm struct {
	api.OwnChange
}

// TransformSchema adds the members of Quay's answer that can't be changed.
func (OwnChangeForm) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return api.ReadOnly(s, "anonymous", "username", "verified", "can_create_repo", "preferred_namespace", "organizations", "next_page", "logins",
		"super_user", "is_me", "has_password_set", "robot")
}

// addOwnAccount adds the operation by which people change their own account.
func (a *API) addOwnAccount() {
	type input struct{ Body OwnChangeForm }
	type output struct{ Body quayUser }
	op := accessOperation("user", "changeUserDetails", http.MethodPut, "/user", "Change the account of the request")
	op.Description = "A new password needs the current one, and ends all log-ins and refresh tokens of the account."
	add(a, auth.LoggedIn, op, func(ctx context.Context, in *input) (*output, error) {
		p, err := a.person(ctx)
		if err != nil {
			return nil, err
		}
		change := auth.AccountChange{Email: in.Body.Email}
		if in.Body.Email != nil {
			if err := checkEmail(*in.Body.Email); err != nil {
				return nil, err
			}
		}
		if in.Body.Password != nil {
			if change.PasswordHash, err = a.ownPassword(ctx, p, in.Body.CurrentPassword, *in.Body.Password); err != nil {
				return nil, err
			}
		}
		if err := a.opt.Accounts.ChangeAccount(ctx, p.Name, change); err != nil {
			return nil, err
		}
		user, err := a.user(ctx, api.Paging{})
		return &output{user}, err
	})
}

// ownPassword returns the hash of a new password, if the current one is right. Attempts with a
// wrong one count as failed log-ins. A token doesn't do in place of the password.
func (a *API) ownPassword(ctx context.Context, p *auth.Principal, current, next string) (*string, error) {
	account, err := a.opt.Accounts.Person(ctx, p.Name)
	if err != nil {
		return nil, err
	}
	if err := keepsPassword(account); err != nil {
		return nil, err
	}
	if current == "" {
		return nil, server.Refusal(http.StatusBadRequest, "current_password: it is needed for a new password")
	}
	proved, err := a.server.Auth().Login(ctx, p.Name, current, audit.SourceOf(ctx).Address)
	if e, ok := errors.AsType[*oci.Error](err); ok && e.Code == oci.Unauthorized || err == nil && (proved.ID != p.ID || !proved.MayRefresh()) {
		return nil, server.Refusal(http.StatusBadRequest, "current_password: it is wrong")
	}
	if err != nil {
		return nil, err
	}
	h, err := a.hash(ctx, p.Name, next)
	return &h, err
}

func viewUser(u auth.Account) api.UserView {
	return api.UserView{
		Kind: "user", Name: u.Name, Username: u.Name, Email: u.Email, Verified: true, Superuser: u.Superuser, Enabled: !u.Disabled,
		Source: u.Source, Subject: u.Subject, EntryID: u.EntryID, Awaits: u.Awaits, HasPassword: u.HasPassword(), CreatedAt: u.Created.UTC(), LastUsedAt: inUTC(u.LastUsed),
	}
}

// addUsers adds the operations that list and create accounts.
func (a *API) addUsers() {
	type listInput struct {
		Disabled bool   `query:"disabled" default:"true" doc:"False: only accounts that aren't disabled. Pages may then have fewer entries"`
		Contains string `query:"contains" maxLength:"128" doc:"Only names that contain this"`
		Limit    int    `query:"limit" minimum:"1" default:"100" doc:"Most entries of a page. More than 1000 counts as 1000"`
		NextPage string `query:"next_page" doc:"The next_page of the page before"`
	}
	type userList struct {
		Users    []api.UserView `json:"users" nullable:"false" doc:"In the order of their names"`
		NextPage string         `json:"next_page,omitempty" doc:"Where the next page begins; missing on the last page"`
	}
	type listOutput struct{ Body userList }
	list := accessOperation("user", "listAllUsers", http.MethodGet, "/superuser/users", "List people's accounts")
	list.Description = "Robots are listed by their namespaces."
	add(a, auth.Operate, list, func(ctx context.Context, in *listInput) (*listOutput, error) {
		if err := isText("contains", in.Contains); err != nil {
			return nil, err
		}
		var after string
		if _, err := parseCursor(in.NextPage, "user", &after); err != nil {
			return nil, err
		}
		found, more, err := a.opt.Accounts.Accounts(ctx, in.Contains, after, min(in.Limit, 1000))
		if err != nil {
			return nil, err
		}
		out := userList{Users: []api.UserView{}}
		for _, u := range found {
			if in.Disabled || !u.Disabled {
				out.Users = append(out.Users, viewUser(u))
			}
		}
		if more {
			out.NextPage = cursor("user", found[len(found)-1].Name)
		}
		return &listOutput{out}, nil
	})
	type input struct{ Body NewUserForm }
	type output struct{ Body api.UserMade }
	create := accessOperation("user", "createInstallUser", http.MethodPost, "/superuser/users", "Create a person's account")
	create.Description = "If people have namespaces of their own, the namespace with the account's name is created too, and the account administers it."
	add(a, auth.Operate, create, func(ctx context.Context, in *input) (*output, error) {
		made, err := a.createUser(ctx, in.Body.NewUser)
		return &output{made}, err
	})
}

// NewUserForm is the body of a request to create an account. It is exported because huma makes
// JSON schemas only of exported types.
type NewUserForm struct {
	api.NewUser
}

// TransformSchema adds the read-only members of an account.
func (NewUserForm) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return api.ReadOnly(s, "kind", "name", "verified", "enabled", "source", "subject", "entry_id", "awaits_entry", "has_password", "created_at", "last_used_at")
}

func (a *API) createUser(ctx context.Context, n api.NewUser) (made api.UserMade, err error) {
	made = api.UserMade{Username: n.Username, Email: n.Email, Superuser: n.Superuser}
	if err := auth.CheckAccountName(n.Username); err != nil {
		return made, err
	}
	if err := checkEmail(n.Email); err != nil {
		return made, err
	}
	if err := checkUnbounded(ctx, "an account"); err != nil {
		return made, err
	}
	if n.Password == "" {
		n.Password = password.Generate()
		made.Password = n.Password
	}
	h, err := a.hash(ctx, n.Username, n.Password)
	if err != nil {
		return made, err
	}
	_, err = a.opt.Accounts.CreateAccount(ctx, auth.NewAccount{Name: n.Username, Email: n.Email, Superuser: n.Superuser, PasswordHash: h})
	if err != nil {
		return made, err
	}
	if c := a.server.Auth(); c != nil {
		if err := c.GiveNamespace(ctx, n.Username); err != nil {
			a.log.WarnContext(ctx, "creating the namespace of a new account", "account", n.Username, "error", err)
		}
	}
	return made, nil
}

// UserItem is the part of a path that names an account. It is exported because huma finds
// parameters only in exported types.
type UserItem struct {
	Username string `path:"username" doc:"Name of the account" example:"alice"`
}

// UserChangeForm is the body of a request to change an account. It is exported because huma makes
// JSON schemas only of exported types.
type UserChangeForm struct {
	api.UserChange
}

// TransformSchema adds the read-only members of an account.
func (UserChangeForm) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return api.ReadOnly(s, "kind", "name", "username", "verified", "source", "subject", "entry_id", "awaits_entry", "has_password", "created_at", "last_used_at")
}

// addUserChanges adds the operations that show, change and delete an account.
func (a *API) addUserChanges() {
	const path = "/superuser/users/{username}"
	type output struct{ Body api.UserView }
	add(a, auth.Operate, accessOperation("user", "getInstallUser", http.MethodGet, path, "Get a person's account"),
		func(ctx context.Context, in *UserItem) (*output, error) {
			u, err := a.opt.Accounts.Person(ctx, in.Username)
			return &output{viewUser(u)}, err
		})
	type changeInput struct {
		UserItem
		Body UserChangeForm
	}
	change := accessOperation("user", "changeInstallUser", http.MethodPut, path, "Change a person's account")
	change.Description = "The registry always keeps an administrator who is not disabled: a change that would leave none is refused with 409."
	add(a, auth.Operate, change, func(ctx context.Context, in *changeInput) (*output, error) {
		u, err := a.changeUser(ctx, in.Username, in.Body.UserChange)
		return &output{viewUser(u)}, err
	})
	remove := accessOperation("user", "deleteInstallUser", http.MethodDelete, path, "Delete a person's account")
	remove.Errors = append(remove.Errors, http.StatusConflict)
	remove.Description = "Its roles, tokens and log-ins end. Namespaces and repositories stay."
	add(a, auth.Operate, remove, func(ctx context.Context, in *UserItem) (*struct{}, error) {
		return nil, a.opt.Accounts.DeleteAccount(ctx, in.Username)
	})
}

// addEndLogIns adds the operation that ends what an account has logged in with.
func (a *API) addEndLogIns() {
	type input struct {
		UserItem
		Personal bool `query:"personal_tokens" doc:"True: the personal tokens too"`
	}
	type output struct{ Body api.LogInsEnded }
	op := accessOperation("user", "revokeInstallUser", http.MethodPost, "/superuser/users/{username}/revoke", "End all log-ins of a person's account")
	op.Description = "The account's sessions of browsers and refresh tokens end, and with personal_tokens=true its personal tokens. " +
		"Whoever has the password can log in again: change that too, or disable the account."
	add(a, auth.Operate, op, func(ctx context.Context, in *input) (*output, error) {
		e, err := a.opt.Accounts.EndLogIns(ctx, in.Username, in.Personal)
		return &output{api.LogInsEnded{Sessions: e.Sessions, RefreshTokens: e.RefreshTokens, PersonalTokens: e.PersonalTokens}}, err
	})
}

// RebindForm is the body of a request to bind an account to another entry. It is exported because
// huma makes JSON schemas only of exported types.
type RebindForm struct {
	api.Rebinding
}

// addRebind adds the operation that binds an account of the directory to another entry.
func (a *API) addRebind() {
	type input struct {
		UserItem
		Body *RebindForm `required:"false"`
	}
	type output struct{ Body api.LogInsEnded }
	op := accessOperation("user", "rebindInstallUser", http.MethodPost, "/superuser/users/{username}/rebind", "Bind an account of the directory to another entry")
	op.Description = "An account of LDAP belongs to the entry that has logged in with it first, by the entry's id. This gives it to another entry, " +
		"or takes its entry away: the next one that logs in by the account's name then gets it. The account's sessions, refresh tokens and personal tokens end. " +
		"400: the account isn't one of the directory. 409: another account has the entry, or the name by which it logs in."
	op.Errors = append(op.Errors, http.StatusServiceUnavailable)
	add(a, auth.Operate, op, func(ctx context.Context, in *input) (*output, error) {
		form := RebindForm{}
		if in.Body != nil {
			form = *in.Body
		}
		e, err := a.rebind(ctx, in.Username, form.Rebinding)
		return &output{api.LogInsEnded{Sessions: e.Sessions, RefreshTokens: e.RefreshTokens, PersonalTokens: e.PersonalTokens}}, err
	})
}

func (a *API) rebind(ctx context.Context, name string, to api.Rebinding) (e auth.Ended, err error) {
	if err := checkUnbounded(ctx, "another person's account"); err != nil {
		return e, err
	}
	r := auth.Rebinding{KeepTokens: to.KeepTokens}
	if to.DirectoryName != "" {
		c := a.server.Auth()
		if c == nil {
			return e, server.Refusal(http.StatusBadRequest, "the registry has no access control, so it knows no directory")
		}
		// Requests that are refused in any case are refused before the directory is asked.
		u, err := a.opt.Accounts.Person(ctx, name)
		if err == nil && u.Source != auth.SourceLDAP {
			err = auth.NotOfDirectory(name, u.Source)
		}
		if err != nil {
			return e, err
		}
		entry, err := c.Entry(ctx, to.DirectoryName)
		if err != nil {
			return e, err
		}
		r.To = &entry
	}
	return a.opt.Accounts.Rebind(ctx, name, r)
}

func (a *API) changeUser(ctx context.Context, name string, c api.UserChange) (u auth.Account, err error) {
	if u, err = a.opt.Accounts.Person(ctx, name); err != nil {
		return u, err
	}
	change := auth.AccountChange{Email: c.Email, Superuser: c.Superuser}
	if c.Email != nil {
		if err := checkEmail(*c.Email); err != nil {
			return u, err
		}
	}
	if c.Enabled != nil {
		disabled := !*c.Enabled
		change.Disabled = &disabled
	}
	if c.Password != nil || c.Superuser != nil && *c.Superuser {
		if err := checkUnbounded(ctx, "a password or an administrator's rights"); err != nil {
			return u, err
		}
	}
	if c.Password != nil {
		if err := keepsPassword(u); err != nil {
			return u, err
		}
		h, err := a.hash(ctx, name, *c.Password)
		if err != nil {
			return u, err
		}
		change.PasswordHash = &h
	}
	if change == (auth.AccountChange{}) {
		return u, nil
	}
	if err := a.opt.Accounts.ChangeAccount(ctx, name, change); err != nil {
		return u, err
	}
	return a.opt.Accounts.Person(ctx, name)
}

// addTokenKeys adds the operation that replaces the keys of registry tokens.
func (a *API) addTokenKeys() {
	op := accessOperation("user", "rotateTokenKeys", http.MethodPost, "/superuser/tokenkeys/rotate", "Replace the keys that sign registry tokens")
	op.DefaultStatus = http.StatusNoContent
	op.Description = "For an operator who wants the keys replaced before their time. Tokens that are in use stay valid until they expire, after some minutes."
	add(a, auth.Operate, op, func(ctx context.Context, _ *struct{}) (*struct{}, error) {
		c := a.server.Auth()
		if c == nil {
			return nil, server.Refusal(http.StatusBadRequest, "the registry has no access control, so it signs no tokens")
		}
		if err := a.logAct(ctx, audit.RotateKeys, map[string]any{}); err != nil {
			return nil, err
		}
		return nil, c.Tokens().RotateNow(ctx)
	})
}

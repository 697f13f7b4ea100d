package management

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strings"
	"time"
	"unicode"

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
	a.addUsers()
	a.addRobots()
	a.addTeams()
	a.addMembers()
	a.addPermissions()
	a.addTokens()
	a.addSessions()
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

// addUsers binds the operations on people's accounts.
func (a *API) addUsers() {
	serve(a, api.ChangeOwnUser, a.changeOwn)
	serve(a, api.ListUsers, a.listUsers)
	serve(a, api.CreateUser, func(ctx context.Context, in *api.UserNew) (*api.UserMade, error) {
		made, err := a.createUser(ctx, in.Body)
		return &made, err
	})
	serve(a, api.GetUser, func(ctx context.Context, in *api.UserItem) (*api.UserView, error) {
		u, err := a.opt.Accounts.Person(ctx, in.Username)
		out := viewUser(u)
		return &out, err
	})
	serve(a, api.ChangeUser, func(ctx context.Context, in *api.UserChange) (*api.UserView, error) {
		u, err := a.changeUser(ctx, in.Username, in.Body)
		out := viewUser(u)
		return &out, err
	})
	serve(a, api.DeleteUser, func(ctx context.Context, in *api.UserItem) (*api.None, error) {
		return nil, a.opt.Accounts.DeleteAccount(ctx, in.Username)
	})
	serve(a, api.EndLogIns, func(ctx context.Context, in *api.LogInsEnd) (*api.LogInsEnded, error) {
		e, err := a.opt.Accounts.EndLogIns(ctx, in.Username, in.Personal)
		return viewEnded(e), err
	})
	serve(a, api.RebindUser, func(ctx context.Context, in *api.Rebinding) (*api.LogInsEnded, error) {
		e, err := a.rebind(ctx, in.Username, cmp.Or(in.Body, &api.RebindForm{}))
		return viewEnded(e), err
	})
	serve(a, api.RotateTokenKeys, a.rotateTokenKeys)
}

func viewEnded(e auth.Ended) *api.LogInsEnded {
	return &api.LogInsEnded{Sessions: e.Sessions, RefreshTokens: e.RefreshTokens, PersonalTokens: e.PersonalTokens}
}

// changeOwn changes the account of the request.
func (a *API) changeOwn(ctx context.Context, in *api.OwnChange) (*api.QuayUser, error) {
	p, err := a.person(ctx)
	if err != nil {
		return nil, err
	}
	change := auth.AccountChange{ID: p.ID, Email: in.Body.Email}
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
	return a.user(ctx, new(api.Paging))
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

func (a *API) listUsers(ctx context.Context, in *api.UserQuery) (*api.UserList, error) {
	if err := isText("contains", in.Contains); err != nil {
		return nil, err
	}
	var after string
	if _, err := parseCursor(in.NextPage, "user", &after); err != nil {
		return nil, err
	}
	found, more, err := a.opt.Accounts.Accounts(ctx, in.Contains, after, min(in.Limit, 1000))
	out := &api.UserList{Users: []api.UserView{}}
	for _, u := range found {
		if in.Disabled || !u.Disabled {
			out.Users = append(out.Users, viewUser(u))
		}
	}
	if more {
		out.NextPage = cursor("user", found[len(found)-1].Name)
	}
	return out, err
}

func (a *API) createUser(ctx context.Context, n api.NewUserForm) (made api.UserMade, err error) {
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

func (a *API) rebind(ctx context.Context, name string, to *api.RebindForm) (e auth.Ended, err error) {
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

func (a *API) changeUser(ctx context.Context, name string, c api.UserChangeForm) (u auth.Account, err error) {
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

// rotateTokenKeys replaces the keys that sign registry tokens.
func (a *API) rotateTokenKeys(ctx context.Context, _ *struct{}) (*api.None, error) {
	c := a.server.Auth()
	if c == nil {
		return nil, server.Refusal(http.StatusBadRequest, "the registry has no access control, so it signs no tokens")
	}
	if err := a.logAct(ctx, audit.RotateKeys, map[string]any{}); err != nil {
		return nil, err
	}
	return nil, c.Tokens().RotateNow(ctx)
}

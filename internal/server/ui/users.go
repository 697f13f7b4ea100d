package ui

import (
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/purser-registry/purser/internal/server/ui/format"

	"github.com/purser-registry/purser/internal/api"
)

func (u *UI) addAccounts() {
	u.add("/ui/users", func(q *request) error { return q.showAccounts(nil, nil) }, changeAccounts)
	u.add("/ui/account", func(q *request) error { return q.showAccount(nil, nil) }, changeAccount)
	u.addMembership()
}

// accountFields are the names of the forms' fields by the API's members.
var accountFields = map[string]string{
	"username": "name", "directory_name": "entry", "current_password": "current", "expires_at": "expires",
}

// noAccounts is what pages about accounts say in a registry without access control.
const noAccounts = "This registry has no access control, so it has no accounts that count: everybody who reaches its address may do everything. " +
	"To turn access control on, set auth.enabled to true (in the environment, PURSER_AUTH_ENABLED=true) and start it again."

// secret is a password or a token that a page shows once.
type secret struct {
	For   string // whose it is
	What  string // "password", "secret", "token"
	Value string
	Use   string // a command that uses it
}

// showMade shows the page of what was made just now, with its secret. Nobody can read a secret again, and those
// before it may have ended by now. So if the page can't be made, another one has the secret, and says why it
// has nothing else.
func (q *request) showMade(text string, made *secret, show func() error) error {
	err := show()
	if err == nil || made == nil {
		return err
	}
	_, why := messageOf(q.Context(), err)
	return q.show("secret", page{
		Title: "Copy the " + made.What, Data: made,
		Notice: &notice{
			Bad: true, Text: text + " Copy the " + made.What + " now: no other page has it. The rest can't be shown at the moment. " + format.Sentence(why),
			To: &crumb{"Go on", q.URL.EscapedPath()},
		},
	})
}

// showAccounts lists people's accounts, with a notice and a new secret after a form.
func (q *request) showAccounts(n *notice, made *secret) error {
	var list api.UserList
	var d struct {
		Off, Query, Me string
		Made           *secret
		Users          []api.UserView
		Pages          pages
		Typed          typed
	}
	d.Typed = q.refused
	if q.open() {
		d.Off = noAccounts
	} else {
		var err error
		if list, err = run(q, api.ListUsers, api.UserQuery{Contains: q.query("q"), Limit: 50, NextPage: q.query("page")}); err != nil {
			return err
		}
	}
	d.Query, d.Me, d.Made, d.Users, d.Pages = q.query("q"), q.account(), made, list.Users, q.pagesOf(q.keep("q"), list.NextPage)
	return q.show("users", page{
		Title: "Users", Section: "users", Notice: n, Data: d, Lead: "People who may log in. Robots and teams belong to namespaces, and are on their pages.",
		Same: []same{
			command("purser user list"), command("purser user create NAME"), command("purser user disable NAME"), command("purser user admin NAME on"), command("purser user password NAME"), command("purser user revoke NAME"), command("purser user rebind NAME"),
			call("GET", "/superuser/users"), call("POST", "/superuser/users"), call("PUT", "/superuser/users/{username}"), call("POST", "/superuser/users/{username}/revoke"), call("POST", "/superuser/users/{username}/rebind"),
		},
	})
}

// changeAccounts creates, changes and deletes accounts.
func changeAccounts(q *request) error {
	name := strings.TrimSpace(q.form.Get("name"))
	item := api.UserItem{Username: name}
	yes, no := true, false
	change := func(form api.UserChangeForm, text string, made *secret) error {
		if _, err := run(q, api.ChangeUser, api.UserChange{UserItem: item, Body: form}); err != nil {
			return q.showAccounts(q.refuse(err, accountFields), nil)
		}
		return q.showMade(text, made, func() error { return q.showAccounts(&notice{Text: text}, made) })
	}
	password := func(text string) *secret {
		return &secret{name, "password", text, "docker login -u " + name + " " + q.registryAddress().Host}
	}
	switch q.form.Get("do") {
	case "create":
		form := api.NewUserForm{Username: name, Email: strings.TrimSpace(q.form.Get("email")), Superuser: q.form.Get("superuser") == "true"}
		made, err := run(q, api.CreateUser, api.UserNew{Body: form})
		if err != nil {
			return q.showAccounts(q.refuse(namedError(err, "name"), accountFields), nil)
		}
		text, first := "The account "+name+" was created.", password(made.Password)
		return q.showMade(text, first, func() error { return q.showAccounts(&notice{Text: text}, first) })
	case "enable":
		return change(api.UserChangeForm{Enabled: &yes}, name+" can log in again.", nil)
	case "disable":
		return change(api.UserChangeForm{Enabled: &no}, name+" can no longer log in, and its log-ins have ended.", nil)
	case "promote":
		return change(api.UserChangeForm{Superuser: &yes}, name+" administers the registry now.", nil)
	case "demote":
		return change(api.UserChangeForm{Superuser: &no}, name+" no longer administers the registry.", nil)
	case "reset":
		text := newPassword()
		return change(api.UserChangeForm{Password: &text}, name+" has a new password, and its log-ins have ended. Its personal tokens stay: “End all log-ins” revokes them too, if you say so.", password(text))
	case "end":
		ended, err := run(q, api.EndLogIns, api.LogInsEnd{UserItem: item, Personal: q.form.Get("personal_tokens") == "true"})
		return q.showEnded("Ended for "+name+":", ended, err)
	case "rebind":
		return q.rebind(item)
	case "delete":
		if _, err := run(q, api.DeleteUser, item); err != nil {
			return q.showAccounts(q.refuse(err, accountFields), nil)
		}
		return q.showAccounts(&notice{Text: "The user " + name + " was deleted. Its namespaces and repositories stay."}, nil)
	}
	return q.showAccounts(&notice{Bad: true, Text: "The form doesn't say what to do."}, nil)
}

// showEnded says, after a text, which log-ins of an account have ended.
func (q *request) showEnded(text string, ended api.LogInsEnded, err error) error {
	if err != nil {
		return q.showAccounts(q.refuse(err, accountFields), nil)
	}
	return q.showAccounts(&notice{Text: fmt.Sprintf("%s log-ins of browsers %d, refresh tokens %d, personal tokens %d.",
		text, ended.Sessions, ended.RefreshTokens, ended.PersonalTokens)}, nil)
}

// rebind gives an account of the directory to another entry, or to the next one that logs in by its name.
func (q *request) rebind(item api.UserItem) error {
	entry := strings.TrimSpace(q.form.Get("entry"))
	ended, err := run(q, api.RebindUser, api.Rebinding{UserItem: item, Body: &api.RebindForm{DirectoryName: entry, KeepTokens: q.form.Get("keep") == "true"}})
	text := item.Username + " goes to the next entry of the directory that logs in by this name."
	if entry != "" {
		text = item.Username + " belongs to the entry that logs in as " + entry + ", and is called so from its next log-in on."
	}
	return q.showEnded(text+" Ended:", ended, err)
}

// failure is the notice of a form that the API has refused.
func failure(err error) *notice { return &notice{Bad: true, Text: format.Sentence(err.Error())} }

// showAccount shows the account of the client, with a notice and a new token after a form.
func (q *request) showAccount(n *notice, made *secret) error {
	var d struct {
		Off, Name string
		User      api.QuayUser
		Tokens    []api.TokenView
		Sessions  []api.SessionView
		Made      *secret
		Typed     typed
		Limits    limitFields // of a new token, as somebody has typed them

		TokenPages, SessionPages, NamespacePages pages
	}
	d.Name, d.Made, d.Typed, d.Limits = q.account(), made, q.refused, tokenLimits(q.refused)
	if q.open() {
		d.Off = noAccounts
	} else {
		var err error
		if d.User, err = run(q, api.GetOwnUser, q.paging("namespaces", 50)); err != nil {
			return err
		}
		tokens, err := run(q, api.ListTokens, api.TokenQuery{Paging: q.paging("tokens", 100)})
		if err != nil && !hidden(err) {
			return err
		}
		sessions, err := run(q, api.ListSessions, q.paging("sessions", 50))
		if err != nil && !hidden(err) {
			return err
		}
		d.Tokens, d.Sessions = tokens.Tokens, sessions.Sessions
		d.TokenPages, d.SessionPages = q.pagesIn("tokens", tokens.NextPage), q.pagesIn("sessions", sessions.NextPage)
		d.NamespacePages = q.pagesIn("namespaces", d.User.NextPage)
	}
	return q.show("account", page{
		Title: "Your account", Section: "account", Notice: n, Data: d,
		Same: []same{
			command("purser user show"), command("purser token list"), command("purser token create TITLE"), command("purser user password"),
			call("GET", "/user"), call("POST", "/user/apptoken"), call("GET", "/user/sessions"),
		},
	})
}

// changeAccount changes the client's own password, tokens and log-ins.
func changeAccount(q *request) error {
	var err error
	switch q.form.Get("do") {
	case "token":
		return q.createToken()
	case "revoke":
		if _, err = run(q, api.RevokeToken, api.TokenItem{UUID: q.form.Get("id")}); err == nil {
			return q.showAccount(&notice{Text: "The token was revoked: nobody can use it any longer."}, nil)
		}
	case "password":
		if q.form.Get("password") != q.form.Get("again") {
			return q.showAccount(q.refuse(fieldError{"again", "The two new passwords differ."}, nil), nil)
		}
		next := q.form.Get("password")
		form := api.OwnChangeForm{Password: &next, CurrentPassword: q.form.Get("current")}
		if _, err = run(q, api.ChangeOwnUser, api.OwnChange{Body: form}); err == nil {
			return q.redirect("/auth/login?" + url.Values{"next": {"/ui/account"}}.Encode())
		}
	case "end":
		if _, err = run(q, api.EndSession, api.SessionItem{ID: q.form.Get("id")}); err == nil {
			return q.showAccount(&notice{Text: "The log-in has ended."}, nil)
		}
	case "end-others":
		return q.endOthers()
	default:
		return q.showAccount(&notice{Bad: true, Text: "The form doesn't say what to do."}, nil)
	}
	return q.showAccount(q.refuse(err, accountFields), nil)
}

// endOthers ends all log-ins of the account but that of the request.
func (q *request) endOthers() error {
	ended := 0
	for next := ""; ; {
		list, err := run(q, api.ListSessions, api.Paging{NextPage: next})
		if err != nil {
			return q.showAccount(q.refuse(err, accountFields), nil)
		}
		for _, s := range list.Sessions {
			if s.Current {
				continue
			}
			// A log-in that has ended meanwhile is none to end.
			if _, err := run(q, api.EndSession, api.SessionItem{ID: s.ID}); err != nil && statusOf(err) != http.StatusNotFound {
				return q.showAccount(q.refuse(err, accountFields), nil)
			}
			ended++
		}
		if next = list.NextPage; next == "" {
			break
		}
	}
	return q.showAccount(&notice{Text: format.Plural(ended, "other log-in has ended.", "other log-ins have ended.") + " Tokens stay; revoke those that you no longer need."}, nil)
}

func (q *request) createToken() error {
	l, err := q.limits()
	if err != nil {
		return q.showAccount(q.refuse(err, accountFields), nil)
	}
	made, err := run(q, api.CreateToken, api.TokenNew{Body: api.NewTokenForm{
		Title: strings.TrimSpace(q.form.Get("title")), Repositories: l.repositories, Actions: l.actions, ExpiresAt: l.end,
	}})
	if err != nil {
		return q.showAccount(q.refuse(err, accountFields), nil)
	}
	const text = "The token was made."
	token := &secret{made.Token.Title, "token", made.Token.Code, "docker login -u " + q.account() + " " + q.registryAddress().Host}
	return q.showMade(text, token, func() error { return q.showAccount(&notice{Text: text}, token) })
}

// limits are those of a form for a token or a robot: nil is no limit, an empty list allows nothing.
type limits struct {
	repositories, actions []string
	end                   *time.Time // nil: never
}

// limitFields are the limits as a form shows them.
type limitFields struct {
	Repositories, Actions     []string
	NoRepositories, NoActions bool

	Mark template.HTMLAttr // of the field of repositories, if it was refused
	Why  *fault            // nil: it wasn't
}

// fieldsOf returns the limits of a robot as a form shows them.
func fieldsOf(repositories, actions []string) limitFields {
	return limitFields{Repositories: repositories, Actions: actions, NoRepositories: none(repositories), NoActions: none(actions)}
}

// limitsOf returns the limits as they were typed into the form whose field "do" has this value.
func (q *request) limitsOf(do string) limitFields {
	f := limitFieldsIn(q.form, "")
	f.Mark, f.Why = q.refused.Mark(do, "repositories"), q.refused.At(do, "repositories")
	return f
}

// limitFieldsIn returns the limits in the fields whose names begin with a prefix, as a form shows them.
func limitFieldsIn(f url.Values, prefix string) limitFields {
	return limitFields{
		Repositories: strings.Fields(f.Get(prefix + "repositories")), Actions: f[prefix+"action"],
		NoRepositories: f.Get(prefix+"no-repositories") == "true", NoActions: f.Get(prefix+"no-actions") == "true",
	}
}

// none says whether a limit allows nothing. Nil is no limit.
func none(list []string) bool { return list != nil && len(list) == 0 }

// tokenLimits returns the limits of a form for a token that was refused.
func tokenLimits(t typed) limitFields {
	return limitFields{
		Repositories: strings.Fields(t.Value("token", "repositories", "")), Actions: t.Values("token", "action"),
		NoRepositories: t.Checked("token", "no-repositories", false), NoActions: t.Checked("token", "no-actions", false),
		Mark: t.Mark("token", "repositories"), Why: t.At("token", "repositories"),
	}
}

// limits reads the limits of a form, which has boxes of their own for lists that allow nothing.
func (q *request) limits() (limits, error) { return limitsIn(q.form, "") }

// limitsIn reads the limits in the fields whose names begin with a prefix.
func limitsIn(f url.Values, prefix string) (l limits, err error) {
	l.actions, l.repositories = f[prefix+"action"], strings.Fields(f.Get(prefix+"repositories"))
	for _, limit := range []struct {
		member, noun string
		list         *[]string
	}{{"actions", "action", &l.actions}, {"repositories", "repository", &l.repositories}} {
		switch none := f.Get(prefix+"no-"+limit.member) == "true"; {
		case none && len(*limit.list) > 0:
			return l, fmt.Errorf("%q is picked beside %s: leave one of them out", "no "+limit.noun, strings.Join(*limit.list, ", "))
		case none:
			*limit.list = []string{}
		case len(*limit.list) == 0:
			*limit.list = nil
		}
	}
	if text := f.Get(prefix + "expires"); text != "" {
		day, err := time.Parse(time.DateOnly, text)
		if err != nil {
			return l, fieldError{"expires", "“" + format.Clip(40, text) + "” is not a day like 2026-03-05."}
		}
		end := day.AddDate(0, 0, 1) // the day itself is included
		l.end = &end
	}
	return l, nil
}

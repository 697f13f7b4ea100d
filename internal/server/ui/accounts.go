package ui

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

func (u *UI) addAccounts() {
	u.add("/ui/accounts", func(q *request) error { return q.showAccounts(nil, nil) }, changeAccounts)
	u.add("/ui/account", func(q *request) error { return q.showAccount(nil, nil) }, changeAccount)
	u.addMembership()
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

// userRow is a person's account.
type userRow struct {
	Name        string     `json:"name"`
	Email       string     `json:"email"`
	Superuser   bool       `json:"super_user"`
	Enabled     bool       `json:"enabled"`
	Source      string     `json:"source"`
	HasPassword bool       `json:"has_password"`
	CreatedAt   time.Time  `json:"created_at"`
	LastUsedAt  *time.Time `json:"last_used_at"`
}

// Local says that Purser itself keeps the account's password.
func (u userRow) Local() bool { return u.Source == "local" }

// InDirectory says that the account belongs to an entry of the directory of LDAP.
func (u userRow) InDirectory() bool { return u.Source == "ldap" }

// showAccounts lists people's accounts, with a notice and a new secret after a form.
func (q *request) showAccounts(n *notice, made *secret) error {
	query := url.Values{"limit": {"50"}}
	for from, to := range map[string]string{"q": "contains", "page": "next_page"} {
		if value := q.query(from); value != "" {
			query.Set(to, value)
		}
	}
	var list struct {
		Users    []userRow `json:"users"`
		NextPage string    `json:"next_page"`
	}
	var d struct {
		Off, Query, Me string
		Made           *secret
		Users          []userRow
		Pages          pages
	}
	if q.open() {
		d.Off = noAccounts
	} else if err := q.get("/superuser/users", query, &list); err != nil {
		return err
	}
	d.Query, d.Me, d.Made, d.Users, d.Pages = q.query("q"), q.account(), made, list.Users, q.pagesOf(q.keep("q"), list.NextPage)
	return q.show("accounts", page{
		Title: "Accounts", Section: "accounts", Notice: n, Data: d, Lead: "People who may log in. Robots and teams belong to namespaces, and are on their pages.",
		Same: []same{
			command("purser user list"), command("purser user create NAME"), command("purser user disable NAME"), command("purser user admin NAME on"), command("purser user password NAME"), command("purser user revoke NAME"), command("purser user rebind NAME"),
			call("GET", "/superuser/users"), call("POST", "/superuser/users"), call("PUT", "/superuser/users/{username}"), call("POST", "/superuser/users/{username}/revoke"), call("POST", "/superuser/users/{username}/rebind"),
		},
	})
}

// changeAccounts creates, changes and deletes accounts.
func changeAccounts(q *request) error {
	name := strings.TrimSpace(q.form.Get("name"))
	path := apiPath("/superuser/users/%s", name)
	change := func(body any, text string) error {
		if err := q.call(http.MethodPut, path, body, nil); err != nil {
			return q.showAccounts(failure(err), nil)
		}
		return q.showAccounts(&notice{Text: text}, nil)
	}
	switch q.form.Get("do") {
	case "create":
		var made struct {
			Password string `json:"password"`
		}
		body := map[string]any{"username": name, "email": strings.TrimSpace(q.form.Get("email")), "super_user": q.form.Get("superuser") == "true"}
		if err := q.call(http.MethodPost, "/superuser/users", body, &made); err != nil {
			return q.showAccounts(failure(err), nil)
		}
		return q.showAccounts(&notice{Text: "The account " + name + " was created."}, &secret{name, "password", made.Password, "docker login -u " + name + " " + q.registryAddress().Host})
	case "enable":
		return change(map[string]bool{"enabled": true}, name+" can log in again.")
	case "disable":
		return change(map[string]bool{"enabled": false}, name+" can no longer log in, and its log-ins have ended.")
	case "promote":
		return change(map[string]bool{"super_user": true}, name+" administers the registry now.")
	case "demote":
		return change(map[string]bool{"super_user": false}, name+" no longer administers the registry.")
	case "reset":
		text := newPassword()
		if err := q.call(http.MethodPut, path, map[string]string{"password": text}, nil); err != nil {
			return q.showAccounts(failure(err), nil)
		}
		return q.showAccounts(&notice{Text: name + " has a new password, and its log-ins have ended. Its personal tokens stay: “End all log-ins” revokes them too, if you say so."}, &secret{name, "password", text, "docker login -u " + name + " " + q.registryAddress().Host})
	case "end":
		var ended struct {
			Sessions       int `json:"sessions"`
			RefreshTokens  int `json:"refresh_tokens"`
			PersonalTokens int `json:"personal_tokens"`
		}
		personal := url.Values{"personal_tokens": {strconv.FormatBool(q.form.Get("personal_tokens") == "true")}}
		if err := q.call(http.MethodPost, path+"/revoke?"+personal.Encode(), nil, &ended); err != nil {
			return q.showAccounts(failure(err), nil)
		}
		return q.showAccounts(&notice{Text: fmt.Sprintf("Ended for %s: log-ins of browsers %d, refresh tokens %d, personal tokens %d.",
			name, ended.Sessions, ended.RefreshTokens, ended.PersonalTokens)}, nil)
	case "rebind":
		return q.rebind(name, path)
	case "delete":
		if err := q.call(http.MethodDelete, path, nil, nil); err != nil {
			return q.showAccounts(failure(err), nil)
		}
		return q.showAccounts(&notice{Text: "The account " + name + " was deleted. Its namespaces and repositories stay."}, nil)
	}
	return q.showAccounts(&notice{Bad: true, Text: "The form doesn't say what to do."}, nil)
}

// rebind gives an account of the directory to another entry, or to the next one that logs in by its name.
func (q *request) rebind(name, path string) error {
	var ended struct {
		Sessions       int `json:"sessions"`
		RefreshTokens  int `json:"refresh_tokens"`
		PersonalTokens int `json:"personal_tokens"`
	}
	entry := strings.TrimSpace(q.form.Get("entry"))
	body := map[string]any{"directory_name": entry, "keep_personal_tokens": q.form.Get("keep") == "true"}
	if err := q.call(http.MethodPost, path+"/rebind", body, &ended); err != nil {
		return q.showAccounts(failure(err), nil)
	}
	text := name + " goes to the next entry of the directory that logs in by this name."
	if entry != "" {
		text = name + " belongs to the entry that logs in as " + entry + ", and is called so from its next log-in on."
	}
	return q.showAccounts(&notice{Text: fmt.Sprintf("%s Ended: log-ins of browsers %d, refresh tokens %d, personal tokens %d.",
		text, ended.Sessions, ended.RefreshTokens, ended.PersonalTokens)}, nil)
}

// failure is the notice of a form that the API has refused.
func failure(err error) *notice { return &notice{Bad: true, Text: sentence(err.Error())} }

// tokenRow is a personal token or a refresh token.
type tokenRow struct {
	UUID         string     `json:"uuid"`
	Kind         string     `json:"kind"`
	Title        string     `json:"title"`
	Code         string     `json:"token_code"`
	Repositories []string   `json:"repositories"`
	Actions      []string   `json:"actions"`
	CreatedAt    time.Time  `json:"created_at"`
	ExpiresAt    *time.Time `json:"expires_at"`
	LastUsedAt   *time.Time `json:"last_used_at"`
}

// sessionRow is a log-in of a browser.
type sessionRow struct {
	ID         string    `json:"id"`
	CreatedAt  time.Time `json:"created_at"`
	LastUsedAt time.Time `json:"last_used_at"`
	Address    string    `json:"address"`
	UserAgent  string    `json:"user_agent"`
	Current    bool      `json:"current"`
}

// showAccount shows the account of the client, with a notice and a new token after a form.
func (q *request) showAccount(n *notice, made *secret) error {
	var d struct {
		Off, Name string
		User      struct {
			Email       string `json:"email"`
			Superuser   bool   `json:"super_user"`
			HasPassword bool   `json:"has_password_set"`
			Robot       bool   `json:"robot"`
			Logins      []struct {
				Service string `json:"service"`
			} `json:"logins"`
			Namespaces []ownNamespace `json:"organizations"`
			NextPage   string         `json:"next_page"`
		}
		Tokens   []tokenRow
		Sessions []sessionRow
		Made     *secret

		TokenPages, SessionPages, NamespacePages pages
	}
	d.Name, d.Made = q.account(), made
	if q.open() {
		d.Off = noAccounts
	} else {
		if err := q.get("/user", q.pageOf("namespaces", 50), &d.User); err != nil {
			return err
		}
		var tokens struct {
			Tokens   []tokenRow `json:"tokens"`
			NextPage string     `json:"next_page"`
		}
		if err := q.get("/user/apptoken", q.pageOf("tokens", 100), &tokens); err != nil && !hidden(err) {
			return err
		}
		var sessions struct {
			Sessions []sessionRow `json:"sessions"`
			NextPage string       `json:"next_page"`
		}
		if err := q.get("/user/sessions", q.pageOf("sessions", 50), &sessions); err != nil && !hidden(err) {
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
		if err = q.call(http.MethodDelete, apiPath("/user/apptoken/%s", q.form.Get("id")), nil, nil); err == nil {
			return q.showAccount(&notice{Text: "The token was revoked: nobody can use it any longer."}, nil)
		}
	case "password":
		if q.form.Get("password") != q.form.Get("again") {
			return q.showAccount(&notice{Bad: true, Text: "The two new passwords differ."}, nil)
		}
		body := map[string]string{"password": q.form.Get("password"), "current_password": q.form.Get("current")}
		if err = q.call(http.MethodPut, "/user", body, nil); err == nil {
			return q.redirect("/auth/login?" + url.Values{"next": {"/ui/account"}}.Encode())
		}
	case "end":
		if err = q.call(http.MethodDelete, apiPath("/user/sessions/%s", q.form.Get("id")), nil, nil); err == nil {
			return q.showAccount(&notice{Text: "The log-in has ended."}, nil)
		}
	case "end-others":
		return q.endOthers()
	default:
		return q.showAccount(&notice{Bad: true, Text: "The form doesn't say what to do."}, nil)
	}
	return q.showAccount(failure(err), nil)
}

// endOthers ends all log-ins of the account but that of the request.
func (q *request) endOthers() error {
	ended := 0
	for query := (url.Values{}); ; {
		var list struct {
			Sessions []sessionRow `json:"sessions"`
			NextPage string       `json:"next_page"`
		}
		if err := q.get("/user/sessions", query, &list); err != nil {
			return q.showAccount(failure(err), nil)
		}
		for _, s := range list.Sessions {
			if s.Current {
				continue
			}
			// A log-in that has ended meanwhile is none to end.
			if err := q.call(http.MethodDelete, apiPath("/user/sessions/%s", s.ID), nil, nil); err != nil && statusOf(err) != http.StatusNotFound {
				return q.showAccount(failure(err), nil)
			}
			ended++
		}
		if list.NextPage == "" {
			break
		}
		query.Set("next_page", list.NextPage)
	}
	return q.showAccount(&notice{Text: plural(ended, "other log-in has ended.", "other log-ins have ended.") + " Tokens stay; revoke those that you no longer need."}, nil)
}

func (q *request) createToken() error {
	body := map[string]any{"title": strings.TrimSpace(q.form.Get("title"))}
	if err := q.addLimits(body); err != nil {
		return q.showAccount(failure(err), nil)
	}
	var made struct {
		Token tokenRow `json:"token"`
	}
	if err := q.call(http.MethodPost, "/user/apptoken", body, &made); err != nil {
		return q.showAccount(failure(err), nil)
	}
	return q.showAccount(&notice{Text: "The token was made."}, &secret{made.Token.Title, "token", made.Token.Code, "docker login -u " + q.account() + " " + q.registryAddress().Host})
}

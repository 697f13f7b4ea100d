package management_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// TestUsers: an administrator of the registry creates, changes and deletes accounts.
func TestUsers(t *testing.T) {
	t.Parallel()
	r := closed(t)
	root := r.as("root")
	var made api.UserMade
	root.Manage(t, "POST", "/superuser/users", `{"username":"alice","email":"a@example.com"}`).Into(t, 200, &made)
	alice := r.with(servertest.Basic("alice", made.Password))
	if len(made.Password) < 20 || made.Superuser {
		t.Errorf("%+v", made)
	}
	alice.Manage(t, "GET", "/user", "").WantStatus(t, 200)
	if r.Log.Contains(made.Password) {
		t.Error("the log has a password")
	}
	if a := root.Manage(t, "GET", "/superuser/logs?limit=100", ""); strings.Contains(string(a.Content), made.Password) {
		t.Error("the audit log has a password")
	}
	for body, problem := range map[string]string{
		`{"username":"bob","password":"short"}`:             "too short",
		`{"username":"bobbobbob","password":"BobBobBob"}`:   "account's name",
		`{"username":"BOB"}`:                                "BOB",
		`{"username":"ns+bob"}`:                             "ns.bob",
		`{"username":"bob","email":"a@b\nc"}`:               "email",
		`{"username":"bob","superuser":true}`:               "superuser",
		`{"username":"bob","password":"12345678\u0007abc"}`: "control",
	} {
		root.Manage(t, "POST", "/superuser/users", body).Refused(t, 400, "invalid_request", problem)
	}
	root.Manage(t, "POST", "/superuser/users", `{"username":"alice"}`).Refused(t, 409, "invalid_request", "already")
	second := root.Manage(t, "POST", "/superuser/users", `{"username":"bob","password":"bobs-password","super_user":true}`).WantStatus(t, 200)
	if strings.Contains(string(second.Content), "bobs-password") {
		t.Errorf("the answer repeats a password: %s", second.Content)
	}

	var user api.UserView
	root.Manage(t, "PUT", "/superuser/users/alice", `{"enabled":false}`).Into(t, 200, &user)
	if user.Enabled || user.Email != "a@example.com" || user.Superuser {
		t.Errorf("%+v", user)
	}
	alice.Manage(t, "GET", "/user", "").Refused(t, 401, "invalid_token", "")
	root.Manage(t, "PUT", "/superuser/users/alice", `{"enabled":true,"password":"another-password"}`).WantStatus(t, 200)
	alice.Manage(t, "GET", "/user", "").Refused(t, 401, "invalid_token", "")
	r.with(servertest.Basic("alice", "another-password")).Manage(t, "GET", "/user", "").WantStatus(t, 200)
	told := root.Manage(t, "GET", "/superuser/users/alice", "").WantStatus(t, 200)
	root.Manage(t, "PUT", "/superuser/users/alice", string(told.Content)).Into(t, 200, &user)
	if user.Email != "a@example.com" || !user.Enabled {
		t.Errorf("%+v", user)
	}

	var list struct {
		Users    []api.UserView
		NextPage string `json:"next_page"`
	}
	names, next := []string{}, ""
	for range 10 {
		list.NextPage = ""
		root.Manage(t, "GET", "/superuser/users/?limit=3&next_page="+next, "").Into(t, 200, &list)
		for _, u := range list.Users {
			names = append(names, u.Name)
		}
		if next = list.NextPage; next == "" {
			break
		}
	}
	if got := strings.Join(names, " "); got != "admin alice bob maintainer reader root stranger writer" {
		t.Error(got)
	}
	root.Manage(t, "GET", "/superuser/users?contains=lic", "").Into(t, 200, &list)
	if len(list.Users) != 1 || list.Users[0].Name != "alice" {
		t.Errorf("%+v", list)
	}
	root.Manage(t, "DELETE", "/superuser/users/alice", "").WantStatus(t, 204)
	root.Manage(t, "GET", "/superuser/users/alice", "").Refused(t, 404, "not_found", "alice")
	r.as("admin").Manage(t, "PUT", "/organization/acme/robots/ci", "").WantStatus(t, 201)
	root.Manage(t, "DELETE", "/superuser/users/acme+ci", "").Refused(t, 404, "not_found", "acme.ci")
	root.Manage(t, "POST", "/superuser/tokenkeys/rotate", "").WantStatus(t, 204)
}

// TestLastAdministrator: the registry keeps an administrator who is not disabled.
func TestLastAdministrator(t *testing.T) {
	t.Parallel()
	r := closed(t)
	root := r.as("root")
	refused := func() {
		t.Helper()
		for _, body := range []string{`{"super_user":false}`, `{"enabled":false}`} {
			root.Manage(t, "PUT", "/superuser/users/root", body).Refused(t, 409, "invalid_request", "administrator")
		}
		root.Manage(t, "DELETE", "/superuser/users/root", "").Refused(t, 409, "invalid_request", "administrator")
	}
	refused()
	root.Manage(t, "PUT", "/superuser/users/admin", `{"super_user":true,"enabled":false}`).WantStatus(t, 200)
	refused()
	root.Manage(t, "PUT", "/superuser/users/admin", `{"enabled":true}`).WantStatus(t, 200)
	root.Manage(t, "PUT", "/superuser/users/root", `{"super_user":false}`).WantStatus(t, 200)
	root.Manage(t, "GET", "/superuser/users", "").Refused(t, 403, "insufficient_scope", "")
	r.as("admin").Manage(t, "DELETE", "/superuser/users/root", "").WantStatus(t, 204)
	root.Manage(t, "GET", "/user", "").Refused(t, 401, "invalid_token", "")
}

// TestOwnAccount: a person sees its account and changes its password, which needs the old one.
func TestOwnAccount(t *testing.T) {
	t.Parallel()
	r := closed(t)
	r.Manage(t, "GET", "/user", "").Refused(t, 401, "invalid_token", "")
	type organization struct {
		Name       string
		IsOrgAdmin bool `json:"is_org_admin"`
	}
	var user struct {
		Anonymous     bool
		Username      string
		Superuser     bool `json:"super_user"`
		Organizations []organization
	}
	r.as("admin").Manage(t, "GET", "/user/", "").Into(t, 200, &user)
	if user.Anonymous || user.Username != "admin" || user.Superuser || len(user.Organizations) != 1 || user.Organizations[0] != (organization{"acme", true}) {
		t.Errorf("%+v", user)
	}
	r.as("root").Manage(t, "GET", "/user", "").Into(t, 200, &user)
	if !user.Superuser {
		t.Errorf("%+v", user)
	}
	reader := r.as("reader")
	var token api.TokenAnswer
	reader.Manage(t, "POST", "/user/apptoken", `{"title":"a"}`).Into(t, 200, &token)
	secret, err := r.Auth.Sessions().Create(t.Context(), r.account(t, "reader").ID, "127.0.0.1", "test")
	if err != nil {
		t.Fatal(err)
	}
	session := r.with([]string{"Cookie", "purser_session=" + secret})
	for body, problem := range map[string]string{
		`{"password":"new-password"}`:                                                       "is needed",
		`{"password":"new-password","current_password":"wrong"}`:                            "is wrong",
		`{"password":"new-password","current_password":"` + token.Token.Code + `"}`:         "is wrong",
		`{"password":"short","current_password":"` + servertest.PasswordOf("reader") + `"}`: "too short",
	} {
		reader.Manage(t, "PUT", "/user", body).Refused(t, 400, "invalid_request", problem)
	}
	session.Manage(t, "GET", "/user", "").WantStatus(t, 200)
	reader.Manage(t, "PUT", "/user", `{"password":"new-password","current_password":"`+servertest.PasswordOf("reader")+`"}`).WantStatus(t, 200)
	reader.Manage(t, "GET", "/user", "").Refused(t, 401, "invalid_token", "")
	r.with(servertest.Basic("reader", "new-password")).Manage(t, "GET", "/user", "").WantStatus(t, 200)
	r.with(servertest.Bearer(token.Token.Code)).Manage(t, "GET", "/user", "").WantStatus(t, 200)
	left, _, err := r.Auth.Sessions().List(t.Context(), r.account(t, "reader").ID, nil, 100)
	if err != nil || len(left) != 0 {
		t.Errorf("%v %v", left, err)
	}
}

func (r *registry) account(t *testing.T, name string) auth.Account {
	t.Helper()
	a, err := r.Auth.Account(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestRevokedLogIns: people see and revoke their refresh tokens, and an administrator of the registry
// ends all log-ins of an account, of which the audit log has an entry.
func TestRevokedLogIns(t *testing.T) {
	t.Parallel()
	r := closed(t)
	reader, root := r.as("reader"), r.as("root")
	refresh := func(name string) servertest.Answer {
		var out struct {
			RefreshToken string `json:"refresh_token"`
		}
		r.Do(t, "GET", "/token?offline_token=true&service=purser&client_id="+name, "", servertest.As("reader")...).Into(t, 200, &out)
		form := url.Values{"grant_type": {"refresh_token"}, "refresh_token": {out.RefreshToken}, "service": {"purser"}}.Encode()
		use := func() servertest.Answer {
			return r.Do(t, "POST", "/token", form, "Content-Type", "application/x-www-form-urlencoded")
		}
		use().WantStatus(t, 200)
		if name == "first" {
			var list struct{ Tokens []api.TokenView }
			reader.Manage(t, "GET", "/user/apptoken", "").Into(t, 200, &list)
			if len(list.Tokens) != 1 || list.Tokens[0].Kind != "refresh" || list.Tokens[0].Title != "first" || list.Tokens[0].Code != "" {
				t.Fatalf("%+v", list)
			}
			root.Manage(t, "DELETE", "/user/apptoken/"+list.Tokens[0].UUID, "").Refused(t, 404, "not_found", "no token")
			reader.Manage(t, "DELETE", "/user/apptoken/"+list.Tokens[0].UUID, "").WantStatus(t, 204)
			return use()
		}
		root.Manage(t, "POST", "/superuser/users/reader/revoke", "").WantStatus(t, 200)
		return use()
	}
	refresh("first").WantStatus(t, 401)
	var token api.TokenAnswer
	reader.Manage(t, "POST", "/user/apptoken", `{"title":"laptop"}`).Into(t, 200, &token)
	secret, err := r.Auth.Sessions().Create(t.Context(), r.account(t, "reader").ID, "127.0.0.1", "test")
	if err != nil {
		t.Fatal(err)
	}
	refresh("second").WantStatus(t, 401)
	r.Manage(t, "GET", "/user", "", "Cookie", "purser_session="+secret).Refused(t, 401, "invalid_token", "")
	laptop := r.with(servertest.Bearer(token.Token.Code))
	laptop.Manage(t, "GET", "/user", "").WantStatus(t, 200)
	var ended api.LogInsEnded
	if root.Manage(t, "POST", "/superuser/users/reader/revoke?personal_tokens=true", "").Into(t, 200, &ended); ended != (api.LogInsEnded{PersonalTokens: 1}) {
		t.Errorf("%+v", ended)
	}
	laptop.Manage(t, "GET", "/user", "").Refused(t, 401, "invalid_token", "")
	reader.Manage(t, "GET", "/user", "").WantStatus(t, 200)
	root.Manage(t, "POST", "/superuser/users/acme+ci/revoke", "").Refused(t, 404, "not_found", "")
	entries, err := r.DB.Pool.Query(t.Context(), "SELECT FROM auditlog WHERE kind = 'user_end_log_ins' AND detail->>'account' = 'reader'")
	if err != nil {
		t.Fatal(err)
	}
	defer entries.Close()
	n := 0
	for entries.Next() {
		n++
	}
	if n != 2 || entries.Err() != nil {
		t.Errorf("%d entries of the audit log, %v", n, entries.Err())
	}
}

// TestSessions: a person lists and ends the log-ins of its browsers, and nobody else's.
func TestSessions(t *testing.T) {
	t.Parallel()
	r := closed(t)
	for _, agent := range []string{"one", "two"} {
		if _, err := r.Auth.Sessions().Create(t.Context(), r.account(t, "reader").ID, "192.0.2.1", agent); err != nil {
			t.Fatal(err)
		}
	}
	var list struct{ Sessions []api.SessionView }
	r.as("reader").Manage(t, "GET", "/user/sessions", "").Into(t, 200, &list)
	if len(list.Sessions) != 2 || list.Sessions[0].UserAgent != "two" || list.Sessions[0].Address != "192.0.2.1" || list.Sessions[0].Current {
		t.Fatalf("%+v", list)
	}
	id := list.Sessions[0].ID
	r.as("root").Manage(t, "DELETE", "/user/sessions/"+id, "").Refused(t, 404, "not_found", "")
	r.as("reader").Manage(t, "DELETE", "/user/sessions/x", "").Refused(t, 400, "invalid_request", "UUID")
	r.as("reader").Manage(t, "DELETE", "/user/sessions/"+id, "").WantStatus(t, 204)
	r.as("reader").Manage(t, "GET", "/user/sessions", "").Into(t, 200, &list)
	if len(list.Sessions) != 1 || list.Sessions[0].ID == id {
		t.Errorf("%+v", list)
	}
}

// TestAccountsOfAnOpenRegistry: before access control is turned on, an operator prepares accounts,
// robots and roles. Requests have no account of their own.
func TestAccountsOfAnOpenRegistry(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.Put(t, "acme/app", "v1", r.Simple(t, "acme/app", 1, nil))
	r.Manage(t, "POST", "/superuser/users", `{"username":"alice","super_user":true}`).WantStatus(t, 200)
	r.Manage(t, "PUT", "/organization/acme/robots/ci", "").WantStatus(t, 201)
	r.Manage(t, "PUT", "/repository/acme/app/permissions/user/acme+ci", `{"role":"write"}`).WantStatus(t, 200)
	r.Manage(t, "PUT", "/organization/acme/team/devs", `{"role":"creator"}`).WantStatus(t, 200)
	r.Manage(t, "PUT", "/organization/acme/team/devs/members/alice", "").WantStatus(t, 200)
	r.Manage(t, "GET", "/user", "").WantStatus(t, 200)
	for _, path := range []string{"/user/apptoken", "/user/sessions"} {
		r.Manage(t, "GET", path, "").Refused(t, 400, "invalid_request", "no access control")
	}
	r.Manage(t, "PUT", "/user", `{"email":"a@example.com"}`).Refused(t, 400, "invalid_request", "no access control")
	r.Manage(t, "POST", "/superuser/tokenkeys/rotate", "").Refused(t, 400, "invalid_request", "no access control")
}

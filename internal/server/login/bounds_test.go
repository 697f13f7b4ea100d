package login_test

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// TestCredentialsEndWithTheirMaker: whatever lets somebody log in and is made with a token that
// ends must end by then, whether the request names an end or not.
func TestCredentialsEndWithTheirMaker(t *testing.T) {
	t.Parallel()
	r := whole(t, &auth.Options{})
	person(t, r, "root", true)
	person(t, r, "other", false)
	root := r.With(secret("root"))
	root.Put(t, "acme/app", "v1", root.Simple(t, "acme/app", 1, nil))
	root.Manage(t, "PUT", "/organization/acme/robots/old", "").WantStatus(t, 201)
	end := time.Now().Add(2 * time.Minute).UTC().Truncate(time.Second)
	var made api.TokenAnswer
	root.Manage(t, "POST", "/user/apptoken", `{"title":"short","expires_at":"`+end.Format(time.RFC3339)+`"}`).Into(t, 200, &made)
	short := r.With(servertest.Bearer(made.Token.Code))

	late := `"expires_at":"` + end.Add(time.Second).Format(time.RFC3339) + `"`
	const robots = "/organization/acme/robots/"
	for _, c := range []struct{ method, path, body string }{
		{"PUT", robots + "late", "{" + late + "}"},
		{"POST", robots + "old/regenerate", "{" + late + "}"},
		{"POST", "/user/apptoken", `{"title":"late",` + late + `}`},
		{"POST", robots + "old/federation", `[{"issuer":"https://issuer.example.com","subject":"repo:acme/app"}]`},
		{"POST", "/superuser/users", `{"username":"new"}`},
		{"PUT", "/superuser/users/other", `{"password":"correct horse battery"}`},
		{"PUT", "/superuser/users/other", `{"super_user":true}`},
		{"POST", "/superuser/users/other/rebind", ""},
	} {
		short.Manage(t, c.method, c.path, c.body).Refused(t, 403, "insufficient_scope", "the token of this request ends at")
	}
	for path, method := range map[string]string{robots + "new": "PUT", robots + "old/regenerate": "POST"} {
		var robot api.RobotView
		if short.Manage(t, method, path, "").Into(t, map[string]int{"PUT": 201, "POST": 200}[method], &robot); robot.ExpiresAt == nil || !robot.ExpiresAt.Equal(end) {
			t.Errorf("%s: the secret ends at %v, want %s", path, robot.ExpiresAt, end)
		}
		for _, s := range robot.Secrets {
			if s.ExpiresAt == nil || s.ExpiresAt.After(end) {
				t.Errorf("%s has a secret that ends at %v", path, s.ExpiresAt)
			}
		}
	}
	if until := registryToken(t, r, "root", made.Token.Code, ""); until.After(end) {
		t.Errorf("the registry token ends at %s, after the token by which it was made", until)
	}

	var limited api.TokenAnswer
	root.Manage(t, "POST", "/user/apptoken", `{"title":"limited","actions":["operate"]}`).Into(t, 200, &limited)
	for _, c := range []struct{ method, path, body string }{
		{"POST", "/superuser/users", `{"username":"new"}`},
		{"PUT", "/superuser/users/other", `{"super_user":true}`},
	} {
		r.With(servertest.Bearer(limited.Token.Code)).Manage(t, c.method, c.path, c.body).Refused(t, 403, "insufficient_scope", "has limits")
	}
	root.Manage(t, "POST", "/superuser/users", `{"username":"new"}`).WantStatus(t, 200)
}

// registryToken gets a registry token and returns its end.
func registryToken(t *testing.T, r *servertest.Registry, name, password, scope string) time.Time {
	t.Helper()
	token, ends := issue(t, r, name, password, scope)
	if token == "" {
		t.Fatal("no token")
	}
	return ends
}

func issue(t *testing.T, r *servertest.Registry, name, password, scope string) (token string, ends time.Time) {
	t.Helper()
	var out struct {
		Token     string    `json:"token"`
		ExpiresIn int       `json:"expires_in"`
		IssuedAt  time.Time `json:"issued_at"`
	}
	path := "/token?service=registry&scope=" + url.QueryEscape(scope)
	if err := json.Unmarshal(r.Do(t, "GET", path, "", servertest.Basic(name, password)...).WantStatus(t, 200).Content, &out); err != nil {
		t.Fatal(err)
	}
	return out.Token, out.IssuedAt.Add(time.Duration(out.ExpiresIn) * time.Second)
}

// TestLimitsSurviveEachForm writes limits in each form that takes them and reads them in each form
// that tells them. An empty list allows nothing; only an absent one is no limit.
func TestLimitsSurviveEachForm(t *testing.T) {
	t.Parallel()
	r := whole(t, &auth.Options{AnonymousPull: true})
	person(t, r, "root", true)
	root := r.With(secret("root"))
	for _, name := range []string{"acme/app", "acme/b"} {
		root.Put(t, name, "v1", root.Simple(t, name, 1, nil))
		visibility(t, r, name, true)
	}
	for i, c := range []struct {
		limits []string
		listed []string
	}{
		{nil, []string{"acme/app", "acme/b"}}, {[]string{}, nil}, {[]string{"acme/app"}, []string{"acme/app"}},
	} {
		same := func(form string, got []string) {
			t.Helper()
			if (got == nil) != (c.limits == nil) || !slices.Equal(got, c.limits) {
				t.Errorf("%s: %#v was written, %#v is read", form, c.limits, got)
			}
		}
		actions := c.limits
		if len(c.limits) > 0 {
			actions = []string{"pull"}
		}
		path := fmt.Sprintf("/organization/acme/robots/r%d", i)
		var robot, told api.RobotView
		root.Manage(t, "PUT", path, marshal(t, api.NewRobotForm{Repositories: c.limits, Actions: actions})).Into(t, 201, &robot)
		same("a new robot", robot.Repositories)
		if (robot.Actions == nil) != (actions == nil) || !slices.Equal(robot.Actions, actions) {
			t.Errorf("actions %#v were written, %#v are read", actions, robot.Actions)
		}
		root.Manage(t, "GET", path, "").Into(t, 200, &told)
		same("a robot", told.Repositories)
		told = api.RobotView{}
		root.Manage(t, "PATCH", path, marshal(t, api.RobotChangeForm{Repositories: api.Limit{Set: true, Values: c.limits}, Actions: api.Limit{Set: true, Values: actions}})).Into(t, 200, &told)
		same("a changed robot", told.Repositories)
		if (told.Actions == nil) != (actions == nil) || !slices.Equal(told.Actions, actions) {
			t.Errorf("a changed robot: actions %#v were written, %#v are read", actions, told.Actions)
		}
		pulls := 200
		if len(c.limits) == 0 && c.limits != nil {
			pulls = 403
		}
		r.Do(t, "GET", "/v2/acme/app/manifests/v1", "", servertest.Basic("acme+r"+fmt.Sprint(i), robot.Token)...).WantStatus(t, pulls)
		root.Manage(t, "PATCH", path, `{"actions": null}`).WantStatus(t, 200)
		var idle api.TokenAnswer
		root.Manage(t, "POST", "/user/apptoken", marshal(t, api.NewTokenForm{Title: "t", Actions: actions})).Into(t, 200, &idle)
		if (idle.Token.Actions == nil) != (actions == nil) || !slices.Equal(idle.Token.Actions, actions) {
			t.Errorf("a token: actions %#v were written, %#v are read", actions, idle.Token.Actions)
		}
		r.Do(t, "GET", "/v2/acme/app/manifests/v1", "", servertest.Basic("root", idle.Token.Code)...).WantStatus(t, pulls)
		var token api.TokenAnswer
		root.Manage(t, "POST", "/user/apptoken", marshal(t, api.NewTokenForm{Title: "t", Repositories: c.limits})).Into(t, 200, &token)
		same("a new token", token.Token.Repositories)
		again := api.TokenAnswer{}
		root.Manage(t, "GET", "/user/apptoken/"+token.Token.UUID, "").Into(t, 200, &again)
		same("a token", again.Token.Repositories)
		var stored auth.Limits
		if err := json.Unmarshal([]byte(marshal(t, auth.Limits{Repositories: c.limits})), &stored); err != nil {
			t.Fatal(err)
		}
		same("auth.Limits", stored.Repositories)

		for name, pass := range map[string]string{"acme+r" + fmt.Sprint(i): robot.Token, "root": token.Token.Code} {
			raw, _ := issue(t, r, name, pass, "registry:catalog:*")
			for how, headers := range map[string][]string{"Basic": servertest.Basic(name, pass), "a registry token": servertest.Bearer(raw)} {
				var list struct{ Repositories []string }
				if err := json.Unmarshal(r.Do(t, "GET", "/v2/_catalog", "", headers...).WantStatus(t, 200).Content, &list); err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(list.Repositories, c.listed) {
					t.Errorf("limits %#v: by %s with %s, %s sees %v, want %v", c.limits, how, pass[:12], name, list.Repositories, c.listed)
				}
			}
		}
	}
}

func marshal(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestManyScopesCostOneQuery: a request for a token names many repositories. Their rights are read
// by one query, also for a client without credentials, and are what one at a time gives.
func TestManyScopesCostOneQuery(t *testing.T) {
	t.Parallel()
	r := whole(t, &auth.Options{AnonymousPull: true})
	person(t, r, "root", true)
	person(t, r, "writer", false)
	root := r.With(secret("root"))
	query := "/token?service=registry"
	for i := range 100 {
		name := fmt.Sprintf("acme/r%d", i)
		if i < 6 {
			root.Put(t, name, "v1", root.Simple(t, name, 1, nil))
			visibility(t, r, name, i%2 == 0)
		}
		if i%3 == 0 && i < 6 {
			r.Grant(t, name, "writer", auth.Writer)
		}
		query += "&scope=" + url.QueryEscape("repository:"+name+":pull,push")
	}
	r.Do(t, "GET", "/token?service=registry", "").WantStatus(t, 200) // makes the key that signs
	const trips = "purser_http_database_round_trips_total"
	for _, c := range []struct {
		headers []string
		want    string
		most    float64
	}{
		{nil, "repository:acme/r0:pull repository:acme/r2:pull repository:acme/r4:pull", 1},
		{secret("writer"), "repository:acme/r0:pull,push,overwrite repository:acme/r2:pull repository:acme/r3:pull,push,overwrite repository:acme/r4:pull", 8},
	} {
		r.Auth.Forget()
		before := metric(t, r.Metrics, trips)
		var out struct{ Scope string }
		if err := json.Unmarshal(r.Do(t, "GET", query, "", c.headers...).WantStatus(t, 200).Content, &out); err != nil {
			t.Fatal(err)
		}
		if out.Scope != c.want {
			t.Errorf("%v: %q is granted, want %q", c.headers, out.Scope, c.want)
		}
		if n := metric(t, r.Metrics, trips) - before; n > c.most {
			t.Errorf("%v: %v round trips, want at most %v", c.headers, n, c.most)
		}
	}
}

package server_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// TestAccessLogNamesAccounts: clients send requests with and without credentials. The line of each
// must name the account that is logged in, and none may contain credentials.
func TestAccessLogNamesAccounts(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *servertest.Options) { o.Access = &auth.Options{AnonymousPull: true} })
	r.AddAccount(t, "ann", true)
	root := r.With(servertest.As("ann"))
	root.Put(t, "acme/app", "v1", root.Simple(t, "acme/app", 1, nil))
	_, secret, err := r.Auth.CreateRobot(t.Context(), "acme", "ci", "", auth.Limits{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	token := r.Token(t, servertest.As("ann"), "repository:acme/app:pull")
	anonymous := r.Token(t, nil, "repository:acme/app:pull")
	const wrong = "a password that is wrong"
	for id, c := range map[string]struct {
		path    string
		headers []string
		status  int
		account string
	}{
		"password":  {"/v2/acme/app/manifests/v1", servertest.As("ann"), 200, "ann"},
		"token":     {"/v2/acme/app/manifests/v1", servertest.Bearer(token), 200, "ann"},
		"robot":     {"/v2/acme/app/manifests/v1", servertest.Basic("acme+ci", secret), 403, "acme+ci"},
		"bearer":    {"/api/v1/user", servertest.Bearer(secret), 200, "acme+ci"},
		"anonymous": {"/v2/acme/app/manifests/v1", servertest.Bearer(anonymous), 401, ""},
		"nobody":    {"/v2/acme/app/manifests/v1", nil, 401, ""},
		"wrong":     {"/v2/acme/app/manifests/v1", servertest.Basic("ann", wrong), 401, ""},
		"no route":  {"/nothing", servertest.As("ann"), 404, "ann"},
	} {
		request := strings.ReplaceAll(id, " ", "-")
		r.Do(t, "GET", c.path, "", append(c.headers, "X-Request-Id", request)...).WantStatus(t, c.status)
		eventually(t, "the line of "+id, func() bool {
			for _, line := range r.Log.Records(t, "request") {
				if line["request_id"] == request {
					if account, ok := line["account"].(string); account != c.account || !ok {
						t.Errorf("%s: the account is %v, want %q", id, line["account"], c.account)
					}
					return true
				}
			}
			return false
		})
	}
	text := fmt.Sprint(r.Log.Records(t, "request"))
	for _, hidden := range []string{secret, token, anonymous, wrong, servertest.PasswordOf("ann"), "Basic ", "Bearer "} {
		if strings.Contains(text, hidden) {
			t.Errorf("the access log contains %q", hidden)
		}
	}
}

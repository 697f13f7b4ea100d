package login_test

import (
	"testing"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// TestOverwrite: a robot that may push and not overwrite makes new tags, and doesn't move those
// that exist.
func TestOverwrite(t *testing.T) {
	t.Parallel()
	r := closed(t, nil)
	_, text, err := r.Auth.CreateRobot(t.Context(), "acme", "ci", "", auth.Limits{Actions: []auth.Action{auth.ActionPull, auth.ActionPush}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Grant(t, "acme", "acme+ci", auth.Writer)
	basic := servertest.Basic("acme+ci", text)
	for i, headers := range [][]string{basic, servertest.Bearer(text), servertest.Bearer(r.Token(t, basic, "repository:acme/app:pull,push"))} {
		ci := r.With(headers)
		first, second := ci.Simple(t, "acme/app", 10+2*i, nil), ci.Simple(t, "acme/app", 11+2*i, nil)
		tag := "/v2/acme/app/manifests/new" + string(rune('a'+i))
		ci.Do(t, "PUT", tag, first).WantStatus(t, 201)
		ci.Do(t, "PUT", tag, first).WantStatus(t, 201)
		ci.Do(t, "PUT", tag, second).WantStatus(t, 403)
		ci.Do(t, "PUT", "/v2/acme/app/manifests/v1", second).WantStatus(t, 403)
		ci.Do(t, "PUT", "/v2/acme/app/manifests/"+servertest.Digest(second).String(), second).WantStatus(t, 201)
		ci.Do(t, "GET", tag, "").WantStatus(t, 200).Text(t, first)
	}
}

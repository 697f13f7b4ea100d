package ui_test

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// breaking is a management API of which one operation fails.
type breaking struct {
	api.Runner

	broken *atomic.Value // the operation's ID
}

func (b breaking) Run(ctx context.Context, id string, in any) (any, error) {
	if id == b.broken.Load() {
		return nil, errors.New("the database has gone away")
	}
	return b.Runner.Run(ctx, id, in)
}

// TestSecretIsShownAnyway: a secret that was just made is shown even if the page around it can't be, whichever
// of the reads fails. It works, and the page says that the rest is missing, but not to the client why.
func TestSecretIsShownAnyway(t *testing.T) {
	t.Parallel()
	var broken atomic.Value
	broken.Store("")
	s, _ := hooked(t, func(o *servertest.Options) {
		o.Operations = func(r api.Runner) api.Runner { return breaking{r, &broken} }
	})
	root, ann := s.as("root"), s.as("ann")
	made := func(by site, operation, path string, form url.Values) string {
		t.Helper()
		broken.Store(strings.ReplaceAll(operation, "{Place}", "Org"))
		defer broken.Store("")
		page := by.send(t, path, form, `role="alert"`, "The rest can&#39;t be shown", "Its log says what", `<a class="button" href="`+path+`">Go on</a>`)
		lacks(t, page, "gone away")
		return secretOf(t, page)
	}
	logIn := func(name, secret string) {
		t.Helper()
		s.Do(t, "GET", "/v2/", "", servertest.Basic(name, secret)...).WantStatus(t, 200)
	}
	const robots = "/ui/namespaces/acme/-/robots"
	logIn("acme+first", made(ann, api.ListRobotRoles.ID, robots, url.Values{"do": {"create"}, "robot": {"first"}}))
	ann.Manage(t, "PUT", "/organization/acme/robots/ci", "").WantStatus(t, 201)
	for _, operation := range []string{api.GetRobot.ID, api.ListRobotRoles.ID, api.GetFederation.ID} {
		logIn("acme+ci", made(ann, operation, acmeRobot, url.Values{"do": {"rotate"}}))
	}
	made(ann, api.ListDeliveries.ID, acmeHooks, url.Values{"do": {"create"}, "url": {"https://hooks.example.com/"}, "event": {"push"}})
	logIn("eve", made(root, api.ListUsers.ID, "/ui/users", url.Values{"do": {"create"}, "name": {"eve"}}))
	logIn("eve", made(root, api.ListUsers.ID, "/ui/users", url.Values{"do": {"reset"}, "name": {"eve"}}))
	for _, operation := range []string{api.GetOwnUser.ID, api.ListTokens.ID, api.ListSessions.ID} {
		logIn("ann", made(ann, operation, "/ui/account", url.Values{"do": {"token"}, "title": {"laptop"}}))
	}
	// Without a secret there is nothing to show.
	broken.Store(api.ListUsers.ID)
	root.post(t, 500, "/ui/users", url.Values{"do": {"disable"}, "name": {"eve"}})
}

package ui_test

import (
	"fmt"
	"net/url"
	"slices"
	"testing"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/protection"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// TestSaveRobotAsShown: a page that was opened before somebody else limited the robot saves the description,
// and takes no limit away. A form that comes back still knows what its page had shown.
func TestSaveRobotAsShown(t *testing.T) {
	t.Parallel()
	s := closed(t)
	ann := s.as("ann")
	ann.Manage(t, "PUT", "/organization/acme/robots/ci", `{"description": "builds"}`).WantStatus(t, 201)
	robot := func(description, repositories, actions string) {
		t.Helper()
		var v api.RobotView
		ann.Manage(t, "GET", "/organization/acme/robots/ci", "").Into(t, 200, &v)
		if got, want := fmt.Sprintf("%q %q %q", v.Description, v.Repositories, v.Actions), fmt.Sprintf("%q %s %s", description, repositories, actions); got != want {
			t.Errorf("the robot is %s, want %s", got, want)
		}
	}
	opened := func() url.Values {
		return merge(formAfter(t, ann.open(t, acmeRobot), "Change the description and the limits"), "do", "save")
	}
	stale, limits := opened(), opened()
	limits.Set("repositories", "acme/app")
	limits["action"] = []string{"pull"}
	ann.send(t, acmeRobot, limits, "The robot was saved", "pull; acme/app")
	refused := ann.post(t, 400, acmeRobot, merge(stale, "description", "builds the app", "no-actions", "true", "action", "push"), "leave one of them out")
	again := formAfter(t, string(refused.Content), "Change the description and the limits")
	again.Del("action")
	again.Del("no-actions")
	ann.send(t, acmeRobot, merge(again, "do", "save"), "The robot was saved", "builds the app", "pull; acme/app")
	robot("builds the app", `["acme/app"]`, `["pull"]`)

	stale = opened()
	ann.Manage(t, "PATCH", "/organization/acme/robots/ci", `{"description": "leaked", "actions": []}`).WantStatus(t, 200)
	ann.send(t, acmeRobot, merge(stale, "repositories", "acme/tools"), "The robot was saved")
	robot("leaked", `["acme/tools"]`, `[]`)
	ann.send(t, acmeRobot, opened(), "Nothing was changed")
	ann.post(t, 400, acmeRobot, url.Values{"do": {"save"}, "description": {"x"}}, "had shown")
	robot("leaked", `["acme/tools"]`, `[]`)
}

// TestSaveTeamAsShown: creating a team changes none that exists, and saving a role neither brings back an old
// one nor a team that was deleted.
func TestSaveTeamAsShown(t *testing.T) {
	t.Parallel()
	s := closed(t)
	ann := s.as("ann")
	const teams = "/ui/namespaces/acme/-/teams"
	ann.send(t, teams, url.Values{"do": {"create"}, "team": {"devs"}, "role": {"creator"}, "description": {"ours"}}, "was created")
	ann.send(t, teams, url.Values{"do": {"create"}, "team": {"devs"}, "role": {"admin"}, "description": {"theirs"}}, `id="wrong-create-team"`, "exists already", `value="theirs"`)
	team := func(role, description string) {
		t.Helper()
		var list api.TeamList
		ann.Manage(t, "GET", "/organization/acme/team", "").Into(t, 200, &list)
		if len(list.Teams) != 1 || list.Teams[0].Role != role || list.Teams[0].Description != description {
			t.Errorf("the teams are %+v, want one with the role %s", list.Teams, role)
		}
	}
	team("creator", "ours")
	stale := merge(formAfter(t, ann.open(t, teams), "Add to devs</button></form>"), "do", "save")
	ann.Manage(t, "PUT", "/organization/acme/team/devs", `{"role": "member"}`).WantStatus(t, 200)
	ann.send(t, teams, stale, "Nothing was changed")
	team("member", "ours")
	ann.send(t, teams, merge(stale, "role", "reader"), "was saved")
	team("reader", "ours")
	ann.Manage(t, "DELETE", "/organization/acme/team/devs", "").WantStatus(t, 204)
	ann.send(t, teams, merge(stale, "role", "admin"), `role="alert"`, "has no teams")
}

// TestSaveSettingsAsShown: the forms of the settings save what differs from what the page had shown.
func TestSaveSettingsAsShown(t *testing.T) {
	t.Parallel()
	s := closed(t)
	root := s.as("root")
	const namespace, repository = "/ui/namespaces/acme/-/settings", "/ui/repositories/acme/app/-/settings"
	opened := func(path, heading, do string) url.Values {
		t.Helper()
		return merge(formAfter(t, root.open(t, path), heading), "do", do)
	}
	root.Manage(t, "POST", "/organization/acme/quota", `{"limit_bytes": 1000000000, "limit_tags": 50, "limits": [{"type": "Warning", "threshold_percent": 80}, {"type": "Reject", "threshold_percent": 100}]}`).WantStatus(t, 201)
	quota := func() (q api.QuotaView) {
		t.Helper()
		var list []api.QuotaView
		root.Manage(t, "GET", "/organization/acme/quota", "").Into(t, 200, &list)
		return list[0]
	}
	stale := opened(namespace, "<h2>Quota</h2>", "quota")
	root.Manage(t, "PUT", fmt.Sprint("/organization/acme/quota/", quota().ID), `{"limit_bytes": 5000, "limits": [{"type": "Warning", "threshold_percent": 80}, {"type": "Reject", "threshold_percent": 60}]}`).WantStatus(t, 200)
	root.post(t, 400, namespace, merge(stale, "tags", "many"), `id="wrong-quota-tags"`, `name="was_bytes" value="1 GB"`)
	root.send(t, namespace, merge(stale, "tags", "20", "Warning", "70"), "Saved.")
	steps := func(v api.QuotaView) (list []string) {
		for _, l := range v.Limits {
			list = append(list, fmt.Sprint(l.Type, l.Percent))
		}
		slices.Sort(list)
		return list
	}
	if q := quota(); *q.LimitBytes != 5000 || *q.LimitTags != 20 || fmt.Sprint(steps(q)) != "[Reject60 Warning70]" {
		t.Errorf("the quota is %d bytes, %d tags, %v", *q.LimitBytes, *q.LimitTags, steps(q))
	}
	root.send(t, namespace, opened(namespace, "<h2>Quota</h2>", "quota"), "Nothing was changed")

	stale = opened(namespace, "<h2>Labels of images</h2>", "labels")
	root.send(t, namespace, merge(opened(namespace, "<h2>Labels of images</h2>", "labels"), "immutable", "true"), "Saved.")
	root.send(t, namespace, merge(stale, "expires_after", "true"), "Saved.")
	var labels protection.TagLabels
	root.Manage(t, "GET", "/organization/acme/taglabels", "").Into(t, 200, &labels)
	if labels != (protection.TagLabels{Expiry: true, Immutable: true}) {
		t.Errorf("the labels are %+v", labels)
	}

	stale = opened(repository, "<h2>Who may pull</h2>", "visibility")
	root.Manage(t, "POST", "/repository/acme%2Fapp/changevisibility", `{"visibility": "public"}`).WantStatus(t, 200)
	root.send(t, repository, stale, "Nothing was changed", `value="public" selected`)

	stale = opened(namespace, ">ann</th>", "role")
	role := func(want auth.Role) {
		t.Helper()
		if got, err := s.Auth.RoleIn(t.Context(), "ann", auth.OfNamespace("acme")); err != nil || got != want {
			t.Errorf("ann has the role %v, %v; want %v", got, err, want)
		}
	}
	s.Grant(t, "acme", "ann", auth.Reader)
	root.send(t, namespace, stale, "Nothing was changed")
	role(auth.Reader)
	root.post(t, 409, namespace, merge(stale, "role", "write"), "Somebody else has changed this role")
	role(auth.Reader)
	root.Manage(t, "DELETE", "/organization/acme/permissions/user/ann", "").WantStatus(t, 204)
	root.post(t, 404, namespace, merge(stale, "was_role", "read"), `role="alert"`)
	role(auth.NoRole)
	s.Do(t, "POST", namespace, "do=role&name=ann&role=admin", append(servertest.As("root"), "Content-Type", "application/x-www-form-urlencoded", "Sec-Fetch-Site", "same-origin")...).WantStatus(t, 400)
	role(auth.NoRole)
}

// TestTokenFormKeepsTicks: a form that says two things at once comes back with both.
func TestTokenFormKeepsTicks(t *testing.T) {
	t.Parallel()
	ann := closed(t).as("ann")
	form := url.Values{"do": {"token"}, "title": {"laptop"}, "repositories": {"acme/app"}, "no-repositories": {"true"}, "action": {"pull"}, "no-actions": {"true"}}
	ann.send(t, "/ui/account", form, `role="alert"`, "leave one of them out", `name="repositories" value="acme/app"`, `name="no-repositories" value="true" checked`,
		`name="action" value="pull" checked`, `name="no-actions" value="true" checked`)
	form.Del("do")
	ann.post(t, 400, "/ui/namespaces/acme/-/robots", merge(form, "do", "create", "robot", "ci"), `name="no-repositories" value="true" checked`, `name="repositories" value="acme/app"`, `name="no-actions" value="true" checked`)
}

package management_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// clients are accounts of a registry with access control. They send requests with their
// passwords.
type clients struct {
	*registry
	root, maintainer, writer, reader, stranger, nobody *registry
}

// restricted starts a registry with access control and auto-pruning, an administrator, and accounts
// with roles in the namespace acme, which has the repository acme/team/app.
func restricted(t *testing.T, change ...func(*auth.Options)) clients {
	t.Helper()
	access := &auth.Options{AnonymousPull: true}
	for _, f := range change {
		f(access)
	}
	r := onDatabase(t, func(o *servertest.Options, d *db.DB) {
		var err error
		if o.Management.Autoprune, err = autoprune.New(autoprune.Options{DB: d, Catalog: o.Catalog, Log: o.Log}); err != nil {
			t.Fatal(err)
		}
		o.Access = access
	})
	as := func(name string) *registry { return &registry{r.With(servertest.As(name))} }
	r.AddAccount(t, "root", true)
	c := clients{r, as("root"), as("maintainer"), as("writer"), as("reader"), as("stranger"), r}
	c.root.Put(t, "acme/team/app", "v1", c.root.Simple(t, "acme/team/app", 1, nil))
	for name, role := range map[string]auth.Role{"maintainer": auth.Maintainer, "writer": auth.Writer, "reader": auth.Reader, "stranger": auth.NoRole} {
		r.AddAccount(t, name, false)
		if role != auth.NoRole {
			r.Grant(t, "acme", name, role)
		}
	}
	return c
}

// sameRefusal checks that two answers are the same error, apart from the words that differ in
// their requests.
func sameRefusal(t *testing.T, a, b answer, words ...string) {
	t.Helper()
	one, two := strings.NewReplacer(words...).Replace(string(a.Content)), string(b.Content)
	if a.StatusCode != b.StatusCode || a.StatusCode < 400 || one != two {
		t.Errorf("%s: %d %s, but %s: %d %s", a.Request.URL, a.StatusCode, a.Content, b.Request.URL, b.StatusCode, b.Content)
	}
}

// TestRunsOfNamespace: maintainers of a namespace see and undo its runs of auto-pruning. For
// others, such a run is like one that doesn't exist, and only administrators of the registry
// see the runs of all namespaces.
func TestRunsOfNamespace(t *testing.T) {
	t.Parallel()
	c := restricted(t)
	run, none := uuid.NewString(), uuid.NewString()
	_, err := c.DB.Pool.Exec(t.Context(), `
		INSERT INTO autopruneruns (id, namespace_id, namespace, state, started_at, ended_at)
		SELECT $1, id, name, 'success', now(), now() FROM top_level_namespaces WHERE name = 'acme'`, run)
	if err != nil {
		t.Fatal(err)
	}
	for _, who := range []*registry{c.root, c.maintainer} {
		var list struct{ Runs []struct{ ID string } }
		who.Manage(t, "GET", "/autoprune/runs?namespace=acme", "").Into(t, 200, &list)
		if len(list.Runs) != 1 || list.Runs[0].ID != run {
			t.Errorf("%+v", list)
		}
		who.Manage(t, "GET", "/autoprune/runs/"+run, "").WantStatus(t, 200)
		who.Manage(t, "POST", "/autoprune/runs/"+run+"/undo", "").WantStatus(t, 200)
	}
	c.root.Manage(t, "GET", "/autoprune/runs", "").WantStatus(t, 200)
	for _, who := range []*registry{c.writer, c.stranger} {
		who.Manage(t, "GET", "/autoprune/runs", "").WantStatus(t, 403)
		sameRefusal(t, who.Manage(t, "GET", "/autoprune/runs?namespace=acme", ""), who.Manage(t, "GET", "/autoprune/runs?namespace=none", ""), "acme", "none")
		sameRefusal(t, who.Manage(t, "GET", "/autoprune/runs/"+run, ""), who.Manage(t, "GET", "/autoprune/runs/"+none, ""), run, none)
		sameRefusal(t, who.Manage(t, "POST", "/autoprune/runs/"+run+"/undo", ""), who.Manage(t, "POST", "/autoprune/runs/"+none+"/undo", ""), run, none)
		who.Manage(t, "GET", "/autoprune/runs/"+run, "").Refused(t, 404, "not_found", run)
	}
	c.maintainer.Manage(t, "GET", "/autoprune/runs", "").WantStatus(t, 403)
	c.nobody.Manage(t, "GET", "/autoprune/runs/"+run, "").WantStatus(t, 401)
}

// TestCreateInRestricted: only administrators of the registry create namespaces, and only
// writers create repositories.
func TestCreateInRestricted(t *testing.T) {
	t.Parallel()
	c := restricted(t)
	c.maintainer.Manage(t, "POST", "/organization/", `{"name":"zoo"}`).WantStatus(t, 403)
	c.nobody.Manage(t, "POST", "/organization/", `{"name":"zoo"}`).WantStatus(t, 401)
	c.root.Manage(t, "POST", "/organization/", `{"name":"zoo"}`).WantStatus(t, 201)
	const fresh, old = `{"repository":"acme/new"}`, `{"repository":"acme/team/app"}`
	for _, who := range []*registry{c.reader, c.stranger} {
		sameRefusal(t, who.Manage(t, "POST", "/repository", old), who.Manage(t, "POST", "/repository", fresh), "acme/team/app", "acme/new")
		who.Manage(t, "POST", "/repository", fresh).WantStatus(t, 403)
	}
	c.nobody.Manage(t, "POST", "/repository", fresh).WantStatus(t, 401)
	c.writer.Manage(t, "POST", "/repository", fresh).WantStatus(t, 201)
	c.writer.Manage(t, "POST", "/repository", `{"repository":"else/new"}`).WantStatus(t, 403)
	pusher := c.robot(t, "pusher", auth.Limits{Actions: []auth.Action{auth.ActionPush}})
	pusher.Manage(t, "POST", "/repository", `{"repository":"acme/pushed"}`).WantStatus(t, 201)
}

// robot creates a robot of the namespace acme with the role of a maintainer and the limits, and
// returns the registry as the robot uses it.
func (c clients) robot(t *testing.T, name string, l auth.Limits) *registry {
	t.Helper()
	a, secret, err := c.Auth.CreateRobot(t.Context(), "acme", name, "", l, nil)
	if err != nil {
		t.Fatal(err)
	}
	c.Grant(t, "acme", a.Name, auth.Maintainer)
	return &registry{c.With(servertest.Basic(a.Name, secret))}
}

// TestPushWithoutOverwriting: a robot may push but not move tags. It may create tags, and push
// again what a tag points to already; nothing that it sends moves a tag or deletes one.
func TestPushWithoutOverwriting(t *testing.T) {
	t.Parallel()
	c := restricted(t)
	robot := c.robot(t, "ci", auth.Limits{Actions: []auth.Action{auth.ActionPull, auth.ActionPush, auth.ActionMaintain}})
	const path = "acme/team/app"
	one := robot.Simple(t, path, 1, nil)
	two := robot.Simple(t, path, 2, nil)
	robot.Put(t, path, "v2", two)
	robot.Put(t, path, "v2", two)
	robot.Put(t, path, "v1", one) // as restricted did
	contentType := []string{"Content-Type", oci.MediaTypeImageManifest}
	robot.Do(t, "PUT", "/v2/"+path+"/manifests/v1", two, contentType...).Want(t, 403, oci.Denied)
	robot.Do(t, "PUT", "/v2/"+path+"/manifests/v1", robot.Simple(t, path, 3, nil), contentType...).Want(t, 403, oci.Denied)
	robot.Do(t, "PUT", "/v2/"+path+"/manifests/"+digest(two).String()+"?tag=v1&tag=v3", two, contentType...).Want(t, 403, oci.Denied)
	robot.Do(t, "GET", "/v2/"+path+"/manifests/v3", "").Want(t, 404, oci.ManifestUnknown)
	move := fmt.Sprintf(`{"manifest_digest":%q}`, digest(two))
	robot.Manage(t, "PUT", "/repository/"+path+"/tag/v1", move).Refused(t, 403, "insufficient_scope", "may not move tags")
	robot.Manage(t, "PUT", "/repository/"+path+"/tag/v2", `{"expiration":4102444800}`).Refused(t, 403, "insufficient_scope", "overwrite")
	robot.Manage(t, "POST", "/repository/"+path+"/tag/v1/restore", move).Refused(t, 403, "insufficient_scope", "may not move tags")
	robot.Do(t, "GET", "/v2/"+path+"/manifests/v1", "").Want(t, 200, "", "Docker-Content-Digest", digest(one).String())
	for _, made := range []string{"/tag/v4", "/tag/v4"} {
		robot.Manage(t, "PUT", "/repository/"+path+made, move).WantStatus(t, 201)
	}
	robot.Manage(t, "POST", "/repository/"+path+"/tag/v5/restore", move).WantStatus(t, 200)
	token := robot.Token(t, nil, "repository:"+path+":pull,push")
	robot.Do(t, "PUT", "/v2/"+path+"/manifests/v1", two, append(contentType, servertest.Bearer(token)...)...).Want(t, 403, oci.Denied)
	c.writer.Do(t, "PUT", "/v2/"+path+"/manifests/v1", two, contentType...).Want(t, 201, "")
}

// TestNamesTellNothing: a client that may not read a repository sends requests about it, and
// about one that doesn't exist. Both answers must be the same, whatever the operation.
func TestNamesTellNothing(t *testing.T) {
	t.Parallel()
	c := restricted(t)
	for _, who := range []*registry{c.stranger, c.nobody} {
		for _, request := range []string{
			"GET /repository/NAME", "DELETE /repository/NAME", "PATCH /repository/NAME", "GET /repository/NAME/tag", "GET /repository/NAME/tag/v1",
			"PATCH /repository/NAME/tag/v1", "POST /repository/NAME/changevisibility", "GET /repository/NAME/logs", "GET /repository/NAME/autoprunepolicy",
			"DELETE /user/starred/NAME", "GET /repository/NAME/tagprotection",
		} {
			method, path, _ := strings.Cut(request, " ")
			for _, slash := range []string{"/", "%2F"} {
				have, lack := strings.ReplaceAll("acme/team/app", "/", slash), strings.ReplaceAll("acme/team/off", "/", slash)
				sameRefusal(t, who.Manage(t, method, strings.Replace(path, "NAME", have, 1), ""),
					who.Manage(t, method, strings.Replace(path, "NAME", lack, 1), ""), "acme/team/app", "acme/team/off", "acme%2Fteam%2Fapp", "acme%2Fteam%2Foff")
			}
		}
		sameRefusal(t, who.Manage(t, "POST", "/user/starred", `{"namespace":"acme","repository":"team/app"}`),
			who.Manage(t, "POST", "/user/starred", `{"namespace":"acme","repository":"team/off"}`), "acme/team/app", "acme/team/off")
	}
}

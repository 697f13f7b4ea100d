package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/db/dbtest"
)

// TestTrash deletes a repository and a namespace, restores them by the command line, and purges
// them. In the trash they look as if they had never been; garbage collection leaves their content
// alone; afterwards nothing is left of them.
func TestTrash(t *testing.T) {
	beginOwn(t)
	e, shared := newEstate(t, dbtest.EmptyDSN(t), "PURSER_TRASH_KEEP=24h"), newImage(t, 2, 4<<10)
	app, web, other := e.fill("acme/app", shared), e.fill("acme/web", shared), e.fill("other/app", shared)
	cli := func(args ...string) string {
		t.Helper()
		code, out := purser(t, []string{"PURSER_SERVER=" + e.r.URL()}, args...)
		if code != 0 {
			t.Fatalf("purser %q: exit code %d\n%s", args, code, out)
		}
		return out
	}
	var trash []struct{ ID, Name string }
	inTrash := func() {
		t.Helper()
		trash = nil
		if err := json.Unmarshal([]byte(cli("trash", "list", "--output", "json")), &trash); err != nil {
			t.Fatal(err)
		}
	}
	e.r.manage("POST", "/repository/acme/app/autoprunepolicy/", map[string]any{"method": "number_of_tags", "value": 100}, nil, http.StatusCreated)
	cli("repo", "delete", "--yes", "acme/app")
	e.gone(app, "acme/web")
	cli("namespace", "delete", "--yes", "other")
	e.gone(other, "acme/web")
	e.r.collect(false)
	e.whole(web)
	if inTrash(); len(trash) != 2 || trash[0].Name != "other" || trash[1].Name != "acme/app" {
		t.Fatalf("in the trash: %+v", trash)
	}
	for _, item := range trash {
		cli("trash", "restore", item.ID)
	}
	e.whole(app, web, other)
	var policies struct{ Policies []any }
	e.r.manage("GET", "/repository/acme/app/autoprunepolicy/", nil, &policies, http.StatusOK)
	if len(policies.Policies) != 1 {
		t.Errorf("policies of the restored repository: %v", policies)
	}
	cli("repo", "delete", "--yes", "acme/app")
	cli("namespace", "delete", "--yes", "other")
	again := e.again(app)
	inTrash()
	for _, item := range trash {
		if out := cli("trash", "show", item.ID); strings.Contains(out, "in use") != (item.Name == "acme/app") {
			t.Errorf("%s: %s", item.Name, out)
		}
		cli("trash", "purge", "--yes", item.ID)
	}
	e.gone(other, "acme/web")
	e.atRest(again, web)
	cli("repo", "delete", "--yes", "--purge", "acme/web")
	if inTrash(); len(trash) != 0 {
		t.Errorf("in the trash: %+v", trash)
	}
	e.atRest(again)
}

// TestTrashRobot: the robot of a deleted namespace can't log in, and a new namespace of the name
// gives it nothing. After the restoration it has its secret and its role again.
func TestTrashRobot(t *testing.T) {
	r, secret := startClosed(t)
	robot := func() *api {
		return &api{base: r.URL(), client: &http.Client{Transport: authorized{basic("acme+ci", secret)}}}
	}
	refused := func() error {
		if _, err := robot().listTags(t.Context(), "acme/app"); !isStatus(err, http.StatusUnauthorized) {
			return fmt.Errorf("%w, want 401", err)
		}
		return nil
	}
	if _, err := robot().pushImage(t.Context(), "acme/app", "v1", []byte("one")); err != nil {
		t.Fatal(err)
	}
	r.administer(t, "DELETE", "/organization/acme", "", http.StatusNoContent)
	eventually(t, 20*time.Second, refused)
	r.administer(t, "POST", "/organization", `{"name":"acme"}`, http.StatusCreated)
	if err := refused(); err != nil {
		t.Error(err)
	}
	r.administer(t, "DELETE", "/organization/acme?purge=true", "", http.StatusNoContent)
	var list struct{ Items []struct{ ID string } }
	if err := json.Unmarshal(r.administer(t, "GET", "/trash", "", http.StatusOK), &list); err != nil || len(list.Items) != 1 {
		t.Fatalf("%v: %+v", err, list)
	}
	r.administer(t, "POST", "/trash/"+list.Items[0].ID+"/restore", "{}", http.StatusOK)
	eventually(t, 20*time.Second, func() error {
		_, err := robot().pushImage(t.Context(), "acme/app", "v2", []byte("two"))
		return err
	})
	if tags, err := robot().listTags(t.Context(), "acme/app"); err != nil || len(tags) != 2 {
		t.Errorf("tags %v, %v", tags, err)
	}
}

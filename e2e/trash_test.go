package e2e

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

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

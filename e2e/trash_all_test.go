//go:build all

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"
)

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

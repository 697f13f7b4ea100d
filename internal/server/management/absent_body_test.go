package management_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// refusedAnyway has the operations that refuse this test's request whatever its body is, with a word of
// the refusal: it shows that the missing body isn't the reason.
var refusedAnyway = map[string]string{
	"rebindInstallUser":       "directory", // the account is a local one
	"createOrganizationQuota": "exists already",
	"startLooseKeysRun":       "this process runs no loose foreign keys",
}

// TestBodiesMayBeLeftOut sends a request without a body to each operation that has one, in a registry
// that has what the path names. The OpenAPI document must say of each body that it is required if
// and only if the operation refuses its absence, whether or not the request has a Content-Type.
// Where the absence isn't the same as the body {}, the body of the document's example must do.
func TestBodiesMayBeLeftOut(t *testing.T) {
	t.Parallel()
	r, values := filled(t)
	trash := r.fillPaths(t, values)
	var d struct {
		Paths map[string]map[string]struct {
			OperationID string
			RequestBody *struct {
				Required bool
				Content  map[string]struct{ Example json.RawMessage }
			}
		}
	}
	r.Manage(t, "GET", "/openapi.json", "").Into(t, 200, &d)
	required, left := 0, 0
	for path, operations := range d.Paths {
		for method, o := range operations {
			if o.RequestBody == nil {
				continue
			}
			method = strings.ToUpper(method)
			if o.RequestBody.Required {
				required++
			} else {
				left++
			}
			for i, headers := range [][]string{nil, {"Content-Type", "application/json"}} {
				values["trash_id"] = trash[i]
				at := pathWith(path, values)
				a, err := r.Try(t.Context(), method, at, http.NoBody, headers...)
				if err != nil {
					t.Fatal(err)
				}
				text, refused := refusedAnyway[o.OperationID]
				switch {
				case o.RequestBody.Required && a.StatusCode != 400 && (a.StatusCode != 415 || len(o.RequestBody.Content) == 1),
					!o.RequestBody.Required && !refused && a.StatusCode >= 300 && a.StatusCode != http.StatusConflict,
					refused && (a.StatusCode < 400 || !strings.Contains(string(a.Content), text)):
					t.Errorf("%s (%s %s) without a body, with the headers %q: %d %s; the document says required: %v",
						o.OperationID, method, at, headers, a.StatusCode, a.Content, o.RequestBody.Required)
				}
			}
			example := o.RequestBody.Content["application/json"].Example
			if example == nil {
				continue
			}
			if !o.RequestBody.Required {
				t.Errorf("%s: the example %s is of a body that may be left out", o.OperationID, example)
			}
			at := pathWith(path, values)
			a := r.Do(t, method, at, string(example), "Content-Type", "application/json")
			if a.StatusCode >= 300 && a.StatusCode != http.StatusConflict {
				t.Errorf("%s (%s %s) with the example %s: %d %s", o.OperationID, method, at, example, a.StatusCode, a.Content)
			}
		}
	}
	if required < 30 || left < 16 {
		t.Errorf("only %d bodies are required, and only %d may be left out", required, left)
	}
}

// pathWith returns a path of the document with values in place of its variables. The robots of the
// client's own namespace have other names than those of acme.
func pathWith(path string, values map[string]string) string {
	for name, value := range values {
		if name == "robot_shortname" && strings.HasPrefix(path, "/api/v1/user/") {
			value = "x"
		}
		path = strings.ReplaceAll(path, "{"+name+"}", url.PathEscape(value))
	}
	return path
}

// fillPaths adds the values of variables in the paths of operations with a body, for the registry
// of filled. It returns the ids of two deleted repositories, for the variable trash_id.
func (r *registry) fillPaths(t *testing.T, values map[string]string) (trash []string) {
	t.Helper()
	values["tag"], values["username"], values["membername"] = "v1", "alice", "alice"
	values["policy_uuid"] = "0b0e2d2e-0000-4000-8000-000000000000" // bodies of these paths are required
	var deleted struct{ Items []struct{ ID string } }
	r.Manage(t, "GET", "/trash", "").Into(t, 200, &deleted)
	for _, item := range deleted.Items {
		trash = append(trash, item.ID)
	}
	var quotas []struct{ ID int64 }
	r.Manage(t, "GET", "/organization/acme/quota", "").Into(t, 200, &quotas)
	if len(quotas) != 1 || len(trash) != 2 {
		t.Fatalf("quotas %v, trash %q", quotas, trash)
	}
	values["quota_id"], values["limit_id"] = fmt.Sprint(quotas[0].ID), "1"
	return trash
}

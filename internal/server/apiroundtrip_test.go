package server_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
)

// TestAPIPutsBackWhatWasRead sends each resource back as it was read: as an update, and
// as a new resource after it was deleted. Read-only members are ignored.
func TestAPIPutsBackWhatWasRead(t *testing.T) {
	t.Parallel()
	r, _ := pruning(t)
	r.put(t, "app/a", "v1", r.simple(t, "app/a", 1, nil))
	for _, base := range []string{"/organization/app/autoprunepolicy", "/repository/app/a/autoprunepolicy", "/autoprunepolicy"} {
		for _, policy := range []string{
			`{"method": "number_of_tags", "value": 10, "tagPattern": "v", "tagPatternMatches": false}`,
			`{"method": "creation_date", "olderThan": "2w", "removeOrphans": true}`,
			`{"method": "last_pulled", "olderThan": "90d"}`,
		} {
			var made, again struct{ UUID string }
			r.manage(t, "POST", base, policy).into(t, 201, &made)
			told := r.manage(t, "GET", base+"/"+made.UUID, "")
			r.manage(t, "PUT", base+"/"+made.UUID, string(told.body)).wantStatus(t, 204)
			if strings.HasPrefix(base, "/organization") {
				r.manage(t, "POST", base+"/preview", string(told.body)).wantStatus(t, 200)
			}
			withoutUUID := edited(t, told.body, func(m object) { delete(m, "uuid"); m["created_at"] = "another time" })
			r.manage(t, "PUT", base+"/"+made.UUID, withoutUUID).wantStatus(t, 204)
			other := edited(t, told.body, func(m object) { m["uuid"] = "other" })
			r.manage(t, "PUT", base+"/"+made.UUID, other).refused(t, 400, "invalid_request", "^uuid: ")
			misspelt := edited(t, told.body, func(m object) { m["createdAt"] = "x" })
			r.manage(t, "PUT", base+"/"+made.UUID, misspelt).refused(t, 400, "invalid_request", "^createdAt: ")
			r.manage(t, "DELETE", base+"/"+made.UUID, "").wantStatus(t, 200)
			r.manage(t, "POST", base, string(told.body)).into(t, 201, &again)
			if again.UUID == made.UUID {
				t.Errorf("%s: the new policy has the identifier that the body names", base)
			}
			r.sameBut(t, base+"/"+again.UUID, told, "uuid", "created_at", "updated_at")
		}
	}

	var rules struct{ Rules []json.RawMessage }
	for _, base := range []string{"/organization/app/tagprotection", "/repository/app/a/tagprotection", "/tagprotection"} {
		var made struct{ UUID string }
		r.manage(t, "POST", base, `{"pattern": "w"}`).into(t, 201, &made)
		r.manage(t, "GET", base, "").into(t, 200, &rules)
		r.manage(t, "DELETE", base+"/"+made.UUID, "").wantStatus(t, 204)
		r.manage(t, "POST", base, string(rules.Rules[0])).into(t, 201, &made)
		r.manage(t, "DELETE", base+"/"+made.UUID, "").wantStatus(t, 204)
	}

	state := r.manage(t, "GET", "/organization/app/autoprune", "")
	r.manage(t, "PUT", "/organization/app/autoprune", string(state.body)).wantStatus(t, 204)
	tag := r.manage(t, "GET", "/repository/app/a/tag/v1", "")
	r.manage(t, "PUT", "/repository/app/a/tag/v1", string(tag.body)).wantStatus(t, 201)
	r.manage(t, "POST", "/repository/app/a/tag/v1/restore", string(tag.body)).wantStatus(t, 200)

	repository := r.manage(t, "GET", "/repository/app/a", "")
	listed := struct{ Repositories []json.RawMessage }{}
	r.manage(t, "GET", "/repository?last_modified=true", "").into(t, 200, &listed)
	namespace := r.manage(t, "GET", "/organization/app", "")
	for _, body := range [][]byte{repository.body, listed.Repositories[0]} {
		r.manage(t, "DELETE", "/repository/app/a", "").wantStatus(t, 204)
		r.manage(t, "POST", "/repository", string(body)).wantStatus(t, 201)
		r.manage(t, "GET", "/repository/app/a", "").wantStatus(t, 200)
		r.manage(t, "GET", "/repository/app/app/a", "").wantStatus(t, 404)
	}
	r.manage(t, "POST", "/repository", `{"namespace": "app", "name": "b", "repository": "b"}`).refused(t, 400, "invalid_request", `^name: .*"app/b"`)
	r.manage(t, "DELETE", "/organization/app", "").wantStatus(t, 204)
	r.manage(t, "POST", "/organization", string(namespace.body)).wantStatus(t, 201)
}

// edited is a body with a change.
func edited(t testing.TB, body []byte, change func(object)) string {
	t.Helper()
	var m object
	if err := json.Unmarshal(body, &m); err != nil {
		t.Fatal(err)
	}
	change(m)
	return encode(t, m)
}

// sameBut checks that a resource is unchanged, except for some members.
func (r *registry) sameBut(t testing.TB, path string, told answer, members ...string) {
	t.Helper()
	drop := func(m object) {
		for _, name := range members {
			delete(m, name)
		}
	}
	now := edited(t, r.manage(t, "GET", path, "").body, drop)
	if before := edited(t, told.body, drop); now != before {
		t.Errorf("%s is %s, and was %s", path, now, before)
	}
}

// TestAPIReadOnlyMembers: every resource that can be read and replaced under the same
// path accepts all members of its answer.
func TestAPIReadOnlyMembers(t *testing.T) {
	t.Parallel()
	r := whole(t)
	type operation struct {
		RequestBody struct {
			Content map[string]struct{ Schema schema }
		}
		Responses map[string]struct {
			Content map[string]struct{ Schema schema }
		}
	}
	var d struct {
		Paths      map[string]map[string]operation
		Components struct{ Schemas map[string]*schema }
	}
	r.manage(t, "GET", "/openapi.json", "").into(t, 200, &d)
	members := func(s schema) []string {
		if name, found := strings.CutPrefix(s.Ref, "#/components/schemas/"); found {
			s = *d.Components.Schemas[name]
		}
		return slices.Sorted(maps.Keys(s.Properties))
	}
	n := 0
	for path, methods := range d.Paths {
		if _, ok := methods["put"]; !ok {
			continue
		}
		n++
		takes := members(methods["put"].RequestBody.Content["application/json"].Schema)
		for _, name := range members(methods["get"].Responses["200"].Content["application/json"].Schema) {
			if !slices.Contains(takes, name) {
				t.Errorf("PUT %s doesn't take %s, which GET tells", path, name)
			}
		}
	}
	if n < 5 {
		t.Errorf("%d resources were looked at", n)
	}
}

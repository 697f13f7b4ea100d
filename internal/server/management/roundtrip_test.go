package management_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
)

// TestAPIPutsBackWhatWasRead: a client reads a resource and sends the same body back, first to
// update the resource, and then to create it again after deleting it. The API must accept the
// body and ignore the read-only members.
func TestAPIPutsBackWhatWasRead(t *testing.T) {
	t.Parallel()
	r, _ := pruning(t)
	r.Put(t, "app/a", "v1", r.Simple(t, "app/a", 1, nil))
	for _, base := range []string{"/organization/app/autoprunepolicy", "/repository/app/a/autoprunepolicy", "/autoprunepolicy"} {
		for _, policy := range []string{
			`{"method": "number_of_tags", "value": 10, "tagPattern": "v", "tagPatternMatches": false}`,
			`{"method": "number_of_tags", "value": 10, "groupBy": "^(.+)-[0-9]+$", "countImages": true, "keep": [{"newest": 3, "countImages": true}]}`,
			`{"method": "number_of_tags", "value": 10, "perPlatform": true, "keep": [{"newest": 3, "perPlatform": true}]}`,
			`{"method": "creation_date", "olderThan": "2w", "removeOrphans": true}`,
			`{"method": "last_pulled", "olderThan": "90d"}`,
			`{"method": "untagged", "olderThan": "30d", "labels": {"a": "b"}, "mode": "off"}`,
			`{"method": "max_bytes", "maxBytes": "50GiB", "tagPattern": "^pr-"}`,
			`{"method": "number_of_tags", "value": 10, "keep": [{"newest": 3, "groupBy": "^(v)"}, {"usedWithin": "30d"}, {"tagPattern": "^r"},
				{"versions": "newest_patches"}]}`,
			`{"method": "number_of_tags", "value": 11, "mediaTypes": ["*index*"], "artifactTypes": ["a/b"], "largerThan": "1GiB", "smallerThan": "5TB"}`,
			`{"method": "number_of_tags", "value": 15, "annotations": {"a": "b*"}, "labels": {"stage": "", "x/y": "*"}, "platforms": ["linux/arm/v7", "windows/*"]}`,
			`{"method": "number_of_tags", "value": 12, "mode": "off", "windows": [{"from": "22:00", "to": "06:00", "zone": "Europe/Berlin"}, {"days": ["sun"]}],
				"neverBelow": 5, "keepUntagged": "3w"}`,
			`{"method": "number_of_tags", "value": 13, "grace": "0s", "maxDeleted": 100}`,
			`{"method": "number_of_tags", "value": 14, "maxDeleted": 1000, "maxDeletedPercent": 20}`,
		} {
			confirm := ""
			if base == "/autoprunepolicy" { // which Quay hasn't
				confirm = "?confirm=all"
			}
			var made, again struct{ UUID string }
			r.Manage(t, "POST", base+confirm, policy).Into(t, 201, &made)
			told := r.Manage(t, "GET", base+"/"+made.UUID, "")
			r.Manage(t, "PUT", base+"/"+made.UUID, string(told.Content)).WantStatus(t, 204)
			if strings.HasPrefix(base, "/organization") {
				r.Manage(t, "POST", base+"/preview", string(told.Content)).WantStatus(t, 200)
			}
			withoutUUID := edited(t, told.Content, func(m object) { delete(m, "uuid"); m["created_at"] = "another time" })
			r.Manage(t, "PUT", base+"/"+made.UUID, withoutUUID).WantStatus(t, 204)
			other := edited(t, told.Content, func(m object) { m["uuid"] = "other" })
			r.Manage(t, "PUT", base+"/"+made.UUID, other).Refused(t, 400, "invalid_request", "^uuid: ")
			misspelt := edited(t, told.Content, func(m object) { m["createdAt"] = "x" })
			r.Manage(t, "PUT", base+"/"+made.UUID, misspelt).Refused(t, 400, "invalid_request", "^createdAt: ")
			r.Manage(t, "DELETE", base+"/"+made.UUID, "").WantStatus(t, 200)
			r.Manage(t, "POST", base+confirm, string(told.Content)).Into(t, 201, &again)
			if again.UUID == made.UUID {
				t.Errorf("%s: the new policy has the identifier that the body names", base)
			}
			r.sameBut(t, base+"/"+again.UUID, told, "uuid", "created_at", "updated_at")
		}
	}

	var rules struct{ Rules []json.RawMessage }
	for _, base := range []string{"/organization/app/tagprotection", "/repository/app/a/tagprotection", "/tagprotection"} {
		var made struct{ UUID string }
		r.Manage(t, "POST", base, `{"pattern": "w"}`).Into(t, 201, &made)
		r.Manage(t, "GET", base, "").Into(t, 200, &rules)
		r.Manage(t, "DELETE", base+"/"+made.UUID, "").WantStatus(t, 204)
		r.Manage(t, "POST", base, string(rules.Rules[0])).Into(t, 201, &made)
		r.Manage(t, "DELETE", base+"/"+made.UUID, "").WantStatus(t, 204)
	}

	state := r.Manage(t, "GET", "/organization/app/autoprune", "")
	r.Manage(t, "PUT", "/organization/app/autoprune", string(state.Content)).WantStatus(t, 204)
	tag := r.Manage(t, "GET", "/repository/app/a/tag/v1", "")
	r.Manage(t, "PUT", "/repository/app/a/tag/v1", string(tag.Content)).WantStatus(t, 201)
	r.Manage(t, "POST", "/repository/app/a/tag/v1/restore", string(tag.Content)).WantStatus(t, 200)

	repository := r.Manage(t, "GET", "/repository/app/a", "")
	listed := struct{ Repositories []json.RawMessage }{}
	r.Manage(t, "GET", "/repository?last_modified=true", "").Into(t, 200, &listed)
	namespace := r.Manage(t, "GET", "/organization/app", "")
	for _, body := range [][]byte{repository.Content, listed.Repositories[0]} {
		r.Manage(t, "DELETE", "/repository/app/a", "").WantStatus(t, 204)
		r.Manage(t, "POST", "/repository", string(body)).WantStatus(t, 201)
		r.Manage(t, "GET", "/repository/app/a", "").WantStatus(t, 200)
		r.Manage(t, "GET", "/repository/app/app/a", "").WantStatus(t, 404)
	}
	r.Manage(t, "POST", "/repository", `{"namespace": "app", "name": "b", "repository": "b"}`).Refused(t, 400, "invalid_request", `^repository: .*"app/b"`)
	r.Manage(t, "DELETE", "/organization/app", "").WantStatus(t, 204)
	r.Manage(t, "POST", "/organization", string(namespace.Content)).WantStatus(t, 201)
}

// edited decodes the JSON body, lets `change` change its members, and returns it encoded again.
func edited(t testing.TB, body []byte, change func(object)) string {
	t.Helper()
	var m object
	if err := json.Unmarshal(body, &m); err != nil {
		t.Fatal(err)
	}
	change(m)
	return encode(t, m)
}

// sameBut checks that a GET of `path` now returns the same JSON body as the earlier answer
// `told`, except for the given members.
func (r *registry) sameBut(t testing.TB, path string, told answer, members ...string) {
	t.Helper()
	drop := func(m object) {
		for _, name := range members {
			delete(m, name)
		}
	}
	now := edited(t, r.Manage(t, "GET", path, "").Content, drop)
	if before := edited(t, told.Content, drop); now != before {
		t.Errorf("%s is %s, and was %s", path, now, before)
	}
}

// TestAPIReadOnlyMembers: in the OpenAPI document, for each path that has both GET and PUT, the
// schema of the PUT's body must have all members that GET returns.
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
	r.Manage(t, "GET", "/openapi.json", "").Into(t, 200, &d)
	members := func(s schema) []string {
		if name, found := strings.CutPrefix(s.Ref, "#/components/schemas/"); found {
			s = *d.Components.Schemas[name]
		}
		return slices.Sorted(maps.Keys(s.Properties))
	}
	n := 0
	// A report isn't the reporter, and what GET tells of exceptions is a list.
	others := []string{"/api/v1/holds/{reporter}", "/api/v1/repository/{repository}/autoprune/exception"}
	for path, methods := range d.Paths {
		if _, ok := methods["put"]; !ok || slices.Contains(others, path) {
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

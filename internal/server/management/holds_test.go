package management_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/hold"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// TestHoldsAPI: a reporter sends a list, a stream and differences; what it holds isn't deleted
// by either API without override_holds.
func TestHoldsAPI(t *testing.T) {
	t.Parallel()
	r := setup(t)
	d := r.Put(t, "acme/app", "v1", r.Simple(t, "acme/app", 1, nil))
	r.Put(t, "acme/app", "v2", r.Simple(t, "acme/app", 1, nil))
	absent := oci.Compute(oci.SHA256, []byte("absent")).String()
	const path = "/holds/prod?namespace=acme"
	var done hold.Reported
	r.Manage(t, "PUT", path+"&lease=7d&kind=kubernetes", fmt.Sprintf(`{"digests":["%s",{"digest":"%s","used_by":"pod web"}]}`, absent, d)).Into(t, 200, &done)
	if done.Digests != 2 || done.Revision != 1 || done.Missing == nil || *done.Missing != 1 || done.MissingDigests[0].String() != absent {
		t.Errorf("%+v", done)
	}
	r.Manage(t, "DELETE", "/repository/acme/app/tag/v1", "").Refused(t, 409, "invalid_request", "held by prod \\(pod web\\)")
	r.Manage(t, "DELETE", "/repository/acme/app", "").Refused(t, 409, "invalid_request", "held by prod")
	r.Manage(t, "DELETE", "/organization/acme", "").Refused(t, 409, "invalid_request", "held by prod")
	for _, reference := range []string{"v1", d.String()} {
		if a := r.Do(t, "DELETE", "/v2/acme/app/manifests/"+reference, ""); a.StatusCode != 409 || !strings.Contains(string(a.Content), `"held_by"`) {
			t.Errorf("%s: %d %s", reference, a.StatusCode, a.Content)
		}
	}
	r.Do(t, "DELETE", "/v2/acme/app/manifests/v1?override_holds=yes", "").WantStatus(t, 400)
	r.Do(t, "DELETE", "/v2/acme/app/manifests/v1?override_holds=true", "").WantStatus(t, 202)
	var list struct{ Reporters []hold.Reporter }
	r.Manage(t, "GET", "/holds?namespace=acme", "").Into(t, 200, &list)
	if len(list.Reporters) != 1 || list.Reporters[0].Kind != "kubernetes" || list.Reporters[0].Lease != 7*24*3600 || list.Reporters[0].State != hold.Live {
		t.Errorf("%+v", list)
	}
	var digests struct {
		Digests  []hold.Held
		NextPage string `json:"next_page"`
	}
	r.Manage(t, "GET", "/holds/prod/digests?namespace=acme&limit=1", "").Into(t, 200, &digests)
	if len(digests.Digests) != 1 || digests.NextPage == "" {
		t.Errorf("%+v", digests)
	}
	r.Manage(t, "GET", "/holds/prod/digests?namespace=acme&limit=1&next_page="+digests.NextPage, "").Into(t, 200, &digests)
	var of struct{ Holds []hold.Holder }
	for _, query := range []string{"", "?digest=" + d.String()} {
		r.Manage(t, "GET", "/repository/acme/app/holds"+query, "").Into(t, 200, &of)
		if len(of.Holds) != 1 || of.Holds[0].Reporter != "prod" || of.Holds[0].Digest != d || of.Holds[0].UsedBy != "pod web" {
			t.Errorf("%s: %+v", query, of)
		}
	}
	done = hold.Reported{}
	r.Manage(t, "PUT", path, `{"base":1,"remove":["`+absent+`"]}`).Into(t, 200, &done)
	if done.Digests != 1 || done.Revision != 2 || *done.Missing != 0 {
		t.Errorf("%+v", done)
	}
	r.Manage(t, "PUT", path, `{"base":1,"add":["`+absent+`"]}`).Refused(t, 409, "invalid_request", "revision 2")
	ndjson := []string{"Content-Type", "application/x-ndjson"}
	done = hold.Reported{}
	r.Do(t, "PUT", "/api/v1"+path, fmt.Sprintf("\"%s\"\n\n{\"digest\":\"%s\",\"used_by\":\"pod api\"}\n", absent, d), ndjson...).Into(t, 200, &done)
	if done.Digests != 2 || done.Revision != 3 || done.Ending != 0 {
		t.Errorf("%+v", done)
	}
	for body, want := range map[string]string{
		"\"" + absent + "\"": "no newline", "x\n": "line 1", "\"sha256:1\"\n": "line 1", "{}\n": "digest is missing",
		"\"" + strings.Repeat("a", 5000) + "\"\n": "longer",
	} {
		r.Do(t, "PUT", "/api/v1"+path, body, ndjson...).Refused(t, 400, "invalid_request", want)
	}
	for body, want := range map[string]string{
		`{}`: "none of the members", `{"digests":[],"base":3}`: "difference", `[]`: "expected", `{"digests":["x"]}`: "item 1", `{"digest":[]}`: "digest",
		`{"digests":[]} x`: "after its end", `{"add":[],"add":[]}`: "twice", `{"digests":[`: "",
	} {
		r.Manage(t, "PUT", path, body).Refused(t, 400, "invalid_request", want)
	}
	r.Manage(t, "PUT", path+"&lease=1s", `{"digests":[]}`).Refused(t, 400, "invalid_request", "lease")
	r.Manage(t, "PUT", path+"&lease=soon", `{"digests":[]}`).Refused(t, 400, "invalid_request", "lease")
	r.Do(t, "PUT", "/api/v1"+path, "x", "Content-Type", "text/plain").Refused(t, 415, "invalid_request", "ndjson")
	var now hold.Reporter
	r.Manage(t, "GET", path, "").Into(t, 200, &now)
	if now.Revision != 3 || now.Digests != 2 {
		t.Errorf("after invalid reports: %+v", now)
	}
	r.Manage(t, "DELETE", path, "").WantStatus(t, 204)
	r.Manage(t, "GET", path, "").Refused(t, 404, "not_found", "prod")
	r.Manage(t, "DELETE", "/repository/acme/app/tag/v2", "").WantStatus(t, 204)
}

// TestHoldsAccess: readers of a namespace report there, maintainers see and delete reporters, and
// only administrators of the registry do this for the whole registry. That a repository is public
// gives no right to hold, and a robot may be limited to holding.
func TestHoldsAccess(t *testing.T) {
	t.Parallel()
	r := closed(t)
	const report = `{"digests":[]}`
	for _, c := range []struct {
		method, path, body, allowed string
	}{
		{"PUT", "/holds/p?namespace=acme", report, "root admin maintainer"},                    // root's
		{"PUT", "/holds/{name}?namespace=acme", report, "root admin maintainer writer reader"}, // one's own
		{"GET", "/holds?namespace=acme", "", "root admin maintainer"},
		{"GET", "/holds/p?namespace=acme", "", "root admin maintainer"},
		{"GET", "/holds/p/digests?namespace=acme", "", "root admin maintainer"},
		{"GET", "/repository/acme/app/holds", "", "root admin maintainer"},
		{"DELETE", "/holds/none?namespace=acme", "", "root admin maintainer"},
		{"PUT", "/holds/p", report, "root"},
		{"GET", "/holds", "", "root"},
		{"GET", "/holds/p", "", "root"},
		{"GET", "/holds/p/digests", "", "root"},
		{"DELETE", "/holds/none", "", "root"},
		{"PUT", "/holds/p?namespace=none", report, "root"},
	} {
		for _, name := range []string{"root", "admin", "maintainer", "writer", "reader", "stranger"} {
			a := r.as(name).Manage(t, c.method, strings.ReplaceAll(c.path, "{name}", name), c.body)
			if want := !strings.Contains(c.allowed, name); (a.StatusCode == 403) != want || a.StatusCode == 401 || a.StatusCode >= 500 {
				t.Errorf("%s %s by %s: %d %s", c.method, c.path, name, a.StatusCode, a.Content)
			}
		}
		r.Manage(t, c.method, c.path, c.body).Refused(t, 401, "invalid_token", "")
	}
	r.as("admin").Manage(t, "POST", "/repository/acme/app/changevisibility", `{"visibility":"public"}`).WantStatus(t, 200)
	r.as("stranger").Manage(t, "PUT", "/holds/p?namespace=acme", report).WantStatus(t, 403)
	var robot struct{ Token string }
	r.as("admin").Manage(t, "PUT", "/organization/acme/robots/cluster", `{"actions":["hold"]}`).Into(t, 201, &robot)
	r.Grant(t, "acme", "acme+cluster", auth.Reader)
	cluster := r.with(servertest.Basic("acme+cluster", robot.Token))
	cluster.Manage(t, "PUT", "/holds/p?namespace=acme", report).Refused(t, 403, "insufficient_scope", "another account")
	d := oci.Compute(oci.SHA256, []byte("x")).String()
	var done hold.Reported
	cluster.Manage(t, "PUT", "/holds/cluster?namespace=acme&lease=7d", `{"digests":["`+d+`"]}`).Into(t, 200, &done)
	before := done
	done = hold.Reported{}
	cluster.Manage(t, "PUT", "/holds/cluster?namespace=acme&lease=1m", report).Refused(t, 409, "invalid_request", "allow_empty")
	cluster.Manage(t, "PUT", "/holds/cluster?namespace=acme&lease=1m&allow_empty=true", report).Into(t, 200, &done)
	if done.Ending != 1 || done.Removed != 0 || done.Expires.Before(before.Expires) {
		t.Errorf("an empty report of a robot that may not delete: %+v", done)
	}
	// A token that may not delete ends nothing, whatever its account's role is.
	var limited struct {
		Token struct {
			Code string `json:"token_code"`
		}
	}
	r.as("maintainer").Manage(t, "POST", "/user/apptoken", `{"title":"t","actions":["hold","maintain"]}`).Into(t, 200, &limited)
	token := r.with(servertest.Basic("maintainer", limited.Token.Code))
	token.Manage(t, "PUT", "/holds/cluster?namespace=acme", report).WantStatus(t, 403)
	token.Manage(t, "DELETE", "/holds/cluster?namespace=acme", "").WantStatus(t, 403)
	r.as("maintainer").Manage(t, "PUT", "/holds/cluster?namespace=acme&lease=1m&cluster=uid-1", `{"remove":["`+d+`"]}`).Into(t, 200, &done)
	cluster.Manage(t, "PUT", "/holds/cluster?namespace=acme&cluster=uid-2", report).Refused(t, 409, "invalid_request", "uid-1")
	cluster.Manage(t, "PUT", "/holds/cluster?namespace=acme&cluster=uid-2&replace_cluster=true", report).WantStatus(t, 200)
	if done.Removed != 1 {
		t.Errorf("a maintainer's report: %+v", done)
	}
	cluster.Manage(t, "GET", "/holds?namespace=acme", "").WantStatus(t, 403)
	cluster.Do(t, "GET", "/v2/acme/app/manifests/v1", "").WantStatus(t, 403)
}

// TestLongReports: a report with a long value is refused before the value has ended, and an error shows
// little of a client's text.
func TestLongReports(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.Put(t, "acme/app", "v1", r.Simple(t, "acme/app", 1, nil))
	const path = "/holds/prod?namespace=acme"
	long := strings.Repeat("a", 300_000) // the server reads a rest as short before it answers
	for _, body := range []string{`{"digests":["` + long, `{"` + long, `{"digests":[{"digest":"` + long, strings.Repeat(" ", 300_000)} {
		r.Manage(t, "PUT", path, body).Refused(t, 413, "invalid_request", "more than 262144 bytes")
	}
	if a := r.Manage(t, "PUT", path, `{"`+long[:200_000]+`":[]}`).Refused(t, 400, "invalid_request", "it has a member"); len(a.Content) > 1000 {
		t.Errorf("the error has %d bytes", len(a.Content))
	}
	names := make([]string, 100)
	for i := range names {
		names[i] = fmt.Sprintf(`"%0*d"`, 1024, i)
	}
	var done hold.Reported
	item := fmt.Sprintf(`{"digest":"%s","names":[%s]}`, oci.Compute(oci.SHA256, []byte("x")), strings.Join(names, ","))
	r.Manage(t, "PUT", path, `{"digests":[`+item+`]}`).Into(t, 200, &done)
	if done.Digests != 1 {
		t.Errorf("an item with as many names as it may have: %+v", done)
	}
}

// TestLongNamesOfReports: differences make the names of a reporter no longer than they may be. The
// refusal says how long they may be.
func TestLongNamesOfReports(t *testing.T) {
	t.Parallel()
	r := onDatabase(t, func(o *servertest.Options, d *db.DB) {
		var err error
		if o.Management.Holds, err = hold.New(hold.Options{DB: d, MaxDigests: 100, Log: o.Log}); err != nil {
			t.Fatal(err)
		}
	})
	r.Put(t, "acme/app", "v1", r.Simple(t, "acme/app", 1, nil))
	const path = "/holds/prod?namespace=acme"
	item := func(n int) string {
		names := make([]string, 50)
		for i := range names {
			names[i] = fmt.Sprintf(`"%0*d"`, 1000, i)
		}
		return fmt.Sprintf(`{"digest":"%s","names":[%s]}`, oci.Compute(oci.SHA256, []byte{byte(n)}), strings.Join(names, ","))
	}
	r.Manage(t, "PUT", path, `{"add":[`+item(1)+`]}`).WantStatus(t, 200)
	r.Manage(t, "PUT", path, `{"add":[`+item(2)+`]}`).Refused(t, 413, "invalid_request", "would have 100000 bytes or more, of which there may be 51200")
	var done hold.Reported
	r.Manage(t, "PUT", path, `{"add":[]}`).Into(t, 200, &done)
	if done.Digests != 1 || done.Revision != 1 {
		t.Errorf("after a report that was refused: %+v", done)
	}
}

package login_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/auth/throttle"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// trashed are pairs of a place that is in the trash and one that never was: a repository in a
// namespace that exists, a whole namespace, and the names of both rows. All names are equally long.
var trashed = [][2][2]string{
	{{"acme", "acme/deleted"}, {"acme", "acme/missing"}},
	{{"gone", "gone/private"}, {"nope", "nope/private"}},
	{{"#2/gone", "#1/acme/deleted"}, {"#9/nope", "#8/acme/missing"}},
}

// fillTrash deletes a repository with all that a repository can have, and a namespace with all that
// a namespace can have. It returns the headers of two robots: of the deleted namespace, and of one
// that exists.
func fillTrash(t *testing.T, root *servertest.Registry) (gone, acme []string) {
	t.Helper()
	for _, repository := range []string{"acme/deleted", "gone/private", "acme/app"} {
		root.Put(t, repository, "v1", root.Simple(t, repository, 1, nil))
		of := "/repository/" + repository
		root.Manage(t, "POST", of+"/autoprunepolicy", `{"method":"number_of_tags","value":100}`).WantStatus(t, 201)
		root.Manage(t, "POST", of+"/tagprotection", `{"pattern":"p.*"}`).WantStatus(t, 201)
		root.Grant(t, repository, "reader", auth.Reader)
	}
	const of = "/organization/gone"
	root.Manage(t, "POST", of+"/webhook", `{"url":"https://hooks.example.com/x","events":["push"]}`).WantStatus(t, 201)
	root.Manage(t, "POST", of+"/autoprunepolicy", `{"method":"number_of_tags","value":100}`).WantStatus(t, 201)
	root.Manage(t, "POST", of+"/tagprotection", `{"pattern":"q.*"}`).WantStatus(t, 201)
	root.Manage(t, "POST", of+"/quota", `{"limit_bytes":1000000}`).WantStatus(t, 201)
	root.Manage(t, "PUT", of+"/team/devs", `{"role":"member"}`).WantStatus(t, 200)
	for _, namespace := range []string{"gone", "acme"} {
		a, text, err := root.Auth.CreateRobot(t.Context(), namespace, "ci", "", auth.Limits{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		root.Grant(t, namespace, a.Name, auth.Administrator)
		root.Grant(t, namespace, "owner", auth.Administrator)
		gone, acme = acme, servertest.Basic(a.Name, text)
	}
	return gone, acme
}

// escaped replaces the characters that a name in a URL can't have. Slashes of names that could exist
// stay.
var escaped = strings.NewReplacer("#2/", "%232%2F", "#9/", "%239%2F", "#1/acme/", "%231%2Facme%2F", "#8/acme/", "%238%2Facme%2F")

// changing are operations that would change something of a repository or a namespace that exists.
var changing = []struct{ method, path, body string }{
	{"POST", "/organization/NAMESPACE/webhook", `{"url":"https://hooks.example.com/y","events":["push"]}`},
	{"POST", "/organization/NAMESPACE/autoprunepolicy", `{"method":"number_of_tags","value":7}`},
	{"POST", "/organization/NAMESPACE/tagprotection", `{"pattern":"z.*"}`},
	{"POST", "/organization/NAMESPACE/quota", `{"limit_bytes":7}`},
	{"PUT", "/organization/NAMESPACE/team/other", `{"role":"member"}`},
	{"PUT", "/organization/NAMESPACE/team/devs", `{"role":"admin"}`},
	{"PUT", "/organization/NAMESPACE/team/devs/members/reader", ``},
	{"DELETE", "/organization/NAMESPACE/team/devs", ``},
	{"PUT", "/organization/NAMESPACE/robots/new", `{"description":"x"}`},
	{"POST", "/organization/NAMESPACE/robots/ci/regenerate", ``},
	{"DELETE", "/organization/NAMESPACE/robots/ci", ``},
	{"PUT", "/holds/cluster?namespace=NAMESPACE&lease=1h&kind=kubernetes", `{"digests":[]}`},
	{"DELETE", "/holds/cluster?namespace=NAMESPACE", ``},
	{"GET", "/holds?namespace=NAMESPACE", ``},
	{"GET", "/autoprune/runs?namespace=NAMESPACE", ``},
	{"POST", "/repository/REPOSITORY/autoprunepolicy", `{"method":"number_of_tags","value":7}`},
	{"POST", "/repository/REPOSITORY/tagprotection", `{"pattern":"z.*"}`},
	{"PUT", "/repository/REPOSITORY/tag/v1", `{"expiration":4102444800}`},
	{"DELETE", "/repository/REPOSITORY/tag/v1", ``},
	{"POST", "/repository/REPOSITORY/changevisibility", `{"visibility":"public"}`},
	{"PUT", "/repository/REPOSITORY/permissions/user/reader", `{"role":"admin"}`},
	{"DELETE", "/repository/REPOSITORY", ``},
	{"DELETE", "/organization/NAMESPACE", ``},
}

// TestDeletedLooksAbsent: for every operation, and for every client, a repository and a namespace
// in the trash give the answer of one that never existed. What changes something then hasn't
// changed what is in the trash.
func TestDeletedLooksAbsent(t *testing.T) {
	t.Parallel()
	r := whole(t, &auth.Options{AnonymousPull: true}, func(f *throttle.FailuresOptions) { f.AccountBurst, f.AddressBurst = 10_000, 10_000 })
	person(t, r, "root", true)
	for _, name := range []string{"owner", "reader"} {
		person(t, r, name, false)
	}
	root := r.With(secret("root"))
	robot, other := fillTrash(t, root)
	repository := root.Manage(t, "DELETE", "/repository/acme/deleted", "").WantStatus(t, 204).Header.Get("Purser-Trash-Id")
	namespace := root.Manage(t, "DELETE", "/organization/gone", "").WantStatus(t, 204).Header.Get("Purser-Trash-Id")
	before := everyRow(t, r)
	look(t, r, operation{method: "GET", management: true}.request("/api/v1/organization", other...), "-", "-") // notes the use
	compared := 0
	for name, headers := range map[string][]string{"root": secret("root"), "owner": secret("owner"), "reader": secret("reader"), "robot": robot, "robot of acme": other, "nobody": nil} {
		for _, places := range trashed {
			compare := func(what string, request func(namespace, repository string) *http.Request) {
				var seen [2]seen
				for i, p := range places {
					seen[i] = look(t, r, request(escaped.Replace(p[0]), escaped.Replace(p[1])), p[0], p[1])
					seen[i].trips = 0
				}
				seen[0].compare(t, name+": "+what, seen[1])
				if status := seen[0].status; name == "root" && status != 404 && places[0][0][0] != '#' && !strings.Contains(what, "runs?") && !strings.Contains(what, "{") {
					t.Errorf("%s: %d %s", what, status, seen[0].body)
				}
				compared++
			}
			for _, o := range operations(t, r) {
				// The audit log is asked by name, and tells of deleted repositories too.
				if (o.ofRepository() || o.ofNamespace() && places[0][0] != places[1][0]) && !strings.Contains(o.pattern, "logs") {
					compare(o.String(), func(n, rep string) *http.Request { return o.request(o.path(n, rep), headers...) })
				}
			}
			for _, c := range changing {
				if strings.Contains(c.path, "NAMESPACE") && places[0][0] == places[1][0] {
					continue
				}
				compare(c.method+" "+c.path, func(n, rep string) *http.Request {
					q := httptest.NewRequest(c.method, "http://127.0.0.1/api/v1"+strings.NewReplacer("NAMESPACE", n, "REPOSITORY", rep).Replace(c.path), strings.NewReader(c.body))
					q.Header.Set("Content-Type", "application/json")
					for i := 0; i < len(headers); i += 2 {
						q.Header.Add(headers[i], headers[i+1])
					}
					return q
				})
			}
		}
	}
	if compared < 700 {
		t.Errorf("%d answers were compared", compared)
	}
	for _, path := range []string{"/v2/_catalog", "/api/v1/organization", "/api/v1/repository?public=true", "/api/v1/repository?namespace=gone", "/api/v1/user"} {
		for _, who := range [][]string{secret("root"), secret("owner"), secret("reader")} {
			if a := r.Do(t, "GET", path, "", who...); strings.Contains(string(a.Content), "gone") && !strings.Contains(path, "gone") || strings.Contains(string(a.Content), "deleted") && a.StatusCode == 200 || strings.Contains(string(a.Content), "#") {
				t.Errorf("%s: %s", path, a.Content)
			}
		}
	}
	if after := everyRow(t, r); after != before {
		t.Errorf("what is in the trash was changed: %s, before it was %s", after, before)
	}
	r.Do(t, "GET", "/v2/", "", robot...).Want(t, 401, oci.Unauthorized)
	root.Manage(t, "POST", "/trash/"+namespace+"/restore", "{}").WantStatus(t, 200)
	root.Manage(t, "POST", "/trash/"+repository+"/restore", "{}").WantStatus(t, 200)
	r.Do(t, "GET", "/v2/", "", robot...).WantStatus(t, 200)
	for _, path := range []string{"gone/private", "acme/deleted"} {
		r.Do(t, "GET", "/v2/"+path+"/manifests/v1", "", secret("reader")...).WantStatus(t, 200)
	}
	r.Do(t, "GET", "/v2/gone/private/manifests/v1", "", robot...).WantStatus(t, 200)
}

// everyRow returns the rows of the trash, and of what belongs to them, as a text.
func everyRow(t *testing.T, r *servertest.Registry) (text string) {
	t.Helper()
	err := r.DB.Pool.QueryRow(t.Context(), `
		WITH n AS (SELECT id FROM top_level_namespaces WHERE deleted_at IS NOT NULL), r AS (
			SELECT id FROM repositories WHERE deleted_at IS NOT NULL OR top_level_namespace_id IN (SELECT id FROM n))
		SELECT concat_ws(E'\n',
			(SELECT string_agg(x::text, ' ' ORDER BY x.id) FROM repositories x WHERE id IN (SELECT id FROM r)),
			(SELECT string_agg(x::text, ' ' ORDER BY x.id) FROM top_level_namespaces x WHERE id IN (SELECT id FROM n)),
			(SELECT string_agg(x.name || x.expires_at || x.manifest_id, ' ' ORDER BY x.id) FROM tags x WHERE repository_id IN (SELECT id FROM r)),
			(SELECT string_agg(x.digest::text, ' ' ORDER BY x.id) FROM manifests x WHERE repository_id IN (SELECT id FROM r)),
			(SELECT string_agg(x::text, ' ' ORDER BY x.uuid) FROM tagprotectionrules x WHERE namespace_id IN (SELECT id FROM n) OR repository_id IN (SELECT id FROM r)),
			(SELECT string_agg(x.uuid::text, ' ' ORDER BY x.uuid) FROM webhooks x WHERE namespace_id IN (SELECT id FROM n)),
			(SELECT string_agg(x::text, ' ' ORDER BY x.id) FROM teams x WHERE top_level_namespace_id IN (SELECT id FROM n)),
			(SELECT string_agg(x::text, ' ' ORDER BY x.id) FROM grants x WHERE top_level_namespace_id IN (SELECT id FROM n) OR repository_id IN (SELECT id FROM r)),
			(SELECT string_agg(c::text, ' ' ORDER BY c.id) FROM credentials c JOIN accounts a ON a.id = c.account_id WHERE a.top_level_namespace_id IN (SELECT id FROM n)),
			(SELECT string_agg(concat(x.bytes_limit, ' ', x.bytes), ' ') FROM namespacequotas x WHERE namespace_id IN (SELECT id FROM n)),
			(SELECT count(*) FROM repositoryautoprunepolicy WHERE repository_id IN (SELECT id FROM r)))`).Scan(&text)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

package management_test

import (
	"cmp"
	"context"
	"fmt"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/builtinpg/pgtest"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// denying makes the registry refuse every request, with an error that contains the access and
// the repository for which Authorize was called.
func denying(o *servertest.Options) {
	o.Server.Authorize = func(_ context.Context, a auth.Access, of auth.Resource) error {
		return oci.Errorf(oci.Denied, "%s of <%s>", a, cmp.Or(of.Repository, of.Namespace))
	}
}

// TestAPIPaths: clients send requests about repositories whose names have slashes, escaped or
// not, or look like routes. The API must call Authorize with the access that the operation
// needs and the repository's or the namespace's name, or "" if the path names neither.
func TestAPIPaths(t *testing.T) {
	t.Parallel()
	r := setup(t, denying)
	d := digest("x").String()
	for path, want := range map[string]string{
		"/gc/status":       "operate of <>",
		"/gc/status/":      "operate of <>",
		"/gc/explain/" + d: "operate of <>",
		"/gc/explain/" + strings.Replace(d, ":", "%3A", 1): "operate of <>",
		"/error/not_found":                                                  "any of <>",
		"/repository/a/manifest/" + d + "/explain":                          "admin of <a>",
		"/repository/a/b/c/manifest/" + d + "/explain":                      "admin of <a/b/c>",
		"/repository/a%2Fb%2fc/manifest/" + d + "/explain":                  "admin of <a/b/c>",
		"/repository/a/b%2Fc/manifest/" + d + "/explain/":                   "admin of <a/b/c>",
		"/repository/repository/manifest/manifest/" + d + "/explain":        "admin of <repository/manifest>",
		"/repository/a/tag/b/restore/manifest/" + d + "/explain":            "admin of <a/tag/b/restore>",
		"/repository/a/manifest/x/explain/manifest/" + d + "/explain":       "admin of <a/manifest/x/explain>",
		"/repository/manifest%2F" + "x" + "%2Fexplain/manifest/y/explain":   "admin of <manifest/x/explain>",
		"/repository/" + strings.Repeat("a/", 100) + "b/manifest/x/explain": "admin of <" + strings.Repeat("a/", 100) + "b>",
	} {
		r.Manage(t, "GET", path, "").Refused(t, 403, "insufficient_scope", "^"+regexp.QuoteMeta(want)+"$")
	}
	for path, want := range map[string]string{
		"/repository/a/b/tag/v1/restore":       "maintain of <a/b>",
		"/repository/a/tag/tag/restore":        "maintain of <a>",
		"/repository/a%2Ftag/tag/tag/restore/": "maintain of <a/tag>",
	} {
		r.Manage(t, "POST", path, "{}").Refused(t, 403, "insufficient_scope", "^"+regexp.QuoteMeta(want)+"$")
	}
	for _, path := range []string{
		"/gc", "/gc/", "/gc/status/x", "/gc/explain", "/organization/a/b", "/openapi", "//gc/status",
	} {
		for _, method := range []string{"GET", "HEAD", "POST", "DELETE"} {
			r.Manage(t, method, path, "").Refused(t, 404, "not_found", "nothing at")
		}
	}
	r.Do(t, "GET", "/api/", "").Refused(t, 404, "not_found", "nothing at /api/")
	r.Do(t, "GET", "/api/v2/gc/status", "").Refused(t, 404, "not_found", "nothing at /api/v2/gc/status")
}

// TestAPIRefusals: clients send invalid requests. The API must refuse each with the right
// error, before it has changed anything.
func TestAPIRefusals(t *testing.T) {
	t.Parallel()
	r := setup(t)
	payload := r.Simple(t, "a/b", 1, nil)
	d := r.Put(t, "a/b", "v1", payload).String()
	absent := digest("absent").String()
	restore := "/repository/a/b/tag/v2/restore"
	const bad, absence = "invalid_request", "not_found"
	for _, c := range []struct {
		method, path, body string
		status             int
		kind, text         string
	}{
		{"POST", restore, ``, 400, bad, "body is required"},
		{"POST", restore, `{}`, 400, bad, "required property manifest_digest"},
		{"POST", restore, `[]`, 400, bad, "body: expected object"},
		{"POST", restore, `null`, 400, bad, "body: expected object"},
		{"POST", restore, `{"manifest_digest": "` + d + `"} x`, 400, bad, "body: invalid character"},
		{"POST", restore, `{"manifest_digest": "` + d, 400, bad, "body: unexpected end"},
		{"POST", restore, `{"manifest_digest": null}`, 400, bad, "manifest_digest: expected string"},
		{"POST", restore, `{"manifest_digest": ""}`, 400, bad, "manifest_digest: expected length"},
		{"POST", restore, `{"manifest_digest": "v1"}`, 400, bad, `invalid digest "v1"`},
		{"POST", restore, `{"manifest_digest": "sha256:00"}`, 400, bad, "64 hexadecimal digits"},
		{"POST", restore, `{"manifest_digest": "` + absent + `"}`, 404, absence, absent + " is not in repository a/b"},
		{"POST", restore + "?tag=x", `{"manifest_digest": "` + d + `"}`, 400, bad, "query.tag: unknown query parameter"},
		{"POST", "/repository/a/c/tag/v2/restore", `{"manifest_digest": "` + d + `"}`, 404, absence, "repository a/c is not known"},
		{"POST", "/repository/A/tag/v2/restore", `{"manifest_digest": "` + d + `"}`, 400, bad, `"A" at byte 0 is not allowed`},
		{"POST", "/repository/a//b/tag/v2/restore", `{"manifest_digest": "` + d + `"}`, 404, absence, "nothing at"},
		{"POST", "/repository/a/b/tag/-/restore", `{"manifest_digest": "` + d + `"}`, 400, bad, "invalid tag"},
		{"POST", "/repository/a/b/tag/" + strings.Repeat("x", 129) + "/restore", `{"manifest_digest": "` + d + `"}`, 400, bad, "invalid tag"},
		{"POST", "/repository/a/b/tag/x%20y/restore", `{"manifest_digest": "` + d + `"}`, 400, bad, "invalid tag"},
		{"GET", restore, "", 405, bad, "GET is not possible .* but POST"},
		{"DELETE", restore, "", 405, bad, "DELETE is not possible"},
		{"PUT", restore, `{"manifest_digest": "` + d + `"}`, 405, bad, "PUT is not possible"},
		{"INVENTED", restore, "", 405, bad, "INVENTED is not possible"},

		{"POST", "/gc/run", `{"dryrun": true}`, 400, bad, "body.dryrun: unexpected property"},
		{"POST", "/gc/run", `{"dry_run": "yes"}`, 400, bad, "body.dry_run: expected boolean"},
		{"POST", "/gc/run", `true`, 400, bad, "body: expected object"},
		{"POST", "/gc/run?dry_run=true", ``, 400, bad, "query.dry_run: unknown query parameter"},
		{"PUT", "/gc/run", "", 405, bad, "PUT is not possible"},
		{"GET", "/gc/run/x", "", 404, absence, `no run here is called "x"`},
		{"DELETE", "/gc/run/x", "", 404, absence, `no run here is called "x"`},
		{"POST", "/gc/retry", `{"kind": "tag"}`, 400, bad, "body.kind: expected value to be one of"},
		{"GET", "/gc/explain/v1", "", 400, bad, "invalid digest"},
		{"GET", "/gc/explain/" + absent, "", 404, absence, "blob " + absent},
		{"GET", "/repository/a/b/manifest/v1/explain", "", 400, bad, "invalid digest"},
		{"GET", "/repository/a/b/manifest/" + absent + "/explain", "", 404, absence, "manifest " + absent},
		{"GET", "/repository/a/c/manifest/" + d + "/explain", "", 404, absence, "repository a/c"},
		{"HEAD", "/repository/a/c/manifest/" + d + "/explain", "", 404, absence, "repository a/c"},
		{"POST", "/check", `{"repairs": true}`, 400, bad, "body.repairs: unexpected property"},
		{"GET", "/check/x", "", 404, absence, `no run here is called "x"`},
		{"GET", "/error/x", "", 404, absence, "no kind of error"},
	} {
		a := r.Manage(t, c.method, c.path, c.body).Refused(t, c.status, c.kind, c.text)
		if (c.status == 405) != (a.Header.Get("Allow") != "") {
			t.Errorf("%s %s: Allow is %q", c.method, c.path, a.Header.Get("Allow"))
		}
	}
	r.Do(t, "GET", "/v2/a/b/manifests/v2", "").Want(t, 404, oci.ManifestUnknown)
	for _, record := range r.Log.Records(t, "request") {
		if status := record["http.response.status_code"].(float64); status >= 400 && record["error"] == nil {
			t.Errorf("a refusal is logged without its reason: %v", record)
		}
	}
	if n := len(r.Log.Records(t, "an operator has started garbage collection")); n != 0 {
		t.Errorf("%d runs were started", n)
	}
}

// TestAPIBodies: the API must refuse a body that isn't JSON, has another Content-Type, is
// longer than 64 KiB, or doesn't arrive within BodyIdleTimeout.
func TestAPIBodies(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *servertest.Options) { o.Server.BodyIdleTimeout = 100 * time.Millisecond })
	for _, contentType := range []string{
		"text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/jsonx", "application/", ";",
		"application/merge-patch+json", "text/plain, application/json",
	} {
		for _, body := range []string{`{"dry_run": true}`, ""} {
			r.Manage(t, "POST", "/gc/run", body, "Content-Type", contentType).Refused(t, 415, "invalid_request", "should be application/json")
		}
	}
	r.Do(t, "POST", "/api/v1/gc/run", `{"dry_run": true}`).Refused(t, 415, "invalid_request", `Content-Type is ""`)
	for _, contentType := range []string{"application/json; charset=utf-8", "Application/JSON"} {
		r.Manage(t, "POST", "/gc/retry", `{"kind": "blob"}`, "Content-Type", contentType).Into(t, 200, new(any))
	}
	r.Manage(t, "POST", "/gc/retry", "").Into(t, 200, new(any))
	r.Manage(t, "POST", "/gc/retry", "{}"+strings.Repeat(" ", 64<<10-2)).Into(t, 200, new(any))
	r.Manage(t, "POST", "/gc/retry", "{}"+strings.Repeat(" ", 64<<10-1)).Refused(t, 413, "invalid_request", "more than 65536 bytes")

	w := r.Dial(t)
	w.Send(t, "POST", "/api/v1/gc/run", []string{"Content-Type: application/json", length(100)}, `{"dry_run"`)
	w.Answer(t, "POST", "/api/v1/gc/run").Refused(t, 400, "invalid_request", "could not be read after 10 bytes")
}

// TestAPIOutlastsItsBodysDeadline: a request takes longer than BodyIdleTimeout because it waits
// for a lock in the database. The read deadline that was set for its body must not end the
// request, since the whole body has arrived.
func TestAPIOutlastsItsBodysDeadline(t *testing.T) {
	t.Parallel()
	const idle = 50 * time.Millisecond
	r := setup(t, func(o *servertest.Options) { o.Server.BodyIdleTimeout = idle })
	conn, err := pgx.Connect(t.Context(), r.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context())) //nolint:errcheck // nothing is lost
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "LOCK gc_blob_review_queue"); err != nil {
		t.Fatal(err)
	}
	done := make(chan answer, 1)
	go func() {
		a, err := r.Try(t.Context(), "POST", "/api/v1/gc/retry", strings.NewReader(`{"kind": "blob"}`), "Content-Type", "application/json")
		if err != nil {
			t.Error(err)
		}
		done <- a
	}()
	eventually(t, "the request waits in the database", func() (waits bool) {
		err := tx.QueryRow(t.Context(), "SELECT count(*) > 0 FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))",
			int32(conn.PgConn().PID())).Scan(&waits)
		if err != nil {
			t.Fatal(err)
		}
		return waits
	})
	time.Sleep(4 * idle) // there is no signal for something that doesn't happen
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	(<-done).Into(t, 200, new(any))
}

// TestAPIRefusesOtherSites: an operator's browser shows a page of another site, and this page
// sends requests to the management API. The API must refuse requests that change something, and
// its answers must have no header that lets the page read them.
func TestAPIRefusesOtherSites(t *testing.T) {
	t.Parallel()
	r := setup(t)
	host := strings.TrimPrefix(r.URL, "http://")
	for _, headers := range [][]string{
		{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"},
		{"Origin", "https://example.com"}, {"Origin", "null"}, {"Origin", "http://" + host + "0"},
	} {
		for _, path := range []string{"/gc/run", "/check"} {
			r.Manage(t, "POST", path, "{}", headers...).Refused(t, 403, "insufficient_scope", "page of another site")
		}
		r.Manage(t, "DELETE", "/gc/run/x", "", headers...).Refused(t, 403, "insufficient_scope", "page of another site")
		a := r.Manage(t, "GET", "/gc/status", "", headers...).Into(t, 200, new(any))
		if got := a.Header.Get("Access-Control-Allow-Origin"); got != "" {
			t.Errorf("another site may read: %q", got)
		}
	}
	for _, headers := range [][]string{{"Sec-Fetch-Site", "same-origin"}, {"Sec-Fetch-Site", "none"}, {"Origin", "http://" + host}} {
		r.Manage(t, "POST", "/gc/retry", "{}", headers...).Into(t, 200, new(any))
	}
}

// apiDocument has the parts of the OpenAPI document that TestAPIDocument reads.
type apiDocument struct {
	OpenAPI    string
	Tags       []struct{ Name, Description string }
	Paths      map[string]map[string]apiOperation
	Components struct {
		SecuritySchemes map[string]struct{ Type string }
	}
}

type apiOperation struct {
	Security             []map[string][]string
	OperationID, Summary string
	Tags                 []string
	Access               string `json:"x-access"`
	Parameters           []struct{ Name, In, Description string }
	RequestBody          any
	Responses            map[string]struct {
		Description string
		Content     map[string]struct{ Schema map[string]any }
	}
}

// check compares the operation's description in the OpenAPI document with what every operation
// must have, and returns a text for each fault.
func (op apiOperation) check(path string) (wrong []string) {
	add := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	if op.OperationID == "" || op.Summary == "" || len(op.Tags) == 0 {
		add("identifier %q, summary %q, tags %q", op.OperationID, op.Summary, op.Tags)
	}
	// An empty first alternative means that a client needn't authenticate: it must be there for
	// operations on public repositories only.
	switch anonymous := len(op.Security) > 0 && len(op.Security[0]) == 0; op.Access {
	case "any":
		if len(op.Security) > 0 {
			add("security %v, want none", op.Security)
		}
	case "list", "pull":
		if !anonymous || len(op.Security) < 4 {
			add("security %v, want one that is optional", op.Security)
		}
	default:
		if anonymous || len(op.Security) < 3 {
			add("security %v, want one that is required", op.Security)
		}
	}
	want := []string{"400", "401", "403", "500", "503"}
	if strings.Contains(path, "{") {
		want = append(want, "404")
	}
	if op.RequestBody != nil {
		want = append(want, "413", "415")
	}
	for _, status := range want {
		if ref := op.Responses[status].Content["application/json"].Schema["$ref"]; ref != "#/components/schemas/ApiError" {
			add("it answers %s as %v", status, ref)
		}
	}
	if op.Responses["422"].Description != "" {
		add("it is said to answer 422")
	}
	inPath := 0
	for _, p := range op.Parameters {
		if p.In == "path" {
			inPath++
		}
		if p.In == "path" && !strings.Contains(path, "{"+p.Name+"}") || p.Description == "" {
			add("parameter %+v", p)
		}
	}
	if n := strings.Count(path, "{"); n != inPath {
		add("%d parameters of the path are described, want %d", inPath, n)
	}
	return wrong
}

// TestAPIDocument: the OpenAPI document must describe every operation with its errors. Each
// operation must require the access that the document shows for it.
func TestAPIDocument(t *testing.T) {
	t.Parallel()
	r := setup(t)
	var d apiDocument
	r.Manage(t, "GET", "/openapi.json", "").Into(t, 200, &d)
	strict := replica(t, r.DSN, r.Dir, denying)
	ids, tags := map[string]bool{}, map[string]bool{}
	for _, tag := range d.Tags {
		if tags[tag.Name] || tag.Description == "" {
			t.Errorf("tag %+v is declared twice or without a description", tag)
		}
		tags[tag.Name] = true
	}
	for path, methods := range d.Paths {
		for method, op := range methods {
			what := method + " " + path
			for _, wrong := range op.check(path) {
				t.Errorf("%s: %s", what, wrong)
			}
			if ids[op.OperationID] {
				t.Errorf("%s: identifier %q comes twice", what, op.OperationID)
			}
			ids[op.OperationID] = true
			for _, tag := range op.Tags {
				if !tags[tag] {
					t.Errorf("%s: tag %s isn't declared", what, tag)
				}
			}
			for _, alternative := range op.Security {
				for scheme := range alternative {
					if d.Components.SecuritySchemes[scheme].Type == "" {
						t.Errorf("%s: the security scheme %s isn't declared", what, scheme)
					}
				}
			}
			real := regexp.MustCompile(`{\w+}`).ReplaceAllString(strings.TrimPrefix(path, "/api/v1"), "x")
			body := ""
			if op.RequestBody != nil {
				body = "{}"
			}
			access := op.Access
			if op.OperationID == "createRepo" { // the repository is in the body: see TestCreateInRestricted
				access = "ping"
			}
			if strings.HasPrefix(path, "/api/v1/holds") { // the namespace is in the query: see TestHoldsAccess
				access = "ping"
			}
			if strings.HasPrefix(path, "/api/v1/trash") { // the namespace is in the query, or known by the id: see TestRestoreMatrix
				access = "ping"
			}
			strict.Manage(t, strings.ToUpper(method), real, body).
				Refused(t, 403, "insufficient_scope", fmt.Sprintf("^%s of <(x|library)?>$", access))
		}
	}
	if d.OpenAPI != "3.1.0" || len(ids) < 11 {
		t.Errorf("OpenAPI %s describes %d operations, want 3.1.0 and all", d.OpenAPI, len(ids))
	}
	a := r.Manage(t, "GET", "/openapi.yaml", "")
	if a.StatusCode != 200 || a.Header.Get("Content-Type") != "application/yaml" || !strings.Contains(string(a.Content), "\nopenapi: 3.1.0\n") {
		t.Errorf("openapi.yaml: %d, %q, %.200s", a.StatusCode, a.Header, a.Content)
	}
	if a := r.Manage(t, "HEAD", "/openapi.json", ""); a.StatusCode != 200 || len(a.Content) != 0 {
		t.Errorf("HEAD: %d %q", a.StatusCode, a.Content)
	}
	for _, kind := range []string{"invalid_request", "invalid_token", "insufficient_scope", "not_found", "internal_error", "unavailable"} {
		var e struct{ Type, Title, Description string }
		r.Manage(t, "GET", "/error/"+kind, "").Into(t, 200, &e)
		if e.Type != "/api/v1/error/"+kind || e.Title != kind || e.Description == "" {
			t.Errorf("%s is described as %+v", kind, e)
		}
	}
}

// TestAPIIsObserved: clients send requests to the management API. The metrics must count them
// by route, method and status, and the log must have each request with its id.
func TestAPIIsObserved(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.Manage(t, "GET", "/repository/a/b/manifest/"+digest("x").String()+"/explain", "", "X-Request-Id", "mine").
		Refused(t, 404, "not_found", "a/b")
	r.Manage(t, "GET", "/invented", "").Refused(t, 404, "not_found", "")
	r.Manage(t, "PUT", "/gc/status", "").Refused(t, 405, "invalid_request", "")
	r.Manage(t, "HEAD", "/gc/status", "")
	got := r.Samples(t, "purser_http_requests_total")
	for _, labels := range []string{
		"/api/v1/repository/{repository}/manifest/{digest}/explain,GET,404", "none,any,404", "/api/v1/gc/status,any,405",
		"/api/v1/gc/status,HEAD,200",
	} {
		if got[labels] != 1 {
			t.Errorf("not counted: %s; these are: %v", labels, got)
		}
	}
	var ids []any
	for _, record := range r.Log.Records(t, "request") {
		ids = append(ids, record["request_id"])
	}
	if !slices.Contains(ids, any("mine")) {
		t.Errorf("requests %v are logged, want mine among them", ids)
	}
}

// TestAPITrouble: a handler panics, or the database can't be reached. The answer must have the
// management API's format and not contain the cause, which only the log may have.
func TestAPITrouble(t *testing.T) {
	t.Parallel()
	g, dsn := servertest.NewGate(t, dbtest.DSN(t))
	r := replica(t, dsn, pgtest.TempDir(t), func(o *servertest.Options) {
		o.Server.Authorize = func(ctx context.Context, _ auth.Access, _ auth.Resource) error {
			if server.Observed(ctx).ID == "panic" {
				panic("as it was told")
			}
			return nil
		}
	})
	r.Manage(t, "GET", "/gc/status", "", "X-Request-Id", "panic").Refused(t, 500, "internal_error", "^unknown error$")
	r.Manage(t, "GET", "/gc/status", "").Into(t, 200, new(any))
	g.Set(true)
	for method, path := range map[string]string{"GET": "/gc/status", "POST": "/gc/retry"} {
		a := r.Manage(t, method, path, "").Refused(t, 503, "unavailable", "database is not available")
		if a.Header.Get("Retry-After") == "" {
			t.Errorf("%s %s: no Retry-After", method, path)
		}
	}
	if n := len(r.Log.Records(t, "request failed")); n != 3 {
		t.Errorf("%d failures are logged with their reason, want 3: a panic and two of the database", n)
	}
}

// TestAPIWithoutAccess: Authorize refuses every access of a client, and the client asks for the
// OpenAPI document and for the status of garbage collection. The API must refuse both requests
// with 403.
func TestAPIWithoutAccess(t *testing.T) {
	t.Parallel()
	r := setup(t, denying)
	r.Manage(t, "GET", "/openapi.json", "").Refused(t, 403, "insufficient_scope", "any of <>")
	w := httptest.NewRecorder()
	r.Handler.ServeHTTP(w, httptest.NewRequest("GET", "/api/v1/gc/status", nil))
	if w.Code != 403 {
		t.Errorf("%d, want 403", w.Code)
	}
}

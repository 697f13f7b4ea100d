package server_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/builtinpg/pgtest"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/server"
	"github.com/purser-registry/purser/internal/server/servertest"
	"github.com/purser-registry/purser/internal/testscale"
)

// TestLostRights: the role of the registry's database loses its rights on each table, view and function in
// turn. Pulls and pushes must succeed, or be answered with 503. db.Rights must say that pulls can't succeed if
// and only if they don't.
func TestLostRights(t *testing.T) {
	t.Parallel()
	empty, dir := dbtest.EmptyDSN(t), pgtest.TempDir(t)
	admin, err := pgx.Connect(t.Context(), empty)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { admin.Close(context.Background()) }) //nolint:errcheck // nothing is pending
	dsn := dbtest.As(t, empty, dbtest.HostileRole(t, admin, "lost_rights"))
	if _, err := db.Migrate(t.Context(), dsn, db.MigrateOptions{}); err != nil {
		t.Fatal(err)
	}
	closed := func(o *servertest.Options) { o.Access = &auth.Options{} }
	first := replica(t, dsn, dir, closed)
	first.AddAccount(t, "root", true)
	root := &registry{first.With(servertest.As("root"))}
	p := lostPull{digest: root.Put(t, "acme/app", "v1", root.Simple(t, "acme/app", 1, nil)).String(), blob: digest("{}").String()}
	first.Token(t, servertest.As("root")) // makes the key that signs
	var robot struct{ Token string }
	root.Manage(t, "PUT", "/organization/acme/robots/ci", "").Into(t, 201, &robot)
	first.Grant(t, "acme", "acme+ci", auth.Reader)
	p.robot = servertest.Basic("acme+ci", robot.Token)

	rows, err := admin.Query(t.Context(), `
		SELECT relname::text FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v')
			AND relname NOT LIKE 'loose_foreign_keys%' AND relname <> 'detached_partitions' AND relname NOT LIKE 'goose_%'
		UNION ALL
		SELECT 'FUNCTION ' || oid::regprocedure::text FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND starts_with(proname, 'purser_') AND prorettype <> 'trigger'::regtype`)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(objects) < 60 {
		t.Fatalf("%d objects, %v", len(objects), err)
	}
	// A fifth of them in the fast run, each time others.
	rand.Shuffle(len(objects), func(i, j int) { objects[i], objects[j] = objects[j], objects[i] })
	objects = objects[:testscale.Pick(len(objects)/5, len(objects))]
	failed := 0
	for _, name := range objects {
		t.Run(name, func(t *testing.T) { // one after the other, each with a replica that has cached nothing
			r := replica(t, dsn, dir, closed)
			if _, err := admin.Exec(t.Context(), "REVOKE ALL ON "+name+" FROM lost_rights"); err != nil {
				t.Fatal(err)
			}
			defer admin.Exec(context.Background(), "GRANT ALL ON "+name+" TO lost_rights") //nolint:errcheck // the next subtest would say it
			pulled := p.succeeds(t, r)
			r.pushOnce(t, name)
			r.wantsNoWrongStatement(t)
			rights, err := r.DB.Rights(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if rights.All() == nil {
				t.Error("the rights lack nothing")
			}
			if err := rights.Pulls(true); (err == nil) != pulled {
				t.Errorf("pulls succeed: %v; the rights say %v", pulled, err)
			}
			if !pulled {
				failed++
			}
		})
	}
	if failed < testscale.Pick(1, 10) {
		t.Errorf("only %d objects are needed by pulls", failed)
	}
}

// lostPull is what TestLostRights pulls.
type lostPull struct {
	digest, blob string
	robot        []string // headers
}

// succeeds pulls with a token, with a password and as a robot, and returns whether all requests succeed.
func (p lostPull) succeeds(t *testing.T, r *registry) bool {
	t.Helper()
	ok := true
	ask := func(path string, headers []string) answer {
		t.Helper()
		a := r.Do(t, "GET", path, "", headers...)
		if a.StatusCode != 200 {
			ok = false
			wantsRetry(t, a)
		}
		return a
	}
	root := servertest.As("root")
	if a := ask("/token?service=purser&scope=repository:acme/app:pull", root); a.StatusCode == 200 {
		var out struct{ Token string }
		a.Into(t, 200, &out)
		ask("/v2/acme/app/manifests/v1", servertest.Bearer(out.Token))
	}
	ask("/v2/acme/app/manifests/"+p.digest, root)
	ask("/v2/acme/app/blobs/"+p.blob, root)
	ask("/v2/acme/app/manifests/v1", p.robot)
	return ok
}

// wantsRetry checks that a client is told to try again later.
func wantsRetry(t *testing.T, a answer) {
	t.Helper()
	if a.StatusCode != 503 || a.Header.Get("Retry-After") == "" {
		t.Errorf("%s %s: %d %s, Retry-After %q", a.Request.Method, a.Request.URL, a.StatusCode, a.Content, a.Header.Get("Retry-After"))
	}
}

// wantsNoWrongStatement checks that no request has failed because a table or a function doesn't exist: all are
// there, and the role may look into their schema, so only a wrong statement fails so.
func (r *registry) wantsNoWrongStatement(t *testing.T) {
	t.Helper()
	for _, line := range r.Log.Records(t, "request failed") {
		for _, state := range []string{"42P01", "42883"} {
			if text := fmt.Sprint(line["error"]); strings.Contains(text, "SQLSTATE "+state) {
				t.Errorf("%v %v: %s", line["http.request.method"], line["url.path"], text)
			}
		}
	}
}

// pushOnce pushes a blob and a manifest. Each request must succeed, be told to try again later, or say that
// what an earlier one should have stored is missing.
func (r *registry) pushOnce(t *testing.T, content string) {
	t.Helper()
	root := servertest.As("root")
	config := digest(content)
	for _, q := range []struct{ method, path, body string }{
		{"HEAD", "/v2/acme/app/blobs/" + digest("{}").String(), ""},
		{"POST", "/v2/acme/app/blobs/uploads/?digest=" + config.String(), content},
		{"PUT", "/v2/acme/app/manifests/v2", image(t, config, nil, nil)},
		{"DELETE", "/v2/acme/app/manifests/v2", ""},
	} {
		headers := append([]string{"Content-Type", "application/vnd.oci.image.manifest.v1+json"}, root...)
		if a := r.Do(t, q.method, q.path, q.body, headers...); a.StatusCode >= 500 {
			wantsRetry(t, a)
		}
	}
}

// TestWrongStatement: a statement with a table or a function that no registry has is an error of the program, and
// not one of the database that a client should wait for.
func TestWrongStatement(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for sql, want := range map[string]int{
		"SELECT FROM no_table": 500, "SELECT no_function()": 500, "SELECT FROM no_schema.tagz": 500, "SELECT tags.id FROM blobs": 500,
		"SELECT FROM goose_stats_version_of_others": 500, "SET ROLE pg_monitor; SELECT FROM tags": 503,
	} {
		_, err := r.DB.Pool.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
		if err == nil {
			t.Fatalf("%s succeeds", sql)
		}
		if a := server.Answer(t.Context(), fmt.Errorf("doing something: %w", err)); a.HTTPStatus() != want {
			t.Errorf("%s: %v is answered with %d, want %d", sql, err, a.HTTPStatus(), want)
		}
	}
}

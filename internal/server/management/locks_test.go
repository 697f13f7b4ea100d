package management_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// TestLockedTables: another transaction has locked what an operation needs for longer than
// PostgreSQL lets the session wait (lock_timeout). Each operation that needs it is answered with 503
// and Retry-After, and none with another server error. An operation without such an answer looks
// at nothing, refuses what the test sends, or has started work that it doesn't wait for.
func TestLockedTables(t *testing.T) {
	t.Parallel()
	dsn := dbtest.DSN(t)
	slow := dsn + "&lock_timeout=20"
	d := dbtest.Open(t, slow)
	r := replica(t, slow, t.TempDir(), func(o *servertest.Options) { everything(t)(o, d) })
	r.Put(t, "acme/app", "v1", r.Simple(t, "acme/app", 1, nil))
	var all described
	r.Manage(t, "GET", "/openapi.json", "").Into(t, 200, &all)
	servertest.LockTables(t, dsn)
	contended, calm := 0, map[string]int{}
	for path, methods := range all.Paths {
		for method, op := range methods {
			body := ""
			if s, ok := op.RequestBody.Content["application/json"]; ok {
				body = encode(t, validBody(all, s.Schema))
			}
			a := r.Do(t, strings.ToUpper(method), fill(path, "", "", op.Parameters), body, "Content-Type", "application/json")
			switch {
			case a.StatusCode == 503 && a.Header.Get("Retry-After") != "":
				contended++
			case a.StatusCode >= 500:
				t.Errorf("%s %s: %d %s, Retry-After %q", method, path, a.StatusCode, a.Content, a.Header.Get("Retry-After"))
			default:
				calm[method+" "+path] = a.StatusCode
			}
		}
	}
	if contended < 50 {
		t.Errorf("only %d operations met the locks", contended)
	}
	for operation, status := range calm {
		if status < 300 && status != 202 && !strings.HasPrefix(operation, "get ") {
			t.Errorf("%s succeeds on locked tables: %d", operation, status)
		}
	}
}

// TestDeniedTables: the role of the database may use no table any more. Each operation that needs the
// database must be answered with 503, and none with 500.
func TestDeniedTables(t *testing.T) {
	t.Parallel()
	empty := dbtest.EmptyDSN(t)
	admin, err := pgx.Connect(t.Context(), empty)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { admin.Close(context.Background()) }) //nolint:errcheck // nothing is pending
	dsn := dbtest.As(t, empty, dbtest.HostileRole(t, admin, "denied_tables"))
	if _, err := db.Migrate(t.Context(), dsn, db.MigrateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := db.MigrateStats(t.Context(), dsn, db.MigrateOptions{}); err != nil {
		t.Fatal(err)
	}
	d := dbtest.Open(t, dsn)
	r := replica(t, dsn, t.TempDir(), func(o *servertest.Options) { everything(t)(o, d) })
	r.Put(t, "acme/app", "v1", r.Simple(t, "acme/app", 1, nil))
	var all described
	r.Manage(t, "GET", "/openapi.json", "").Into(t, 200, &all)
	if _, err := admin.Exec(t.Context(), "REVOKE ALL ON ALL TABLES IN SCHEMA public FROM denied_tables"); err != nil {
		t.Fatal(err)
	}
	denied := 0
	for path, methods := range all.Paths {
		for method, op := range methods {
			body := ""
			if s, ok := op.RequestBody.Content["application/json"]; ok {
				body = encode(t, validBody(all, s.Schema))
			}
			a := r.Do(t, strings.ToUpper(method), fill(path, "", "", op.Parameters), body, "Content-Type", "application/json")
			switch {
			case a.StatusCode == 503 && a.Header.Get("Retry-After") != "":
				denied++
			case a.StatusCode >= 500:
				t.Errorf("%s %s: %d %s, Retry-After %q", method, path, a.StatusCode, a.Content, a.Header.Get("Retry-After"))
			}
		}
	}
	if denied < 100 {
		t.Errorf("only %d operations needed the database", denied)
	}
}

// validBody returns a body with the required members of a schema.
func validBody(d described, s schema) object {
	if name, found := strings.CutPrefix(s.Ref, "#/components/schemas/"); found {
		s = *d.Components.Schemas[name]
	}
	body := object{}
	for _, required := range s.Required {
		body[required] = sample(required, s.Properties[required])
	}
	return body
}

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/cmd/purser/internal/servetest"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/pgsession"
)

// hostileDatabase returns the DSN of an empty database whose owner, an ordinary role, has
// hostile values of the settings.
func hostileDatabase(t *testing.T, role string, settings ...string) (dsn string, admin *pgx.Conn) {
	t.Helper()
	dsn = dbtest.EmptyDSN(t)
	admin, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { admin.Close(context.Background()) }) //nolint:errcheck // nothing is pending
	return dbtest.As(t, dsn, dbtest.HostileRole(t, admin, role, settings...)), admin
}

// Somebody has imposed hostile values of all settings on the registry's role that a session can
// take back. Pushes, pulls, auto-pruning and garbage collection must work as always.
func TestHostileRole(t *testing.T) {
	t.Parallel()
	var names []string
	for _, s := range pgsession.Inherited {
		if !s.Refused {
			names = append(names, s.Name)
		}
	}
	dsn, admin := hostileDatabase(t, "hostile_owner", names...)
	// An ordinary role may take session_replication_role back if somebody has granted that.
	if _, err := admin.Exec(t.Context(), "GRANT SET ON PARAMETER session_replication_role TO hostile_owner"); err != nil {
		t.Fatal(err)
	}
	server := start(t, servetest.Config(t, "PURSER_DATABASE_MAIN="+dsn, "PURSER_GC_REVIEW_AFTER=0s", "PURSER_TRASH_KEEP=0s"))
	s := &shop{t, server.Registry}
	s.push("acme/app", "v1", "1")
	s.push("acme/app", "v2", "2")
	for _, tag := range []string{"v1", "v2"} {
		s.send("GET", "/v2/acme/app/manifests/"+tag, "", "", http.StatusOK)
	}
	s.run("policy", "create", "acme", "--num-tags", "1", "--mode", "on", "--yes")
	s.run("prune", "run", "acme")
	s.send("GET", "/v2/acme/app/manifests/v1", "", "", http.StatusNotFound)
	s.send("GET", "/v2/acme/app/manifests/v2", "", "", http.StatusOK)

	// A blob that no manifest needs is deleted, and the image with a tag stays.
	unused := oci.Compute(oci.SHA256, []byte("nobody wants this")).String()
	s.send("POST", "/v2/acme/app/blobs/uploads/?digest="+unused, "application/octet-stream", "nobody wants this", http.StatusCreated)
	rows := func(sql string) (n int) {
		t.Helper()
		if err := admin.QueryRow(t.Context(), sql).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	servetest.WaitFor(t, "garbage collection", func() bool {
		return rows("SELECT count(*) FROM blobs") == 1 && rows("SELECT count(*) FROM manifests") == 1
	})
	s.send("GET", "/v2/acme/app/manifests/v2", "", "", http.StatusOK)
	environ := []string{"PURSER_DATABASE_MAIN=" + dsn, "PURSER_STORAGE_FILESYSTEM_PATH=" + t.TempDir()}
	for _, args := range [][]string{{"gc", "status"}, {"migrate", "status"}, {"loosefk", "status"}} {
		if code, stdout, stderr := purser(t, environ, args...); code != 0 {
			t.Errorf("purser %v: exit code %d\n%s%s", args, code, stdout, stderr)
		}
	}
	if err := server.Stop(); err != nil {
		t.Error(err)
	}
}

// With settings that only an operator can take back, the server and the commands end at once,
// with one line that names the setting, who imposes it and what helps.
func TestHostileRoleIsRefused(t *testing.T) {
	t.Parallel()
	for i, s := range pgsession.Inherited {
		if !s.Refused && s.Name != "session_replication_role" {
			continue
		}
		role := fmt.Sprint("hostile_refused_", i)
		dsn, _ := hostileDatabase(t, role, s.Name)
		environ := []string{"PURSER_DATABASE_MAIN=" + dsn}
		for _, args := range [][]string{{"serve", "--addr", "127.0.0.1:0", "--debug-addr", "off"}, {"migrate", "up"}, {"gc", "status"}} {
			code, _, stderr := purser(t, environ, append(slices.Clone(args), "--data-dir", t.TempDir())...)
			if code != 1 || strings.Count(afterStart(stderr), "\n") != 1 || !strings.Contains(stderr, "role "+role+" imposes "+s.Name) ||
				!strings.Contains(stderr, "ALTER ROLE "+role+" RESET "+s.Name) {
				t.Errorf("%s: purser %v: exit code %d, stderr %q", s.Name, args, code, stderr)
			}
		}
	}
}

// A database, a role in a database, or all roles have a setting that only an operator can take back.
// The server must say at its start who imposes it, and what it says to do must help, also in a
// session that has this setting. The test isn't parallel, since ALTER ROLE ALL is for all databases
// of the tests' PostgreSQL.
func TestImposedElsewhereIsRefused(t *testing.T) {
	const role, setting = "imposed_elsewhere", "default_transaction_read_only"
	dsn, admin := hostileDatabase(t, role)
	database := admin.Config().Database
	t.Cleanup(func() { admin.Exec(context.Background(), "ALTER ROLE ALL RESET "+setting) }) //nolint:errcheck // it is reset already
	start := func() string {
		t.Helper()
		_, _, stderr := purser(t, []string{"PURSER_DATABASE_MAIN=" + dsn}, "migrate", "status", "--data-dir", t.TempDir())
		return stderr
	}
	for _, tt := range []struct{ on, by string }{
		{"DATABASE " + database, "database " + database},
		{"ROLE " + role + " IN DATABASE " + database, "role " + role},
		{"ROLE ALL", "the server"},
	} {
		if _, err := admin.Exec(t.Context(), "ALTER "+tt.on+" SET "+setting+" = on"); err != nil {
			t.Fatal(err)
		}
		remedy := "BEGIN READ WRITE; ALTER " + tt.on + " RESET " + setting + "; COMMIT"
		if stderr := start(); !strings.Contains(stderr, tt.by+" imposes "+setting+" = on") || !strings.Contains(stderr, ": "+remedy) {
			t.Errorf("ALTER %s: the start says %q, want that %s imposes it, and %q", tt.on, stderr, tt.by, remedy)
		}
		operator, err := pgx.Connect(t.Context(), admin.Config().ConnString())
		if err != nil {
			t.Fatal(err)
		}
		_, err = operator.PgConn().Exec(t.Context(), remedy).ReadAll()
		if err := errors.Join(err, operator.Close(t.Context())); err != nil {
			t.Fatalf("%s: %v", remedy, err)
		}
		if stderr := start(); strings.Contains(stderr, "imposes") {
			t.Errorf("after %s the start says %q", remedy, stderr)
		}
	}
}

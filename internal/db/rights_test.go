package db_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

// ownedDatabase returns the DSN of a migrated database for the role that owns it and its tables, and a
// superuser's connection.
func ownedDatabase(t *testing.T, role string) (dsn string, admin *pgx.Conn) {
	t.Helper()
	empty := dbtest.EmptyDSN(t)
	admin, err := pgx.Connect(t.Context(), empty)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { admin.Close(context.Background()) }) //nolint:errcheck // nothing is pending
	dsn = dbtest.As(t, empty, dbtest.HostileRole(t, admin, role))
	if _, err := db.Migrate(t.Context(), dsn, db.MigrateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := db.MigrateStats(t.Context(), dsn, db.MigrateOptions{}); err != nil {
		t.Fatal(err)
	}
	return dsn, admin
}

// do runs SQL that must succeed.
func do(t *testing.T, conn *pgx.Conn, statements ...string) {
	t.Helper()
	for _, sql := range statements {
		if _, err := conn.Exec(context.Background(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
}

// rightsOf returns the rights on a connection of its own, and the log of what has made it.
func rightsOf(t *testing.T, dsn string, before ...string) (r db.Rights, log string) {
	t.Helper()
	var out bytes.Buffer
	d, err := db.Open(t.Context(), db.Options{DSN: dsn, MaxConns: 1, Log: slog.New(slog.NewTextHandler(&out, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, sql := range before {
		d.Pool.Exec(t.Context(), sql) //nolint:errcheck // what is denied, the log says
	}
	ctx, n := db.WithCounter(t.Context())
	if r, err = d.Rights(ctx); err != nil || n.Count() != 1 {
		t.Fatalf("%v, after %d round trips", err, n.Count())
	}
	return r, out.String()
}

func contains(t *testing.T, what, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("%s says nothing of %q: %s", what, w, text)
		}
	}
}

// TestRights: a role loses rights, one after the other. What it lacks must be told with the way to give it
// back, which must do; and the log must tell it when a statement is denied.
func TestRights(t *testing.T) {
	t.Parallel()
	dsn, admin := ownedDatabase(t, "rights_owner")
	r, log := rightsOf(t, dsn, "SELECT FROM tags")
	if r.Role != "rights_owner" || r.Login != r.Role || r.Owner != r.Role || r.Schema != "public" || errors.Join(r.Pulls(true), r.All(), r.Writes()) != nil || log != "" {
		t.Errorf("of the owner: %+v, log %q", r, log)
	}
	for i, c := range []struct {
		revoke, grant string
		pulls         bool // can succeed
		words         []string
	}{
		{"SELECT ON tags", "SELECT ON TABLE public.tags", false, []string{"lacks the right to SELECT on the table public.tags"}},
		{"INSERT, DELETE ON tags", "INSERT, DELETE ON TABLE public.tags", true, []string{"INSERT, DELETE on the table public.tags"}},
		{"ALL ON live_repositories", "SELECT ON public.live_repositories", false, []string{"SELECT on the view public.live_repositories"}},
		{"ALL ON FUNCTION purser_decayed", "EXECUTE ON FUNCTION public.purser_decayed(", false, []string{"EXECUTE on the function public.purser_decayed("}},
		{"ALL ON ALL TABLES IN SCHEMA public", "ALL ON ALL TABLES IN SCHEMA public", false, []string{"the table public.", " others of the registry's objects"}},
	} {
		do(t, admin, "REVOKE "+c.revoke+" FROM rights_owner")
		r, log := rightsOf(t, dsn, "SELECT FROM tags")
		all := r.All()
		denied, ok := errors.AsType[*db.DeniedError](all)
		if !ok || (r.Pulls(true) == nil) != c.pulls || r.Writes() != nil {
			t.Fatalf("without %s: %+v", c.revoke, r)
		}
		contains(t, c.revoke, all.Error(), append(c.words, "the role rights_owner", "GRANT "+c.grant, " TO rights_owner")...)
		if i == 0 {
			contains(t, "the log", log, "level=ERROR", "role=rights_owner", "permission denied for table tags", "GRANT")
			if strings.Contains(log, "RESET role") {
				t.Errorf("the log: %s", log)
			}
		}
		do(t, admin, denied.Remedy)
		if r, _ := rightsOf(t, dsn); r.All() != nil {
			t.Errorf("after %s: %v", denied.Remedy, r.All())
		}
	}
}

// TestRightsOfAnotherRole: ALTER ROLE makes the sessions another role's, which may use nothing, or may not
// even look into the schema.
func TestRightsOfAnotherRole(t *testing.T) {
	t.Parallel()
	dsn, admin := ownedDatabase(t, "rights_login")
	other := dbtest.HostileRole(t, admin, "rights_other")
	do(t, admin, `GRANT rights_other TO rights_login; ALTER ROLE rights_login SET role = rights_other`)
	r, log := rightsOf(t, dsn, "SELECT FROM tags")
	err := r.Pulls(false)
	if r.Role != other || r.Login != "rights_login" || r.Owner != "rights_login" || err == nil {
		t.Fatalf("%+v", r)
	}
	contains(t, "the error", err.Error(), "the role rights_other", "ALTER ROLE rights_login RESET role", "GRANT rights_login TO rights_other")
	contains(t, "the log", log, "role=rights_other", "ALTER ROLE rights_login RESET role", "permission denied")

	do(t, admin, "REVOKE ALL ON SCHEMA public FROM PUBLIC, rights_other, rights_login; ALTER DATABASE "+pgx.Identifier{admin.Config().Database}.Sanitize()+" OWNER TO CURRENT_USER")
	r, _ = rightsOf(t, dsn)
	if err := r.Pulls(false); err == nil || r.Lacks[0].Kind != "schema" || !strings.Contains(err.Error(), "USAGE on the schema public") {
		t.Errorf("with a closed schema: %v, %+v", err, r)
	}
	do(t, admin, "GRANT USAGE ON SCHEMA public TO rights_login; ALTER ROLE rights_login RESET role")
	if r, _ = rightsOf(t, dsn); errors.Join(r.Pulls(true), r.All()) != nil {
		t.Errorf("after the remedy: %v", r.All())
	}
}

// TestReadOnly: transactions can't write any more. The rights say so, and the log when a statement fails.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	dsn, _ := ownedDatabase(t, "rights_reader")
	r, log := rightsOf(t, dsn, "SET default_transaction_read_only = on", "DELETE FROM tags")
	if err := r.Pulls(true); !r.ReadOnly || r.Standby || r.All() != nil || err == nil || !strings.Contains(err.Error(), "default_transaction_read_only") {
		t.Errorf("%+v: %v", r, err)
	}
	contains(t, "the log", log, "nothing can be written into the database", "cannot execute DELETE", "default_transaction_read_only")
	if err := (db.Rights{Schema: "public", Standby: true}).Pulls(false); err == nil || !strings.Contains(err.Error(), "target_session_attrs") {
		t.Errorf("of a standby: %v", err)
	}
}

// TestRightsOfEverything: rights are asked for on each table and view that a migrated database has, besides
// those of loose foreign keys, which the doctor of that package examines.
func TestRightsOfEverything(t *testing.T) {
	t.Parallel()
	dsn, admin := ownedDatabase(t, "rights_all")
	do(t, admin, "REVOKE ALL ON ALL TABLES IN SCHEMA public FROM rights_all")
	d := dbtest.Open(t, dsn)
	r, err := d.Rights(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stats, err := d.StatsRights(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	lacks := map[string]bool{}
	for _, l := range append(r.Lacks, stats.Lacks...) {
		lacks[l.Name] = true
	}
	rows, err := admin.Query(t.Context(), `SELECT relname::text FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v')
		AND NOT relispartition AND relname NOT LIKE 'loose_foreign_keys%' AND relname <> 'detached_partitions'`)
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(names) < 60 {
		t.Fatalf("%d tables and views, %v", len(names), err)
	}
	for _, name := range names {
		if !lacks[name] {
			t.Errorf("nobody asks for the rights on %s", name)
		}
	}
}

// TestDenied: errors by which PostgreSQL says that a role lacks a right are told as such, also those to a role
// that may not look into the schema. Errors in a statement are not.
func TestDenied(t *testing.T) {
	t.Parallel()
	dsn, admin := ownedDatabase(t, "rights_denied")
	do(t, admin, "REVOKE ALL ON tags FROM rights_denied; REVOKE ALL ON FUNCTION purser_decayed FROM rights_denied")
	d := dbtest.Open(t, dsn)
	check := func(schema, sql string, want bool) {
		t.Helper()
		_, err := d.Pool.Exec(t.Context(), sql)
		if got := db.Denied(fmt.Errorf("doing something: %w", err)); got != want {
			t.Errorf("with %s schema, %s: %v is told as denied: %v", schema, sql, err, got)
		}
	}
	for sql, want := range map[string]bool{
		"SELECT FROM tags": true, "SELECT purser_decayed(0, now(), 1, now())": true,
		"SELECT FROM hidden_table": false, "SELECT FROM hidden.tagz": false, "SELECT hidden.f()": false, "SELECT purser_decay()": false,
		"SELECT manifests.id FROM blobs": false, "SELECT FROM manifests m WHERE manifests.id = 1": false, "SELECT FROM manifests WHERE id = 'now'::name": false,
		"SELECT 1/0": false, "SELECT": false,
	} {
		check("an open", sql, want)
	}
	do(t, admin, "REVOKE ALL ON SCHEMA public FROM PUBLIC, rights_denied; ALTER DATABASE "+pgx.Identifier{admin.Config().Database}.Sanitize()+" OWNER TO CURRENT_USER")
	for sql, want := range map[string]bool{
		"SELECT FROM tags": true, "SELECT FROM public.tags": true, "SELECT FROM live_repositories": true, "SELECT purser_decayed(0, now(), 1, now())": true,
		"DELETE FROM loose_foreign_keys_deleted_records": true, "SELECT FROM goose_db_version": true, "SELECT FROM hidden_table": false,
	} {
		check("a closed", sql, want)
	}
}

package db_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

func execAll(t *testing.T, dsn, user, sql string) {
	t.Helper()
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	if user != "" {
		cfg.User = user
	}
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context()) //nolint:errcheck // it is over
	if _, err := conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// role makes a role of the test's own.
func role(t *testing.T, dsn, name string) string {
	t.Helper()
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	name += "_" + strings.ReplaceAll(cfg.Database, "-", "_")
	execAll(t, dsn, "", "CREATE ROLE "+name+" LOGIN")
	t.Cleanup(func() {
		conn, err := pgx.ConnectConfig(context.Background(), cfg)
		if err != nil {
			return
		}
		defer conn.Close(context.Background())                                                                              //nolint:errcheck // it is over
		conn.Exec(context.Background(), "DROP OWNED BY "+name+" CASCADE; DROP ROLE "+name, pgx.QueryExecModeSimpleProtocol) //nolint:errcheck // the server goes
	})
	return name
}

const openFunctions = `
	SELECT count(*) FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace, aclexplode(COALESCE(p.proacl, acldefault('f', p.proowner))) a
	WHERE a.grantee = 0 AND n.nspname NOT IN ('pg_catalog', 'information_schema')
		AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = p.oid AND d.deptype = 'e')`

// PUBLIC must have no right to execute the schema's functions, even if default privileges
// grant it. Migrating a schema that has such rights must revoke them.
func TestNobodyExecutes(t *testing.T) {
	t.Parallel()
	dsn := dbtest.EmptyDSN(t)
	execAll(t, dsn, "", "ALTER DEFAULT PRIVILEGES GRANT ALL ON FUNCTIONS TO PUBLIC; ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO PUBLIC")
	for range 2 {
		if _, err := db.Migrate(t.Context(), dsn, db.MigrateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := db.MigrateStats(t.Context(), dsn, db.MigrateOptions{}); err != nil {
			t.Fatal(err)
		}
		if n := number(t, dbtest.Open(t, dsn), openFunctions); n != 0 {
			t.Errorf("%d functions can be executed by everybody", n)
		}
		execAll(t, dsn, "", `GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO PUBLIC;
			DROP FUNCTION loose_foreign_keys_version();
			UPDATE settings SET value = '1' WHERE name = 'routines_version'; UPDATE settings SET value = 'older' WHERE name = 'schema_hash'`)
	}
}

// A member of the role that owns the schema must be able to do all that the owner does.
// Triggers must fire for its changes and be able to call their functions.
func TestMemberOfOwner(t *testing.T) {
	t.Parallel()
	dsn := dbtest.DSN(t)
	owner, member := role(t, dsn, "owner"), role(t, dsn, "member")
	execAll(t, dsn, "", "GRANT "+owner+" TO "+member+`;
		GRANT ALL ON SCHEMA public, partitions TO `+owner+`;
		DO $$ DECLARE o record; BEGIN
			FOR o IN SELECT c.oid::regclass AS name FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
				WHERE n.nspname IN ('public', 'partitions') AND c.relkind IN ('r', 'p', 'v') LOOP
				EXECUTE format('ALTER TABLE %s OWNER TO `+owner+`', o.name);
			END LOOP;
			FOR o IN SELECT p.oid::regprocedure AS name FROM pg_proc p WHERE p.pronamespace = 'public'::regnamespace LOOP
				EXECUTE format('ALTER FUNCTION %s OWNER TO `+owner+`', o.name);
			END LOOP;
		END $$`)
	execAll(t, dsn, member, `
		INSERT INTO top_level_namespaces (name) VALUES ('library');
		INSERT INTO repositories (top_level_namespace_id, path) SELECT id, 'library/alpine' FROM top_level_namespaces;
		INSERT INTO blobs (digest, size, storage_key) VALUES ('\x01aa', 1, 'key');
		DELETE FROM repositories`)
	d := dbtest.Open(t, dsn)
	if n := number(t, d, "SELECT count(*) FROM gc_blob_review_queue"); n != 1 {
		t.Errorf("%d reviews, want 1", n)
	}
	if n := number(t, d, "SELECT count(*) FROM loose_foreign_keys_deleted_records"); n != 1 {
		t.Errorf("%d deleted records, want 1", n)
	}
}

// An untrusted role has made a table, function or schema in Purser's schema. Migrate must
// refuse to use it.
func TestForeignObjects(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{
		"settings":         "CREATE TABLE public.settings (name text, value text)",
		"versions":         "CREATE TABLE public.goose_db_version (id int)",
		"function":         "CREATE FUNCTION public.gc_track_layer_blobs() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
		"requirement":      "CREATE FUNCTION public.purser_require(ok boolean, state text) RETURNS void LANGUAGE sql AS ''",
		"deleted records":  "CREATE TABLE public.loose_foreign_keys_deleted_records (partition bigint) PARTITION BY LIST (partition)",
		"trigger function": "CREATE FUNCTION public.insert_into_loose_foreign_keys_deleted_records() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
		"partitions":       "CREATE SCHEMA partitions",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := dbtest.EmptyDSN(t)
			stranger := role(t, dsn, "stranger")
			execAll(t, dsn, "", "GRANT CREATE ON SCHEMA public TO "+stranger+"; DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %I TO "+stranger+"', current_database()); END $$")
			execAll(t, dsn, stranger, sql)
			_, err := db.Migrate(t.Context(), dsn, db.MigrateOptions{})
			if err == nil || !strings.Contains(err.Error(), stranger) || !errors.Is(err, db.ErrForeignObject) && db.Code(err) != "42501" {
				t.Errorf("migrating ends with %v", err)
			}
		})
	}
}

package dbtest

import (
	"context"
	"net/url"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/pgsession"
)

// hostile has a value of each setting of pgsession.Inherited with which Purser couldn't work.
// The timeouts are as short as a server under load still opens connections with.
var hostile = map[string]string{
	"statement_timeout": "'100ms'", "lock_timeout": "'1ms'", "idle_in_transaction_session_timeout": "'1ms'",
	"idle_session_timeout": "'2s'", "transaction_timeout": "'500ms'",
	"default_transaction_isolation": "serializable", "default_transaction_deferrable": "on", "default_transaction_read_only": "on",
	"session_replication_role": "replica", "row_security": "on", "synchronous_commit": "off", "search_path": "nowhere, pg_catalog",
	"default_tablespace": "pg_default", "default_table_access_method": otherMethod, "exit_on_error": "on", "restrict_nonsystem_relation_kind": "'view, foreign-table'",
	"client_encoding": "'SQL_ASCII'", "client_min_messages": "debug5", "standard_conforming_strings": "off", "array_nulls": "off",
	"transform_null_equals": "on", "quote_all_identifiers": "on", "datestyle": "'SQL, DMY'", "intervalstyle": "sql_standard",
	"timezone": "'Pacific/Auckland'", "bytea_output": "escape", "extra_float_digits": "'-15'", "xmloption": "document",
	"plpgsql.extra_errors": "'all'", "check_function_bodies": "off",
	"plan_cache_mode": "force_custom_plan", "jit": "on", "enable_seqscan": "on", "enable_indexscan": "off", "enable_indexonlyscan": "off",
	"enable_bitmapscan": "off", "enable_tidscan": "off", "enable_nestloop": "off", "enable_hashjoin": "off", "enable_hashagg": "off", "enable_sort": "off",
	"enable_partition_pruning": "off",
}

// otherMethod is an access method of tables, which HostileRole makes. It does what heap does, and has
// another name.
const otherMethod = "other_heap"

// HostileRole makes a role on which hostile values of the settings are imposed, and which is
// dropped when the test ends. It fails the test if a setting of pgsession.Inherited has none
// here. The connection is a superuser's; the role owns its database from then on.
func HostileRole(t testing.TB, admin *pgx.Conn, role string, settings ...string) string {
	t.Helper()
	run := func(sql string) {
		t.Helper()
		if _, err := admin.Exec(context.Background(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	database := pgx.Identifier{admin.Config().Database}.Sanitize()
	run("CREATE ROLE " + role + " LOGIN")
	t.Cleanup(func() {
		run("ALTER DATABASE " + database + " OWNER TO CURRENT_USER")
		run("REASSIGN OWNED BY " + role + " TO CURRENT_USER")
		run("DROP OWNED BY " + role)
		run("DROP ROLE " + role)
	})
	run("ALTER DATABASE " + database + " OWNER TO " + role)
	run("GRANT ALL ON SCHEMA public TO " + role)
	for _, name := range settings {
		value, ok := hostile[name]
		if !ok || !pgsession.Inherits(name) {
			t.Fatalf("no hostile value of %s", name)
		}
		var known bool
		if err := admin.QueryRow(context.Background(), "SELECT current_setting($1, true) IS NOT NULL OR $1 LIKE '%.%'", name).Scan(&known); err != nil {
			t.Fatal(err)
		}
		if name == "default_table_access_method" {
			run("DO $$ BEGIN CREATE ACCESS METHOD " + otherMethod + " TYPE TABLE HANDLER heap_tableam_handler; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
		}
		if known {
			run("ALTER ROLE " + role + " SET " + name + " = " + value)
		}
	}
	return role
}

// As returns the DSN for another role, which needs no password.
func As(t testing.TB, dsn, role string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.User(role)
	return u.String()
}

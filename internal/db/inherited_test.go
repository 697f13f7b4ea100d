package db_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/pgsession"
)

// sessionOf returns what the named setting is on a connection that db.Open makes, or the error.
func sessionOf(t *testing.T, dsn, name string) (value string, err error) {
	t.Helper()
	d, err := db.Open(t.Context(), db.Options{DSN: dsn, StatementTimeout: -1, IdleTimeout: -1, TransactionTimeout: -1, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	err = d.Pool.QueryRow(t.Context(), "SELECT setting FROM pg_settings WHERE lower(name) = $1", name).Scan(&value)
	return value, err
}

// Somebody has imposed a hostile value of each setting of pgsession.Inherited on Purser's role.
// A session must have Purser's value, or connecting must fail with an error that names the
// setting, its value and the way out. Such an error must not be waited for at the start.
func TestInherited(t *testing.T) {
	t.Parallel()
	dsn := dbtest.EmptyDSN(t)
	admin, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { admin.Close(context.Background()) }) //nolint:errcheck // nothing is pending
	for i, s := range pgsession.Inherited {
		role := dbtest.HostileRole(t, admin, fmt.Sprint("inherits_", i), s.Name)
		value, err := sessionOf(t, dbtest.As(t, dsn, role), s.Name)
		imposed, refused := errors.AsType[*pgsession.ImposedError](err)
		mustRefuse := s.Refused || s.Name == "session_replication_role" // which an ordinary role may not set
		switch {
		case mustRefuse != refused:
			t.Errorf("%s: connecting says %v", s.Name, err)
		case refused:
			if imposed.By != "role "+role || !strings.Contains(imposed.Error(), "ALTER ROLE "+role+" RESET "+s.Name) {
				t.Errorf("%s: connecting says %v", s.Name, err)
			}
			if !pgsession.Misconfigured(err) || !db.Unavailable(err) {
				t.Errorf("%s: the start would wait for the error, or requests be answered with 500", s.Name)
			}
			if text := pgsession.Explain(err, "database.main").Error(); !strings.Contains(text, s.Name) || strings.Contains(text, "can't be reached") {
				t.Errorf("%s: operators are told %q", s.Name, text)
			}
		case err == nil && value == "": // a setting that this server doesn't have, or none
		case errors.Is(err, pgx.ErrNoRows): // a server of another version
		case err != nil || value != s.Value:
			t.Errorf("%s is %q (%v), want %q", s.Name, value, err, s.Value)
		}
		list, err := pgsession.Imposed(t.Context(), dbtest.As(t, dsn, role))
		known := !slices.Contains([]string{"transaction_timeout", "restrict_nonsystem_relation_kind", "plpgsql.extra_errors"}, s.Name)
		list = slices.DeleteFunc(list, func(e *pgsession.ImposedError) bool { return e.By == "PostgreSQL's configuration" }) // of the test server
		if err != nil && s.Name != "statement_timeout" || known && err == nil && (len(list) != 1 || list[0].Setting.Name != s.Name) {
			t.Errorf("%s: imposed is %v, %v", s.Name, list, err)
		}
	}
}

// leftAlone are the settings that a role or a database may impose on Purser's sessions and that stay
// as they are, with the reasons. A name that ends in * stands for all that begin so.
var leftAlone = map[string]string{
	"role":                         "how an operator lets a log-in act as the owner of the tables; what that role may not do is told as such",
	"temp_tablespaces":             "those that don't exist, or that the role may not use, are passed over",
	"default_toast_compression":    "each method can be read",
	"application_name":             "Purser gives its own",
	"force_parallel_mode":          "how its developers test it",
	"transaction_*":                "of one transaction, which begins with the default",
	"backend_flush_after":          "how writes reach the disk",
	"backslash_quote":              "no statement has text of others in it",
	"commit_siblings":              "when commits wait for each other; a superuser decides whether they do",
	"constraint_exclusion":         "the tables are partitioned by declaration",
	"createrole_self_grant":        "no role is made",
	"cpu_*":                        "costs, by which the operator describes the machine",
	"cursor_tuple_fraction":        "no cursor is used",
	"debug_*":                      "what the server's log has, and how its developers test it",
	"default_statistics_target":    "how exact statistics of tables are",
	"default_text_search_config":   "no text search is used",
	"effective_*":                  "costs, by which the operator describes the machine",
	"enable_async_append":          "no foreign table is used",
	"enable_distinct_reordering":   "plans are as quick without it",
	"enable_gathermerge":           "plans are as quick without it",
	"enable_group_by_reordering":   "plans are as quick without it",
	"enable_incremental_sort":      "plans are as quick without it",
	"enable_material":              "plans are as quick without it",
	"enable_memoize":               "plans are as quick without it",
	"enable_mergejoin":             "plans are as quick without it",
	"enable_parallel_*":            "plans are as quick without it",
	"enable_partitionwise_*":       "plans are as quick with it",
	"enable_presorted_aggregate":   "plans are as quick without it",
	"enable_self_join_elimination": "plans are as quick without it",
	"escape_string_warning":        "messages are for nobody",
	"file_copy_method":             "no database is made",
	"from_collapse_limit":          "statements say themselves in which order tables are read",
	"geqo*":                        "statements say themselves in which order tables are read",
	"gin_*":                        "there is no such index",
	"hash_mem_multiplier":          "memory is the operator's",
	"icu_validation_level":         "no collation is made",
	"io_*":                         "how the disk is read",
	"jit_*":                        "jit is off",
	"join_collapse_limit":          "statements say themselves in which order tables are read",
	"lc_*":                         "numbers, sums of money and names of months aren't written by PostgreSQL",
	"local_preload_libraries":      "only an operator can provide such libraries",
	"log_*":                        "what the server's log has",
	"logical_decoding_work_mem":    "memory is the operator's",
	"maintenance_*":                "memory and disks are the operator's",
	"max_parallel_*":               "processors are the operator's",
	"md5_password_warnings":        "messages are for nobody",
	"min_parallel_*":               "processors are the operator's",
	"parallel_*":                   "processors are the operator's",
	"password_encryption":          "no password is set",
	"plpgsql.*":                    "what messages of functions have; extra_errors is set",
	"random_page_cost":             "costs, by which the operator describes the machine",
	"recursive_worktable_factor":   "costs, by which the operator describes the machine",
	"scram_iterations":             "no password is set",
	"seq_page_cost":                "costs, by which the operator describes the machine",
	"stats_fetch_consistency":      "what views of the server's own statistics have",
	"synchronize_seqscans":         "no statement relies on the order of a table",
	"temp_buffers":                 "memory is the operator's",
	"timezone_abbreviations":       "times are written with the offset from UTC",
	"trace_*":                      "what the server's log has",
	"vacuum_*":                     "how the operator's VACUUM works",
	"wal_*":                        "how writes reach the disk, and other servers",
	"work_mem":                     "memory is the operator's",
	"xmlbinary":                    "no XML is used",
}

// Each setting that a role or a database may impose on an ordinary session must be set by Purser's
// sessions, or be in the list of those that may stay.
func TestInheritedIsComplete(t *testing.T) {
	t.Parallel()
	d := dbtest.Open(t, dbtest.EmptyDSN(t))
	rows, err := d.Pool.Query(t.Context(), "SELECT lower(name) FROM pg_settings WHERE context = 'user' UNION SELECT 'role' ORDER BY 1")
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(names) < 100 {
		t.Fatalf("%d settings, %v", len(names), err)
	}
	for _, name := range names {
		_, stays := leftAlone[name]
		for prefix := range leftAlone {
			stays = stays || strings.HasSuffix(prefix, "*") && strings.HasPrefix(name, strings.TrimSuffix(prefix, "*"))
		}
		if !stays && !pgsession.Inherits(name) && !pgsession.Detects(name) {
			t.Errorf("%s may be imposed: pgsession.Inherited lacks it, and no reason is given why it may stay", name)
		}
	}
	for name, reason := range leftAlone {
		if reason == "" || pgsession.Inherits(name) {
			t.Errorf("%s has no reason to stay, or doesn't stay", name)
		}
	}
}

// A superuser may take session_replication_role back.
func TestReplicationRoleOfSuperuser(t *testing.T) {
	t.Parallel()
	dsn := dbtest.EmptyDSN(t)
	admin, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { admin.Close(context.Background()) }) //nolint:errcheck // nothing is pending
	role := dbtest.HostileRole(t, admin, "inherits_super", "session_replication_role")
	if _, err := admin.Exec(t.Context(), "ALTER ROLE "+role+" SUPERUSER"); err != nil {
		t.Fatal(err)
	}
	if value, err := sessionOf(t, dbtest.As(t, dsn, role), "session_replication_role"); err != nil || value != "origin" {
		t.Errorf("it is %q, %v", value, err)
	}
}

// A DSN may give the search path and limits of its own. It can't take back what Purser needs.
func TestInheritedFromDSN(t *testing.T) {
	t.Parallel()
	dsn := dbtest.EmptyDSN(t)
	for name, tt := range map[string]struct{ given, want string }{
		"search_path": {"app, public", "app, public"}, "default_tablespace": {"pg_global", "pg_global"}, "lock_timeout": {"7000", "7000"},
		"synchronous_commit": {"remote_apply", "remote_apply"}, "datestyle": {"SQL, DMY", "ISO, MDY"},
		"transform_null_equals": {"on", "off"},
	} {
		value, err := sessionOf(t, dsn+"&"+name+"="+url.PathEscape(tt.given), name)
		if err != nil || value != tt.want {
			t.Errorf("%s is %q (%v), want %q", name, value, err, tt.want)
		}
	}
	_, err := sessionOf(t, dsn+"&default_transaction_read_only=on", "search_path")
	if err == nil || !strings.Contains(err.Error(), "the DSN imposes default_transaction_read_only = on") {
		t.Errorf("a read-only DSN: %v", err)
	}
}

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
		"search_path": {"app, public", "app, public"}, "lock_timeout": {"7000", "7000"},
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

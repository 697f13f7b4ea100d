package servertest

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
)

// LockTables locks all tables of a database against every other transaction, until the returned
// function is called or the test ends.
func LockTables(t *testing.T, dsn string) (unlock func()) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	unlock = func() { conn.Close(context.WithoutCancel(t.Context())) } //nolint:errcheck // nothing is to be kept
	t.Cleanup(unlock)
	if _, err := conn.Exec(t.Context(), `
		BEGIN;
		DO $$ BEGIN EXECUTE (
			SELECT 'LOCK TABLE ' || string_agg(c.oid::regclass::text, ', ') || ' IN ACCESS EXCLUSIVE MODE'
			FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p'));
		END $$`); err != nil {
		t.Fatal(err)
	}
	return unlock
}

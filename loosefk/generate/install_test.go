package generate

import (
	"testing"

	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/purser-registry/purser/loosefk"
	"github.com/purser-registry/purser/loosefk/internal/testdb"
)

// A database has run the migration of version 1. The migrations of a release with another
// version must run on it and keep the deleted records. The way back must uninstall.
func TestInstallMigrationsOfALaterVersion(t *testing.T) {
	t.Parallel()
	pool := newPool(t, "CREATE TABLE projects (id int PRIMARY KEY); INSERT INTO projects VALUES (1)")
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close() //nolint:errcheck // the test's database is removed anyway
	provider := func(last int) *goose.Provider {
		t.Helper()
		p, err := goose.NewProvider(goose.DialectPostgres, db, installMigrations(Goose, loosefk.DefaultSchema, last))
		must(t, err)
		return p
	}
	_, err := provider(1).Up(t.Context())
	must(t, err)
	must(t, loosefk.DefaultSchema.TrackRecordDeletions(t.Context(), pool, "projects"))
	exec(t, pool, "DELETE FROM projects;"+testdb.OlderVersion)

	later := provider(2)
	ran, err := later.Up(t.Context())
	must(t, err)
	if len(ran) != 1 || ran[0].Source.Version != 2 {
		t.Errorf("the later release runs %v, want version 2", ran)
	}
	testdb.WantRows(t, pool, "SELECT loose_foreign_keys_version()", int32(loosefk.SchemaVersion))
	testdb.WantRows(t, pool, "SELECT primary_key_value FROM loose_foreign_keys_deleted_records", int64(1))
	_, err = later.DownTo(t.Context(), 1)
	must(t, err)
	testdb.WantRows(t, pool, "SELECT primary_key_value FROM loose_foreign_keys_deleted_records", int64(1))
	must(t, loosefk.DefaultSchema.UntrackRecordDeletions(t.Context(), pool, "projects"))
	_, err = later.DownTo(t.Context(), 0)
	must(t, err)
	testdb.WantRows(t, pool, "SELECT to_regclass('loose_foreign_keys_deleted_records') IS NULL", true)
}

package installed

import (
	"context"

	"github.com/purser-registry/purser/loosefk/internal/pg"
)

// VersionIn returns the version that is installed in a database, or 0 if the SQL function
// that tells it is missing.
func VersionIn(ctx context.Context, db pg.Database) (version int, err error) {
	err = db.Catalog().QueryRow(ctx, "SELECT COALESCE((SELECT substring(prosrc FROM '[0-9]+')::int FROM pg_proc WHERE oid = to_regprocedure($1)), 0)",
		db.Function(VersionFunction)).Scan(&version)
	return version, err
}

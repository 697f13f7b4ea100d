package db

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// ErrForeignObject says that the schema that Purser is about to use has an object, such as a
// table or function, that belongs to a role which Purser's role doesn't trust.
var ErrForeignObject = errors.New("whoever owns it could have Purser run code of theirs")

// requireOwners returns ErrForeignObject if an untrusted role owns an object that Purser is
// about to create or replace. CREATE OR REPLACE doesn't change a function's owner, so that
// role could change the function afterwards; and the triggers that it puts on its table would
// run with Purser's rights. The trusted roles are Purser's own role, the roles of which it is
// a member, superusers, and the owners of the schema and of the database.
func requireOwners(ctx context.Context, conn *pgx.Conn) error {
	var name, owner string
	err := conn.QueryRow(ctx, `
		WITH RECURSIVE mine AS (
			SELECT oid FROM pg_roles WHERE rolname = current_user
			UNION
			SELECT m.roleid FROM pg_auth_members m JOIN mine ON m.member = mine.oid
		), trusted AS (
			SELECT oid FROM mine
			UNION SELECT oid FROM pg_roles WHERE rolsuper
			UNION SELECT nspowner FROM pg_namespace WHERE nspname = current_schema()
			UNION SELECT datdba FROM pg_database WHERE datname = current_database()
		), found (name, owner) AS (
			SELECT 'table ' || relname, relowner FROM pg_class
			WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())
				AND relname IN ('settings', 'goose_db_version', 'goose_stats_version', 'tagpullstatistics', 'manifestpullstatistics', 'tagpullhistory',
					'manifestpullhistory', 'repositorypullhistory', 'namespacepullhistory', 'pullhistory',
					'pullstatisticsprocessingstate', 'redisprocessingstate')
			UNION ALL
			SELECT 'function ' || proname, proowner FROM pg_proc
			WHERE pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())
				AND (starts_with(proname, 'gc_') OR starts_with(proname, 'purser_'))
			UNION ALL
			SELECT 'schema ' || nspname, nspowner FROM pg_namespace WHERE nspname = 'partitions'
		)
		SELECT name, pg_get_userbyid(owner) FROM found WHERE owner NOT IN (SELECT oid FROM trusted) ORDER BY 1 LIMIT 1`).Scan(&name, &owner)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("looking up the owners of the schema's objects: %w", err)
	}
	return fmt.Errorf("the %s is there already and belongs to the role %s: %w. If that role has installed Purser, connect as it, or as a member of it; else drop the %[1]s, or give Purser a schema of its own",
		name, owner, ErrForeignObject)
}

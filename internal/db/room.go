package db

import (
	"context"
	"fmt"
	"math"
)

// Room is the number of connections that the server allows to the pool's role and database.
type Room struct {
	Connections int
	// Of is the name of the lowest limit, which is reached first: "role NAME", "database NAME"
	// or "max_connections".
	Of string
}

// Room reads the server's limits on connections for the pool's role, its database and the
// whole server, and returns the lowest of the three. The limits of role and database don't
// apply to a superuser, so for a superuser Room returns max_connections.
func (d *DB) Room(ctx context.Context) (Room, error) {
	var r Room
	var role, database string
	var super bool
	var ofRole, ofDatabase, all, reserved int
	err := d.Pool.QueryRow(ctx, `
		SELECT r.rolname::text, d.datname::text, r.rolsuper, r.rolconnlimit, d.datconnlimit,
			current_setting('max_connections')::int, current_setting('superuser_reserved_connections')::int
		FROM pg_catalog.pg_roles r, pg_catalog.pg_database d
		WHERE r.rolname = current_user AND d.datname = current_database()`).
		Scan(&role, &database, &super, &ofRole, &ofDatabase, &all, &reserved)
	if err != nil {
		return r, fmt.Errorf("asking for the limits on connections: %w", err)
	}
	unlimited := func(n int) int {
		if n < 0 || super { // PostgreSQL doesn't limit superusers
			return math.MaxInt
		}
		return n
	}
	r = Room{all, "max_connections"}
	if !super {
		r.Connections -= reserved
	}
	if n := unlimited(ofDatabase); n < r.Connections {
		r = Room{n, "database " + database}
	}
	if n := unlimited(ofRole); n < r.Connections {
		r = Room{n, "role " + role}
	}
	return r, nil
}

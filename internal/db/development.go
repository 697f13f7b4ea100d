package db

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// History is the value of the row "history" in the table settings, which the first migration
// inserts. It has a hash of the first migrations, of the metadata and of the statistics, which are the
// same in all releases. The builds before 1.0 had other migrations under the same numbers, up to 45, and
// later other texts of the first ones. So without this value, the number of the schema's version means
// something else.
var History = "1.0-" + hashOfFirst()

const historySetting = "history"

// hashOfFirst returns a hash of the first migrations.
func hashOfFirst() string {
	h := sha256.New()
	for _, first := range []struct {
		files embed.FS
		name  string
	}{{migrations, "migrations/00001_schema.sql"}, {statsMigrations, "stats/00001_pull_statistics.sql"}} {
		text, err := first.files.ReadFile(first.name)
		if err != nil {
			panic(err) // can't happen: embedded files are always readable
		}
		fmt.Fprintf(h, "%s %d\n", first.name, len(text))
		h.Write(text)
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// ErrDevelopment says that a build of Purser before 1.0 has made the tables, or the backup.
var ErrDevelopment = errors.New("a build from before Purser 1.0 made it, and Purser can't migrate that: to carry the content over, " +
	`run that build and this one beside each other on two data directories, and "purser copy" from one to the other (see docs/migrating.md)`)

// requireHistory returns ErrDevelopment if a build before 1.0 has migrated the connection's
// database.
func requireHistory(ctx context.Context, conn *pgx.Conn) error {
	var there bool
	err := conn.QueryRow(ctx, "SELECT to_regclass('settings') IS NOT NULL AND to_regclass('goose_db_version') IS NOT NULL").Scan(&there)
	if err != nil {
		return fmt.Errorf("looking for the schema: %w", err)
	}
	if !there {
		return nil
	}
	var old bool
	err = conn.QueryRow(ctx, `
		SELECT NOT EXISTS (SELECT FROM settings WHERE name = $1 AND value = $2) AND EXISTS (SELECT FROM goose_db_version WHERE version_id > 0 AND is_applied)`,
		historySetting, History).Scan(&old)
	if err != nil {
		return fmt.Errorf("reading which history the schema has: %w", err)
	}
	if old {
		return fmt.Errorf("the database %s can't be used: %w", conn.Config().Database, ErrDevelopment)
	}
	return nil
}

// requireStatsHistory is like requireHistory, for the tables of the statistics, which may be on a
// server of their own. A development build that has made their version 5, or a later one, left
// out version 4, which a release doesn't.
func requireStatsHistory(ctx context.Context, conn *pgx.Conn) error {
	there, err := Exists(ctx, conn, "goose_stats_version")
	if err != nil || !there {
		return err
	}
	var old bool
	err = conn.QueryRow(ctx, "SELECT COALESCE(bool_or(version_id = 5) AND NOT bool_or(version_id = 4), false) FROM goose_stats_version WHERE is_applied").Scan(&old)
	if err != nil {
		return fmt.Errorf("reading which history the schema of the statistics has: %w", err)
	}
	if old {
		return fmt.Errorf("the statistics' database %s can't be used: %w", conn.Config().Database, ErrDevelopment)
	}
	return nil
}

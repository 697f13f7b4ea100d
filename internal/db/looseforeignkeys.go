package db

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/purser-registry/purser/loosefk"
)

//go:embed loose_foreign_keys.yml
var looseForeignKeys []byte

// statsTables are the tables of the statistics' database that have loose foreign keys.
var statsTables = []string{
	"tagpullstatistics", "manifestpullstatistics", "tagpullhistory", "manifestpullhistory", "repositorypullhistory", "namespacepullhistory",
}

// LooseForeignKeys returns the registry's loose foreign keys and the databases that their
// tables are in: the main database and, if the statistics of pulls are in another database,
// that one too. `stats` is the pool of the database with the statistics of pulls; it equals
// `main` if the main database has them. LooseForeignKeys succeeds even if a separate database
// of statistics can't be reached.
func LooseForeignKeys(ctx context.Context, main, stats *pgxpool.Pool) (loosefk.Databases, loosefk.Definitions, error) {
	defs, err := loosefk.Parse("loose_foreign_keys.yml", bytes.NewReader(looseForeignKeys))
	if err != nil {
		return nil, nil, err
	}
	list := loosefk.Databases{{Name: "main", Pool: main}}
	if stats != main {
		list = append(list, loosefk.Database{Name: "stats", Pool: stats, Tables: statsTables})
	}
	for i := range list {
		err := list[i].Pool.QueryRow(ctx, "SELECT current_schema()").Scan(&list[i].Schema)
		if i > 0 && Unavailable(err) { // the statistics' server is away; the tables of the main database are cleaned up without it
			list[i].Schema, err = likelySchema(list[i].Pool), nil
		}
		if err != nil {
			return nil, nil, fmt.Errorf("asking database %s for its schema: %w", list[i].Name, err)
		}
	}
	return list, defs, nil
}

// likelySchema guesses the schema of the tables in a database that can't be queried now: the
// first schema of the search_path in the pool's DSN, or else public.
func likelySchema(pool *pgxpool.Pool) loosefk.Schema {
	cfg, err := pgx.ParseConfig(pool.Config().ConnString())
	if err != nil {
		return loosefk.DefaultSchema
	}
	for name := range strings.SplitSeq(cfg.RuntimeParams["search_path"], ",") {
		if name = strings.Trim(name, ` "`); name != "" && name != "$user" {
			return loosefk.Schema(name)
		}
	}
	return loosefk.DefaultSchema
}

// looseParents are the parent tables, whose deletions a trigger records.
var looseParents = []string{"repositories", "top_level_namespaces"}

// looseSQL returns the statements that create, in a schema, the table of deleted records and
// the triggers that write into it.
func looseSQL(schema loosefk.Schema) []string {
	list := []string{schema.InstallSQL()}
	for _, table := range looseParents {
		list = append(list, schema.TrackRecordDeletionsSQL(table))
	}
	return list
}

// looseTablesSQL returns the statements that create the tables of deleted records in a schema,
// without the triggers that write into them.
func looseTablesSQL(schema string) string { return loosefk.Schema(schema).InstallSQL() }

func installLooseForeignKeys(ctx context.Context, tx pgx.Tx) error {
	var schema loosefk.Schema
	if err := tx.QueryRow(ctx, "SELECT current_schema()").Scan(&schema); err != nil {
		return fmt.Errorf("asking for the schema: %w", err)
	}
	for _, sql := range looseSQL(schema) {
		if _, err := tx.Exec(ctx, sql); err != nil {
			return fmt.Errorf("installing loose foreign keys: %w", err)
		}
	}
	return nil
}

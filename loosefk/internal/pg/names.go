// Package pg contains what all packages of loose foreign keys need for PostgreSQL: names
// and quoting, descriptions of tables and of their keys, and a way to run statements so
// that they can't call operators or functions that other roles have put on the search path.
package pg

import (
	"strings"

	"github.com/jackc/pgx/v5"
)

// Names of the tables that an installation makes.
const (
	RecordsTable  = "loose_foreign_keys_deleted_records"
	DetachedTable = "detached_partitions"
)

// Status of a deleted record.
const (
	StatusPending   = 1
	StatusProcessed = 2
	StatusFailed    = 3 // names no table, so no worker can process it
)

// Table is the name of a table with its schema.
type Table struct{ Schema, Name string }

// String returns the name in the form that deleted records have.
func (t Table) String() string { return t.Schema + "." + t.Name }

// Quoted returns the name in the form that SQL needs.
func (t Table) Quoted() string { return pgx.Identifier{t.Schema, t.Name}.Sanitize() }

// Quote quotes a name for SQL.
func Quote(name string) string { return pgx.Identifier{name}.Sanitize() }

// Literal quotes a text for SQL.
func Literal(s string) string {
	if strings.Contains(s, `\`) {
		return `E'` + strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(s) + `'`
	}
	return `'` + strings.ReplaceAll(s, `'`, `''`) + `'`
}

// IsTable returns whether name is a valid name of a table in a definition: "name" or
// "schema.name", without quotes and spaces.
func IsTable(name string) bool {
	parts := strings.Split(name, ".")
	if len(parts) > 2 {
		return false
	}
	for _, part := range parts {
		if part == "" || len(part) > 63 || strings.ContainsAny(part, "\x00\"' \t\n") {
			return false
		}
	}
	return true
}

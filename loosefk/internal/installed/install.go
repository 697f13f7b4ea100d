// Package installed has the SQL of what loose foreign keys install in a database: the table
// of deleted records, and the functions and triggers that fill it.
package installed

import (
	_ "embed"
	"strconv"
	"strings"

	"github.com/purser-registry/purser/loosefk/internal/pg"
)

// installSQL has the names that expand puts in, and {functions}, those that
// Schema.functions makes.
//
//go:embed install.sql
var installSQL string

// InstallSQL is what Install runs: one statement, so that at no moment there is a
// function that others may execute.
//
// The trigger functions run with the rights of who installs them, so that
// whoever may delete a parent needs no right on the table of deleted records.
// Nobody but their owner may execute them, whatever the default privileges say. A
// newer version is left as it is.
func (s Schema) InstallSQL() string {
	var functions, names []string
	for _, f := range s.Functions() {
		functions = append(functions, f.sql(s))
		names = append(names, pg.Literal(f.Name))
	}
	return s.Expand(strings.TrimSpace(installSQL),
		"{functions}", strings.Join(functions, "\n"),
		"{function_names}", strings.Join(names, ", "),
		"{version}", strconv.Itoa(Version),
		"{version_name}", pg.Literal(VersionFunction),
		"{records_name}", pg.Literal(RecordsTable),
		"{detached_name}", pg.Literal(DetachedTable),
		"{detached_regclass}", pg.Literal(s.Table(DetachedTable).Quoted()))
}

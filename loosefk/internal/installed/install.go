// Package installed has the SQL that installs loose foreign keys in a database: the table of
// deleted records, and the functions and triggers that fill it.
package installed

import (
	_ "embed"
	"strconv"
	"strings"

	"github.com/purser-registry/purser/loosefk/internal/pg"
)

// installSQL is the text of the statement that installs loose foreign keys. It contains
// placeholders such as {records} for names, which Schema.Expand replaces, and {functions}
// for the definitions of Schema.Functions.
//
//go:embed install.sql
var installSQL string

// InstallSQL returns the SQL that Install runs. It is one statement, so that other roles
// can't execute a new function before the statement revokes their right EXECUTE.
//
// The trigger functions run with the rights of the role that installs them, so a role that
// deletes a parent needs no right on the table of deleted records. The SQL revokes the right
// EXECUTE on the functions from all other roles, even if default privileges grant it. If the
// functions exist already, roles other than PUBLIC keep the rights that they were granted. If
// a newer version is installed, the SQL changes nothing.
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

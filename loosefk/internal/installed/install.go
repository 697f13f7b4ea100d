package installed

import (
	_ "embed"
	"strconv"
	"strings"
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
	for _, f := range s.functions() {
		functions = append(functions, f.sql(s))
		names = append(names, literal(f.name))
	}
	return s.expand(strings.TrimSpace(installSQL),
		"{functions}", strings.Join(functions, "\n"),
		"{function_names}", strings.Join(names, ", "),
		"{version}", strconv.Itoa(SchemaVersion),
		"{version_name}", literal(versionFunction),
		"{records_name}", literal(RecordsTable),
		"{detached_name}", literal(DetachedTable),
		"{detached_regclass}", literal(s.name(DetachedTable).quoted()))
}

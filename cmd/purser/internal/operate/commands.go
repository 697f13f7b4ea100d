// Package operate has the commands for operators. They work directly on the configured
// database and blob store, whether or not a server runs: garbage collection, the check and
// the adoption of a store, migrations, loose foreign keys, the built-in PostgreSQL, and the
// configuration itself.
package operate

import (
	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
)

// Commands returns the commands for operators. `ofImport` become subcommands of the command "import".
func Commands(src *command.Source, ofImport ...*cobra.Command) []*cobra.Command {
	return []*cobra.Command{
		configCommand(src), postgresCommand(src), migrateCommand(src), gcCommand(src), checkCommand(src), storeCommand(src),
		backupCommand(src), restoreCommand(src), moveCommand(src), importCommand(src, ofImport), looseCommand(src), doctorCommand(src), healthCommand(src),
	}
}

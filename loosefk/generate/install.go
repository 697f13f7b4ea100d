package generate

import (
	"cmp"
	"fmt"
	"io/fs"
	"testing/fstest"

	"github.com/purser-registry/purser/loosefk"
	"github.com/purser-registry/purser/loosefk/internal/installed"
)

// InstallMigrations returns migrations that install loose foreign keys in a schema, as
// files for a migration library: in the format Goose for goose.NewProvider, in the format
// Plain for golang-migrate's iofs.New. The version of a migration is the SchemaVersion that
// it installs: a small number, which may also be the version of another migration of the
// application. So let the library keep the versions of these migrations in a table of their
// own. A later release of this package has a migration more for each new SchemaVersion. The
// down migration of version 1 deletes the deleted records, even those whose children are not
// cleaned up yet.
//
// The migrations create no triggers. For each parent write a migration with the SQL that
// Schema.TrackRecordDeletionsSQL returns, or let Generator.Convert write it.
func InstallMigrations(format Format, schema loosefk.Schema) (fs.FS, error) {
	if format != Goose && format != Plain {
		return nil, fmt.Errorf("the format of migrations is %q: want %s or %s", format, Goose, Plain)
	}
	return installMigrations(format, cmp.Or(schema, loosefk.DefaultSchema), loosefk.SchemaVersion), nil
}

// installMigrations returns the migrations of the versions 1 to `last`. Each runs the same
// SQL, which installs or upgrades; only the down migration of version 1 uninstalls.
func installMigrations(format Format, schema loosefk.Schema, last int) fs.FS {
	files := fstest.MapFS{}
	for version := 1; version <= last; version++ {
		m := installation(installed.Schema(schema), "")
		if version > 1 {
			m.down = []string{"SELECT 1;"}
		}
		m.comment = fmt.Sprintf("Installs version %d of loose foreign keys in schema %s.", version, schema)
		name := fmt.Sprintf("%05d_%s", version, m.name)
		if format == Goose {
			files[name+".sql"] = &fstest.MapFile{Data: []byte(m.goose()), Mode: 0o444}
			continue
		}
		files[name+".up.sql"] = &fstest.MapFile{Data: []byte(m.plain(m.up)), Mode: 0o444}
		files[name+".down.sql"] = &fstest.MapFile{Data: []byte(m.plain(m.down)), Mode: 0o444}
	}
	return files
}

package generate

import (
	"cmp"
	"fmt"
	"io/fs"
	"testing/fstest"

	"github.com/purser-registry/purser/loosefk"
	"github.com/purser-registry/purser/loosefk/internal/installed"
)

// firstInstallVersion is the version of the first migration of InstallMigrations.
const firstInstallVersion = 2

// InstallMigrations returns the migrations that install loose foreign keys in a schema, in
// the form that a migration library takes: Goose for goose.NewProvider, Plain for iofs.New
// of golang-migrate. A migration's version is the SchemaVersion that it installs, so keep
// these migrations in a version table of their own. Later releases of this package add a
// migration for each newer SchemaVersion. Running the first migration's Down loses the
// deleted records whose children are not cleaned up yet.
//
// The migrations create no triggers: write a migration with Schema.TrackRecordDeletionsSQL
// for each parent, or let Generator.Convert write it.
func InstallMigrations(format Format, schema loosefk.Schema) (fs.FS, error) {
	if format != Goose && format != Plain {
		return nil, fmt.Errorf("the format of migrations is %q: want %s or %s", format, Goose, Plain)
	}
	schema = cmp.Or(schema, loosefk.DefaultSchema)
	files := fstest.MapFS{}
	for version := firstInstallVersion; version <= loosefk.SchemaVersion; version++ {
		m := installation(installed.Schema(schema), "")
		if version > firstInstallVersion {
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
	return files, nil
}

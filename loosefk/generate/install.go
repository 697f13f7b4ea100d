package generate

import (
	"fmt"
	"io/fs"
	"testing/fstest"

	"github.com/purser-registry/purser/loosefk"
	"github.com/purser-registry/purser/loosefk/internal/installed"
)

// firstInstallVersion is the version of the first migration of InstallMigrations.
const firstInstallVersion = 2

// InstallMigrations returns the migrations that install loose foreign keys in a schema, as
// the library of a migration tool takes them: Goose for goose.NewProvider, Plain for iofs.New
// of golang-migrate. Their versions are those of what they install, so give them a table of
// versions of their own. A later release of this package adds a migration for each newer
// version. The way back of the first one loses the records of deletions whose children are
// not cleaned up yet.
//
// They make no triggers: write a migration with Schema.TrackRecordDeletionsSQL for each
// parent, or have Generator.Convert write it.
func InstallMigrations(format Format, schema loosefk.Schema) (fs.FS, error) {
	if format != Goose && format != Plain {
		return nil, fmt.Errorf("the format of migrations is %q: want %s or %s", format, Goose, Plain)
	}
	if schema == "" {
		schema = loosefk.DefaultSchema
	}
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

package generate_test

import (
	"fmt"
	"io/fs"
	"log"

	"github.com/purser-registry/purser/loosefk"
	"github.com/purser-registry/purser/loosefk/generate"
)

func ExampleInstallMigrations() {
	for _, format := range []generate.Format{generate.Goose, generate.Plain} {
		files, err := generate.InstallMigrations(format, loosefk.DefaultSchema)
		if err != nil {
			log.Fatal(err)
		}
		names, err := fs.Glob(files, "*")
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(format, names)
	}
	// Output:
	// goose [00001_install_loose_foreign_keys.sql]
	// plain [00001_install_loose_foreign_keys.down.sql 00001_install_loose_foreign_keys.up.sql]
}

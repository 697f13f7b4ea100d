package main

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db/dbtest"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

// The SQL files of scenarios can be run on a database as this version migrates it: a scenario that
// fills a registry by SQL would otherwise fail when somebody needs it, long after a migration.
func TestSQLFiles(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*/*.sql")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files of SQL, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			conn, err := pgx.Connect(t.Context(), dbtest.DSN(t))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(t.Context()) //nolint:errcheck // nothing is lost
			const sizes = "SET bench.namespaces = 10; SET bench.repositories = 40; SET bench.tags = 1000; SET bench.entries = 1000; SET bench.rows = 2000;"
			if _, err := conn.PgConn().Exec(t.Context(), sizes+string(text)).ReadAll(); err != nil {
				t.Error(err)
			}
		})
	}
}

// The test expects that the command lists every scenario, that every scenario prints its flags
// with -h, and that the command refuses an unknown scenario.
func TestScenarios(t *testing.T) {
	t.Parallel()
	var list bytes.Buffer
	if err := run(t.Context(), nil, &list, &list); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("without arguments it ends with %v", err)
	}
	for _, s := range scenarios {
		if !strings.Contains(list.String(), "  "+s.name+" ") {
			t.Errorf("%s isn't listed:\n%s", s.name, list.String())
		}
		var out bytes.Buffer
		if err := run(t.Context(), []string{s.name, "-h"}, &out, &out); !errors.Is(err, flag.ErrHelp) || !strings.Contains(out.String(), "  -") {
			t.Errorf("%s -h ends with %v and says %s", s.name, err, out.String())
		}
	}
	if err := run(t.Context(), []string{"nonsense"}, &list, &list); err == nil || !strings.Contains(err.Error(), `"nonsense"`) {
		t.Errorf("a scenario that isn't there: %v", err)
	}
}

package generate

import (
	"os"
	osexec "os/exec"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/purser-registry/purser/loosefk"
)

// The generated Go tests must compile and pass, and must fail if the trigger is missing.
func TestGeneratedTests(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("compiles for some seconds")
	}
	must(t, os.MkdirAll("testdata", 0o755))
	for _, tt := range []struct {
		name      string
		databases func(pool *pgxpool.Pool) loosefk.Databases
		variables []string
	}{
		{"one database", func(pool *pgxpool.Pool) loosefk.Databases { return loosefk.Databases{{Name: "main", Pool: pool}} }, []string{"LOOSEFK_TEST_DSN"}},
		{"two", func(pool *pgxpool.Pool) loosefk.Databases {
			return loosefk.Databases{{Name: "main", Pool: pool}, {Name: "sales", Pool: pool, Tables: []string{"orders"}}}
		}, []string{"LOOSEFK_TEST_DSN_MAIN", "LOOSEFK_TEST_DSN_SALES"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			// Write the tests inside the module so that they compile, in testdata so that
			// "./..." doesn't include them.
			dir, err := os.MkdirTemp("testdata", "generated")
			must(t, err)
			t.Cleanup(func() { os.RemoveAll(dir); os.Remove("testdata") }) //nolint:errcheck // fails while another test uses testdata
			g := newGenerated(t, "")
			g.Databases, g.Tests = tt.databases(g.pool), dir
			must(t, g.convert(t, "^(orders|visits)$").Write())
			must(t, g.convert(t, "^shelves$").Write()) // a second time into the same directory
			must(t, g.convert(t, "^folders$").Write())
			_, err = g.goose(t).Up(t.Context())
			must(t, err)
			run := func(args ...string) (string, error) {
				cmd := osexec.CommandContext(t.Context(), "go", append(args, "./"+dir)...)
				cmd.Env = os.Environ()
				for _, v := range tt.variables {
					cmd.Env = append(cmd.Env, v+"="+g.pool.Config().ConnString())
				}
				out, err := cmd.CombinedOutput()
				return string(out), err
			}
			if out, err := run("vet"); err != nil {
				t.Fatalf("go vet says %s", out)
			}
			out, err := run("test", "-count=1", "-v")
			if n := strings.Count(out, "--- PASS"); err != nil || n != 7 {
				t.Fatalf("%d tests pass of 7: %v: %s", n, err, out)
			}
			must(t, loosefk.DefaultSchema.UntrackRecordDeletions(t.Context(), g.pool, "customers"))
			if out, err := run("test", "-count=1", "-run", "TestCustomersHasLooseForeignKeys"); err == nil {
				t.Errorf("without the trigger the test passes: %s", out)
			}
		})
	}
}

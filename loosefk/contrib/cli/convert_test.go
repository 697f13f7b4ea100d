package cli

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/purser-registry/purser/loosefk"
)

// project is an application of one test: a directory, a file of definitions and a database.
type project struct {
	dir  string
	file string
	pool *pgxpool.Pool
	env  Env
}

const projectTables = `
	CREATE TABLE customers (id bigint PRIMARY KEY);
	CREATE TABLE orders (id bigserial PRIMARY KEY, customer_id bigint NOT NULL CONSTRAINT fk_orders REFERENCES customers ON DELETE CASCADE);
	CREATE INDEX ON orders (customer_id);
	CREATE TABLE visits (id bigserial PRIMARY KEY, customer_id bigint CONSTRAINT fk_visits REFERENCES customers ON DELETE SET NULL);
	CREATE INDEX ON visits (customer_id);
	CREATE TABLE letters (id bigserial PRIMARY KEY, customer_id bigint CONSTRAINT fk_letters REFERENCES customers ON DELETE CASCADE);
	CREATE TABLE places (a int, b int, PRIMARY KEY (a, b));
	CREATE TABLE trips (id bigserial PRIMARY KEY, a int, b int, CONSTRAINT fk_trips FOREIGN KEY (a, b) REFERENCES places ON DELETE CASCADE);`

const projectDefinitions = `# Who cleans up what.
visits: # many
  - table: customers
    column: customer_id
    on_delete: async_nullify
`

func newProject(t *testing.T) *project {
	t.Helper()
	pool := newPool(t, projectTables)
	s := &project{dir: t.TempDir(), pool: pool}
	s.file = filepath.Join(s.dir, "loose.yml")
	must(t, os.WriteFile(s.file, []byte(projectDefinitions), 0o600))
	s.env = Env{Open: func(context.Context) (*App, error) {
		defs, err := loosefk.Load(s.file)
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return &App{
			Databases: loosefk.Databases{{Name: "main", Pool: pool}}, Definitions: defs, File: s.file,
			Map: loosefk.Databases{{Name: "main"}, {Name: "sales", Tables: []string{"orders", "letters"}}},
		}, err
	}}
	return s
}

// run runs a command and returns its output, exit code and error message.
func (s *project) run(t *testing.T, args ...string) (out string, code int, message string) {
	t.Helper()
	if args[0] == "convert" || args[0] == "revert" {
		args = append(args, "--migrations", filepath.Join(s.dir, "migrations"), "--tests", filepath.Join(s.dir, "tests"))
	}
	var stdout, stderr bytes.Buffer
	cmd := New(s.env)
	cmd.SetArgs(args)
	cmd.SetOut(&stdout)
	code = Report(&stderr, "loosefk", cmd.ExecuteContext(t.Context()))
	return stdout.String(), code, stderr.String()
}

// ok runs a command that must succeed, and returns its output.
func (s *project) ok(t *testing.T, args ...string) string {
	t.Helper()
	out, code, message := s.run(t, args...)
	if code != 0 {
		t.Fatalf("%q exits with %d: %s", args, code, message)
	}
	return out
}

// files returns the paths of all files in the project's directory, except git's own.
func (s *project) files(t *testing.T) []string {
	t.Helper()
	var list []string
	must(t, filepath.WalkDir(s.dir, func(path string, d fs.DirEntry, err error) error {
		if d != nil && d.Name() == ".git" {
			return fs.SkipDir
		}
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(s.dir, path)
			list = append(list, rel)
		}
		return err
	}))
	return list
}

// git runs git in the project's directory.
func (s *project) git(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", append([]string{"-c", "core.quotepath=off"}, args...)...)
	cmd.Dir = s.dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %q: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// repository makes the directory a git repository.
func (s *project) repository(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		lacking(t, "git")
	}
	s.git(t, "init", "--quiet", "--initial-branch", "trunk")
	s.git(t, "config", "user.name", "A tester")
	s.git(t, "config", "user.email", "tester@example.com")
	s.git(t, "config", "commit.gpgsign", "false")
	s.git(t, "add", ".")
	s.git(t, "commit", "--quiet", "-m", "The shop")
}

func contains(t *testing.T, what, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("%s lacks %q:\n%s", what, p, text)
		}
	}
}

func TestList(t *testing.T) {
	t.Parallel()
	s := newProject(t)
	want := `Showing foreign keys (4):
   ID | HAS_LFK |                                     FROM |                   TO |                         COLUMN |       ON_DELETE
    0 |       N |                                  letters |            customers |                    customer_id |         cascade
    1 |       N |                                   orders |            customers |                    customer_id |         cascade
    2 |       N |                                    trips |               places |                           a, b |         cascade
    3 |       Y |                                   visits |            customers |                    customer_id |         nullify
2 can't be converted: it has 2 columns: a loose foreign key has one, which holds the parent's key
`
	if got := s.ok(t, "list"); got != want {
		t.Errorf("list prints\n%s\nwant\n%s", got, want)
	}
	contains(t, "list -c", s.ok(t, "list", "-c", "^orders$"), "Showing cross-schema foreign keys (1):", " 0 |       N |                                   orders |")
	var rows []struct {
		ID                 int    `json:"id"`
		From               string `json:"from"`
		HasLooseForeignKey bool   `json:"has_lfk"`
		Crosses            bool   `json:"crosses"`
	}
	must(t, json.Unmarshal([]byte(s.ok(t, "list", "-o", "json")), &rows))
	if len(rows) != 4 || rows[1].From != "orders" || !rows[1].Crosses || rows[3].Crosses || !rows[3].HasLooseForeignKey || rows[3].ID != 3 {
		t.Errorf("as JSON the list is %+v", rows)
	}
	if _, code, message := s.run(t, "list", "("); code != 2 || !strings.Contains(message, "no regular expression") {
		t.Errorf("a wrong filter: %d, %s", code, message)
	}
}

// Without a filter convert must list the foreign keys and explain filters.
func TestConvertWithoutFilter(t *testing.T) {
	t.Parallel()
	s := newProject(t)
	contains(t, "convert -c", s.ok(t, "convert", "-c"), "Showing cross-schema foreign keys (2):", "loosefk convert FILTER...")
	contains(t, "convert -h", s.ok(t, "convert", "-h"), "-c, --cross-schema", "-n, --dry-run", "-r, --rspec", "--no-rspec", "--no-branch", "-h, --help")
	if got := s.files(t); !slices.Equal(got, []string{"loose.yml"}) {
		t.Errorf("there are %q now", got)
	}
}

// A dry run must print everything that convert would write, and change nothing in the
// directory or the database.
func TestConvertDryRun(t *testing.T) {
	t.Parallel()
	s := newProject(t)
	s.repository(t)
	before := s.state(t)
	out := s.ok(t, "convert", "-n", "^orders$", "--schema-dump", filepath.Join(s.dir, "schema.sql"))
	contains(t, "the dry run", out, "fk_orders: orders.customer_id → customers (cascade)", "would write "+s.file,
		"@@ line 6\n    +orders:\n    +  - table: customers\n    +    column: customer_id\n    +    on_delete: async_delete\n",
		"_track_deletions_from_customers.sql\n    -- Records what is deleted from customers", "DROP CONSTRAINT IF EXISTS \"fk_orders\"",
		"func TestOrdersCustomerIdCleanedUp(", "would make the branch loose-fk-orders", "schema.sql would be written by pg_dump", "1. run ", "2. only then")
	s.ok(t, "revert", "--dry-run", "visits")
	s.ok(t, "convert", "-n", "-o", "json", "orders")
	if after := s.state(t); after != before {
		t.Errorf("a dry run changed\n%s\nto\n%s", before, after)
	}
}

// state returns a text that describes the files in the directory, including git's own, and
// the tables and databases.
func (s *project) state(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	must(t, filepath.WalkDir(s.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			fmt.Fprintln(&b, path)
			return err
		}
		text, err := os.ReadFile(path)
		fmt.Fprintf(&b, "%s %x\n", path, sha256.Sum256(text))
		return err
	}))
	rows, err := s.pool.Query(t.Context(), `
		SELECT oid || ' ' || relname || ' ' || relfilenode FROM pg_class WHERE relnamespace = 'public'::regnamespace
		UNION ALL SELECT oid || ' ' || conname FROM pg_constraint
		UNION ALL SELECT oid || ' ' || tgname FROM pg_trigger
		UNION ALL SELECT oid || ' ' || proname FROM pg_proc
		ORDER BY 1`)
	must(t, err)
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	must(t, err)
	fmt.Fprintf(&b, "%x\n", sha256.Sum256([]byte(strings.Join(list, "\n"))))
	return b.String()
}

// convert must commit its own changes on a new branch, and no other changes.
func TestConvertCommits(t *testing.T) {
	t.Parallel()
	s := newProject(t)
	s.repository(t)
	must(t, os.WriteFile(filepath.Join(s.dir, "other"), []byte("x"), 0o600))
	s.git(t, "add", "other")
	out := s.ok(t, "convert", "^orders$")
	contains(t, "convert", out, "made the branch loose-fk-orders", "committed "+s.git(t, "rev-parse", "--short", "HEAD"))
	if branch := s.git(t, "branch", "--show-current"); branch != "loose-fk-orders" {
		t.Errorf("the branch is %s", branch)
	}
	files := strings.Split(s.git(t, "show", "--name-only", "--format=", "HEAD"), "\n")
	if len(files) != 7 || files[0] != "loose.yml" || !strings.HasPrefix(files[1], "migrations/") || files[6] != "tests/orders_customer_id_loosefk_test.go" {
		t.Errorf("the commit has %q", files)
	}
	contains(t, "the commit", s.git(t, "log", "-1", "--format=%B"), "Turn foreign keys into loose ones", "fk_orders: orders.customer_id → customers (cascade)", "2. only then")
	if status := s.git(t, "status", "--porcelain"); status != "A  other" {
		t.Errorf("git's status is %q", status)
	}

	// If the branch exists already, convert must fail and write nothing.
	s.git(t, "checkout", "--quiet", "trunk")
	if _, code, message := s.run(t, "convert", "^orders$"); code != 1 || !strings.Contains(message, "nothing was written: the branch loose-fk-orders exists already") {
		t.Errorf("with the branch there: %d, %s", code, message)
	}
	if got := s.files(t); !slices.Equal(got, []string{"loose.yml", "other"}) {
		t.Errorf("there are %q now", got)
	}
	out = s.ok(t, "convert", "--no-branch", "--no-rspec", "^orders$")
	if got := s.git(t, "rev-list", "--count", "trunk"); got != "2" || s.git(t, "branch", "--show-current") != "trunk" {
		t.Errorf("without a branch trunk has %s commits: %s", got, out)
	}
	if got := s.files(t); len(got) != 5 {
		t.Errorf("without tests there are %q", got)
	}

	// revert must refuse to commit a file of definitions that the user has changed.
	must(t, os.WriteFile(s.file, []byte(projectDefinitions+"# mine\n"), 0o600))
	if _, code, message := s.run(t, "revert", "visits"); code != 1 || !strings.Contains(message, "changes that are not committed") {
		t.Errorf("with changes: %d, %s", code, message)
	}
	s.ok(t, "revert", "--no-branch", "--no-commit", "visits")
	if got, err := os.ReadFile(s.file); err != nil || string(got) != "# Who cleans up what.\n# mine\n" {
		t.Errorf("the definitions are %q, %v", got, err)
	}
	if got := s.git(t, "rev-list", "--count", "--all"); got != "3" {
		t.Errorf("--no-commit leaves %s commits", got)
	}
}

func TestConvertOutsideGit(t *testing.T) {
	t.Parallel()
	s := newProject(t)
	contains(t, "convert", s.ok(t, "convert", "--no-test", "^orders$"), "is in no git work tree: nothing is committed", "wrote "+s.file)
	if got := s.files(t); len(got) != 4 {
		t.Errorf("there are %q", got)
	}
}

func TestConvertSaysWhy(t *testing.T) {
	t.Parallel()
	s := newProject(t)
	_, code, message := s.run(t, "convert", "_id|^a", "cust|places")
	if code != 1 {
		t.Errorf("keys that can't be converted: exit code %d", code)
	}
	contains(t, "the message", message, "letters.customer_id → customers (cascade): column customer_id of public.letters has no index", "CREATE INDEX CONCURRENTLY",
		"trips.a, b → places (cascade): it has 2 columns", "nothing was written; --skip-refused")
	if got := s.files(t); !slices.Equal(got, []string{"loose.yml"}) {
		t.Errorf("there are %q now", got)
	}
	var out outcome
	must(t, json.Unmarshal([]byte(s.ok(t, "convert", "--skip-refused", "-o", "json", "--format", "plain", "cust|places")), &out))
	if len(out.Keys) != 2 || out.Keys[0].Constraint != "fk_orders" || len(out.Refused) != 2 || out.DryRun || len(out.Files) != 1+8+4 {
		t.Errorf("with the rest skipped: %+v", out)
	}
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"convert", "nobody"}, 1, "no foreign key matches nobody"},
		{[]string{"revert", "nobody"}, 1, "no definition matches nobody"},
		{[]string{"revert"}, 2, "requires at least 1 arg"},
		{[]string{"convert", "--format", "xml", "x"}, 2, "want goose or plain"},
		{[]string{"convert", "--on-delete", "cascade", "orders"}, 2, "want async_delete or async_nullify"},
		{[]string{"revert", "--on-delete", "async_delete", "visits"}, 2, "want cascade, nullify"},
		{[]string{"convert", "--branch=maybe", "orders"}, 2, "want true or false"},
	} {
		if _, code, message := s.run(t, tt.args...); code != tt.code || !strings.Contains(message, tt.want) {
			t.Errorf("%q: %d, %s; want %d, %s", tt.args, code, message, tt.code, tt.want)
		}
	}
	app := oneApp(t, s.pool, projectDefinitions)
	for _, args := range [][]string{{"convert", "orders"}, {"revert", "visits"}} {
		if code, _, message := command(t, app, args...); code != 1 || !strings.Contains(message, "have no file that could be changed") {
			t.Errorf("%q of an application that has its definitions inside: %d, %s", args, code, message)
		}
	}
}

// The schema dump must show the schema as it is after the migrations, and convert must
// remove the temporary database.
func TestConvertSchemaDump(t *testing.T) {
	t.Parallel()
	needPgDump(t)
	s := newProject(t)
	file := filepath.Join(s.dir, "schema.sql")
	contains(t, "convert", s.ok(t, "convert", "^orders$", "--schema-dump", file), "wrote "+file)
	text, err := os.ReadFile(file)
	must(t, err)
	contains(t, "the dump", string(text), "CREATE TRIGGER customers_loose_fk_trigger", "fk_visits", "loose_foreign_keys_deleted_records")
	if strings.Contains(string(text), "fk_orders") {
		t.Error("the dump has the key that is dropped")
	}
	var left, keys int
	must(t, s.pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_database WHERE datname LIKE 'loosefk_dump_%'").Scan(&left))
	must(t, s.pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_constraint WHERE conname = 'fk_orders'").Scan(&keys))
	if left != 0 || keys != 1 {
		t.Errorf("%d copies are left, and the database has %d of the key", left, keys)
	}
}

// needPgDump skips the test where pg_dump isn't installed.
func needPgDump(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("pg_dump"); err != nil {
		lacking(t, "pg_dump")
	}
}

// Without pg_dump nothing is written.
func TestConvertWithoutPgDump(t *testing.T) {
	s := newProject(t)
	t.Setenv("PATH", t.TempDir())
	_, code, message := s.run(t, "convert", "^orders$", "--schema-dump", filepath.Join(s.dir, "schema.sql"))
	if got := s.files(t); code != 1 || !strings.Contains(message, "pg_dump is not installed: install") || len(got) != 1 {
		t.Errorf("%d, %s; there are %q", code, message, got)
	}
	contains(t, "convert without git", s.ok(t, "convert", "^orders$"), "git is not installed: nothing is committed")
}

// lacking skips a test that needs a missing program; in CI it fails the test.
func lacking(t *testing.T, program string) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatalf("there is no %s", program)
	}
	t.Skipf("needs %s", program)
}

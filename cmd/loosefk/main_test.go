package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/builtinpg/pgtest"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

// tool runs command lines with its own environment variables.
type tool struct {
	t   *testing.T
	env map[string]string
}

func (l tool) run(args ...string) (code int, out, errs string) {
	l.t.Helper()
	var stdout, stderr bytes.Buffer
	code = execute(l.t.Context(), args, func(name string) string { return l.env[name] }, &stdout, &stderr)
	return code, stdout.String(), stderr.String()
}

func (l tool) want(wantCode int, wantText string, args ...string) {
	l.t.Helper()
	code, out, errs := l.run(args...)
	if code != wantCode || !strings.Contains(out+errs, wantText) {
		l.t.Errorf("%q: exit code %d, want %d with %q:\n%s%s", args, code, wantCode, wantText, out, errs)
	}
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func newDatabase(t *testing.T, sql string) string {
	t.Helper()
	dsn := dbtest.EmptyDSN(t)
	runSQL(t, dsn, sql)
	return dsn
}

func runSQL(t *testing.T, dsn, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context())) //nolint:errcheck // nothing is lost
	if _, err := conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

const (
	parents     = "CREATE TABLE projects (id int PRIMARY KEY); INSERT INTO projects SELECT generate_series(1, 5)"
	children    = "CREATE TABLE ci_pipelines (project_id int); CREATE INDEX ON ci_pipelines (project_id); INSERT INTO ci_pipelines SELECT g % 5 + 1 FROM generate_series(1, 50) g"
	definitions = "ci_pipelines:\n  - {table: projects, column: project_id, on_delete: async_delete}\n"
)

// TestOneDatabase runs all commands, configured by environment variables alone.
func TestOneDatabase(t *testing.T) {
	t.Parallel()
	dsn := newDatabase(t, parents+";"+children)
	l := tool{t, map[string]string{"LOOSEFK_DATABASE_URL": dsn, "LOOSEFK_DEFINITIONS": write(t, "d.yml", definitions)}}
	l.want(0, "1 definitions fit", "validate")
	l.want(1, "run 'loosefk install'", "status")
	l.want(0, "database main: installed", "install")
	l.want(3, "has no trigger", "doctor")
	l.want(0, "tracking deletions from projects", "track")
	l.want(0, "all is well", "doctor")
	runSQL(t, dsn, "DELETE FROM projects WHERE id < 3")
	l.want(0, "public.projects", "status")
	l.want(0, "2 of 2 records processed, 20 rows deleted", "run")
	l.want(0, "nothing is pending", "status")
}

// TestTwoDatabases runs commands with parents and children in different databases. One
// command "run" is to take its locks in a Redis that doesn't exist, and must fail.
func TestTwoDatabases(t *testing.T) {
	t.Parallel()
	main, ci := newDatabase(t, parents), newDatabase(t, children)
	args := []string{"--definitions", write(t, "d.yml", definitions), "--database", "main=" + main, "--database", "ci=" + ci}
	l := tool{t, nil}
	l.want(1, "say which tables are in which with --map", append(args, "status")...)
	l.want(1, "names a database geo", append(args, "--map", write(t, "m.yml", "main: []\nci: ['ci_*']\ngeo: [geo]\n"), "status")...)
	l.want(1, "database ci", append(args, "--map", write(t, "m.yml", "main: []\n"), "status")...)
	args = append(args, "--map", write(t, "m.yml", "main: []\nci: ['ci_*']\n"))
	l.want(0, "fit the databases", append(args, "validate")...)
	l.want(0, "database main: installed", append(args, "install")...)
	l.want(0, "tracking", append(args, "track")...)
	runSQL(t, main, "DELETE FROM projects WHERE id = 1")
	l.want(1, "in Redis", append(args, "--redis", "unix:///nonexistent/redis.sock", "run")...)
	l.want(0, "10 rows deleted, 0 updated; 1 waiting for the second look", append(args, "run")...)
	l.want(0, "nothing of projects is pending", append(args, "drain", "--table", "projects")...)
	l.want(0, "all is well", append(args, "doctor")...)
}

func TestBadUsage(t *testing.T) {
	t.Parallel()
	l := tool{t, nil}
	db := []string{"--database", "main=postgres://nobody@127.0.0.1:1/none"}
	l.want(1, "add --database main=postgres://", "status")
	l.want(1, "want name=DSN", "--database", "postgres://nobody@127.0.0.1:1/none?a=b", "status")
	l.want(1, "name the file with --definitions", append(db, "--definitions", "/nonexistent", "status")...)
	l.want(3, "d.yml:2: table a: the parent's name is missing", append(db, "--definitions", write(t, "d.yml", "a:\n- {column: b, on_delete: async_delete}\n"), "validate")...)
	l.want(1, "the URL of Redis", append(db, "--redis", "http://x", "run")...)
	l.want(2, "want text or json", "status", "-o", "xml")
	l.want(2, "unknown command", "nonsense")
	l.want(2, "loosefk drain --help", append(db, "drain")...)
	l.want(2, "unknown flag", "run", "--nonsense")
	l.want(2, "unknown command", "status", "main")
	l.want(0, "SIGTERM", "worker", "--help")
	l.want(2, "interval is -1s: it has to be from 1ms", append(db, "worker", "--interval=-1s")...)
	l.want(2, "--batch is 0: leave it out", append(db, "run", "--batch=0")...)
	l.want(2, "max attempts is 99999", append(db, "drain", "--table", "a", "--max-attempts", "99999")...)
	l.env = map[string]string{"LOOSEFK_LOCK_TIMEOUT": "soon", "LOOSEFK_DELETE_LIMIT": "many", "LOOSEFK_RETENTION": "-1h"}
	l.want(2, `LOOSEFK_LOCK_TIMEOUT is "soon": want a time such as 90s`, append(db, "doctor")...)
	l.want(2, `LOOSEFK_DELETE_LIMIT is "many": want a whole number`, append(db, "run")...)
	l.want(2, "retention is -1h0m0s: it has to be from", append(db, "worker")...)
}

// TestTuning sets the worker's options by flags and environment variables. If both are
// given, the flag must win.
func TestTuning(t *testing.T) {
	t.Parallel()
	dsn := newDatabase(t, parents+";"+children)
	env := map[string]string{
		"LOOSEFK_DATABASE_URL": dsn, "LOOSEFK_DEFINITIONS": write(t, "d.yml", definitions),
		"LOOSEFK_MAX_DELETES": "7", "LOOSEFK_DELETE_LIMIT": "2", "LOOSEFK_PARTITION_AGE": "1ms",
	}
	l := tool{t, env}
	l.want(0, "", "install")
	l.want(0, "", "track")
	runSQL(t, dsn, "DELETE FROM projects")
	l.want(0, "7 rows deleted, 0 updated; 5 not finished; stopped at the limit of deletes; added partition", "run")
	l.want(0, "0 of 5 records processed, 3 rows deleted", "run", "--max-deletes", "3", "--partition-age", "24h")
	l.want(0, "nothing of projects is pending", "drain", "--table", "projects", "--batch", "1")
}

// TestTransactionPooling runs all commands through a connection pooler that runs the
// transactions of one connection in different sessions and doesn't support prepared
// statements.
func TestTransactionPooling(t *testing.T) {
	t.Parallel()
	dsn := newDatabase(t, parents+";"+children)
	for i, setting := range []string{"", "server_round_robin = 1"} {
		pooled := pgtest.PgBouncer(t, dsn, "transaction", setting)
		l := tool{t, map[string]string{"LOOSEFK_DATABASE_URL": pooled, "LOOSEFK_DEFINITIONS": write(t, "d.yml", definitions)}}
		l.want(0, "1 definitions fit", "validate")
		l.want(0, "database main: installed", "install")
		l.want(0, "tracking deletions from projects", "track")
		l.want(0, "all is well", "doctor")
		runSQL(t, dsn, fmt.Sprintf("DELETE FROM projects WHERE id = %d", i+1))
		l.want(0, "1 of 1 records processed, 10 rows deleted", "run")
		runSQL(t, dsn, fmt.Sprintf("DELETE FROM projects WHERE id = %d", i+3))
		l.want(0, "nothing of projects is pending", "drain", "--table", "projects")
		l.want(0, "public.ci_pipelines", "audit")
		l.want(0, "nothing is pending", "status")
	}
}

// output is a buffer that may be written and read by different goroutines at the same time.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// until asks until ok says so.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: it doesn't come", what)
		}
	}
}

func TestWorker(t *testing.T) {
	t.Parallel()
	dsn := newDatabase(t, parents+";"+children)
	env := map[string]string{"LOOSEFK_DATABASE_URL": dsn, "LOOSEFK_DEFINITIONS": write(t, "d.yml", definitions)}
	l := tool{t, env}
	l.want(0, "", "install")
	l.want(0, "", "track")
	runSQL(t, dsn, "DELETE FROM projects WHERE id = 1")
	ctx, cancel := context.WithCancel(t.Context())
	var stderr output
	code := make(chan int)
	go func() {
		code <- execute(ctx, []string{"worker", "--metrics-addr", "127.0.0.1:0", "--interval", "50ms"},
			func(name string) string { return env[name] }, io.Discard, &stderr)
	}()
	serving := regexp.MustCompile(`serving metrics" addr=(\S+)`)
	until(t, "the metrics' address", func() bool { return serving.MatchString(stderr.String()) })
	url := "http://" + serving.FindStringSubmatch(stderr.String())[1] + "/metrics"
	until(t, "the metric", func() bool {
		resp, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close() //nolint:errcheck // it was read
		body, err := io.ReadAll(resp.Body)
		return err == nil && strings.Contains(string(body), `loose_foreign_key_processed_deleted_records_total{database="main",table="public.projects"} 1`)
	})
	cancel()
	if c := <-code; c != 0 {
		t.Errorf("exit code %d: %s", c, stderr.String())
	}
	code2, out, _ := l.run("status", "-o", "json")
	var rows []any
	if err := json.Unmarshal([]byte(out), &rows); err != nil || code2 != 0 || len(rows) != 0 {
		t.Errorf("status says %s, %v", out, err)
	}
	l.want(1, "--metrics-addr", "worker", "--metrics-addr", "nonsense")
	runSQL(t, dsn, "DROP TABLE ci_pipelines")
	l.want(1, "there is no table public.ci_pipelines", "worker")
}

// TestVersion: --version prints a version.
func TestVersion(t *testing.T) {
	t.Parallel()
	code, out, errs := tool{t: t}.run("--version")
	if code != 0 || !strings.HasPrefix(out, "loosefk version ") {
		t.Errorf("%d, %q, %q", code, out, errs)
	}
}

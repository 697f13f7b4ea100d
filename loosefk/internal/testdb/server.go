package testdb

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// program is the command that starts a PostgreSQL server for the tests, prints the DSN of a database
// of it, and stops the server when its standard input ends. The tests run it instead of importing it,
// so that this module needs nothing of the registry.
const program = "github.com/purser-registry/purser/internal/builtinpg/pgtest/testserver"

// The environment variable LOOSEFK_TEST_POSTGRES may have the DSN, as a URL, of a superuser's database on a
// server that the tests use instead of their own.
const dsnVariable = "LOOSEFK_TEST_POSTGRES"

var (
	start   sync.Once
	server  *url.URL // the DSN of a database that exists
	failed  error
	running *exec.Cmd
	input   io.Closer   // of the command that runs
	cleaned atomic.Bool // Main was called, and will stop the server
	counter atomic.Int64
	// cloning is locked while a database is created, since nobody may be connected to the template.
	cloning sync.Mutex
)

// Main runs a package's tests, stops the server if a test started one, and exits.
func Main(m *testing.M) {
	cleaned.Store(true)
	code := m.Run()
	if running != nil {
		if err := errors.Join(input.Close(), running.Wait()); err != nil {
			fmt.Fprintln(os.Stderr, "testdb: stopping PostgreSQL:", err)
		}
	}
	os.Exit(code)
}

// DSN creates an empty database and returns its DSN. The database is dropped when the test ends. If no
// PostgreSQL is available, the test is skipped, or fails in CI.
func DSN(t testing.TB) string {
	t.Helper()
	launch(t)
	name := fmt.Sprintf("loosefk_test_%d_%d", os.Getpid(), counter.Add(1))
	create(t, name)
	t.Cleanup(func() { admin(t, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)") })
	return (&url.URL{Scheme: server.Scheme, User: server.User, Host: server.Host, Path: "/" + name, RawQuery: server.RawQuery}).String()
}

func create(t testing.TB, name string) {
	t.Helper()
	cloning.Lock()
	defer cloning.Unlock() // also if the test fails here
	admin(t, "CREATE DATABASE "+name+" STRATEGY file_copy")
}

func launch(t testing.TB) {
	t.Helper()
	if !cleaned.Load() {
		t.Fatal("this package needs a TestMain that calls Main, or nobody stops its server")
	}
	start.Do(func() {
		dsn := os.Getenv(dsnVariable)
		if dsn == "" {
			if dsn, failed = run(); failed != nil {
				return
			}
		}
		server, failed = url.Parse(dsn)
	})
	if failed != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(failed)
		}
		t.Skipf("needs PostgreSQL 15 or newer, in a clone of the repository or named by %s: %v", dsnVariable, failed)
	}
}

// run starts the program and returns the DSN that it prints.
func run() (dsn string, err error) {
	cmd := exec.Command("go", "run", program)
	var problem strings.Builder
	cmd.Stderr = &problem
	in, err := cmd.StdinPipe()
	if err != nil {
		return "", err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	dsn, err = bufio.NewReader(out).ReadString('\n')
	if err != nil {
		err = errors.Join(in.Close(), cmd.Wait())
		return "", fmt.Errorf("starting PostgreSQL: %w: %s", err, strings.TrimSpace(problem.String()))
	}
	running, input = cmd, in
	return strings.TrimSpace(dsn), nil
}

func admin(t testing.TB, sql string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := pgx.Connect(ctx, server.String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(ctx) //nolint:errcheck // the session ends
	if _, err := c.Exec(ctx, sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

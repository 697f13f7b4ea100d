package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// postgres is a PostgreSQL server that a test can stop and start.
type postgres struct {
	t   testing.TB
	bin string // directory of PostgreSQL's programs
	dir string // of the data and the socket
	env []string
	p   *process
}

var initializedOnce prepared

// startPostgres starts a new, empty PostgreSQL server, which is stopped at the end of the
// test. `env` is added to its environment.
func startPostgres(t testing.TB, env ...string) *postgres {
	t.Helper()
	s := &postgres{t: t, bin: postgresPrograms(t), env: env}
	s.dir = initializedOnce.copy(t, "initialized", func(dir string) {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(filepath.Join(s.bin, "initdb"), "-D", filepath.Join(dir, "data"),
			"-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale", "C", "--no-sync")
		cmd.Dir = dir
		unprivileged(t, cmd, dir)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("initdb: %v\n%s", err, out)
		}
	})
	t.Cleanup(func() {
		if s.p != nil && s.p.running() {
			s.p.signal(syscall.SIGQUIT, stopWithin) //nolint:errcheck // its data goes anyway
		}
	})
	s.Start()
	return s
}

var versionNumber = regexp.MustCompile(`\d+`)

// postgresPrograms returns the directory of the programs of a PostgreSQL of at least version
// 15. It prefers PURSER_POSTGRES_BIN, then PATH, then the newest version.
func postgresPrograms(t testing.TB) string {
	t.Helper()
	dirs, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	slices.Reverse(dirs)
	if path, err := exec.LookPath("postgres"); err == nil {
		dirs = append([]string{filepath.Dir(path)}, dirs...)
	}
	if dir := os.Getenv("PURSER_POSTGRES_BIN"); dir != "" {
		dirs = append([]string{dir}, dirs...)
	}
	for _, dir := range dirs {
		out, err := exec.Command(filepath.Join(dir, "postgres"), "--version").Output()
		_, noInit := os.Stat(filepath.Join(dir, "initdb"))
		major, _ := strconv.Atoi(versionNumber.FindString(string(out)))
		if err == nil && noInit == nil && major >= 15 {
			return dir
		}
	}
	lacking(t, "no PostgreSQL 15 or newer is installed (tools/packages installs it)")
	return ""
}

// DSN returns how to connect.
func (s *postgres) DSN() string { return "postgres://postgres@/postgres?host=" + s.dir }

// Start starts the server and waits until it answers.
func (s *postgres) Start() {
	s.t.Helper()
	cmd := exec.Command(filepath.Join(s.bin, "postgres"), "-D", filepath.Join(s.dir, "data"), "-k", s.dir,
		"-c", "listen_addresses=", "-c", "max_connections=200")
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), s.env...)
	unprivileged(s.t, cmd, s.dir)
	p, err := startProcess("postgres", cmd)
	if err != nil {
		s.t.Fatal(err)
	}
	s.p = p
	err = p.waitFor(context.Background(), time.Minute, func(ctx context.Context) error {
		conn, err := pgx.Connect(ctx, s.DSN())
		if err != nil {
			return err
		}
		return conn.Close(ctx)
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// Stop ends the server. With SIGINT the server closes its connections and shuts down; SIGQUIT
// is a crash, after which the next start runs recovery.
func (s *postgres) Stop(sig syscall.Signal) {
	s.t.Helper()
	if err := s.p.signal(sig, stopWithin); err != nil && sig != syscall.SIGQUIT {
		s.t.Fatalf("stopping PostgreSQL: %v\n%s", err, s.p.out.tail(20))
	}
}

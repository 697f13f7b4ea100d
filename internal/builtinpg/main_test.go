//go:build linux

package builtinpg

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"
)

// The test binary starts itself as a child process for some tests. These variables tell the
// child its role and its directory.
const (
	roleVariable = "BUILTINPG_TEST_ROLE"
	dirVariable  = "BUILTINPG_TEST_DIR"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		if err := play(role, os.Getenv(dirVariable)); err != nil {
			fmt.Println("failed:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// play is the main function of a child process in the given role.
func play(role, dir string) error {
	if role == "init" { // PID 1 sees only its own processes if it has its own /proc
		if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("isolating mounts: %w", err)
		}
		if err := syscall.Mount("proc", "/proc", "proc", 0, ""); err != nil {
			return fmt.Errorf("mounting /proc: %w", err)
		}
	}
	s, err := Start(context.Background(), testOptions(dir))
	if err != nil {
		return err
	}
	if role == "init" {
		for range 2 { // the second one must wake a reaper that rests after the first
			if err := makeOrphan(); err != nil {
				return err
			}
		}
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin) // until the test closes it or kills us
	return s.Stop(context.Background())
}

// child is a process of this test binary that plays a role.
type child struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	out   *bufio.Scanner
}

func spawn(t *testing.T, role, dir string, attr *syscall.SysProcAttr) *child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVariable+"="+role, dirVariable+"="+dir)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = attr
	stdin, err := cmd.StdinPipe()
	must(t, err)
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	if err := cmd.Start(); err != nil {
		if attr != nil {
			t.Skipf("needs the right to make namespaces: %v", err)
		}
		t.Fatal(err)
	}
	t.Cleanup(func() { // for a test that failed
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return &child{cmd: cmd, stdin: stdin, out: bufio.NewScanner(stdout)}
}

func (c *child) awaitReady(t *testing.T) {
	t.Helper()
	if !c.out.Scan() || c.out.Text() != "ready" {
		t.Fatalf("the child says %q (%v), want ready", c.out.Text(), c.out.Err())
	}
}

func testOptions(dir string) Options {
	return Options{
		DataDir: dir,
		Log:     slog.New(slog.DiscardHandler),
		Settings: map[string]string{
			"fsync": "off", "shared_buffers": "16MB", "max_connections": "20",
		},
	}
}

// newDir returns a path for a data directory that doesn't exist yet, below a directory
// of mode 0700 that belongs to this process's user.
func newDir(t *testing.T) string {
	t.Helper()
	base, err := os.MkdirTemp("", "pgtest-")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(base)) })
	return filepath.Join(base, "pg")
}

// begin starts a server and stops it when the test ends.
func begin(t *testing.T, o Options) *Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := Start(ctx, o)
	if err != nil {
		t.Fatalf("starting: %v", err)
	}
	t.Cleanup(func() { end(t, s) })
	return s
}

func end(t *testing.T, s *Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := s.Stop(ctx); err != nil {
		t.Errorf("stopping: %v", err)
	}
}

func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatalf("connecting to %s: %v", dsn, err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func execute(t *testing.T, dsn, sql string) {
	t.Helper()
	conn := connect(t, dsn)
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	must(t, conn.Close(t.Context()))
}

func query(t *testing.T, dsn, sql string) string {
	t.Helper()
	conn := connect(t, dsn)
	var v string
	if err := conn.QueryRow(t.Context(), sql).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	must(t, conn.Close(t.Context()))
	return v
}

// eventually calls `ok` again and again until it returns true, for at most two minutes. It is
// for effects in another process, which doesn't tell this process about them.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one with %q", parts)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("the error lacks %q: %v", p, err)
		}
	}
}

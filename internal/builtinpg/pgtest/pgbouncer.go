package pgtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// PgBouncer starts a PgBouncer in front of a database for one test, and returns a DSN that
// connects through it. `mode` is its pool_mode: session, transaction or statement; `settings`
// are more lines of its configuration ("key = value"). If PgBouncer isn't installed, the test
// is skipped, or fails in CI.
func PgBouncer(t testing.TB, dsn, mode string, settings ...string) string {
	t.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil { // Debian installs it in a directory that may only be in root's PATH
		program, err = exec.LookPath("/usr/sbin/pgbouncer")
	}
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("there is no pgbouncer: tools/packages installs it")
		}
		t.Skip("needs pgbouncer")
	}
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	password := ""
	if cfg.Password != "" {
		password = " password='" + strings.ReplaceAll(cfg.Password, "'", "''") + "'"
	}
	host, serverPort := cfg.Host, int(cfg.Port)
	if network, addr := pgconn.NetworkAddress(cfg.Host, cfg.Port); network == "unix" {
		host, serverPort = "127.0.0.1", forward(t, addr)
	}
	dir, err := os.MkdirTemp("", "purser-pgbouncer-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) }) //nolint:errcheck // a leftover temporary directory harms nobody
	for attempt := 1; ; attempt++ {
		port := freePort(t)
		file := filepath.Join(dir, "pgbouncer.ini")
		text := fmt.Sprintf(`[databases]
* = host=%s port=%d user=%s%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
pool_mode = %s
default_pool_size = 20
max_client_conn = 200
%s
`, host, serverPort, cfg.User, password, port, mode, strings.Join(settings, "\n"))
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		url := fmt.Sprintf("postgres://purser@127.0.0.1:%d/%s?sslmode=disable", port, cfg.Database)
		if err = startPgBouncer(t, program, file, url); err == nil {
			return url
		}
		if attempt == 3 { // another process may have taken the port
			t.Fatal(err)
		}
	}
}

// forward listens on a TCP port and forwards connections to a Unix socket, until the test
// ends. PgBouncer needs this because it runs as a user that can't open the socket.
func forward(t testing.TB, socket string) (port int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() }) //nolint:errcheck // nobody needs it any more
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("unix", socket)
			if err != nil {
				from.Close() //nolint:errcheck // the client sees it closed
				continue
			}
			for a, b := range map[net.Conn]net.Conn{from: to, to: from} {
				go func() {
					io.Copy(a, b) //nolint:errcheck // the other side sees it closed
					a.Close()     //nolint:errcheck // likewise
					b.Close()     //nolint:errcheck // likewise
				}()
			}
		}
	}()
	return l.Addr().(*net.TCPAddr).Port
}

func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // only its port number was needed
	return l.Addr().(*net.TCPAddr).Port
}

// startPgBouncer starts PgBouncer with the configuration file `file`, waits until PgBouncer
// answers at `url`, and stops it when the test ends.
func startPgBouncer(t testing.TB, program, file, url string) error {
	args := []string{file}
	if os.Geteuid() == 0 { // PgBouncer refuses to run as root
		if _, err := user.Lookup("nobody"); err != nil {
			t.Fatal(err)
		}
		args = []string{"-u", "nobody", file}
	}
	var stderr bytes.Buffer
	cmd := exec.Command(program, args...)
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		cmd.Wait() //nolint:errcheck // it was stopped, or stderr says why it ended
		close(ended)
	}()
	stop := func() {
		cmd.Process.Signal(syscall.SIGTERM) //nolint:errcheck // it may have ended
		<-ended
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for {
		conn, err := pgx.Connect(ctx, url)
		if err == nil {
			conn.Close(ctx) //nolint:errcheck // nothing is lost
			t.Cleanup(stop)
			return nil
		}
		select {
		case <-ended:
			return errors.New("pgbouncer ended: " + stderr.String())
		case <-ctx.Done():
			stop()
			return fmt.Errorf("pgbouncer doesn't answer: %w: %s", err, stderr.String())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

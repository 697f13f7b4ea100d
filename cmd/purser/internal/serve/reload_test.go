package serve

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/cmd/purser/internal/servetest"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

// TestReload: on SIGHUP the server reads the certificate and the log level again, and logs
// that it did, with the names of changed settings that need a restart. If the certificate
// or the configuration can't be read, the server goes on with the old one.
func TestReload(t *testing.T) {
	dir := t.TempDir()
	files := config.TLS{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	servetest.WriteCertificate(t, files, 1)
	environ := []string{
		"PURSER_DATABASE_MAIN=" + dbtest.DSN(t), "PURSER_HTTP_TLS_CERT=" + files.Cert, "PURSER_HTTP_TLS_KEY=" + files.Key,
		"PURSER_DATA_DIR=" + dir,
	}
	cfg := servetest.Config(t, environ...)
	out := new(servetest.Log)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(out.String())
		}
	})
	log, level, err := command.NewLeveledLogger(out, config.Log{Level: "info", Format: "json"})
	if err != nil {
		t.Fatal(err)
	}
	next := struct {
		sync.Mutex
		cfg *config.Config
		err error
	}{cfg: cfg}
	reload := &reloader{running: cfg, level: level, log: log, load: func() (*config.Config, error) {
		next.Lock()
		defer next.Unlock()
		return next.cfg, next.err
	}}
	s := servetest.Start(t, func(ctx context.Context, out io.Writer) error { return Run(ctx, cfg, out, log, reload) })
	hangup := func(want string) {
		t.Helper()
		before := out.Count(want)
		if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		servetest.WaitFor(t, "the log to say "+want, func() bool { return out.Count(want) > before })
	}
	serial := func() int64 {
		t.Helper()
		conn, err := tls.Dial("tcp", strings.TrimPrefix(s.Registry, "https://"), &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // of this test
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close() //nolint:errcheck
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
	}
	servetest.WriteCertificate(t, files, 2)
	hangup("SIGHUP: reloaded")
	if n := serial(); n != 2 {
		t.Errorf("certificate %d is served after a reload, want 2", n)
	}
	if err := os.WriteFile(files.Key, []byte("half of a k"), 0o600); err != nil {
		t.Fatal(err)
	}
	hangup("the certificate stays as it was")
	if n := serial(); n != 2 {
		t.Errorf("certificate %d is served though its files are broken, want 2", n)
	}
	servetest.WriteCertificate(t, files, 3)
	if err := reload.cert.reload(t.Context()); err != nil || serial() != 3 { // as its worker does
		t.Errorf("the files' change is found: %v, and certificate %d is served", err, serial())
	}
	next.Lock()
	next.cfg = servetest.Config(t, append(environ, "PURSER_LOG_LEVEL=debug", "PURSER_GC_WORKERS=7", "PURSER_REDIS_URL=redis://:x@h")...)
	next.Unlock()
	hangup(`"changed_and_needs_a_restart":["gc.workers","redis.url"]`)
	if level.Level() != slog.LevelDebug {
		t.Errorf("the log's level is %v", level.Level())
	}
	next.Lock()
	next.err = os.ErrPermission
	next.Unlock()
	hangup("nothing was reloaded, since the configuration can't be read")
	if err := s.Stop(); err != nil {
		t.Errorf("stopped with %v", err)
	}
}

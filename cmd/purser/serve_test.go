package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/purser-registry/purser/cmd/purser/internal/backend"
	"github.com/purser-registry/purser/cmd/purser/internal/serve"
	"github.com/purser-registry/purser/cmd/purser/internal/servetest"
	"github.com/purser-registry/purser/internal/builtinpg"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

var quiet = slog.New(slog.DiscardHandler)

// start starts a server and waits until it is ready. The server runs until the test calls
// its Stop, or ends.
func start(t *testing.T, cfg *config.Config) *servetest.Server {
	t.Helper()
	return servetest.Start(t, func(ctx context.Context, out io.Writer) error { return serve.Run(ctx, cfg, out, quiet, nil) })
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := http.Get(url) //nolint:noctx // the test's deadline is enough
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestServe(t *testing.T) {
	t.Parallel()
	cfg := servetest.Config(t, "PURSER_DATABASE_MAIN=file:"+writeFile(t, dbtest.DSN(t)+"\n"), "PURSER_GC_REVIEW_AFTER=7h")
	s := start(t, cfg)
	if want := filepath.Join(cfg.DataDir, "blobs"); s.Data != want {
		t.Errorf("data in %q, want %q", s.Data, want)
	}
	if code, body := get(t, s.Registry+"/v2/"); code != 200 {
		t.Errorf("/v2/: %d %s", code, body)
	}
	if code, body := get(t, s.Debug+"/readyz"); code != 200 || body != "database: ok\nstorage: ok\npushes: ok\nstatistics: ok\n" {
		t.Errorf("/readyz: %d %s", code, body)
	}
	if code, body := get(t, s.Debug+"/healthz"); code != 200 {
		t.Errorf("/healthz: %d %s", code, body)
	}
	if code, _ := get(t, s.Debug+"/debug/pprof/goroutine?debug=1"); code != 200 {
		t.Errorf("pprof: %d", code)
	}
	code, metrics := get(t, s.Debug+"/metrics")
	for _, want := range []string{
		"purser_build_info{", "go_goroutines ", "process_open_fds ", "purser_db_pool_connections{state=\"idle\"}",
		"purser_gc_swept_objects_total 0", "purser_gc_reaped_uploads_total 0", "purser_http_requests_total{",
	} {
		if code != 200 || !strings.Contains(metrics, want) {
			t.Errorf("/metrics (%d) lacks %s", code, want)
		}
	}
	var delay time.Duration
	err := dbtest.Open(t, string(cfg.Database.Main)).Pool.QueryRow(t.Context(),
		"SELECT value FROM gc_review_after_defaults WHERE event = 'blob_upload'").Scan(&delay)
	if err != nil || delay != 7*time.Hour {
		t.Errorf("review delay %v (%v), want 7h", delay, err)
	}
	if err := s.Stop(); err != nil {
		t.Errorf("stopping: %v", err)
	}
	if c, err := net.Dial("tcp", strings.TrimPrefix(s.Registry, "http://")); err == nil {
		c.Close() //nolint:errcheck // it should not be there
		t.Error("the registry still listens")
	}
}

func TestServeWithBuiltInPostgres(t *testing.T) {
	t.Parallel()
	dbtest.EmptyDSN(t) // skips where there is no PostgreSQL
	cfg := servetest.Config(t)
	s := start(t, cfg)
	if s.Data != cfg.DataDir {
		t.Errorf("data in %q, want %q", s.Data, cfg.DataDir)
	}
	dsn, err := builtinpg.RunningDSN(backend.PostgresDir(cfg), backend.DatabaseName)
	if err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := purser(t, nil, "postgres", "url", "--data-dir", cfg.DataDir)
	if code != 0 || stdout != dsn+"\n" {
		t.Errorf("postgres url: %d %q %q, want %s", code, stdout, stderr, dsn)
	}
	if code, stdout, stderr := purser(t, nil, "migrate", "status", "--data-dir", cfg.DataDir); code != 0 || strings.Contains(stdout, "pending") {
		t.Errorf("migrate status beside the server: %d %q %q", code, stdout, stderr)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	err = serve.Run(ctx, servetest.Config(t, "PURSER_DATA_DIR="+cfg.DataDir), io.Discard, quiet, nil)
	if !errors.Is(err, builtinpg.ErrInUse) || !strings.Contains(err.Error(), cfg.DataDir) || !strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) {
		t.Errorf("second server on the same directory: %v; want a refusal that names directory and process", err)
	}
	killPostgres(t, cfg)
	servetest.WaitFor(t, "requests succeed again", func() bool {
		code, _ := get(t, s.Debug+"/readyz")
		return code == 200
	})
	if code, body := get(t, s.Registry+"/v2/_catalog"); code != 200 {
		t.Errorf("/v2/_catalog after PostgreSQL was killed: %d %s", code, body)
	}
	if err := s.Stop(); err != nil {
		t.Errorf("stopping: %v", err)
	}
	if _, err := builtinpg.RunningDSN(backend.PostgresDir(cfg), backend.DatabaseName); err == nil {
		t.Error("PostgreSQL still runs")
	}
}

// killPostgres kills the main process of the built-in PostgreSQL, and waits until Purser
// has noticed that.
func killPostgres(t *testing.T, cfg *config.Config) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(backend.PostgresDir(cfg), "cluster", "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(line)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	servetest.WaitFor(t, "the process is gone", func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) })
}

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/purser-registry/purser/cmd/purser/internal/backend"
	"github.com/purser-registry/purser/internal/builtinpg"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/worker"
)

var quiet = slog.New(slog.DiscardHandler)

// testConfig returns the configuration for a server on free ports.
func testConfig(t *testing.T, environ ...string) *config.Config {
	t.Helper()
	// The path must be short, since PostgreSQL's socket is below it.
	dir, err := os.MkdirTemp("", "purser-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) }) //nolint:errcheck // a leftover temporary directory harms nobody
	// If a variable is given twice, the first counts.
	cfg, err := config.Load("", append(slices.Clone(environ),
		"PURSER_DATA_DIR="+dir, "PURSER_HTTP_ADDR=127.0.0.1:0", "PURSER_HTTP_DEBUG_ADDR=127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// running is a server in this process.
type running struct {
	registry, debug, profiles, data string // as it told
	stop                            func() error
}

// start runs a server until stop is called, and waits until it is ready.
func start(t *testing.T, cfg *config.Config) *running {
	t.Helper()
	return startWith(t, func(ctx context.Context, out io.Writer) error { return run(ctx, cfg, out, quiet, nil) })
}

func startWith(t *testing.T, serve func(ctx context.Context, out io.Writer) error) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := serve(ctx, w)
		w.CloseWithError(fmt.Errorf("run returned: %w", err))
		done <- err
	}()
	stop := func() error {
		cancel()
		err := <-done
		done <- err
		return err
	}
	t.Cleanup(func() { stop() }) //nolint:errcheck // the test looks at it where it matters
	s := &running{stop: stop}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		key, value, _ := strings.Cut(strings.TrimSpace(lines.Text()), " ")
		value = strings.TrimSpace(value)
		switch key {
		case "registry":
			s.registry = value
		case "debug":
			s.debug = value
		case "profiles":
			s.profiles = value
		case "data":
			s.data = value
		case "push":
			return s
		}
	}
	t.Fatalf("the server isn't ready: %v", lines.Err())
	return nil
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
	cfg := testConfig(t, "PURSER_DATABASE_MAIN=file:"+writeFile(t, dbtest.EmptyDSN(t)+"\n"), "PURSER_GC_REVIEW_AFTER=7h")
	s := start(t, cfg)
	if want := filepath.Join(cfg.DataDir, "blobs"); s.data != want {
		t.Errorf("data in %q, want %q", s.data, want)
	}
	if code, body := get(t, s.registry+"/v2/"); code != 200 {
		t.Errorf("/v2/: %d %s", code, body)
	}
	if code, body := get(t, s.debug+"/readyz"); code != 200 || body != "database: ok\nstorage: ok\nstatistics: ok\n" {
		t.Errorf("/readyz: %d %s", code, body)
	}
	if code, body := get(t, s.debug+"/healthz"); code != 200 {
		t.Errorf("/healthz: %d %s", code, body)
	}
	if code, _ := get(t, s.debug+"/debug/pprof/goroutine?debug=1"); code != 200 {
		t.Errorf("pprof: %d", code)
	}
	code, metrics := get(t, s.debug+"/metrics")
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
	if err := s.stop(); err != nil {
		t.Errorf("stopping: %v", err)
	}
	if c, err := net.Dial("tcp", strings.TrimPrefix(s.registry, "http://")); err == nil {
		c.Close() //nolint:errcheck // it should not be there
		t.Error("the registry still listens")
	}
}

func TestServeWithBuiltInPostgres(t *testing.T) {
	t.Parallel()
	dbtest.EmptyDSN(t) // skips where there is no PostgreSQL
	cfg := testConfig(t)
	s := start(t, cfg)
	if s.data != cfg.DataDir {
		t.Errorf("data in %q, want %q", s.data, cfg.DataDir)
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
	err = run(ctx, testConfig(t, "PURSER_DATA_DIR="+cfg.DataDir), io.Discard, quiet, nil)
	if !errors.Is(err, builtinpg.ErrInUse) || !strings.Contains(err.Error(), cfg.DataDir) || !strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) {
		t.Errorf("second server on the same directory: %v; want a refusal that names directory and process", err)
	}
	killPostgres(t, cfg)
	waitFor(t, "requests succeed again", func() bool {
		code, _ := get(t, s.debug+"/readyz")
		return code == 200
	})
	if code, body := get(t, s.registry+"/v2/_catalog"); code != 200 {
		t.Errorf("/v2/_catalog after PostgreSQL was killed: %d %s", code, body)
	}
	if err := s.stop(); err != nil {
		t.Errorf("stopping: %v", err)
	}
	if _, err := builtinpg.RunningDSN(backend.PostgresDir(cfg), backend.DatabaseName); err == nil {
		t.Error("PostgreSQL still runs")
	}
}

// killPostgres kills PostgreSQL's first process and waits until Purser has noticed.
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
	waitFor(t, "the process is gone", func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) })
}

// waitFor polls until ok returns true, for states that give no signal.
func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for !ok() {
		if worker.Sleep(ctx, 20*time.Millisecond) != nil {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

func TestPortInUse(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	addr := taken.Addr().String()
	for flag, h := range map[string]config.HTTP{
		"--addr":         {Addr: addr},
		"--debug-addr":   {Addr: "127.0.0.1:0", DebugAddr: addr},
		"--profile-addr": {Addr: "127.0.0.1:0", DebugAddr: "127.0.0.1:0", ProfileAddr: addr},
	} {
		_, err := listen(t.Context(), h, quiet)
		if err == nil || !strings.Contains(err.Error(), addr+" is in use") || !strings.Contains(err.Error(), " "+flag+" ") {
			t.Errorf("%s: %v; want an error that names address and flag", flag, err)
		}
	}
	if _, err := listen(t.Context(), config.HTTP{Addr: "127.0.0.1:0", TLS: config.TLS{Cert: "/nonexistent.pem", Key: "/nonexistent.key"}}, quiet); err == nil ||
		!strings.Contains(err.Error(), "http.tls.cert") {
		t.Errorf("missing certificate: %v", err)
	}
}

func TestReachable(t *testing.T) {
	t.Parallel()
	for ip, want := range map[string]string{
		"127.0.0.1": "127.0.0.1:5000", "0.0.0.0": "127.0.0.1:5000", "::": "127.0.0.1:5000", "::1": "localhost:5000",
		"192.0.2.7": "192.0.2.7:5000",
	} {
		if got := reachable(fakeListener{&net.TCPAddr{IP: net.ParseIP(ip), Port: 5000}}); got != want {
			t.Errorf("reachable(%s) = %s, want %s", ip, got, want)
		}
	}
}

type fakeListener struct{ addr net.Addr }

func (f fakeListener) Addr() net.Addr          { return f.addr }
func (fakeListener) Accept() (net.Conn, error) { return nil, net.ErrClosed }
func (fakeListener) Close() error              { return nil }

func TestPlaces(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		environ []string
		want    string // DIR stands for the data directory
	}{
		{nil, "DIR"},
		{[]string{"PURSER_DATABASE_MAIN=postgres://db/purser"}, "DIR/blobs"},
		{[]string{"PURSER_STORAGE_FILESYSTEM_PATH=/mnt/blobs"}, "DIR /mnt/blobs"},
		{[]string{"PURSER_STORAGE_S3_BUCKET=images"}, "DIR s3://images"},
		{[]string{"PURSER_STORAGE_S3_BUCKET=images", "PURSER_STORAGE_S3_PREFIX=a/b", "PURSER_DATABASE_MAIN=postgres://db/purser"}, "s3://images/a/b"},
	} {
		cfg := testConfig(t, tc.environ...)
		want := strings.ReplaceAll(tc.want, "DIR", cfg.DataDir)
		if got := strings.Join(places(cfg), " "); got != want {
			t.Errorf("%v: data in %q, want %q", tc.environ, got, want)
		}
	}
}

func TestReadiness(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newReadiness()
		ask := func() (int, string) {
			rec := httptest.NewRecorder()
			r.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/readyz", nil))
			return rec.Code, rec.Body.String()
		}
		expect := func(wantCode int, want string) {
			t.Helper()
			if code, body := ask(); code != wantCode || body != want {
				t.Errorf("%d %q, want %d %q", code, body, wantCode, want)
			}
		}
		expect(503, "starting\n")
		var runs atomic.Int32
		var broken atomic.Bool
		r.started(readinessCheck{name: "database", run: func(context.Context) error {
			runs.Add(1)
			if broken.Load() {
				return errors.New("no luck")
			}
			return nil
		}}, readinessCheck{name: "storage", run: func(ctx context.Context) error {
			if broken.Load() {
				<-ctx.Done() // hangs
			}
			return ctx.Err()
		}})
		for range 10 {
			expect(200, "database: ok\nstorage: ok\n")
		}
		if n := runs.Load(); n != 1 {
			t.Errorf("%d checks within a second, want 1", n)
		}
		broken.Store(true)
		time.Sleep(2 * checkEvery)
		began := time.Now()
		expect(503, "database: no luck\nstorage: context deadline exceeded\n")
		if took := time.Since(began); took != checkTimeout {
			t.Errorf("a check that hangs took %v, want %v", took, checkTimeout)
		}
		broken.Store(false)
		time.Sleep(2 * checkEvery)
		expect(200, "database: ok\nstorage: ok\n")
		r.stopping()
		expect(503, "stopping\n")
	})
}

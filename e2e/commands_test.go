package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// refused fails the test unless a command has failed (its exit code isn't 0), and its output
// `out` contains every text in `want`.
func refused(t testing.TB, code int, out string, want ...string) {
	t.Helper()
	if code == 0 {
		t.Errorf("it exited with 0, and should have refused; it printed:\n%s", out)
	}
	for _, text := range want {
		if !strings.Contains(out, text) {
			t.Errorf("it says nothing of %q:\n%s", text, out)
		}
	}
	if strings.Contains(out, "goroutine ") {
		t.Errorf("it panicked:\n%s", out)
	}
}

func TestServePrintsWhatToDo(t *testing.T) {
	beginOwn(t)
	r := startRegistry(t, options{})
	text := r.p.out.String()
	for _, want := range []string{r.opt.dataDir, "push", r.host + "/"} {
		if !strings.Contains(text, want) {
			t.Errorf("serve printed nothing of %q:\n%s", want, text)
		}
	}
	for path, want := range map[string]int{"/metrics": 200, "/healthz": 200, "/readyz": 200, "/debug/pprof/": 200} {
		if got := getStatus(t.Context(), "http://"+r.debug+path); got != want {
			t.Errorf("GET %s: %d, want %d", path, got, want)
		}
	}
	if got := getStatus(t.Context(), r.URL()+"/metrics"); got != http.StatusNotFound {
		t.Errorf("GET /metrics of the registry's own address: %d, want 404", got)
	}
}

func TestSecondInstanceIsRefused(t *testing.T) {
	beginOwn(t)
	r := startRegistry(t, options{})
	started := time.Now()
	code, out := purser(t, nil, "serve", "--data-dir", r.opt.dataDir, "--addr", "127.0.0.1:0", "--debug-addr", "127.0.0.1:0")
	refused(t, code, out, r.opt.dataDir)
	if took := time.Since(started); took > 20*time.Second {
		t.Errorf("the refusal took %v", took)
	}
	if _, err := r.API().pushImage(t.Context(), "first/app", "v1", randomBytes(1<<10)); err != nil {
		t.Errorf("the first instance was disturbed: %v", err)
	}
}

func TestAddressInUseIsRefused(t *testing.T) {
	beginOwn(t)
	r := startRegistry(t, options{})
	code, out := purser(t, nil, "serve", "--data-dir", newDir(t), "--addr", r.host, "--debug-addr", "127.0.0.1:0")
	refused(t, code, out, r.host, "--addr")
}

func TestListeningToTheWorldWithoutLogInsNeedsAFlag(t *testing.T) {
	beginOwn(t)
	dir := newDir(t)
	for _, addr := range []string{"0.0.0.0:0", ":0", "[::]:0"} {
		code, out := purser(t, []string{"PURSER_AUTH_ENABLED=false"}, "serve", "--data-dir", dir, "--addr", addr, "--debug-addr", "127.0.0.1:0")
		refused(t, code, out, "allow_anonymous")
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("a refused start left %v in the data directory (%v)", entries, err)
	}
	r := startRegistry(t, options{args: []string{"--addr", "0.0.0.0:0"}, env: []string{"PURSER_HTTP_ALLOW_ANONYMOUS=true"}})
	if got := getStatus(t.Context(), r.URL()+"/v2/"); got != 200 {
		t.Errorf("GET /v2/ with the flag set: %d, want 200", got)
	}
}

func TestPostgresURL(t *testing.T) {
	beginOwn(t)
	r := startRegistry(t, options{})
	if _, err := r.API().pushImage(t.Context(), "psql/app", "v1", randomBytes(1<<10)); err != nil {
		t.Fatal(err)
	}
	code, out := purser(t, nil, "postgres", "url", "--data-dir", r.opt.dataDir)
	if code != 0 {
		t.Fatalf("purser postgres url exited with %d:\n%s", code, out)
	}
	conn, err := pgx.Connect(t.Context(), strings.TrimSpace(out))
	if err != nil {
		t.Fatalf("connecting to %q: %v", out, err)
	}
	defer conn.Close(context.WithoutCancel(t.Context())) //nolint:errcheck // nothing is lost
	var tags int
	if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM tags WHERE name = 'v1'").Scan(&tags); err != nil || tags != 1 {
		t.Errorf("tags called v1: %d (%v), want 1", tags, err)
	}
	r.Stop()
	code, out = purser(t, nil, "postgres", "url", "--data-dir", r.opt.dataDir)
	refused(t, code, out, r.opt.dataDir)
}

func TestConfigCheckNamesLineAndKey(t *testing.T) {
	beginOwn(t)
	file := writeFile(t, "purser.yaml", "http:\n  addr: 127.0.0.1:5000\n  adress: 127.0.0.1:6000\nuploads:\n  max_age: 24 hours\n")
	code, out := purser(t, nil, "config", "check", "--config", file)
	refused(t, code, out, file+":3", "http.adress", file+":5", "uploads.max_age")
	code, out = purser(t, nil, "serve", "--config", file, "--data-dir", newDir(t))
	refused(t, code, out, file+":3", "http.adress")
	code, out = purser(t, []string{"PURSER_HTTP_ADRESS=127.0.0.1:6000"}, "config", "check")
	refused(t, code, out, "PURSER_HTTP_ADRESS")
	code, out = purser(t, nil, "config", "check", "--config", filepath.Join(newDir(t), "missing.yaml"))
	refused(t, code, out, "missing.yaml")

	good := writeFile(t, "purser.yaml", "http:\n  addr: 127.0.0.1:5000\n")
	if code, out := purser(t, nil, "config", "check", "--config", good); code != 0 {
		t.Errorf("config check of a good file exited with %d:\n%s", code, out)
	}
}

func TestConfigShowHidesSecrets(t *testing.T) {
	beginOwn(t)
	file := writeFile(t, "purser.yaml", "database:\n  main: postgres://purser:hunter2@db.example.com/purser\n")
	code, out := purser(t, []string{"PURSER_STORAGE_S3_BUCKET=images", "PURSER_STORAGE_S3_ACCESS_KEY=AKIA",
		"PURSER_STORAGE_S3_SECRET_KEY=swordfish", "PURSER_HTTP_ADDR=127.0.0.1:7000"}, "config", "show", "--config", file)
	if code != 0 {
		t.Fatalf("config show exited with %d:\n%s", code, out)
	}
	for _, secret := range []string{"hunter2", "swordfish"} {
		if strings.Contains(out, secret) {
			t.Errorf("config show prints the secret %s:\n%s", secret, out)
		}
	}
	for _, want := range []string{"127.0.0.1:7000", "PURSER_HTTP_ADDR", "images", file + ":2", "db.example.com"} {
		if !strings.Contains(out, want) {
			t.Errorf("config show says nothing of %q:\n%s", want, out)
		}
	}
}

// The test does what a new user does: it starts a registry in an empty directory, pushes,
// stops the registry and starts it again. The image must still be there.
func TestStartsFromNothingAndAgain(t *testing.T) {
	beginOwn(t)
	r := startRegistry(t, options{})
	d, err := r.API().pushImage(t.Context(), "again/app", "v1", randomBytes(1<<20))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		r.Stop()
		r.Restart()
		r.API().checkWhole(t, "again/app", "v1", d.String())
		if _, err := r.API().pushImage(t.Context(), "again/app", fmt.Sprintf("again%d", i), randomBytes(1<<10)); err != nil {
			t.Error(err)
		}
	}
}

// The test kills Purser, and expects that Purser's built-in PostgreSQL ends too.
func TestPostgresGoesWithPurser(t *testing.T) {
	beginOwn(t)
	r := startRegistry(t, options{})
	code, out := purser(t, nil, "postgres", "url", "--data-dir", r.opt.dataDir)
	if code != 0 {
		t.Fatalf("purser postgres url exited with %d:\n%s", code, out)
	}
	r.Kill9()
	eventually(t, time.Minute, func() error {
		conn, err := pgx.Connect(t.Context(), strings.TrimSpace(out))
		if err != nil {
			return nil
		}
		conn.Close(t.Context()) //nolint:errcheck // nothing is lost
		return errors.New("PostgreSQL still answers after Purser was killed")
	})
}

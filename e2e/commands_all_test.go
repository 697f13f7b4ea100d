//go:build all

package e2e

import (
	"context"
	"errors"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

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

//go:build all

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/purser-registry/purser/cmd/purser/internal/servetest"
)

// The built-in PostgreSQL goes to other major versions, whose programs are downloaded if the
// system hasn't them. The registry then has all its images, and the old clusters are kept until
// forget-old deletes them.
func TestPostgresUpgrade(t *testing.T) {
	t.Parallel()
	cfg := servetest.Config(t)
	settings := []string{"PURSER_DATA_DIR=" + cfg.DataDir, "HOME=" + os.Getenv("HOME")}
	run := func(code int, want string, args ...string) {
		t.Helper()
		got, stdout, stderr := purser(t, settings, args...)
		if got != code || !strings.Contains(stdout+stderr, want) {
			t.Fatalf("purser %v: %d %s %s, want %d with %q", args, got, stdout, stderr, code, want)
		}
	}
	s := start(t, cfg)
	p := pushed{tag: "v1", content: "content"}
	p.layer, p.manifest = pushImage(t, s, p.tag, p.content)
	run(3, "stop \"purser serve\" first", "postgres", "upgrade")
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{"16", "17"} {
		run(0, "to "+to+":", "postgres", "upgrade", "--to", to)
		run(0, "version "+to+" already", "postgres", "upgrade", "--to", to)
	}
	run(0, "All is well", "check", "--deep")
	s = start(t, cfg)
	wantImage(t, s, p, true)
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	run(3, "cluster-16", "postgres", "forget-old")
	run(0, "cluster-16", "postgres", "forget-old", "--yes")
	if old, err := filepath.Glob(filepath.Join(cfg.DataDir, "postgres", "cluster-*")); err != nil || len(old) > 0 {
		t.Errorf("left: %v, %v", old, err)
	}
}

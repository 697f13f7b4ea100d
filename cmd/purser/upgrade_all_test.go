//go:build all

package main

import (
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/purser-registry/purser/cmd/purser/internal/servetest"
)

// ownedByDaemon gives a directory to the user daemon, as the data of a service that runs as this user. It returns a
// function that checks that everything in it is that user's. Only root can give files away: for others both do nothing.
func ownedByDaemon(t *testing.T, dir string) (check func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		return func() {}
	}
	daemon, err := user.Lookup("daemon")
	if err != nil {
		t.Fatal(err)
	}
	uid, err := strconv.Atoi(daemon.Uid)
	if err != nil {
		t.Fatal(err)
	}
	each := func(fn func(path string, info fs.FileInfo) error) {
		t.Helper()
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			return fn(path, info)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	each(func(path string, _ fs.FileInfo) error { return os.Lchown(path, uid, uid) })
	return func() {
		t.Helper()
		each(func(path string, info fs.FileInfo) error {
			if owner := int(info.Sys().(*syscall.Stat_t).Uid); owner != uid {
				t.Errorf("%s belongs to %d, want %d", path, owner, uid)
			}
			return nil
		})
	}
}

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
	owned := ownedByDaemon(t, cfg.DataDir)
	for _, to := range []string{"16", "17"} {
		run(0, "to "+to+":", "postgres", "upgrade", "--to", to)
		run(0, "version "+to+" already", "postgres", "upgrade", "--to", to)
	}
	run(0, "All is well", "check", "--deep")
	owned()
	s = start(t, cfg)
	wantImage(t, s, p, true)
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	run(3, "cluster-16", "postgres", "forget-old")
	run(0, "cluster-16", "postgres", "forget-old", "--yes")
	owned()
	if old, err := filepath.Glob(filepath.Join(cfg.DataDir, "postgres", "cluster-*")); err != nil || len(old) > 0 {
		t.Errorf("left: %v, %v", old, err)
	}
}

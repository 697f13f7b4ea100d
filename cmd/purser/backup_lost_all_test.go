//go:build all

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/purser-registry/purser/cmd/purser/internal/servetest"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

// A backup lacks a blob. Verifications, the doctor and the metrics tell of it; a restore leaves it out,
// lists it and ends with the exit code 4; the next push brings it back.
func TestRestoreWithoutABlob(t *testing.T) {
	t.Parallel()
	target := filepath.Join(t.TempDir(), "backup")
	settings := onStore(t, dbtest.DSN(t), t.TempDir())
	s := start(t, servetest.Config(t, settings...))
	images := []pushed{{tag: "v1", content: "the first layer"}, {tag: "v2", content: "another layer"}}
	for i := range images {
		p := &images[i]
		p.layer, p.manifest = pushImage(t, s, p.tag, p.content)
	}
	run := func(env []string, want int, text string, args ...string) {
		t.Helper()
		if code, stdout, stderr := purser(t, env, args...); code != want || !strings.Contains(stdout+stderr, text) {
			t.Fatalf("purser %v: %d, want %d and %q\n%s%s", args, code, want, text, stdout, stderr)
		}
	}
	run(settings, 0, "is complete", "backup", target)
	run(settings, 0, "weren't read: --deep does that", "backup", "verify", target)
	copies, err := filepath.Glob(filepath.Join(target, "objects/*/*"))
	if err != nil || len(copies) != 2 {
		t.Fatalf("%d copies, %v", len(copies), err)
	}
	for _, file := range copies {
		if b, err := os.ReadFile(file); err != nil || string(b) != images[0].content {
			continue
		}
		if err := os.WriteFile(file, []byte(strings.ToUpper(images[0].content)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run(settings, 0, "weren't read", "backup", "verify", target)
	run(settings, 4, "but 1 of ", "backup", "verify", "--deep", target)
	if code, out, _ := purser(t, settings, "doctor"); code != 4 || !strings.Contains(out, "backups in "+target+": the newest one isn't whole") {
		t.Errorf("doctor: %d %s", code, out)
	}

	elsewhere := onStore(t, dbtest.EmptyDSN(t), t.TempDir())
	run(elsewhere, 1, "nothing was restored", "restore", "--strict", target)
	run(elsewhere, 4, images[0].layer.String(), "restore", target)
	restored := start(t, servetest.Config(t, elsewhere...))
	wantImage(t, restored, images[1], true)
	servetest.WaitFor(t, "the metrics tell of the backup", func() bool {
		_, metrics := get(t, restored.Debug+"/metrics")
		const snapshot = "\npurser_backup_last_snapshot_timestamp_seconds "
		return strings.Contains(metrics, snapshot) && !strings.Contains(metrics, snapshot+"0\n") && strings.Contains(metrics, "\npurser_backup_last_verification_timestamp_seconds 0\n")
	})
	if code, _ := get(t, restored.Registry+"/v2/library/app/blobs/"+images[0].layer.String()); code != 404 {
		t.Errorf("the lost blob: %d", code)
	}
	if _, manifest := pushImage(t, restored, images[0].tag, images[0].content); manifest != images[0].manifest {
		t.Errorf("pushed again: %s instead of %s", manifest, images[0].manifest)
	}
	wantImage(t, restored, images[0], true)

	run(settings, 0, "is complete", "backup", "--deep", target)
	if _, out, _ := purser(t, settings, "doctor"); strings.Contains(out, "isn't whole") {
		t.Errorf("doctor, after a deep backup: %s", out)
	}
	run(settings, 0, "is intact", "backup", "verify", "--deep", target)
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/purser-registry/purser/cmd/purser/internal/servetest"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/testscale"
)

// pushed is an image whose push was acknowledged.
type pushed struct {
	tag, content    string
	layer, manifest oci.Digest
}

// wantImage pulls an image by its tag, or by digest if `tag` is false, and expects its bytes.
func wantImage(t *testing.T, s *servetest.Server, p pushed, tag bool) {
	t.Helper()
	reference := p.manifest.String()
	if tag {
		reference = p.tag
	}
	code, text := get(t, s.Registry+"/v2/library/app/manifests/"+reference)
	if d := oci.Compute(oci.SHA256, []byte(text)); code != 200 || d != p.manifest {
		t.Errorf("manifest %s: %d, %s instead of %s", reference, code, d, p.manifest)
	}
	if code, text := get(t, s.Registry+"/v2/library/app/blobs/"+p.layer.String()); code != 200 || text != p.content {
		t.Errorf("blob of %s: %d", p.tag, code)
	}
}

// Images are backed up while clients push others, and while these are deleted from the registry
// and collected at once. The backup is restored elsewhere. All images whose pushes were
// acknowledged before the backup must be there, and a check must find nothing.
func TestBackupWhileServing(t *testing.T) {
	t.Parallel()
	dsn, target := dbtest.DSN(t), filepath.Join(t.TempDir(), "backup")
	settings := append(onStore(t, dsn, t.TempDir()), "PURSER_GC_REVIEW_AFTER=0s", "PURSER_GC_REVIEW_AFTER_EVENTS=blob_upload=10s, manifest_upload=10s")
	s := start(t, servetest.Config(t, settings...))
	var before []pushed
	for i := range testscale.Pick(10, 25) {
		p := pushed{tag: fmt.Sprint("before-", i), content: fmt.Sprint("pushed before the backup, ", i)}
		p.layer, p.manifest = pushImage(t, s, p.tag, p.content)
		before = append(before, p)
	}
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	var during atomic.Int64
	wg.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			pushImage(t, s, fmt.Sprint("during-", i), fmt.Sprint("pushed during the backup, ", i))
			during.Add(1)
		}
	})
	began := make(chan struct{})
	wg.Go(func() {
		<-began
		for _, p := range before {
			if code := send(t, "DELETE", s.Registry+"/v2/library/app/manifests/"+p.manifest.String(), ""); code != http.StatusAccepted {
				t.Errorf("DELETE: %d", code)
			}
		}
	})
	for i := range 3 { // the first backup has all images, the later ones are beside the deletions
		code, stdout, stderr := purser(t, settings, "backup", target)
		if code != 0 || !strings.Contains(stdout, "is complete") {
			t.Fatalf("backup: %d %s %s", code, stdout, stderr)
		}
		if i == 0 {
			close(began)
		}
	}
	cancel()
	wg.Wait()
	if during.Load() == 0 {
		t.Error("nothing was pushed during the backups")
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	code, list, stderr := purser(t, settings, "backup", "list", target)
	lines := strings.Split(strings.TrimSpace(list), "\n")
	if code != 0 || len(lines) != 4 || strings.Count(list, "complete") != 3 {
		t.Fatalf("list: %d %s %s", code, list, stderr)
	}
	for i, line := range lines[1:] {
		if i == 1 && !testscale.All {
			continue // of the two beside deletions, make test restores one
		}
		id := strings.Fields(line)[0]
		elsewhere := onStore(t, dbtest.EmptyDSN(t), t.TempDir())
		if code, stdout, stderr := purser(t, elsewhere, "restore", target, "--backup", id); code != 0 {
			t.Fatalf("restore: %d %s %s", code, stdout, stderr)
		}
		if code, stdout, stderr := purser(t, elsewhere, "check", "--deep"); code != 0 || !strings.Contains(stdout, "All is well") {
			t.Errorf("check after the restore of %s: %d %s %s", id, code, stdout, stderr)
		}
		if i > 0 {
			continue
		}
		restored := start(t, servetest.Config(t, elsewhere...))
		for _, p := range before {
			wantImage(t, restored, p, true)
		}
		pushImage(t, restored, "after", "pushed after the restore")
		if err := restored.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	if code, stdout, stderr := purser(t, settings, "backup", target, "--keep", "1", "-o", "json"); code != 0 || !strings.Contains(stdout, `"backups": 3`) {
		t.Errorf("backup --keep 1: %d %s %s", code, stdout, stderr)
	}
	if code, stdout, stderr := purser(t, settings, "backup", "verify", target, "--deep"); code != 0 || !strings.Contains(stdout, "is intact") {
		t.Errorf("verify: %d %s %s", code, stdout, stderr)
	}
}

// The database is lost, and its last backup is restored onto the blob store as it is now. The
// store is ahead of the database: it has images that were pushed after the backup. It is also
// behind: garbage collection has deleted a blob since, unless gc.keep_doomed kept its object.
func TestRestoreOntoTheStore(t *testing.T) {
	t.Parallel()
	for _, keep := range testscale.Pick([]string{"24h"}, []string{"24h", "0s"}) {
		t.Run("keep_doomed "+keep, func(t *testing.T) {
			t.Parallel()
			dir, target := t.TempDir(), filepath.Join(t.TempDir(), "backup")
			settings := func(dsn string) []string {
				return append(onStore(t, dsn, dir), "PURSER_GC_KEEP_DOOMED="+keep, "PURSER_GC_REVIEW_AFTER=0s",
					"PURSER_GC_REVIEW_AFTER_EVENTS=blob_upload=10s")
			}
			first := dbtest.DSN(t)
			s := start(t, servetest.Config(t, settings(first)...))
			old := pushed{tag: "v1", content: "pushed before the backup"}
			old.layer, old.manifest = pushImage(t, s, old.tag, old.content)
			if code, stdout, stderr := purser(t, settings(first), "backup", target, "--blobs", "reference"); code != 0 {
				t.Fatalf("backup: %d %s %s", code, stdout, stderr)
			}
			pushImage(t, s, "v2", "pushed after the backup")
			send(t, "DELETE", s.Registry+"/v2/library/app/manifests/"+old.manifest.String(), "")
			after := dbtest.Open(t, first)
			servetest.WaitFor(t, "the blob is collected", func() bool {
				var n int
				err := after.Pool.QueryRow(t.Context(), "SELECT count(*) FROM blobs WHERE digest = $1", old.layer.Bytes()).Scan(&n)
				return err == nil && n == 0
			})
			if err := s.Stop(); err != nil {
				t.Fatal(err)
			}
			if code, stdout, stderr := purser(t, settings(first), "gc", "run"); code != 0 {
				t.Fatalf("gc run: %d %s %s", code, stdout, stderr)
			}
			now := settings(dbtest.EmptyDSN(t))
			want := map[string]int{"24h": 0, "0s": 4}[keep]
			if code, stdout, stderr := purser(t, now, "backup", "verify", target); code != want {
				t.Errorf("verify: %d, want %d: %s %s", code, want, stdout, stderr)
			}
			if code, stdout, stderr := purser(t, now, "restore", target); code != 3 || !strings.Contains(stderr, "--keep-store") {
				t.Errorf("restore without --keep-store: %d %s %s", code, stdout, stderr)
			}
			if code, stdout, stderr := purser(t, now, "restore", target, "--keep-store"); code != 0 {
				t.Fatalf("restore: %d %s %s", code, stdout, stderr)
			}
			code, stdout, stderr := purser(t, now, "check")
			if code != want || strings.Contains(stdout, "missing from the store") != (want != 0) {
				t.Errorf("check: %d, want %d: %s %s", code, want, stdout, stderr)
			}
			s = start(t, servetest.Config(t, now...))
			if want == 0 {
				wantImage(t, s, old, true)
			}
			if code, _ := get(t, s.Registry+"/v2/library/app/manifests/v2"); code != 404 {
				t.Errorf("the image that was pushed after the backup: %d", code)
			}
		})
	}
}

// Some pulls were counted before a backup, others were only logged. After the restore each of
// them must be counted once, and pulls go on being counted.
func TestRestoredStatistics(t *testing.T) {
	t.Parallel()
	target := filepath.Join(t.TempDir(), "backup")
	settings := onStore(t, dbtest.DSN(t), t.TempDir())
	s := start(t, servetest.Config(t, settings...))
	p := pushed{tag: "v1", content: "content"}
	p.layer, p.manifest = pushImage(t, s, p.tag, p.content)
	pull := func(s *servetest.Server) {
		t.Helper()
		wantImage(t, s, p, true)
	}
	pull(s)
	pull(s)
	flush(t, s, 2)
	pull(s)
	logged := dbtest.Open(t, strings.TrimPrefix(settings[0], "PURSER_DATABASE_MAIN="))
	servetest.WaitFor(t, "the pull is logged", func() bool {
		var n int
		err := logged.Pool.QueryRow(t.Context(), "SELECT sum(pulls) FROM auditlog WHERE kind = 'pull_repo'").Scan(&n)
		return err == nil && n == 3
	})
	if code, stdout, stderr := purser(t, settings, "backup", target); code != 0 {
		t.Fatalf("backup: %d %s %s", code, stdout, stderr)
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	dsn := dbtest.EmptyDSN(t)
	elsewhere := onStore(t, dsn, t.TempDir())
	code, stdout, stderr := purser(t, elsewhere, "restore", target, "-o", "json")
	if code != 0 || !strings.Contains(stdout, `"uncounted_pulls": 1`) {
		t.Fatalf("restore: %d %s %s", code, stdout, stderr)
	}
	s = start(t, servetest.Config(t, elsewhere...))
	flush(t, s, 3)
	pull(s)
	flush(t, s, 4)
	var counted int
	err := dbtest.Open(t, dsn).Pool.QueryRow(t.Context(), "SELECT tag_pull_count FROM tagpullstatistics WHERE tag_name = 'v1'").Scan(&counted)
	if err != nil || counted != 4 {
		t.Errorf("%d pulls of the tag, %v", counted, err)
	}
	code, stdout, stderr = purser(t, []string{"PURSER_SERVER=" + s.Registry}, "pulls", "status")
	if code != 0 {
		t.Errorf("pulls status: %d %s %s", code, stdout, stderr)
	}
}

// The volume with the backups isn't mounted, the newest backup is damaged, or all are lost. Backups and
// verifications say so, and the doctor knows it until all is well again.
func TestBackupPlaceIsAway(t *testing.T) {
	t.Parallel()
	target := filepath.Join(t.TempDir(), "backup")
	settings := onStore(t, dbtest.DSN(t), t.TempDir())
	s := start(t, servetest.Config(t, settings...))
	pushImage(t, s, "v1", "content")
	run := func(want int, text string, args ...string) {
		t.Helper()
		if code, stdout, stderr := purser(t, settings, args...); code != want || !strings.Contains(stdout+stderr, text) {
			t.Fatalf("purser %v: %d, want %d and %q\n%s%s", args, code, want, text, stdout, stderr)
		}
	}
	doctor := func(problem string) { // "": none
		t.Helper()
		code, stdout, stderr := purser(t, settings, "doctor")
		if found := strings.Contains(stdout, "backups in "+target+": the newest one isn't whole"); found != (problem != "") || !strings.Contains(stdout, problem) {
			t.Errorf("doctor: %d, want %q\n%s%s", code, problem, stdout, stderr)
		}
	}
	rename := func(from, to string) {
		t.Helper()
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	run(0, "is complete", "backup", target)
	rename(target, target+".away")
	run(3, "Is its volume mounted?", "backup", target)
	doctor("the newest backup isn't there")
	run(3, "--new-place", "backup", "verify", target)
	doctor("the newest backup isn't there")
	if _, err := os.Stat(target); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the place was made: %v", err)
	}
	rename(target+".away", target)
	run(0, "weren't read", "backup", "verify", target)
	doctor("")

	manifests, err := filepath.Glob(filepath.Join(target, "backups/*/manifest.json"))
	if err != nil || len(manifests) != 1 {
		t.Fatalf("%v, %v", manifests, err)
	}
	whole, err := os.ReadFile(manifests[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{strings.Replace(string(whole), "20", "21", 1), string(whole)} {
		if err := os.WriteFile(manifests[0], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		code, problem := 0, ""
		if text != string(whole) {
			code, problem = 1, "doesn't have the bytes that were written"
		}
		run(code, problem, "backup", "verify", target)
		doctor(problem)
	}

	if err := os.RemoveAll(target); err != nil {
		t.Fatal(err)
	}
	run(3, "Is its volume mounted?", "backup", target)
	run(0, "is complete", "backup", "--new-place", target)
	run(1, "leave --new-place out", "backup", "--new-place", target)
	run(0, "is complete", "backup", "--keep", "1", target)
	doctor("")
}

// The store loses a blob, and a check marks it as lost. Backups with --keep don't delete the copy that an
// earlier one has made, so that it comes back with the store, and with a restore.
func TestBackupKeepsCopiesOfLost(t *testing.T) {
	t.Parallel()
	target, store := filepath.Join(t.TempDir(), "backup"), t.TempDir()
	settings := onStore(t, dbtest.DSN(t), store)
	s := start(t, servetest.Config(t, settings...))
	kept, never := pushed{tag: "v1", content: "with a copy"}, pushed{tag: "v2", content: "without a copy"}
	kept.layer, kept.manifest = pushImage(t, s, kept.tag, kept.content)
	run := func(env []string, want int, text string, args ...string) {
		t.Helper()
		if code, stdout, stderr := purser(t, env, args...); code != want || !strings.Contains(stdout+stderr, text) {
			t.Fatalf("purser %v: %d, want %d and %q\n%s%s", args, code, want, text, stdout, stderr)
		}
	}
	run(settings, 0, "is complete", "backup", target)
	never.layer, never.manifest = pushImage(t, s, never.tag, never.content)
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	objects, err := filepath.Glob(filepath.Join(store, "objects/*/*-*"))
	if err != nil || len(objects) < 2 {
		t.Fatalf("%d objects, %v", len(objects), err)
	}
	for _, file := range objects {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
	run(settings, 4, never.layer.String(), "check", "--repair", "--force")
	run(settings, 0, "Lost before: 2 blobs", "backup", "--keep", "1", target)
	elsewhere := onStore(t, dbtest.EmptyDSN(t), t.TempDir())
	run(elsewhere, 4, never.layer.String(), "restore", target)
	restored := start(t, servetest.Config(t, elsewhere...))
	wantImage(t, restored, kept, true)
	run(settings, 4, never.layer.String(), "store", "restore", target)
	purser(t, settings, "check", "--repair")
	s = start(t, servetest.Config(t, settings...))
	wantImage(t, s, kept, true)
}

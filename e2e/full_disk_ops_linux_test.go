//go:build all

package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestOpsFullDisk: all of a registry is on one disk, which becomes full by a backup, by pushes and then, to
// the last byte, by another program, so that PostgreSQL crashes. Backups and pushes end before PostgreSQL is
// in need. After
// the crash the registry starts, serves and deletes what is there, and takes pushes again.
func TestOpsFullDisk(t *testing.T) {
	beginOwn(t)
	disk := smallDisk(t, 1024)
	data := filepath.Join(disk, "data")
	env := []string{"PURSER_GC_REVIEW_AFTER=0s", "PURSER_GC_REVIEW_AFTER_EVENTS=blob_upload=20s, manifest_upload=20s"}
	r := startRegistry(t, options{dataDir: data, env: env})
	reserve := filepath.Join(data, "reserve")
	eventually(t, 2*time.Minute, func() error { _, err := os.Stat(reserve); return err })

	var pushed []string
	push := func() error {
		d, err := r.API().pushImage(t.Context(), "disk/app", fmt.Sprint("v", len(pushed)), randomBytes(24<<20))
		if err == nil {
			pushed = append(pushed, d.String())
		}
		return err
	}
	for r.scrape().sum(`purser_disk_free_bytes{of="database"`) > 400<<20 {
		if err := push(); err != nil {
			t.Fatal(err)
		}
	}
	r.backupLeavesRoom(filepath.Join(disk, "backup"))
	var refusal error
	for refusal == nil {
		refusal = push()
	}
	for _, want := range []string{"507", "of 1.0 GiB are free, and 102 MiB are kept"} {
		if !strings.Contains(refusal.Error(), want) {
			t.Errorf("a push says %v, want %q", refusal, want)
		}
	}
	if len(pushed) < 10 {
		t.Fatalf("after %d images: %v", len(pushed), refusal)
	}
	// The refused push leaves nothing, so a little is free again.
	if err := os.WriteFile(filepath.Join(disk, "log"), randomBytes(30<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	r.ready("pushes: the disk of the ")
	if _, err := r.API().pushBlob(t.Context(), "disk/app", []byte("small"), 1); !isStatus(err, http.StatusInsufficientStorage) {
		t.Errorf("a small push: %v", err)
	}
	s := r.scrape()
	if free, left := s.sum(`purser_disk_free_bytes{of="database"`), s.sum(`purser_disk_reserve_bytes{of="database"`); free > left || left == 0 {
		t.Errorf("%v bytes are free, and %v kept", free, left)
	}
	r.API().checkWhole(t, "disk/app", "v0", pushed[0])

	filler := filepath.Join(disk, "filler")
	fill(t, filler)
	r.Kill9()
	r.start()
	if _, err := os.Stat(reserve); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file that kept room: %v", err)
	}
	r.API().checkWhole(t, "disk/app", "v0", pushed[0])
	for i, d := range pushed[1:] {
		if _, err := r.API().do(t.Context(), request{method: http.MethodDelete, path: "/v2/disk/app/manifests/" + d, want: http.StatusAccepted}); err != nil {
			t.Fatalf("deleting image %d: %v", i+1, err)
		}
	}
	eventually(t, 2*time.Minute, func() error {
		_, err := r.API().pushImage(t.Context(), "disk/app", "again", randomBytes(1<<20))
		return err
	})
	r.API().checkWhole(t, "disk/app", "v0", pushed[0])
}

// backupLeavesRoom makes a backup in a place on the registry's disk, which hasn't room for it besides the
// reserve. The backup ends before PostgreSQL is in need, says what to do, and what it says works.
func (r *registry) backupLeavesRoom(place string) {
	r.t.Helper()
	run := func(wantCode int, want, place string) {
		r.t.Helper()
		code, out := purser(r.t, nil, "backup", place, "--data-dir", r.opt.dataDir)
		if code != wantCode {
			r.t.Errorf("a backup in %s exited with %d, want %d:\n%s", place, code, wantCode, out)
		}
		says(r.t, out, want)
	}
	for range 2 { // the second one goes on with what the first one has left
		run(1, place+" is on the registry's own disk", place)
		s := r.scrape()
		// The files that were being written may each have taken some of the reserve, and PostgreSQL some.
		if free, left := s.sum(`purser_disk_free_bytes{of="database"`), s.sum(`purser_disk_reserve_bytes{of="database"`); free < left/2 || left == 0 {
			r.t.Errorf("a backup leaves %v bytes free, and %v are kept", free, left)
		}
	}
	run(0, "is complete", newDir(r.t))
	if err := os.RemoveAll(place); err != nil {
		r.t.Fatal(err)
	}
}

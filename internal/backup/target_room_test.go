package backup

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/purser-registry/purser/internal/blob"
)

// TestTargetLeavesRoom: a backup on the registry's own disk ends when the disk has less left than pushes
// leave free, also within a file, and says what to do. It leaves what is whole.
func TestTargetLeavesRoom(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "backup")
	full := &blob.DiskFullError{Disk: blob.Disk{Of: "the blobs", Reserve: 100}, DiskSpace: blob.DiskSpace{Size: 1000, Free: 99}}
	looks, allowed := 0, 0
	target := dirTarget{path: dir, room: func() error {
		if looks++; looks > allowed {
			return full
		}
		return nil
	}}
	content := bytes.Repeat([]byte("x"), 4<<20)
	put := func(name string) error {
		looks = 0
		return target.Put(t.Context(), name, int64(len(content)), bytes.NewReader(content))
	}
	refused := func(err error) {
		t.Helper()
		if e, ok := errors.AsType[*blob.DiskFullError](err); !ok || e != full || !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("%v, want that the disk is full", err)
		}
		for _, want := range []string{dir + " is on the registry's own disk: the disk of the blobs is full", "BACKUP_TARGET", "delete the directory"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want that it says %q", err, want)
			}
		}
	}

	refused(put("first"))
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a refused file leaves its directory: %v", err)
	}
	allowed = math.MaxInt
	if err := put("whole"); err != nil {
		t.Fatal(err)
	}
	if looks < 4 {
		t.Errorf("%d looks at the room for 4 MiB", looks)
	}
	allowed = 3
	refused(put("half"))
	var names []string
	for f, err := range target.Files(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, f.Key)
	}
	if len(names) != 1 || names[0] != "whole" {
		t.Errorf("the place has %q, want the whole file alone", names)
	}
	r, err := target.Open(t.Context(), "whole")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, content) {
		t.Errorf("the whole file has %d bytes, %v", len(got), err)
	}
}

// stuckTarget deletes nothing.
type stuckTarget struct{ Target }

func (stuckTarget) Delete(context.Context, []string) error { return errKilled }

// TestFailedBackupGivesRoomBack: a backup that ends for want of room deletes what it has written, but not
// the objects, with which the next one goes on. If it can't, the log says so.
func TestFailedBackupGivesRoomBack(t *testing.T) {
	t.Parallel()
	r, _, _ := backedUp(t)
	var full atomic.Bool
	target := dirTarget{path: filepath.Join(t.TempDir(), "backup"), room: func() error {
		if full.Load() {
			return &blob.DiskFullError{Disk: blob.Disk{Of: "the blobs", Reserve: 100}, DiskSpace: blob.DiskSpace{Size: 1000, Free: 99}}
		}
		return nil
	}}
	fail := func(o Options) {
		t.Helper()
		defer full.Store(false)
		if _, err := Run(t.Context(), o); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("on a full disk: %v", err)
		}
	}
	left := func(what string, objects int) {
		t.Helper()
		if files := filesOf(t, target, backupsDir); len(files) > 0 {
			t.Errorf("%s: the place has %q", what, files)
		}
		if files := filesOf(t, target, objectsDir); len(files) != objects {
			t.Errorf("%s: the place has %q, want %d objects", what, files, objects)
		}
	}
	o := r.options(target)
	o.paused = func() { full.Store(true) }
	fail(o)
	left("full by the database", 0)
	o = r.options(target)
	o.Parallel, o.copied = 1, func(string) { full.Store(true) }
	fail(o)
	left("full by the first object", 1)
	if b := r.backup(target); b.Blobs.Copied != 3 || b.Blobs.Count != 4 {
		t.Errorf("with room the next backup copied %d of %d", b.Blobs.Copied, b.Blobs.Count)
	}
	var log bytes.Buffer
	before := len(filesOf(t, target, backupsDir))
	o = r.options(stuckTarget{target})
	o.paused, o.Log = func() { full.Store(true) }, slog.New(slog.NewTextHandler(&log, nil))
	fail(o)
	if after := len(filesOf(t, target, backupsDir)); after <= before || !strings.Contains(log.String(), "can't be deleted") {
		t.Errorf("a place that deletes nothing has %d files after %d, and the log is %q", after, before, log.String())
	}
}

// TestLeaveRoomOfTargets: a directory on another disk than the registry's is filled, and so is a bucket.
func TestLeaveRoomOfTargets(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "not", "there", "yet")
	for _, c := range []struct {
		disk string
		full bool
	}{{t.TempDir(), true}, {"/dev", false}} {
		target, err := InDirectory(dir)
		if err != nil {
			t.Fatal(err)
		}
		target = LeaveRoom(target, blob.Disks{{Of: "the database", Path: c.disk, Reserve: math.MaxInt64}})
		err = putBytes(t.Context(), target, "backups/begun", []byte("x"))
		if _, full := errors.AsType[*blob.DiskFullError](err); full != c.full || !full && err != nil {
			t.Errorf("beside %s: %v", c.disk, err)
		}
	}
	if b := InBucket(nil, "s3://backups"); LeaveRoom(b, blob.Disks{{Of: "the blobs", Path: dir}}) != b {
		t.Error("a bucket isn't left as it is")
	}
}

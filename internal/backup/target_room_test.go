package backup

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
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

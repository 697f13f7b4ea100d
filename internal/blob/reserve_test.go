package blob_test

import (
	"bytes"
	"context"
	"errors"
	"math"
	"strings"
	"syscall"
	"testing"

	"github.com/purser-registry/purser/internal/blob"
)

// TestLeaveRoom: on a disk with less left than its reserve, a writer takes no more bytes, saves those that
// it has, and the store deletes.
func TestLeaveRoom(t *testing.T) {
	t.Parallel()
	dir, err := blob.OpenDir(blob.DirOptions{Path: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	disks := blob.Disks{{Of: "the blobs", Path: dir.Path()}}
	store := blob.LeaveRoom(dir, disks)
	resume := func() (blob.Writer, error) {
		claim := func(context.Context) (int64, error) { return 0, nil }
		numbers := func(context.Context, int) (int64, error) { return 0, nil }
		return store.Resume(t.Context(), blob.NewBase(), nil, 0, claim, numbers)
	}
	w, err := resume()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close() //nolint:errcheck // the test ends
	content := bytes.Repeat([]byte("x"), 1<<20)
	if n, err := w.ReadFrom(bytes.NewReader(content)); n != 1<<20 || err != nil {
		t.Fatal(n, err)
	}
	disks[0].Reserve = math.MaxInt64
	full := func(err error) {
		t.Helper()
		e, ok := errors.AsType[*blob.DiskFullError](err)
		if !ok || !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "the disk of the blobs is full") || e.Size == 0 {
			t.Errorf("%v, want that the disk is full", err)
		}
	}
	_, err = w.Write(content)
	full(err)
	_, err = w.ReadFrom(bytes.NewReader(content))
	full(err)
	_, err = resume()
	full(err)
	key, err := w.Finish(t.Context())
	if err != nil {
		t.Fatalf("finishing: %v", err)
	}
	if o, err := store.Stat(t.Context(), key); err != nil || o.Size != 1<<20 {
		t.Errorf("%+v, %v", o, err)
	}
	if err := store.Delete(t.Context(), []string{key}); err != nil {
		t.Errorf("deleting: %v", err)
	}
	disks[0].Path += "/nothere"
	if err := disks.Room(); err != nil {
		t.Errorf("a disk that can't be asked: %v", err)
	}
}

// TestLeave: the reserve is the setting, and if it isn't set at most a tenth of the disk.
func TestLeave(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		reserve, size, want int64
		limited             bool
	}{{3000, 100_000, 3000, true}, {3000, 20_000, 2000, true}, {3000, 20_000, 3000, false}, {0, 20_000, 0, false}} {
		d := blob.Disk{Reserve: c.reserve, Limited: c.limited}
		if got := d.Leave(blob.DiskSpace{Size: c.size}); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}

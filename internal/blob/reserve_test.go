package blob_test

import (
	"bytes"
	"context"
	"errors"
	"io"
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

// TestPutLeavesRoom: a restore or a move that fills a directory on a disk of the registry ends when the disk
// has less left than its reserve, also within an object, and leaves nothing of that.
func TestPutLeavesRoom(t *testing.T) {
	t.Parallel()
	dir, err := blob.OpenDir(blob.DirOptions{Path: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	disks := blob.Disks{{Of: "the database", Path: t.TempDir()}}
	key := blob.NewBase() + "-0"
	content := bytes.Repeat([]byte("x"), 1<<20)
	put := func(r io.Reader) error {
		return blob.LeaveRoomBeside(dir, disks).(blob.Putter).Put(t.Context(), key, int64(len(content)), r)
	}
	full := func(err error) {
		t.Helper()
		if _, ok := errors.AsType[*blob.DiskFullError](err); !ok || !strings.Contains(err.Error(), key) {
			t.Errorf("%v, want that the disk is full", err)
		}
		if _, err := dir.Stat(t.Context(), key); !errors.Is(err, blob.ErrNotFound) {
			t.Errorf("a refused object: %v", err)
		}
	}
	disks[0].Reserve = math.MaxInt64
	full(put(bytes.NewReader(content)))

	disks[0].Reserve = 0
	store := blob.LeaveRoom(dir, disks).(blob.Putter) // whose disks are those of the test
	full(store.Put(t.Context(), key, int64(len(content)), fills{bytes.NewReader(content), &disks[0]}))

	disks[0] = blob.Disk{Of: "the database", Path: "/dev", Reserve: math.MaxInt64}
	if err := put(bytes.NewReader(content)); err != nil {
		t.Errorf("beside another disk: %v", err)
	}
}

// fills is a reader during whose first bytes the disk becomes full.
type fills struct {
	io.Reader
	disk *blob.Disk
}

func (f fills) Read(p []byte) (int, error) {
	f.disk.Reserve = math.MaxInt64
	return f.Reader.Read(p)
}

// TestDisksOn: a directory is on the disks that have its file system, also before it is made.
func TestDisksOn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	disks := blob.Disks{{Of: "the blobs", Path: dir}, {Of: "the devices", Path: "/dev"}, {Of: "the database", Path: dir + "/not/there"}}
	for path, want := range map[string]int{dir: 2, dir + "/nor/this": 2, "/dev": 1} {
		if got := disks.On(path); len(got) != want {
			t.Errorf("%s is on %+v, want %d", path, got, want)
		}
	}
}

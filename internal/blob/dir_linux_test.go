package blob_test

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/purser-registry/purser/internal/blob/blobtest"
)

// A client pushes more than fits on the disk: the push must fail with ENOSPC and free the
// space that it used, and the upload can continue when the disk has free space again.
func TestDirDiskFull(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	if err := unix.Mount("tmpfs", path, "tmpfs", 0, "size=4m"); err != nil {
		t.Skipf("mounting a small disk: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(path, unix.MNT_DETACH) })
	d := openDir(t, path)
	u := blobtest.NewUpload()
	u.Append(t, d, blobtest.Bytes(1, 1<<20))
	for _, u := range []*blobtest.Upload{u, blobtest.NewUpload()} {
		a := u.Begin(t, d)
		if _, err := a.Write(blobtest.Bytes(2, 8<<20)); !errors.Is(err, unix.ENOSPC) {
			t.Fatalf("writing to a full disk: %v", err)
		}
		if _, err := a.Finish(t.Context()); !errors.Is(err, unix.ENOSPC) {
			t.Fatalf("finishing after it: %v", err)
		}
		a.MustClose(t)
		if free := freeBytes(t, path); free < 2<<20 {
			t.Fatalf("%d bytes are free after a failed push", free)
		}
	}
	u.Complete(t, d, blobtest.Bytes(3, 2<<20))
	if err := d.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("", path, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if err := d.Check(t.Context()); !errors.Is(err, unix.EROFS) {
		t.Fatalf("checking a read-only disk: %v", err)
	}
}

func freeBytes(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Bfree * uint64(st.Bsize)
}

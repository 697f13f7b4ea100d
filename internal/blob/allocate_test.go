package blob

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestAllocateForTheService: the file that root makes in a directory of the service's user is that user's, who has to
// remove it when the disk is full.
func TestAllocateForTheService(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	const uid, gid = 4321, 8765
	dir := t.TempDir()
	if err := os.Chown(dir, uid, gid); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "reserve")
	if err := Allocate(path, 1000); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if s := info.Sys().(*syscall.Stat_t); s.Uid != uid || s.Gid != gid {
		t.Errorf("the file belongs to %d:%d", s.Uid, s.Gid)
	}
	victim, other := filepath.Join(t.TempDir(), "victim"), filepath.Join(dir, "other")
	if err := errors.Join(os.WriteFile(victim, []byte("content"), 0o600), os.Symlink(victim, other+".new")); err != nil {
		t.Fatal(err)
	}
	err = Allocate(other, 1000)
	if info, statErr := os.Stat(victim); !errors.Is(err, syscall.ELOOP) || statErr != nil || info.Size() != 7 || info.Sys().(*syscall.Stat_t).Uid != 0 {
		t.Errorf("a link in place of the file: %v, %v, %+v", err, statErr, info)
	}
}

// TestAllocate: the file takes room on each file system, and there is none if there is no room.
func TestAllocate(t *testing.T) {
	t.Parallel()
	const size = 3<<20 + 5
	for name, c := range map[string]struct {
		preallocate func(*os.File, int64) error
		want        error
	}{
		"this file system":    {preallocate, nil},
		"one without promise": {func(*os.File, int64) error { return syscall.EOPNOTSUPP }, nil},
		"a full one":          {func(*os.File, int64) error { return syscall.ENOSPC }, syscall.ENOSPC},
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, "reserve")
		if err := os.WriteFile(path+".new", make([]byte, 2*size), 0o600); err != nil { // of a call that was killed
			t.Fatal(err)
		}
		if err := allocate(path, size, c.preallocate); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		info, err := os.Stat(path)
		if (err == nil) != (c.want == nil) {
			t.Errorf("%s: the file: %v", name, err)
		}
		if err == nil && (info.Size() != size || info.Sys().(*syscall.Stat_t).Blocks*512 < size) {
			t.Errorf("%s: the file has %d bytes in %d blocks", name, info.Size(), info.Sys().(*syscall.Stat_t).Blocks)
		}
		if left, err := filepath.Glob(path + ".new"); err != nil || len(left) > 0 {
			t.Errorf("%s: it leaves %v", name, left)
		}
	}
}

package blob

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

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

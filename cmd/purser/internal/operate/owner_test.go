//go:build unix

package operate

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestFilesThatRootMakes: what commands of root make in directories of the service's user belongs to that
// user, so that the service can read and delete it.
func TestFilesThatRootMakes(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	const uid, gid = 4321, 8765
	g := newGarbage(t)
	place := t.TempDir()
	give := func(dir string) {
		t.Helper()
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			return os.Lchown(path, uid, gid)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	give(g.store)
	give(place)
	backups, restored, moved := filepath.Join(place, "backups"), filepath.Join(place, "restored"), filepath.Join(place, "moved")
	for _, args := range [][]string{
		{"store", "adopt"}, {"check", "--repair"}, {"backup", backups}, {"backup", "--deep", backups}, {"backup", "verify", "--deep", backups},
		{"move", "blobs", moved}, {"gc", "run"},
	} {
		if code, stdout, stderr := purser(t, g.environ, args...); code != 0 {
			t.Fatalf("%v: exit code %d\n%s\n%s", args, code, stdout, stderr)
		}
	}
	environ := append([]string{"PURSER_STORAGE_FILESYSTEM_PATH=" + restored}, g.environ...)
	if err := os.Mkdir(restored, 0o755); err != nil {
		t.Fatal(err)
	}
	give(restored)
	if code, stdout, stderr := purser(t, environ, "store", "restore", backups); code != 0 {
		t.Fatalf("store restore: exit code %d\n%s\n%s", code, stdout, stderr)
	}
	for _, dir := range []string{g.store, place} {
		files := 0
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			if s := info.Sys().(*syscall.Stat_t); s.Uid != uid || s.Gid != gid {
				t.Errorf("%s belongs to %d:%d", path, s.Uid, s.Gid)
			}
			files++
			return nil
		})
		if err != nil || files < 3 {
			t.Errorf("%s has %d files: %v", dir, files, err)
		}
	}
}

//go:build unix

package operate

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/purser-registry/purser/internal/oci"
)

// storeOfDistribution writes the storage of Docker's registry with one image into a directory.
func storeOfDistribution(t *testing.T, dir string) {
	t.Helper()
	write := func(content string, path ...string) {
		t.Helper()
		name := filepath.Join(append([]string{dir, "docker", "registry", "v2"}, path...)...)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	blob := func(content string) oci.Digest {
		t.Helper()
		d := oci.Compute(oci.SHA256, []byte(content))
		write(content, "blobs", "sha256", d.Hex()[:2], d.Hex(), "data")
		return d
	}
	config := blob(`{"of":"the other registry"}`)
	manifest := blob(fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":%q,"size":27},"layers":[]}`,
		oci.MediaTypeImageManifest, config))
	write(manifest.String(), "repositories", "old/app", "_manifests", "revisions", "sha256", manifest.Hex(), "link")
	write(manifest.String(), "repositories", "old/app", "_manifests", "tags", "v1", "current", "link")
}

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
	storeOfDistribution(t, g.store)
	give(g.store)
	give(place)
	backups, restored, moved := filepath.Join(place, "backups"), filepath.Join(place, "restored"), filepath.Join(place, "moved")
	for _, args := range [][]string{
		{"store", "adopt"}, {"check", "--repair"}, {"import", "--dry-run"}, {"import"}, {"import", "--finish", "--yes"}, {"backup", backups}, {"backup", "--deep", backups}, {"backup", "verify", "--deep", backups},
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

package backup

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/purser-registry/purser/internal/blob"
)

// TestTargetTakesRegularFiles expects that a directory of backups has only its regular files: a FIFO in
// it would make a restore wait, and a symbolic link could lead it to any file.
func TestTargetTakesRegularFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	outside := filepath.Join(t.TempDir(), "outside")
	err := errors.Join(os.WriteFile(outside, []byte("secret"), 0o600), os.WriteFile(filepath.Join(dir, "file"), []byte("ours"), 0o600),
		syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600), os.Symlink(outside, filepath.Join(dir, "link")),
		os.Symlink(filepath.Dir(outside), filepath.Join(dir, "linked")))
	if err != nil {
		t.Fatal(err)
	}
	target, err := InDirectory(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"fifo", "link", "linked/outside"} {
		if r, err := target.Open(t.Context(), name); !errors.Is(err, blob.ErrNotFound) {
			t.Errorf("%s: %v %v", name, r, err)
		}
	}
	for file, err := range target.Files(t.Context(), "") {
		if err != nil || file.Key != "file" {
			t.Errorf("listed %+v %v", file, err)
		}
	}
	r, err := target.Open(t.Context(), "file")
	if err != nil {
		t.Fatal(err)
	}
	r.Close() //nolint:errcheck // only read
}

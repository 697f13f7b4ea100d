package blob_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/purser-registry/purser/internal/blob"
)

// TestTreeNamesWhatItMayNotRead expects that a listing names what this process may not read, and goes on.
func TestTreeNamesWhatItMayNotRead(t *testing.T) {
	t.Parallel()
	if os.Geteuid() == 0 { // root may read everything
		run := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v") // others may not go where the program is
		run.Dir, run.Env = "/", append(os.Environ(), "TMPDIR=/tmp")
		run.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		if out, err := run.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
			t.Errorf("as nobody: %v\n%s", err, out)
		}
		return
	}
	path := t.TempDir()
	d := openDir(t, path)
	for _, file := range []string{"a/file", "b/locked", "c/link", "d/listed", "e/file"} {
		name := filepath.Join(path, "other", file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	chmod := func(name string, mode os.FileMode) {
		name = filepath.Join(path, "other", name)
		if err := os.Chmod(name, mode); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.Chmod(name, 0o700) }) //nolint:errcheck // so that it can be deleted
	}
	chmod("b", 0)
	chmod("c/link", 0)
	chmod("d", 0o400)
	var files, named []string
	for o, err := range d.Files(t.Context(), "other") {
		switch {
		case err == nil:
			files = append(files, o.Key)
		case blob.Unreadable(err):
			named = append(named, o.Key)
		default:
			t.Error(err)
		}
	}
	if !slices.Equal(files, []string{"other/a/file", "other/c/link", "other/e/file"}) || len(named) != 2 || named[0] != "other/b" || !strings.HasPrefix(named[1], "other/d") {
		t.Errorf("files %q, named %q", files, named)
	}
	if others, err := d.Others(t.Context(), "other", true); err != nil || len(others) > 0 {
		t.Errorf("others %q, %v", others, err)
	}
	if _, err := d.Directories(t.Context(), "other/b"); !blob.Unreadable(err) {
		t.Errorf("directories: %v", err)
	}
	if _, err := d.Others(t.Context(), "other/b", true); !blob.Unreadable(err) {
		t.Errorf("others of it: %v", err)
	}
	for key, readable := range map[string]bool{"other/a/file": true, "other/b/locked": false, "other/c/link": false, "other/d/listed": false} {
		if err := d.Readable(t.Context(), key); (err == nil) != readable || err != nil && !blob.Unreadable(err) {
			t.Errorf("%s: %v", key, err)
		}
	}
}

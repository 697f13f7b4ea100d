package blob_test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/purser-registry/purser/internal/blob"
)

// byNobody returns whether this process may not read everything. If it is root's, which may, byNobody
// runs the test in another process, as the user nobody, and returns false.
func byNobody(t *testing.T) bool {
	t.Helper()
	if os.Geteuid() != 0 {
		return true
	}
	run := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v") // others may not go where the program is
	run.Dir, run.Env = "/", append(os.Environ(), "TMPDIR=/tmp")
	run.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := run.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("as nobody: %v\n%s", err, out)
	}
	return false
}

// chmod changes a mode until the test ends, when what is there can be deleted.
func chmod(t *testing.T, name string, mode os.FileMode) {
	t.Helper()
	if err := os.Chmod(name, mode); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Chmod(name, 0o700) }) //nolint:errcheck // so that it can be deleted
}

// TestDirTellsThatItMayNotRead expects that a store which this process may not read says so. It is
// neither a store that isn't mounted nor one without objects.
func TestDirTellsThatItMayNotRead(t *testing.T) {
	t.Parallel()
	if !byNobody(t) {
		return
	}
	for _, closed := range []string{".", "objects"} {
		path := filepath.Join(t.TempDir(), "blobs")
		d := openDir(t, path)
		chmod(t, filepath.Join(path, closed), 0)
		ctx, base := t.Context(), blob.NewBase()
		key := base + "-0"
		open := func(o blob.DirOptions) error {
			o.Path = path
			_, err := blob.OpenDir(o)
			return err
		}
		listed := 0
		for what, do := range map[string]func() error{
			"opening":          func() error { return open(blob.DirOptions{}) },
			"opening it again": func() error { return open(blob.DirOptions{Existing: true}) },
			"completing it":    func() error { return open(blob.DirOptions{Existing: true, Complete: true}) },
			"Check":            func() error { return d.Check(ctx) },
			"Open":             func() error { _, err := d.Open(ctx, key, 0, -1); return err },
			"Stat":             func() error { _, err := d.Stat(ctx, key); return err },
			"Stat of a file":   func() error { _, err := d.Stat(ctx, "objects/README"); return err },
			"Delete":           func() error { return d.Delete(ctx, []string{key}) },
			"DeleteUpload":     func() error { return d.DeleteUpload(ctx, base, "") },
			"Put":              func() error { return d.Put(ctx, key, 0, strings.NewReader("")) },
			"Identity":         func() error { _, err := d.Identity(ctx); return err },
			"SetIdentity":      func() error { return d.SetIdentity(ctx, "0b0e2d2e-0000-4000-8000-000000000000", false) },
			"List": func() (failed error) {
				for _, err := range d.List(ctx, "") {
					listed++
					failed = err
				}
				return failed
			},
		} {
			err := do()
			if !errors.Is(err, fs.ErrPermission) || errors.Is(err, blob.ErrWrongStore) || errors.Is(err, blob.ErrNotFound) ||
				blob.TroubleOf(err) != blob.TroubleForbidden {
				t.Errorf("%s with %s closed: %v", what, closed, err)
			}
			if err != nil && strings.Contains(err.Error(), "mounted") {
				t.Errorf("%s with %s closed blames the volume: %v", what, closed, err)
			}
		}
		if listed != 1 {
			t.Errorf("a listing with %s closed goes on for %d errors", closed, listed)
		}
	}
}

// TestListNamesWhatItMayNotRead expects that a listing names the directories and objects that it can't
// read, and goes on.
func TestListNamesWhatItMayNotRead(t *testing.T) {
	t.Parallel()
	if !byNobody(t) {
		return
	}
	path := t.TempDir()
	d := openDir(t, path)
	dir := func(name string) string { return filepath.Join(path, "objects", name) }
	key := func(dir string) string { return dir + strings.Repeat("0", 30) + "-0" }
	for _, name := range []string{"00", "10", "20", "ff"} {
		if err := os.WriteFile(filepath.Join(dir(name), key(name)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	chmod(t, dir("10"), 0)
	chmod(t, dir("20"), 0o400)
	if err := errors.Join(os.Remove(dir("30")), os.Remove(dir("40")), os.WriteFile(dir("40"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	var found, named []string
	for o, err := range d.List(t.Context(), "") {
		switch {
		case err == nil:
			found = append(found, o.Key)
		case blob.Unreadable(err):
			named = append(named, o.Key)
		default:
			t.Error(err)
		}
	}
	if !slices.Equal(found, []string{key("00"), key("ff")}) || !slices.Equal(named, []string{"10", key("20"), "30", "40"}) {
		t.Errorf("found %q, named %q", found, named)
	}
}

// TestTreeNamesWhatItMayNotRead expects that a listing names what this process may not read, and goes on.
func TestTreeNamesWhatItMayNotRead(t *testing.T) {
	t.Parallel()
	if !byNobody(t) {
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
	other := func(name string) string { return filepath.Join(path, "other", name) }
	chmod(t, other("b"), 0)
	chmod(t, other("c/link"), 0)
	chmod(t, other("d"), 0o400)
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

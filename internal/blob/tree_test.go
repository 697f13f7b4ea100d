package blob_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/purser-registry/purser/internal/blob"
)

// TestTreePassesOverNames expects that names that aren't UTF-8 end no listing: only Others has them.
func TestTreePassesOverNames(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	d := openDir(t, path)
	for _, file := range []string{"a/file", "b\xff/c/file", "caf\xe9", "d/\xff/x", "z/file"} {
		name := filepath.Join(path, "other", file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, nil, 0o600)); err != nil {
			t.Skipf("the file system has no such names: %v", err)
		}
	}
	var files []string
	for o, err := range d.Files(t.Context(), "other") {
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, o.Key)
	}
	if !slices.Equal(files, []string{"other/a/file", "other/z/file"}) {
		t.Errorf("files %q", files)
	}
	if names, err := d.Directories(t.Context(), "other"); err != nil || !slices.Equal(names, []string{"a", "d", "z"}) {
		t.Errorf("directories %q, %v", names, err)
	}
	for deep, want := range map[bool][]string{false: {"other/b\xff", "other/caf\xe9"}, true: {"other/b\xff", "other/caf\xe9", "other/d/\xff"}} {
		if others, err := d.Others(t.Context(), "other", deep); err != nil || !slices.Equal(others, want) {
			t.Errorf("deep %t: others %q, %v", deep, others, err)
		}
	}
}

// TestNoDirectory expects that what has a directory's name is Unreadable, and not an empty directory.
func TestNoDirectory(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	d := openDir(t, path)
	if err := errors.Join(os.Symlink(t.TempDir(), filepath.Join(path, "linked")), os.WriteFile(filepath.Join(path, "file"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"linked", "file", "file/below"} {
		if names, err := d.Directories(t.Context(), dir); !blob.Unreadable(err) || errors.Is(err, blob.ErrNotFound) {
			t.Errorf("directories in %s: %q, %v", dir, names, err)
		}
	}
}

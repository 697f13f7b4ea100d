package blob_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/blob"
)

// promptly fails the test if f doesn't end: opening a FIFO waits for a writer. If it waits, its end
// is that of the test's process.
func promptly(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatalf("%s waits", what)
	}
}

// odd makes a file of each sort that isn't a regular file below the store at its own path, and
// returns their paths.
func odd(t *testing.T, store string, at func(i int) string) []string {
	t.Helper()
	outside := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(outside, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	var paths []string
	for i, make := range []func(path string) error{
		func(path string) error { return syscall.Mkfifo(path, 0o600) },
		func(path string) error { return os.Symlink(outside, path) },
		func(path string) error { return os.Symlink(path, path) },
		func(path string) error { return os.Symlink("/dev/zero", path) },
		func(path string) error {
			if err := syscall.Mkfifo(path+".fifo", 0o600); err != nil {
				return err
			}
			return os.Symlink(filepath.Base(path)+".fifo", path)
		},
		func(path string) error { return os.Mkdir(path, 0o700) },
	} {
		path := filepath.Join(store, at(i))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := make(path); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	return paths
}

// TestOnlyRegularFiles expects that what isn't a regular file below the store is no object, whether
// another registry left it or somebody put it among Purser's own.
func TestOnlyRegularFiles(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	d := openDir(t, path)
	const base = "0123456789abcdef0123456789abcdef"
	var keys []string
	for i := range odd(t, path, func(i int) string { return "objects/01/" + base + "-" + string(rune('0'+i)) }) {
		keys = append(keys, base+"-"+string(rune('0'+i)))
	}
	for i := range odd(t, path, func(i int) string { return "other/blobs/" + string(rune('0'+i)) + "/data" }) {
		keys = append(keys, "other/blobs/"+string(rune('0'+i))+"/data")
	}
	for _, key := range keys {
		promptly(t, key, func() {
			if r, err := d.Open(t.Context(), key, 0, -1); !errors.Is(err, blob.ErrNotFound) || !blob.Irregular(err) {
				t.Errorf("Open %s: %v %v", key, r, err)
			}
			if o, err := d.Stat(t.Context(), key); !errors.Is(err, blob.ErrNotFound) {
				t.Errorf("Stat %s: %+v %v", key, o, err)
			}
		})
	}
	promptly(t, "listing", func() {
		for o, err := range d.List(t.Context(), "") {
			t.Errorf("listed %+v %v", o, err)
		}
		for o, err := range d.Files(t.Context(), "other") {
			t.Errorf("listed %+v %v", o, err)
		}
	})
}

// TestChangesOfATree expects that an object that was a file isn't read through a symbolic link that
// takes its place, nor deleted through one that takes its directory's place.
func TestChangesOfATree(t *testing.T) {
	t.Parallel()
	path, outside := t.TempDir(), t.TempDir()
	d := openDir(t, path)
	write := func(path string) {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(path), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(path, "other/blobs/data"))
	write(filepath.Join(outside, "data"))
	r, err := d.Open(t.Context(), "other/blobs/data", 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	if content, err := io.ReadAll(r); err != nil || len(content) == 0 {
		t.Errorf("%q %v", content, err)
	}
	r.Close() //nolint:errcheck // only read
	if err := errors.Join(os.RemoveAll(filepath.Join(path, "other/blobs")), os.Symlink(outside, filepath.Join(path, "other/blobs"))); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Open(t.Context(), "other/blobs/data", 0, -1); !errors.Is(err, blob.ErrNotFound) {
		t.Errorf("opened through a link: %v", err)
	}
	if err := d.Delete(t.Context(), []string{"other/blobs/data"}); err != nil {
		t.Errorf("deleting what isn't there: %v", err)
	}
	if _, err := os.Stat(filepath.Join(outside, "data")); err != nil {
		t.Errorf("the file outside: %v", err)
	}
	if names, err := d.Directories(t.Context(), "other/blobs"); err == nil || len(names) > 0 {
		t.Errorf("listed %q through a link", names)
	}
}

// TestIdentityIsAFile expects that a store whose identity is a FIFO isn't one without an identity.
func TestIdentityIsAFile(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	d := openDir(t, path)
	if err := syscall.Mkfifo(filepath.Join(path, "objects", blob.IdentityKey), 0o600); err != nil {
		t.Fatal(err)
	}
	promptly(t, "reading the identity", func() {
		if id, err := d.Identity(t.Context()); err == nil || errors.Is(err, blob.ErrNotFound) {
			t.Errorf("%q %v", id, err)
		}
	})
}

// TestPutFileReplacesLinks expects that a file isn't written through what has the name of its part.
func TestPutFileReplacesLinks(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), filepath.Join(t.TempDir(), "outside")
	for _, make := range []func(path string) error{
		func(path string) error { return os.Symlink(outside, path) },
		func(path string) error { return syscall.Mkfifo(path, 0o600) },
	} {
		path := filepath.Join(dir, "file")
		if err := make(path + ".part"); err != nil {
			t.Fatal(err)
		}
		promptly(t, "writing", func() {
			if err := blob.PutFile(t.Context(), path, 3, strings.NewReader("abc")); err != nil {
				t.Error(err)
			}
		})
		if content, err := os.ReadFile(path); err != nil || string(content) != "abc" {
			t.Errorf("%q %v", content, err)
		}
	}
	if _, err := os.Stat(outside); err == nil {
		t.Error("the file outside was written")
	}
}

// TestListingWaitsForNothing expects an error if one of the store's directories is a FIFO.
func TestListingWaitsForNothing(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	d := openDir(t, path)
	dir := filepath.Join(path, "objects/01")
	if err := errors.Join(os.Remove(dir), syscall.Mkfifo(dir, 0o600)); err != nil {
		t.Fatal(err)
	}
	promptly(t, "listing", func() {
		var failed error
		for _, err := range d.List(t.Context(), "") {
			failed = errors.Join(failed, err)
		}
		if failed == nil {
			t.Error("the listing is taken for complete")
		}
	})
	promptly(t, "deleting an upload", func() {
		if err := d.DeleteUpload(t.Context(), "0123456789abcdef0123456789abcdef", ""); err == nil {
			t.Error("an upload's objects are taken for deleted")
		}
	})
}

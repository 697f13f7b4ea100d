//go:build unix

package fileowner_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/fileowner"
)

func owner(t *testing.T, path string) (uid, gid uint32) {
	t.Helper()
	fi, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	st := fi.Sys().(*syscall.Stat_t)
	return st.Uid, st.Gid
}

// Files and directories that root creates belong to the owner of the place; those of others stay theirs.
func TestInherit(t *testing.T) {
	t.Parallel()
	place := t.TempDir()
	uid, gid := uint32(os.Geteuid()), uint32(os.Getegid())
	if uid == 0 {
		uid, gid = 4321, 8765
		if err := os.Chown(place, int(uid), int(gid)); err != nil {
			t.Fatal(err)
		}
	}
	dir, file := filepath.Join(place, "directory"), filepath.Join(place, "directory", "file")
	if err := fileowner.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := fileowner.Inherit(f); err != nil {
		t.Fatal(err)
	}
	deep := filepath.Join(place, "deep", "deeper", "deepest")
	for range 2 { // the second time it is there
		if err := fileowner.MkdirAll(deep, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{dir, file, deep, filepath.Dir(deep), filepath.Dir(filepath.Dir(deep))} {
		if u, g := owner(t, path); u != uid || g != gid {
			t.Errorf("%s belongs to %d:%d, want %d:%d", path, u, g, uid, gid)
		}
	}
	if err := fileowner.Mkdir(dir, 0o700); !os.IsExist(err) {
		t.Errorf("a directory that is there: %v", err)
	}
}

// TestInheritAtTheSameTime: several goroutines make the same new directories, and files in them, at the
// same time. Each file and directory must belong to the owner of the place, and none to root.
func TestInheritAtTheSameTime(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	const uid, gid = 4321, 8765
	place := t.TempDir()
	if err := os.Chown(place, uid, gid); err != nil {
		t.Fatal(err)
	}
	for round := range 200 {
		dir := filepath.Join(place, strconv.Itoa(round), "objects", "97")
		var files []string
		var group errgroup.Group
		for i := range 8 {
			file := filepath.Join(dir, strconv.Itoa(i))
			files = append(files, file)
			group.Go(func() error {
				if err := fileowner.MkdirAll(dir, 0o700); err != nil {
					return err
				}
				f, err := os.Create(file)
				if err != nil {
					return err
				}
				return errors.Join(fileowner.Inherit(f), f.Close())
			})
		}
		if err := group.Wait(); err != nil {
			t.Fatal(err)
		}
		for _, path := range append(files, dir, filepath.Dir(dir), filepath.Dir(filepath.Dir(dir))) {
			if u, g := owner(t, path); u != uid || g != gid {
				t.Fatalf("%s belongs to %d:%d", path, u, g)
			}
		}
	}
}

// A file in root's own directory stays root's.
func TestInheritFromRoot(t *testing.T) {
	t.Parallel()
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	before, _ := owner(t, f.Name())
	if err := fileowner.Inherit(f); err != nil {
		t.Fatal(err)
	}
	if after, _ := owner(t, f.Name()); after != before {
		t.Errorf("the owner was %d and is %d", before, after)
	}
}

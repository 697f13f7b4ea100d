package blobtest

import (
	"bytes"
	"maps"
	"slices"
	"testing"

	"github.com/purser-registry/purser/internal/blob"
)

// tree expects that Directories and Files find the files of another registry.
func tree(t *testing.T, b Backend) {
	s := b.Open(t)
	files, isTree := s.(blob.Tree)
	putter, takes := s.(blob.Putter)
	if !isTree || !takes {
		t.Fatal("the store isn't a blob.Tree and a blob.Putter")
	}
	root := "other-" + blob.NewBase()
	want := map[string]int64{root + "/a/deep/file": 1, root + "/a/b/link": 2, root + "/a_file": 3, root + "/z/link": 4}
	for key, size := range want {
		if err := putter.Put(t.Context(), key, size, bytes.NewReader(make([]byte, size))); err != nil {
			t.Fatal(err)
		}
	}
	for dir, names := range map[string][]string{
		root: {"a", "z"}, root + "/a": {"b", "deep"}, root + "/a/b": nil, root + "/no": nil, root + "/a_": nil,
	} {
		if got, err := files.Directories(t.Context(), dir); err != nil || !slices.Equal(got, names) {
			t.Errorf("directories in %s: %q, %v; want %q", dir, got, err, names)
		}
	}
	if got, err := files.Directories(t.Context(), ""); err != nil || !slices.Contains(got, root) {
		t.Errorf("directories in the store: %q, %v", got, err)
	}
	found := func(dir string) map[string]int64 {
		t.Helper()
		got := make(map[string]int64)
		for o, err := range files.Files(t.Context(), dir) {
			if err != nil {
				t.Fatal(err)
			}
			got[o.Key] = o.Size
			if again, err := s.Stat(t.Context(), o.Key); err != nil || again.Size != o.Size || again.Modified.Unix() != o.Modified.Unix() {
				t.Errorf("listed as %+v, stat says %+v, %v", o, again, err)
			}
		}
		return got
	}
	if got := found(root); !maps.Equal(got, want) {
		t.Errorf("files: %v, want %v", got, want)
	}
	if got := found(root + "/a/b"); len(got) != 1 || got[root+"/a/b/link"] != 2 {
		t.Errorf("files of one directory: %v", got)
	}
	if got := found(root + "/no"); len(got) != 0 {
		t.Errorf("files of no directory: %v", got)
	}
	for range files.Files(t.Context(), root) {
		break // it can be stopped
	}
	for _, dir := range []string{"..", root + "/../../x", "/etc"} {
		if got, err := files.Directories(t.Context(), dir); err == nil && len(got) > 0 {
			t.Errorf("directories in %s: %q", dir, got)
		}
	}
	if err := s.Delete(t.Context(), slices.Collect(maps.Keys(want))); err != nil {
		t.Fatal(err)
	}
	if got := found(root); len(got) != 0 {
		t.Errorf("files after their deletion: %v", got)
	}
}

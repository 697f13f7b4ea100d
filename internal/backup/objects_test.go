package backup

import (
	"context"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/oci"
)

func TestGroup(t *testing.T) {
	t.Parallel()
	hex := strings.Repeat("0123456789abcdef", 4)
	for file, want := range map[string]string{
		"objects/1f/1f0c-0": "objects/1f/",
		"objects/do/docker/v2/blobs/01/" + hex + "/data": "objects/do/docker/v2/blobs/01/01",
		"objects/te/team/app/blobs/sha256/" + hex:        "objects/te/team/app/blobs/sha256/01",
		"objects/te/team/app/blobs/sha512/" + hex + hex:  "objects/te/team/app/blobs/sha512/01",
		"objects/te/team/other":                          "objects/te/team/",
		"objects/x":                                      "objects/x",
	} {
		if got := groupOf(file); got != want || !strings.HasPrefix(file, got) {
			t.Errorf("the group of %s is %s, want %s", file, got, want)
		}
	}
}

// A directory lists its files as a bucket does, although its subdirectories have another order.
func TestFilesAreSorted(t *testing.T) {
	t.Parallel()
	target := newTarget(t)
	names := []string{"a-b/c", "a/b/c", "a/b-c", "a0", "ab/c", "b/c"}
	for _, n := range names {
		if err := target.Put(t.Context(), n, 1, strings.NewReader("x")); err != nil {
			t.Fatal(err)
		}
	}
	for _, prefix := range []string{"", "a", "a/", "a/b", "a/b/", "b", "c", "a-b/c"} {
		var want []string
		for _, n := range slices.Sorted(slices.Values(names)) {
			if strings.HasPrefix(n, prefix) {
				want = append(want, n)
			}
		}
		if got := filesOf(t, target, prefix); !slices.Equal(got, want) {
			t.Errorf("files with the prefix %q: %v, want %v", prefix, got, want)
		}
	}
}

func filesOf(t *testing.T, target Target, prefix string) (names []string) {
	t.Helper()
	for f, err := range target.Files(t.Context(), prefix) {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, f.Key)
	}
	return names
}

// backwards is a target that lists its files in the wrong order.
type backwards struct{ Target }

func (b backwards) Files(ctx context.Context, prefix string) iter.Seq2[blob.Object, error] {
	return func(yield func(blob.Object, error) bool) {
		var all []blob.Object
		for f, err := range b.Target.Files(ctx, prefix) {
			if err != nil {
				yield(f, err)
				return
			}
			all = append(all, f)
		}
		for _, f := range slices.Backward(all) {
			if !yield(f, nil) {
				return
			}
		}
	}
}

// The names of another registry's files come before, between and after those of Purser's objects.
// A backup copies all of them once, and --keep deletes those that only older backups have, in
// whichever order a target lists them.
func TestPruneOfForeignKeys(t *testing.T) {
	t.Parallel()
	for _, order := range []string{"forwards", "backwards"} {
		t.Run(order, func(t *testing.T) {
			t.Parallel()
			r, target := setup(t), newTarget(t)
			if order == "backwards" {
				target = backwards{target}
			}
			var keys []string
			var digests []oci.Digest
			for i, dir := range []string{"de/", "de/ad/", "dead/beef/", "deadbeef/", "debian/", "team-x/", "team/", "team/app/", "0/", "zz/", ""} {
				for j := range 3 {
					tag, content := fmt.Sprintf("v%d-%d", i, j), fmt.Sprint("content ", i, j)
					d := r.push(tag, content)
					key := dir + "blobs/sha256/" + d.Hex()
					if dir == "" {
						key = fmt.Sprintf("dead%028x-0", j)
					}
					was, _, err := r.StoredBlob(t.Context(), d)
					if err != nil {
						t.Fatal(err)
					}
					if err := os.MkdirAll(filepath.Dir(filepath.Join(r.store.Path(), key)), 0o755); err != nil {
						t.Fatal(err)
					}
					if err := r.store.Put(t.Context(), key, int64(len(content)), strings.NewReader(content)); err != nil {
						t.Fatal(err)
					}
					r.Exec(t, "UPDATE blobs SET storage_key = $1 WHERE storage_key = $2", key, was.Key)
					keys, digests = append(keys, key), append(digests, d)
				}
			}
			first := r.backup(target)
			if res := r.backup(target); first.Blobs.Copied != int64(len(keys)) || res.Blobs.Copied != 0 {
				t.Errorf("%d and %d objects were copied, want %d and 0", first.Blobs.Copied, res.Blobs.Copied, len(keys))
			}
			var want []string
			for i, key := range keys {
				if i%3 == 1 {
					r.collect(digests[i])
				} else {
					want = append(want, object{key: key}.file())
				}
			}
			r.backup(target, func(o *Options) { o.Keep = 1 })
			got := filesOf(t, target, objectsDir)
			slices.Sort(got)
			if slices.Sort(want); !slices.Equal(got, want) {
				t.Errorf("the target has\n%v, want\n%v", got, want)
			}
		})
	}
}

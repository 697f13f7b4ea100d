package check_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/check"
)

// closedTo is a store that may not read some of its objects, though it lists them.
type closedTo struct {
	blob.Store
	keys []string
}

func denied(name string) error {
	return &fs.PathError{Op: "statat", Path: name, Err: syscall.EACCES}
}

func (c closedTo) List(ctx context.Context, prefix string) iter.Seq2[blob.Object, error] {
	return func(yield func(blob.Object, error) bool) {
		for o, err := range c.Store.List(ctx, prefix) {
			if slices.Contains(c.keys, o.Key) {
				o, err = blob.Object{Key: o.Key}, denied(o.Key)
			}
			if !yield(o, err) {
				return
			}
		}
	}
}

func (c closedTo) Stat(ctx context.Context, key string) (blob.Object, error) {
	if slices.Contains(c.keys, key) {
		return blob.Object{}, denied(key)
	}
	return c.Store.Stat(ctx, key)
}

// closedTree lists only a directory that can't be read.
type closedTree struct{ blob.Tree }

func (closedTree) Files(_ context.Context, dir string) iter.Seq2[blob.Object, error] {
	return func(yield func(blob.Object, error) bool) {
		yield(blob.Object{Key: dir + "/closed"}, denied(dir+"/closed"))
	}
}

// TestCheckGoesOn: directories and objects of the store can't be read. A check must name them, compare
// all the others, and end with ErrIncomplete. It must take no blob there for missing, not even in a
// directory that is gone, or whose name something else has.
func TestCheckGoesOn(t *testing.T) {
	t.Parallel()
	b := setupStore(t)
	dirOf := func(key string) string { return filepath.Join(b.dir, "objects", key[:2]) }
	gone, replaced := b.push("in a directory that is gone"), b.push("in a directory that is a file")
	hidden := map[string]bool{gone.Key[:2]: true, replaced.Key[:2]: true}
	want := []string{"unreadable " + gone.Key, "unreadable " + replaced.Key}
	for dir := range hidden {
		want = append(want, "hidden objects/"+dir)
	}
	visible := func(key string) bool { return !hidden[key[:2]] }
	var missing, closed, stray, closedStray string
	for i := 0; missing == "" || closed == ""; i++ {
		switch o := b.push(fmt.Sprint(i)); {
		case !visible(o.Key):
			want = append(want, "unreadable "+o.Key)
		case missing == "":
			missing = o.Key
		default:
			closed = o.Key
		}
	}
	for stray == "" || closedStray == "" {
		switch key := b.old(b.object(10)); {
		case !visible(key):
		case stray == "":
			stray = key
		default:
			closedStray = key
		}
	}
	if err := errors.Join(os.Remove(b.file(missing)), os.RemoveAll(dirOf(gone.Key)), os.RemoveAll(dirOf(replaced.Key)),
		os.WriteFile(dirOf(replaced.Key), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	b.exec("INSERT INTO imports (source, format, finished_at) VALUES ('other', 'distribution', now())")
	want = append(want, "unreadable "+closed, "hidden "+closedStray, "hidden other/closed")
	store, tree := closedTo{b.store, []string{closed, closedStray}}, closedTree{b.store}
	report := b.findsIncompletely(check.Options{Store: store, Tree: tree}, append(slices.Clone(want), "missing "+missing, "unowned "+stray)...)
	if n := report.Problems[check.Hidden].Count; n != int64(len(hidden))+2 {
		t.Errorf("%d places are hidden", n)
	}
	b.findsIncompletely(check.Options{Store: store, Tree: tree, Repair: true}, append(slices.Clone(want), "missing "+missing+" repaired", "unowned "+stray+" repaired")...)
	for _, o := range []string{gone.Key, replaced.Key, closed} {
		b.exec("DO $$ BEGIN ASSERT (SELECT lost_at IS NULL FROM blobs WHERE storage_key = '" + o + "'); END $$")
	}

	// All is readable again.
	if err := errors.Join(os.Remove(dirOf(replaced.Key)), os.MkdirAll(dirOf(replaced.Key), 0o750), os.MkdirAll(dirOf(gone.Key), 0o750)); err != nil {
		t.Fatal(err)
	}
	found, _, err := b.check(check.Options{})
	if err != nil || !slices.Contains(found, "missing "+gone.Key) || !slices.Contains(found, "missing "+replaced.Key) ||
		slices.ContainsFunc(found, func(f string) bool { return strings.HasPrefix(f, "hidden ") }) {
		t.Errorf("found %q, %v", found, err)
	}
}

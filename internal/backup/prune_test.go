package backup

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"
)

// Old backups are deleted, with the objects that only they need. While another backup in the
// target is incomplete, no objects are deleted.
func TestPrune(t *testing.T) {
	t.Parallel()
	r := setup(t)
	target := newTarget(t)
	a, b := r.push("a", "content a"), r.push("b", "content b")
	first := r.backup(target)
	r.collect(a)
	second := r.backup(target)
	r.collect(b)
	r.push("c", "content c")
	if err := putBytes(t.Context(), target, backupsDir+second.ID[:8]+"T235959.000Z/begun", nil); err != nil {
		t.Fatal(err)
	}
	third := r.backup(target, func(o *Options) { o.Keep = 2 })
	if p := third.Pruned; p.Backups != 1 || !p.Waiting || p.Objects != 0 {
		t.Errorf("beside an incomplete backup: %+v", p)
	}
	if _, err := Find(t.Context(), target, first.ID); err == nil {
		t.Error("the oldest backup is there")
	}
	if err := target.Delete(t.Context(), []string{backupsDir + second.ID[:8] + "T235959.000Z/begun"}); err != nil {
		t.Fatal(err)
	}
	if p := r.backup(target, func(o *Options) { o.Keep = 3 }).Pruned; p.Backups != 0 || p.Objects != 1 || p.Bytes != int64(len("content a")) {
		t.Errorf("the object that only the first backup needs: %+v", p)
	}
	for _, m := range []*Manifest{find(t, target, second.ID), find(t, target, third.ID)} {
		if v, err := Verify(t.Context(), VerifyOptions{Target: target, Manifest: m, Deep: true}); err != nil || v.Missing != 0 {
			t.Errorf("backup %s: %+v, %v", m.ID, v, err)
		}
	}
}

// A backup deletes those that were killed more than a day ago before it begins, if it is to delete any: on a
// disk that they have filled, it couldn't become complete otherwise.
func TestPruneKilledFirst(t *testing.T) {
	t.Parallel()
	r, _, target := backedUp(t)
	begun := func(ago time.Duration) string {
		t.Helper()
		dir := backupsDir + time.Now().UTC().Add(-ago).Format(idLayout) + "/"
		for _, name := range []string{"begun", "main/tags.000001.gz"} {
			if err := putBytes(t.Context(), target, dir+name, []byte("x")); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	killed, running := begun(25*time.Hour), begun(23*time.Hour)
	for keep, want := range []int{2, 0} {
		ctx, cancel := context.WithCancel(t.Context())
		o := r.options(target)
		o.Keep, o.paused = keep, cancel
		if _, err := Run(ctx, o); err == nil {
			t.Error("a backup that was stopped is complete")
		}
		if files := filesOf(t, target, killed); len(files) != want {
			t.Errorf("with --keep %d the killed backup has %q, want %d files", keep, files, want)
		}
		if files := filesOf(t, target, running); len(files) != 2 {
			t.Errorf("with --keep %d the one that may run has %q", keep, files)
		}
	}
	begun(26 * time.Hour)
	b := r.backup(target, func(o *Options) { o.Keep = 1 })
	if b.Pruned.Backups != 2 || !b.Pruned.Waiting {
		t.Errorf("%+v, want that the killed and the older one are deleted", b.Pruned)
	}
	if m := find(t, target, ""); m.ID != b.ID {
		t.Errorf("the newest is %s, want %s", m.ID, b.ID)
	}
}

// The store loses an object, and its blob is marked as lost. Later backups keep the copy that an earlier
// one has made, for as long as the registry has the blob.
func TestPruneKeepsCopiesOfLost(t *testing.T) {
	t.Parallel()
	r, digests, target := backedUp(t)
	keep := func(o *Options) { o.Keep = 1 }
	r.loses(digests[0])
	if b := r.backup(target, keep); b.Pruned.Backups != 1 || b.Pruned.Objects != 0 || b.Blobs.Count != 3 || b.Lost.Count != 1 {
		t.Errorf("with a lost blob: %+v, %+v, %+v", b.Pruned, b.Blobs, b.Lost)
	}
	if v, err := Verify(t.Context(), VerifyOptions{Target: target, Manifest: find(t, target, ""), Deep: true}); err != nil || v.Objects != 3 || v.Missing != 0 {
		t.Errorf("%+v, %v", v, err)
	}
	r.restoreStore(target, r.store, 3, 1, 0)
	wantObjects(t, r.dsn, r.store)
	r.collect(digests[0])
	if b := r.backup(target, keep); b.Pruned.Backups != 1 || b.Pruned.Objects != 1 || b.Lost.Count != 0 {
		t.Errorf("without the blob: %+v, %+v", b.Pruned, b.Lost)
	}
}

// Objects stay that are in one of the two lists of a kept backup. Versions of Purser that know one list
// only can't read a manifest with two, and so delete no objects.
func TestPruneReadsBothLists(t *testing.T) {
	t.Parallel()
	target := newTarget(t)
	digest := "\t1\t01" + strings.Repeat("00", 32) + "\n"
	write := func(at time.Time, blobs, lost []string) *Manifest {
		t.Helper()
		m := &Manifest{Format: format, ID: at.Format(idLayout)}
		for _, list := range []struct {
			name string
			keys []string
			to   *Objects
		}{{"objects", blobs, &m.Blobs}, {"lost", lost, &m.Lost}} {
			if len(list.keys) == 0 {
				continue
			}
			w := newChunkWriter(t.Context(), target, m.dir(), list.name, func(int64, int64) {})
			for _, key := range list.keys {
				if _, err := w.Write([]byte(key + digest)); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.flush(); err != nil {
				t.Fatal(err)
			}
			*list.to = Objects{Which: Copy, Count: w.lines, Files: w.files}
		}
		if m.Lost.Count > 0 {
			m.Format = formatLost
		}
		if err := m.write(t.Context(), target); err != nil {
			t.Fatal(err)
		}
		return m
	}
	var all []string
	for _, key := range []string{"aaa-0", "aab-0", "bbb-0", "ccc-0", "ddd-0"} {
		all = append(all, object{key: key}.file())
		if err := putBytes(t.Context(), target, object{key: key}.file(), []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	now := time.Now().UTC()
	write(now.Add(-time.Hour), []string{"aaa-0", "aab-0", "bbb-0", "ccc-0", "ddd-0"}, nil)
	own := write(now, []string{"aab-0", "ccc-0"}, []string{"aaa-0", "ddd-0"})
	if m, err := readManifest(t.Context(), target, own.ID); err != nil || m.Format == format || m.Lost.Count != 2 {
		t.Errorf("%+v, %v", m, err)
	}
	for f := range own.files() {
		if !strings.HasPrefix(f.Name, "objects.") && !strings.HasPrefix(f.Name, "lost.") {
			t.Errorf("the manifest has the file %s", f.Name)
		}
	}
	if p, err := prune(t.Context(), target, 1, own.ID); err != nil || p.Backups != 1 || p.Objects != 1 {
		t.Errorf("%+v, %v", p, err)
	}
	want := slices.DeleteFunc(all, func(file string) bool { return strings.HasSuffix(file, "/bbb-0") })
	if got := filesOf(t, target, objectsDir); !slices.Equal(got, want) {
		t.Errorf("the target has %v, want %v", got, want)
	}
}

package catalog_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/oci"
)

// The store has lost a blob, and two clients commit uploads of it at once. The blob must get
// the object of one upload, and the other upload's object must be recorded for deletion.
func TestAttackLostBlobIsPushedTwice(t *testing.T) {
	t.Parallel()
	b := setup(t)
	d := b.Push(t, "r", "layer")
	b.lose(t, d)
	old := b.row(t, d)
	hold, watch := b.Session(t), b.Session(t)
	hold.Exec(t, "BEGIN")
	hold.Exec(t, "SELECT FROM blobs WHERE digest = $1 FOR NO KEY UPDATE", d.Bytes())
	u, v := b.Begun(t, "r"), b.Begun(t, "other")
	first := catalogtest.Later(func() error { return b.Commit(u, "layer") })
	hold.Blocks(t, watch, 1)
	second := catalogtest.Later(func() error { return b.Commit(v, "layer") })
	b.stuck(t, second)
	hold.Exec(t, "ROLLBACK")
	for _, done := range []<-chan error{first, second} {
		if err := catalogtest.Soon(t, "upload", done); err != nil {
			t.Fatal(err)
		}
	}
	now := b.row(t, d)
	taken, gone := u, v
	if strings.HasPrefix(now.Key, v.StorageKey) {
		taken, gone = v, u
	}
	want := []string{old.Key, gone.StorageKey + "*"}
	slices.Sort(want)
	if got := b.doomedKeys(t); now.Key != taken.StorageKey+"-1" || now.Lost || !slices.Equal(got, want) {
		t.Errorf("%+v, doomed %q, want %q", now, got, want)
	}
	if !b.Linked(t, "r", d) || !b.Linked(t, "other", d) {
		t.Error("a repository that pushed it doesn't have it")
	}
	b.Owned(t)
}

// A client commits an upload of a blob while a check marks the blob as lost, or removes this
// mark. Whether the commit or the check comes first, the blob must have one object at the end,
// and its other object must be recorded for deletion. If the blob is still marked as lost,
// another push must repair it.
func TestAttackPushMeetsMark(t *testing.T) {
	t.Parallel()
	for what, meet := range map[string]func(t *testing.T, b bundle, hold catalogtest.Session, d oci.Digest, push func(waiting int) <-chan error){
		// The check has marked the blob as lost but not committed when the push comes. The
		// push must wait, and the blob must get the push's object.
		"mark first": func(t *testing.T, b bundle, hold catalogtest.Session, d oci.Digest, push func(waiting int) <-chan error) {
			hold.Exec(t, "BEGIN")
			hold.Exec(t, "UPDATE blobs SET lost_at = now() WHERE digest = $1", d.Bytes())
			pushed := push(1)
			hold.Exec(t, "COMMIT")
			if err := catalogtest.Soon(t, "push", pushed); err != nil {
				t.Fatal(err)
			}
		},
		// The push finds that the blob isn't lost, so the object that it has uploaded isn't
		// needed. Then a check marks the blob as lost. The mark must stay.
		"push first": func(t *testing.T, b bundle, hold catalogtest.Session, d oci.Digest, push func(waiting int) <-chan error) {
			hold.Exec(t, "BEGIN")
			hold.Exec(t, "SELECT FROM repository_blobs WHERE blob_digest = $1 FOR UPDATE", d.Bytes())
			pushed := push(1)
			b.lose(t, d)
			hold.Exec(t, "COMMIT")
			if err := catalogtest.Soon(t, "push", pushed); err != nil {
				t.Fatal(err)
			}
			if !b.row(t, d).Lost {
				t.Error("the mark is gone, and the object wasn't taken")
			}
			_, err := b.Blob(t.Context(), "r", d)
			catalogtest.WantCode(t, err, oci.BlobUnknown)
			b.Push(t, "r", "layer")
		},
		// The blob is marked as lost, and the push is about to give it a new object when a
		// check finds the old object again. Both the push and the check must succeed.
		"found again": func(t *testing.T, b bundle, hold catalogtest.Session, d oci.Digest, push func(waiting int) <-chan error) {
			b.lose(t, d)
			old := b.row(t, d)
			hold.Exec(t, "BEGIN")
			hold.Exec(t, "SELECT FROM blobs WHERE digest = $1 FOR NO KEY UPDATE", d.Bytes())
			pushed := push(1)
			found := catalogtest.Later(func() error { _, err := b.MarkFound(context.Background(), []catalog.StoredBlob{old}); return err })
			b.stuck(t, found)
			hold.Exec(t, "COMMIT")
			for what, done := range map[string]<-chan error{"mark": found, "push": pushed} {
				if err := catalogtest.Soon(t, what, done); err != nil {
					t.Fatal(err)
				}
			}
		},
		// The blob is marked as lost, and a check finds its object again just before the push
		// would have given it a new object. The blob must keep its old object.
		"found before": func(t *testing.T, b bundle, hold catalogtest.Session, d oci.Digest, push func(waiting int) <-chan error) {
			b.lose(t, d)
			old := b.row(t, d)
			hold.Exec(t, "BEGIN")
			hold.Exec(t, "SELECT FROM blobs WHERE digest = $1 FOR NO KEY UPDATE", d.Bytes())
			found := catalogtest.Later(func() error { _, err := b.MarkFound(context.Background(), []catalog.StoredBlob{old}); return err })
			hold.Blocks(t, b.Session(t), 1)
			pushed := push(2)
			hold.Exec(t, "COMMIT")
			for what, done := range map[string]<-chan error{"mark": found, "push": pushed} {
				if err := catalogtest.Soon(t, what, done); err != nil {
					t.Fatal(err)
				}
			}
			if now := b.row(t, d); now.Key != old.Key {
				t.Errorf("%+v has the object of a push that came after it was found", now)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			d := b.Push(t, "r", "layer")
			old := b.row(t, d)
			hold := b.Session(t)
			u := b.Begun(t, "r")
			meet(t, b, hold, d, func(waiting int) <-chan error {
				pushed := catalogtest.Later(func() error { return b.Commit(u, "layer") })
				catalogtest.Eventually(t, "the push waits", func() bool { return b.Waiting(t) >= waiting })
				return pushed
			})
			now := b.row(t, d)
			if _, err := b.Blob(t.Context(), "r", d); err != nil || now.Lost {
				t.Errorf("%+v, %v, want it whole", now, err)
			}
			doomed := strings.Join(b.doomedKeys(t), " ")
			for _, key := range []string{old.Key, u.StorageKey} {
				if owned := strings.HasPrefix(now.Key, key); owned == strings.Contains(doomed, key) {
					t.Errorf("%s: the blob has %s, doomed are %s", key, now.Key, doomed)
				}
			}
			b.Owned(t)
		})
	}
}

// A put of a manifest has locked a blob when a check marks the blob as lost. The check must
// not wait for the put, and the put must succeed. A put that begins after the blob was marked
// must be refused.
func TestAttackPutMeetsMark(t *testing.T) {
	t.Parallel()
	b := setup(t)
	config, layer := b.Push(t, "r", "config"), b.Push(t, "r", "layer")
	b.Put(t, "r", catalogtest.Image(t, config, nil, nil), "t")
	hold, watch := b.Session(t), b.Session(t)
	hold.Exec(t, "BEGIN")
	hold.Exec(t, "SELECT FROM tags FOR UPDATE")
	payload := catalogtest.Image(t, config, []oci.Digest{layer}, nil)
	put := catalogtest.Later(func() error { _, err := b.TryPut(context.Background(), "r", payload, "t"); return err })
	hold.Blocks(t, watch, 1)
	b.lose(t, layer) // doesn't wait for a lock
	hold.Exec(t, "COMMIT")
	if err := catalogtest.Soon(t, "put", put); err != nil {
		t.Fatal(err)
	}
	_, err := b.TryPut(t.Context(), "r", payload, "t2")
	catalogtest.WantCode(t, err, oci.ManifestBlobUnknown)
}

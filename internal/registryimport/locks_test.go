package registryimport_test

import (
	"errors"
	"testing"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
)

// TestImportWaitsForItsEnd adds a foreign blob while the import is being finished: it waits, and then
// is refused, since a sweeper may delete the object now.
func TestImportWaitsForItsEnd(t *testing.T) {
	t.Parallel()
	b, o := catalogtest.Setup(t), newOther(t)
	o.manifest("acme/app", o.image("app", nil), longAgo, "1")
	o.run(b, nil)
	s := b.Session(t)
	s.Exec(t, "BEGIN")
	s.Exec(t, "UPDATE imports SET finished_at = now()")
	content := "another layer"
	added := catalogtest.Later(func() error {
		d := o.blob(content)
		return b.AddForeignBlobs(t.Context(), "acme/app", o.root+"/", []catalog.ForeignBlob{{Digest: d, Key: o.data(d), Size: int64(len(content))}})
	})
	awaitLock(t, b, added)
	s.Exec(t, "COMMIT")
	if err := catalogtest.Soon(t, "adding a blob", added); !errors.Is(err, catalog.ErrImportFinished) {
		t.Errorf("error is %v, want ErrImportFinished", err)
	}
}

// TestEndWaitsForReviews finishes an import while a review is about to commit the deletion of a blob
// with a foreign object: the end waits, and makes the object a pending deletion.
func TestEndWaitsForReviews(t *testing.T) {
	t.Parallel()
	b, o := catalogtest.Setup(t), newOther(t)
	o.manifest("acme/app", o.image("app", nil), longAgo, "1")
	o.run(b, nil)
	key := o.data(o.blob("unused"))
	s := b.Session(t)
	s.Exec(t, "BEGIN")
	s.Exec(t, "INSERT INTO gc_doomed_objects (storage_key, size) VALUES ($1, 6)", key)
	var objects int64
	finished := catalogtest.Later(func() (err error) {
		objects, _, err = b.FinishImports(t.Context())
		return err
	})
	awaitLock(t, b, finished)
	s.Exec(t, "COMMIT")
	if err := catalogtest.Soon(t, "finishing the import", finished); err != nil {
		t.Fatal(err)
	}
	if n := b.Count(t, "SELECT count(*) FROM gc_doomed_objects WHERE storage_key = $1", key); objects != 1 || n != 1 {
		t.Errorf("%d objects became pending deletions, and there are %d rows; want 1 and 1", objects, n)
	}
}

// TestImportPostponesReviews adds a blob that Purser has, whose review is due: the blob stays for the
// review delay, in which its manifest is put.
func TestImportPostponesReviews(t *testing.T) {
	t.Parallel()
	b, o := catalogtest.Setup(t), newOther(t)
	if err := b.BeginImport(t.Context(), o.root+"/", "distribution"); err != nil {
		t.Fatal(err)
	}
	content := "a layer"
	d := o.blob(content)
	for range 2 {
		if err := b.AddForeignBlobs(t.Context(), "acme/app", o.root+"/", []catalog.ForeignBlob{{Digest: d, Key: o.data(d), Size: int64(len(content))}}); err != nil {
			t.Fatal(err)
		}
		if n := b.Count(t, "SELECT count(*) FROM gc_blob_review_queue WHERE digest = $1 AND review_after > now() + interval '1 minute'", d.Bytes()); n != 1 {
			t.Fatalf("%d reviews of the blob are postponed, want 1", n)
		}
		b.Exec(t, "UPDATE gc_blob_review_queue SET review_after = now()")
	}
}

// awaitLock waits until the call that sends to `done` waits for a lock. It fails the test if the call
// ends before.
func awaitLock(t *testing.T, b catalogtest.Bundle, done <-chan error) {
	t.Helper()
	catalogtest.Eventually(t, "the call waits for a lock", func() bool {
		select {
		case err := <-done:
			t.Fatalf("the call didn't wait for the other transaction: %v", err)
		default:
		}
		return b.Waiting(t) > 0
	})
}

package check_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/check"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
)

// wrongCopies is how many copies of blobs' sizes in the rows of manifests differ from the blobs' rows.
const wrongCopies = `
	SELECT (SELECT count(*) FROM layers l JOIN blobs b ON b.digest = l.digest WHERE l.blob_size IS DISTINCT FROM b.size)
		+ (SELECT count(*) FROM manifests m JOIN blobs b ON b.digest = m.configuration_blob_digest WHERE m.configuration_blob_size IS DISTINCT FROM b.size)`

// TestCopiedSizes: a check finds sizes of blobs that somebody has changed in the rows of manifests,
// and a repair copies them again.
func TestCopiedSizes(t *testing.T) {
	t.Parallel()
	b := setupStore(t)
	config, layer, other := b.push("{}"), b.push("layer"), b.push("other")
	for i := range 3 {
		payload := catalogtest.Image(t, config.Digest, []oci.Digest{layer.Digest, other.Digest}, map[string]any{"annotations": map[string]string{"n": fmt.Sprint(i)}})
		m, err := oci.ParseManifest("", payload)
		if err != nil {
			t.Fatal(err)
		}
		err = b.catalog.PutManifest(t.Context(), catalog.NewManifest{
			Repository: "team/app", Digest: oci.Compute(oci.SHA256, payload), Manifest: m, Payload: payload,
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	notes := []string{"declared-size ", "declared-size ", "declared-size "}
	b.finds(check.Options{}, notes...)
	b.exec("UPDATE layers SET blob_size = 7 WHERE digest = $1 AND manifest_id = (SELECT min(id) FROM manifests)", layer.Digest.Bytes())
	b.exec("UPDATE manifests SET configuration_blob_size = 1 WHERE id = (SELECT max(id) FROM manifests)")
	report := b.finds(check.Options{}, append(notes, "copied-size ", "copied-size ")...)
	if !report.Remaining() {
		t.Error("nothing remains")
	}
	report = b.finds(check.Options{Repair: true}, append(notes, "copied-size  repaired", "copied-size  repaired")...)
	if report.Remaining() {
		t.Error("something remains after the repair")
	}
	b.finds(check.Options{}, notes...)
}

// TestCopiedSizesWhileSizesChange: clients put manifests while the sizes of their blobs change, as when
// a lost blob is pushed again. Afterwards all copies of the sizes must be right.
func TestCopiedSizesWhileSizesChange(t *testing.T) {
	t.Parallel()
	b := replica(t, dbtest.DSN(t))
	var blobs []oci.Digest
	for i := range 3 {
		blobs = append(blobs, b.Push(t, "team/app", fmt.Sprint("blob ", i)))
	}
	var putters, changer sync.WaitGroup
	done := make(chan struct{})
	for who := range 4 {
		putters.Go(func() {
			for i := range 25 {
				if _, err := b.TryPut(t.Context(), "team/app", catalogtest.Numbered(t, 100*who+i, blobs[i%3], blobs...)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	changer.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
				b.Exec(t, "UPDATE blobs SET size = size + 1 WHERE digest = $1", blobs[i%3].Bytes())
			}
		}
	})
	putters.Wait()
	close(done)
	changer.Wait()
	if n := b.Count(t, wrongCopies); n != 0 {
		t.Errorf("%d copies of sizes are wrong", n)
	}
	if n := b.Count(t, "SELECT count(*) FROM layers WHERE blob_size > 6"); n == 0 {
		t.Error("no size has changed")
	}
}

package catalog_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/testscale"
)

// TestConcurrentPushesAndDeletes has clients that push, move tags, mount and delete at random,
// beside a collector that deletes blobs as garbage collection does: it locks the queue's row
// first, then looks for references, then deletes. A request may fail only with an error that
// another client's request explains. If a request succeeds, the content that its answer
// reports must exist.
func TestConcurrentPushesAndDeletes(t *testing.T) {
	catalogtest.AtBoth(t, testConcurrentPushesAndDeletes)
}

func testConcurrentPushesAndDeletes(t *testing.T, dsn string) {
	a, b := replica(t, dsn), replica(t, dsn)
	a.Listen(t)
	b.Listen(t)
	group, ctx := errgroup.WithContext(t.Context())
	collecting, stop := context.WithCancel(ctx)
	collector := make(chan error, 1)
	go func() { collector <- a.CollectUnused(collecting) }()
	for w := range 6 {
		rng := rand.New(rand.NewPCG(uint64(w), 1))
		x := []bundle{a, b}[w%2]
		group.Go(func() error {
			for i := range testscale.Pick(25, 300) {
				if err := x.act(ctx, t, rng); err != nil {
					return fmt.Errorf("worker %d, step %d: %w", w, i, err)
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	stop()
	if err := <-collector; err != nil {
		t.Errorf("collecting: %v", err)
	}
	if n := a.Count(t, `SELECT count(*) FROM manifests m WHERE m.configuration_blob_digest IS NOT NULL AND NOT EXISTS (
			SELECT FROM blobs WHERE digest = m.configuration_blob_digest) OR EXISTS (
			SELECT FROM layers l WHERE l.manifest_id = m.id AND NOT EXISTS (SELECT FROM blobs WHERE digest = l.digest))`); n != 0 {
		t.Errorf("%d manifests lost a blob", n)
	}
	if n := a.Count(t, `SELECT count(*) FROM tags t WHERE NOT EXISTS (SELECT FROM manifests m WHERE m.id = t.manifest_id)`); n != 0 {
		t.Errorf("%d tags lost their manifest", n)
	}
	if n := a.Count(t, `SELECT count(*) FROM (
			SELECT storage_key FROM blobs UNION ALL SELECT storage_key FROM uploads
			UNION ALL SELECT storage_key FROM gc_doomed_objects) x GROUP BY storage_key HAVING count(*) > 1
			UNION ALL SELECT 0 LIMIT 1`); n != 0 {
		t.Errorf("an object has %d owners", n)
	}
}

// act makes one random client request. It uses only a few names of repositories and tags, so
// that concurrent clients collide.
func (b bundle) act(ctx context.Context, t *testing.T, rng *rand.Rand) error {
	pick := func(kind string, n int) string { return fmt.Sprint(kind, rng.IntN(n)) }
	path, tag := pick("r", 3), pick("t", 3)
	allowed := func(err error, codes ...oci.Code) error {
		for _, c := range codes {
			if oci.CodeOf(err) == c {
				return nil
			}
		}
		return err
	}
	switch rng.IntN(8) {
	case 0:
		return allowed(b.DeleteTag(ctx, path, tag), oci.ManifestUnknown, oci.NameUnknown)
	case 1:
		m, err := b.ManifestByTag(ctx, path, tag)
		if err == nil {
			err = b.DeleteManifest(ctx, path, m.Digest)
		}
		return allowed(err, oci.ManifestUnknown, oci.NameUnknown, oci.Denied)
	case 2:
		d := oci.Compute(oci.SHA256, []byte(pick("layer", 4)))
		return allowed(b.DeleteBlob(ctx, path, d), oci.BlobUnknown, oci.NameUnknown, oci.Denied)
	case 3:
		_, err := b.Mount(ctx, path, pick("r", 3), oci.Compute(oci.SHA256, []byte(pick("layer", 4))))
		return err
	}
	config, err := b.TryPush(ctx, path, pick("config", 2))
	if err != nil {
		return err
	}
	layer, err := b.TryPush(ctx, path, pick("layer", 4))
	if err != nil {
		return err
	}
	payload := catalogtest.Image(t, config, []oci.Digest{layer}, nil)
	d, err := b.TryPut(ctx, path, payload, tag)
	if err != nil {
		// Another client may have unlinked the blobs before the put.
		return allowed(err, oci.ManifestBlobUnknown)
	}
	if rng.IntN(2) == 0 {
		return nil
	}
	list := catalogtest.Index(t, d)
	_, err = b.TryPut(ctx, path, list, pick("t", 3))
	return allowed(err, oci.ManifestBlobUnknown)
}

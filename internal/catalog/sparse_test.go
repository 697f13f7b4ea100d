package catalog_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
)

const (
	cacheConfig = "application/vnd.buildkit.cacheconfig.v0"
	cacheLayer  = "application/vnd.oci.image.layer.v1.tar+gzip"
)

// listing returns an index that lists the given descriptors, whatever their media types are.
func listing(t *testing.T, indexType string, list ...map[string]any) []byte {
	t.Helper()
	payload, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": indexType, "manifests": list})
	if err != nil {
		t.Fatal(err)
	}
	return payload
}

func entry(mediaType string, d oci.Digest) map[string]any {
	return map[string]any{"mediaType": mediaType, "digest": d.String(), "size": 1}
}

// TestCacheIndex puts an index as BuildKit exports it for a build cache: it lists layers and
// the cache's configuration instead of manifests. These blobs must exist when the index is
// put, must stay as long as the index, and must be deleted after it.
func TestCacheIndex(t *testing.T) { catalogtest.AtBoth(t, testCacheIndex) }

func testCacheIndex(t *testing.T, dsn string) {
	b := replica(t, dsn)
	ctx := t.Context()
	b.AtOnce(t)
	for _, indexType := range []string{oci.MediaTypeImageIndex, oci.MediaTypeDockerManifestList} {
		config, one, two := b.Push(t, "r", "config"), b.Push(t, "r", "one"), b.Push(t, "r", "two")
		child := b.Put(t, "r", catalogtest.Image(t, config, nil, nil))
		foreign := entry(oci.MediaTypeDockerForeignLayer, oci.Compute(oci.SHA256, []byte("elsewhere")))
		cache := listing(t, indexType, entry(cacheLayer, one), entry(cacheLayer, two), entry(cacheLayer, one), foreign,
			entry(cacheConfig, config), entry(oci.MediaTypeImageManifest, child))
		d := b.Put(t, "r", cache, "cache")
		b.ReviewAll(t)
		for _, blob := range []oci.Digest{config, one, two} {
			if !b.Linked(t, "r", blob) {
				t.Fatalf("%s is gone though an index of type %s lists it", blob, indexType)
			}
			catalogtest.WantCode(t, b.DeleteBlob(ctx, "r", blob), oci.Denied)
		}
		if _, err := b.ManifestByDigest(ctx, "r", child); err != nil {
			t.Error(err)
		}
		// The repository "other" has neither the layers nor the manifest, so a put of the
		// index must be refused there.
		_, err := b.TryPut(ctx, "other", cache, "cache")
		catalogtest.WantCode(t, err, oci.ManifestBlobUnknown)
		if n := b.Count(t, "SELECT count(*) FROM repositories"); n != 1 {
			t.Errorf("%d repositories, want one", n)
		}
		// If the index gets a second tag and loses the first, its blobs must stay. After the
		// index is deleted, garbage collection must delete them.
		b.Put(t, "r", cache, "again")
		if err := b.DeleteTag(ctx, "r", "cache"); err != nil {
			t.Fatal(err)
		}
		b.ReviewAll(t)
		if !b.Linked(t, "r", one) {
			t.Error("a layer is gone though a tag is left")
		}
		if err := b.DeleteManifest(ctx, "r", d); err != nil {
			t.Fatal(err)
		}
		b.ReviewAll(t)
		b.Nothing(t)
	}
}

// TestListedManifestOfAnyType puts an index that lists a manifest under a media type that
// isn't a manifest's. As the repository has a manifest with this digest, the manifest must
// become a child of the index.
func TestListedManifestOfAnyType(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.AtOnce(t)
	config, layer := b.Push(t, "r", "config"), b.Push(t, "r", "layer")
	child := b.Put(t, "r", catalogtest.Image(t, config, nil, nil))
	b.Put(t, "r", listing(t, oci.MediaTypeImageIndex, entry("application/json", child), entry(cacheLayer, layer)), "v1")
	b.ReviewAll(t)
	if _, err := b.ManifestByDigest(t.Context(), "r", child); err != nil {
		t.Error(err)
	}
	if !b.Linked(t, "r", layer) {
		t.Error("the layer is gone")
	}
	catalogtest.WantCode(t, b.DeleteManifest(t.Context(), "r", child), oci.Denied)
	_, err := b.TryPut(t.Context(), "r", listing(t, oci.MediaTypeImageIndex, entry("x/y", oci.Compute(oci.SHA256, []byte("nowhere")))), "v2")
	catalogtest.WantCode(t, err, oci.ManifestBlobUnknown)
}

// sparse returns a catalog that accepts indexes with missing manifests.
func sparse(t *testing.T, dsn string) bundle {
	t.Helper()
	b := replica(t, dsn)
	reviews, err := db.Open(t.Context(), db.Options{DSN: dsn, LockTimeout: 200 * time.Millisecond, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(reviews.Close)
	b.Catalog = catalog.New(catalog.Options{DB: b.DB, Background: reviews, Replica: uuid.New(), SparseIndexes: true, Log: slog.New(slog.DiscardHandler)})
	return b
}

// TestSparseIndex pushes manifests after a sparse index that lists them. They must become the
// index's children.
func TestSparseIndex(t *testing.T) {
	t.Parallel()
	dsn := dbtest.DSN(t)
	b, strict := sparse(t, dsn), replica(t, dsn)
	ctx := t.Context()
	b.AtOnce(t)
	config := b.Push(t, "r", "config")
	b.Put(t, "r", catalogtest.Numbered(t, 0, config), "keeps-the-configuration")
	payloads := make([][]byte, 3)
	digests := make([]oci.Digest, 3)
	for i := range payloads {
		payloads[i] = catalogtest.Numbered(t, i+1, config)
		digests[i] = oci.Compute(oci.SHA256, payloads[i])
	}
	list := catalogtest.Index(t, digests...)
	b.Put(t, "r", payloads[0], "first")
	_, err := strict.TryPut(ctx, "r", list, "v1")
	catalogtest.WantCode(t, err, oci.ManifestBlobUnknown)
	d := b.Put(t, "r", list, "v1")
	outer := b.Put(t, "r", catalogtest.Index(t, oci.Compute(oci.SHA256, catalogtest.Index(t, digests[2]))), "outer")
	_, err = b.ManifestByDigest(ctx, "r", digests[1])
	catalogtest.WantCode(t, err, oci.ManifestUnknown)
	// If an index lists a blob that doesn't exist, the put must be refused, even where sparse
	// indexes are accepted.
	_, err = b.TryPut(ctx, "r", listing(t, oci.MediaTypeImageIndex, entry(cacheLayer, digests[0])), "v2")
	if err != nil { // the repository has it as a manifest
		t.Error(err)
	}
	_, err = b.TryPut(ctx, "r", listing(t, oci.MediaTypeImageIndex, entry(cacheLayer, digests[1])), "v2")
	catalogtest.WantCode(t, err, oci.ManifestBlobUnknown)
	b.ReviewAll(t)
	if n := b.Rows(t, "missing_children"); n != 3 {
		t.Fatalf("%d manifests are missing, want 3", n)
	}

	// Push one of the missing manifests, without a tag, through a replica that doesn't accept
	// sparse indexes. A review must keep the manifest, since the index lists it.
	strict.Put(t, "r", payloads[1])
	b.ReviewAll(t)
	if _, err := b.ManifestByDigest(ctx, "r", digests[1]); err != nil {
		t.Errorf("a manifest that its index had waited for: %v", err)
	}
	catalogtest.WantCode(t, b.DeleteManifest(ctx, "r", digests[1]), oci.Denied)
	// Push a missing child that is itself a sparse index.
	b.Put(t, "r", catalogtest.Index(t, digests[2]))
	b.ReviewAll(t)
	if n := b.Rows(t, "missing_children"); n != 2 { // one of the first index and one of the inner one
		t.Errorf("%d manifests are missing, want 2", n)
	}
	b.Put(t, "r", payloads[2])
	b.ReviewAll(t)
	if n := b.Rows(t, "missing_children"); n != 0 {
		t.Errorf("%d manifests are missing, want none", n)
	}
	for _, gone := range []oci.Digest{d, outer} {
		if err := b.DeleteManifest(ctx, "r", gone); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.DeleteTag(ctx, "r", "v2"); err != nil {
		t.Fatal(err)
	}
	b.ReviewAll(t)
	if n := b.Rows(t, "manifests"); n != 2 {
		t.Errorf("%d manifests are left, want the two with tags", n)
	}
}

// TestUnlinkedChild makes the state that results when an index and its child are put at the
// same time and neither transaction sees the other: a row in missing_children for a manifest
// that exists. The manifest's review must turn the row into a reference and keep the manifest,
// also if the manifest had a tag for a while.
func TestUnlinkedChild(t *testing.T) {
	t.Parallel()
	b := sparse(t, dbtest.DSN(t))
	b.AtOnce(t)
	config := b.Push(t, "r", "config")
	for i, tags := range [][]string{nil, {"also"}} {
		payload := catalogtest.Numbered(t, i, config)
		d := b.Put(t, "r", payload, tags...)
		b.Put(t, "r", catalogtest.Index(t, d), fmt.Sprint("v", i))
		b.Exec(t, `WITH x AS (DELETE FROM manifest_references RETURNING *)
			INSERT INTO missing_children SELECT x.top_level_namespace_id, x.repository_id, x.parent_id, m.digest
			FROM x JOIN manifests m ON m.id = x.child_id`)
		if len(tags) > 0 {
			if err := b.DeleteTag(t.Context(), "r", tags[0]); err != nil {
				t.Fatal(err)
			}
		}
		if e, err := b.ExplainManifest(t.Context(), "r", d); err != nil || e.Fate != "kept" || len(e.Indexes.First) != 1 {
			t.Errorf("not linked, it is said to be %s, held by %+v, %v", e.Fate, e.Indexes, err)
		}
		b.Exec(t, `INSERT INTO gc_manifest_review_queue (top_level_namespace_id, repository_id, manifest_id, review_after, event)
			SELECT top_level_namespace_id, repository_id, id, now(), 'manifest_upload' FROM manifests WHERE digest = $1
			ON CONFLICT DO NOTHING`, d.Bytes())
		b.ReviewAll(t)
		if _, err := b.ManifestByDigest(t.Context(), "r", d); err != nil {
			t.Errorf("a manifest that an index lists: %v", err)
		}
		if n, m := b.Rows(t, "missing_children"), b.Rows(t, "manifest_references"); n != 0 || m != i+1 {
			t.Errorf("%d rows of missing manifests and %d references, want 0 and %d", n, m, i+1)
		}
	}
}

// TestConcurrentSparseIndexes puts and deletes indexes and their manifests at random while
// reviews run without a delay. A manifest that was put after a tagged index that lists it must
// always exist. At the end each manifest of each index must be either a reference or a row of
// missing_children, and no unreferenced content may be left.
func TestConcurrentSparseIndexes(t *testing.T) { catalogtest.AtBoth(t, testConcurrentSparseIndexes) }

func testConcurrentSparseIndexes(t *testing.T, dsn string) {
	b := sparse(t, dsn)
	b.AtOnce(t)
	config := b.Push(t, "r", "config")
	b.Put(t, "r", catalogtest.Numbered(t, 0, config), "keeps-the-configuration")
	const children = 4
	payloads := make([][]byte, children)
	digests := make([]oci.Digest, children)
	for i := range payloads {
		payloads[i] = catalogtest.Numbered(t, i+1, config)
		digests[i] = oci.Compute(oci.SHA256, payloads[i])
	}
	b.Put(t, "r", catalogtest.Index(t, digests[0]), "anchor")
	indexes := [][]byte{catalogtest.Index(t, digests[1], digests[2]), catalogtest.Index(t, digests[2], digests[3]), catalogtest.Index(t, digests[1:]...)}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	step := func(rng *rand.Rand) error {
		switch i, j := rng.IntN(children), rng.IntN(len(indexes)); rng.IntN(8) {
		case 0, 1:
			if _, err := b.TryPut(ctx, "r", payloads[i]); err != nil {
				return err
			}
			if i == 0 {
				if _, err := b.ManifestByDigest(ctx, "r", digests[0]); err != nil {
					return fmt.Errorf("just after it was put: %w", err)
				}
			}
		case 2:
			_, err := b.TryPut(ctx, "r", payloads[i], fmt.Sprint("child", i))
			return err
		case 3, 4:
			_, err := b.TryPut(ctx, "r", indexes[j], fmt.Sprint("index", j))
			return err
		case 5:
			return allowed(b.DeleteManifest(ctx, "r", oci.Compute(oci.SHA256, indexes[j])), oci.ManifestUnknown)
		case 6:
			if i > 0 {
				return allowed(b.DeleteManifest(ctx, "r", digests[i]), oci.ManifestUnknown, oci.Denied)
			}
			return allowed(b.DeleteTag(ctx, "r", "child0"), oci.ManifestUnknown)
		case 7:
			return allowed(b.DeleteTag(ctx, "r", fmt.Sprint("index", j)), oci.ManifestUnknown)
		}
		return nil
	}
	var clients, reviewers sync.WaitGroup
	stop := make(chan struct{})
	for range 2 {
		reviewers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := b.TryReview(ctx, "manifest", 3); err != nil {
					t.Errorf("review: %v", err)
					return
				}
			}
		})
	}
	for seed := range uint64(6) {
		clients.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(len(dsn))))
			for range 60 {
				if err := step(rng); err != nil {
					t.Errorf("client %d: %v", seed, err)
					return
				}
			}
		})
	}
	clients.Wait()
	close(stop)
	reviewers.Wait()
	b.checkSparse(t)
}

// allowed returns nil if err has one of the codes, and otherwise err.
func allowed(err error, codes ...oci.Code) error {
	if slices.Contains(codes, oci.CodeOf(err)) {
		return nil
	}
	return err
}

// checkSparse makes all reviews due, runs them until none is left, and checks the references
// of every index.
func (b bundle) checkSparse(t *testing.T) {
	t.Helper()
	b.DueNow(t)
	b.ReviewAll(t)
	if n := b.Count(t, `
		SELECT count(*) FROM missing_children c JOIN manifests m ON m.digest = c.child_digest AND m.repository_id = c.repository_id`); n != 0 {
		t.Errorf("%d manifests are there, and missing", n)
	}
	if n := b.Count(t, `
		SELECT count(*) FROM manifests m WHERE NOT EXISTS (SELECT FROM tags WHERE manifest_id = m.id)
			AND NOT EXISTS (SELECT FROM manifest_references WHERE child_id = m.id)`); n != 0 {
		t.Errorf("%d manifests are left that nothing holds", n)
	}
	rows, err := b.DB.Pool.Query(t.Context(), "SELECT id, payload FROM manifests WHERE media_type = $1", oci.MediaTypeImageIndex)
	if err != nil {
		t.Fatal(err)
	}
	lists := map[int64][]byte{}
	for rows.Next() {
		var id int64
		var payload []byte
		if err := rows.Scan(&id, &payload); err != nil {
			t.Fatal(err)
		}
		lists[id] = slices.Clone(payload)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	for id, payload := range lists {
		m, err := oci.ParseManifest("", payload)
		if err != nil {
			t.Fatal(err)
		}
		if n := b.Count(t, `
			SELECT (SELECT count(*) FROM manifest_references WHERE parent_id = $1)
				+ (SELECT count(*) FROM missing_children WHERE parent_id = $1)`, id); n != len(m.Manifests) {
			t.Errorf("an index of %d manifests has %d as references or as missing", len(m.Manifests), n)
		}
	}
}

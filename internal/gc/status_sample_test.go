package gc_test

import (
	"testing"

	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/gc"
)

func TestGCStatusSharedAndReclaimable(t *testing.T) {
	catalogtest.AtBoth(t, testGCStatusSharedAndReclaimable)
}

func testGCStatusSharedAndReclaimable(t *testing.T, dsn string) {
	b := replica(t, dsn)
	config := b.Push(t, "library/app", "configuration")
	b.Push(t, "library/other", "configuration") // a second link
	b.Push(t, "library/app", "unused")
	b.Put(t, "library/app", catalogtest.Image(t, config, nil, nil))
	s, err := b.GCStatus(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if want := (gc.BlobCount{Blobs: exact(1), Bytes: int64(len("configuration"))}); s.Stored.Shared != want {
		t.Errorf("shared %+v, want %+v", s.Stored.Shared, want)
	}
	if want := (gc.BlobCount{Blobs: exact(1), Bytes: int64(len("unused"))}); s.Reclaimable != want {
		t.Errorf("reclaimable %+v, want %+v", s.Reclaimable, want)
	}
}

// TestGCStatusEstimatesUses: of more blobs than GCStatus looks at, it estimates how many are shared
// and unused, and says so.
func TestGCStatusEstimatesUses(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Push(t, "library/app", "one")
	b.Push(t, "library/other", "another")
	const blobs, part = 40_000, 5_000 // a statement has 30 seconds, and the machine may be busy
	for first := 1; first <= blobs; first += part {
		b.Exec(t, `
		WITH made AS (
			INSERT INTO blobs (digest, size, storage_key)
			SELECT '\x01'::bytea || sha256(i::text::bytea), 100, 'made ' || i FROM generate_series($1::int, $2::int) i RETURNING digest, storage_key),
		queued AS (
			INSERT INTO gc_blob_review_queue (digest, review_after, event) SELECT digest, now() + interval '1 d', 'blob_upload' FROM made)
		INSERT INTO repository_blobs (top_level_namespace_id, repository_id, blob_digest)
		SELECT r.top_level_namespace_id, r.id, digest FROM made, repositories r
		WHERE r.path = 'library/app' OR substr(storage_key, 6)::int % 4 = 0`, first, first+part-1) // a quarter is shared
	}
	b.Exec(t, "ANALYZE blobs, gc_blob_review_queue")
	s, err := b.GCStatus(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	about := func(what string, got gc.BlobCount, want int64) {
		t.Helper()
		if got.Blobs.Exact || got.Blobs.Rows < want*7/10 || got.Blobs.Rows > want*13/10 {
			t.Errorf("%s: %+v, want about %d blobs", what, got, want)
		}
		if got.Bytes < 70*want || got.Bytes > 130*want {
			t.Errorf("%s: %d bytes, want about %d", what, got.Bytes, 100*want)
		}
	}
	about("shared", s.Stored.Shared, blobs/4)
	about("reclaimable", s.Reclaimable, blobs)
}

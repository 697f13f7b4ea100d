package catalog

import (
	"context"
	"fmt"
	"time"

	"github.com/purser-registry/purser/internal/oci"
)

// Manifest is a stored manifest, with the bytes that were pushed. Several callers may get the
// same *Manifest from the cache, so they must not change it.
type Manifest struct {
	Digest    oci.Digest
	MediaType string
	Payload   []byte
	// Repository is the id of the repository in which the manifest was found.
	Repository int64
}

// Blob describes a blob's content.
type Blob struct {
	Digest     oci.Digest
	Size       int64  // bytes
	MediaType  string // as stored; application/octet-stream if no better type was known
	StorageKey string // the object's name in the blob store
}

// ManifestByTag returns the manifest that a tag points to. It costs one query, or none if
// the result is cached. Errors: NAME_UNKNOWN, MANIFEST_UNKNOWN.
func (c *Catalog) ManifestByTag(ctx context.Context, path, tag string) (*Manifest, error) {
	fresh := c.cache.fresh(ctx)
	tagGen, gen := c.cache.tagList(path), c.cache.content(path)
	if d, ok := get(c.cache, fresh, c.cache.tagged, tagKey{path, tag}, tagGen); ok {
		if m, ok := get(c.cache, fresh, c.cache.manifests, contentKey{path, d}, gen); ok {
			return m, nil
		}
	}
	m, err := c.queryManifest(ctx, path, tag, `
		SELECT r.id, m.digest, m.media_type, m.payload
		FROM live_repositories r
		LEFT JOIN tags t ON t.top_level_namespace_id = r.top_level_namespace_id
			AND t.repository_id = r.id AND t.name = $2
		LEFT JOIN manifests m ON m.top_level_namespace_id = t.top_level_namespace_id
			AND m.repository_id = t.repository_id AND m.id = t.manifest_id
		WHERE r.path = $1`, tag)
	if err != nil {
		return nil, err
	}
	keep(c.cache, c.cache.tagged, tagKey{path, tag}, m.Digest, tagGen)
	keep(c.cache, c.cache.manifests, contentKey{path, m.Digest}, m, gen)
	return m, nil
}

// ManifestByDigest returns a manifest of the repository. It costs one query, or none if the
// result is cached. Errors: NAME_UNKNOWN, MANIFEST_UNKNOWN.
func (c *Catalog) ManifestByDigest(ctx context.Context, path string, d oci.Digest) (*Manifest, error) {
	fresh := c.cache.fresh(ctx)
	gen := c.cache.content(path)
	if m, ok := get(c.cache, fresh, c.cache.manifests, contentKey{path, d}, gen); ok {
		return m, nil
	}
	m, err := c.queryManifest(ctx, path, d.String(), `
		SELECT r.id, m.digest, m.media_type, m.payload
		FROM live_repositories r
		LEFT JOIN manifests m ON m.top_level_namespace_id = r.top_level_namespace_id
			AND m.repository_id = r.id AND m.digest = $2
		WHERE r.path = $1`, d.Bytes())
	if err != nil {
		return nil, err
	}
	keep(c.cache, c.cache.manifests, contentKey{path, d}, m, gen)
	return m, nil
}

func (c *Catalog) queryManifest(ctx context.Context, path, reference, sql string, arg any) (*Manifest, error) {
	var digest, payload []byte
	var mediaType *string
	var repository int64
	err := c.db.Pool.QueryRow(ctx, sql, path, arg).Scan(&repository, &digest, &mediaType, &payload)
	switch {
	case isNoRows(err):
		return nil, NameUnknown(path)
	case err != nil:
		return nil, fmt.Errorf("looking for manifest %s of %s: %w", reference, path, err)
	case digest == nil:
		return nil, ManifestUnknown(path, reference)
	}
	d, err := oci.DigestFromBytes(digest)
	if err != nil {
		return nil, fmt.Errorf("manifest %s of %s: %w", reference, path, err)
	}
	return &Manifest{Digest: d, MediaType: *mediaType, Payload: payload, Repository: repository}, nil
}

// PromiseManifestExists is like ManifestByDigest, for a client that asks by HEAD whether the
// manifest exists. If it does, the answer promises that the manifest stays for the review
// delay. PromiseManifestExists writes the promise, a row in gc_manifest_review_queue, before it
// looks up the manifest, in the same round trip. In the other order, garbage collection could
// delete the manifest between the two statements.
func (c *Catalog) PromiseManifestExists(ctx context.Context, path string, d oci.Digest) (*Manifest, error) {
	fresh := c.cache.fresh(ctx)
	gen := c.cache.content(path)
	if m, ok := get(c.cache, fresh, c.cache.manifests, contentKey{path, d}, gen); ok && c.promised(contentKey{path, d}, gen) {
		return m, nil
	}
	var mediaType *string
	var payload []byte
	var repository int64
	var delay time.Duration
	asked := time.Now()
	b := new(batch)
	b.Exec(`
		INSERT INTO gc_manifest_review_queue AS q (top_level_namespace_id, repository_id, manifest_id, review_after, event)
		SELECT m.top_level_namespace_id, m.repository_id, m.id, gc_review_after('manifest_upload'), 'manifest_upload'
		FROM live_repositories r
		JOIN manifests m ON m.top_level_namespace_id = r.top_level_namespace_id
			AND m.repository_id = r.id AND m.digest = $2
		WHERE r.path = $1
		ON CONFLICT (top_level_namespace_id, repository_id, manifest_id) DO UPDATE SET
			review_after = GREATEST(q.review_after, EXCLUDED.review_after), review_count = 0, set_aside_at = NULL`,
		path, d.Bytes())
	b.Row([]any{&repository, &mediaType, &payload, &delay}, `
		SELECT r.id, m.media_type, m.payload, COALESCE(q.review_after - now(), '0')
		FROM live_repositories r
		LEFT JOIN manifests m ON m.top_level_namespace_id = r.top_level_namespace_id
			AND m.repository_id = r.id AND m.digest = $2
		LEFT JOIN gc_manifest_review_queue q ON q.top_level_namespace_id = m.top_level_namespace_id
			AND q.repository_id = m.repository_id AND q.manifest_id = m.id
		WHERE r.path = $1`, path, d.Bytes())
	switch err := b.Send(ctx, c.db.Pool); {
	case isNoRows(err):
		return nil, NameUnknown(path)
	case err != nil:
		return nil, fmt.Errorf("looking for manifest %s of %s: %w", d, path, err)
	case mediaType == nil:
		return nil, ManifestUnknown(path, d.String())
	}
	m := &Manifest{Digest: d, MediaType: *mediaType, Payload: payload, Repository: repository}
	keep(c.cache, c.cache.manifests, contentKey{path, d}, m, gen)
	c.keepPromise(contentKey{path, d}, asked.Add(delay/2), gen)
	return m, nil
}

// Blob returns a blob that is linked to the repository. It costs one query, or none if the
// result is cached. Errors: NAME_UNKNOWN; BLOB_UNKNOWN if the repository has no link to the
// blob, or if the blob is marked as lost from the store, so that clients push it again.
func (c *Catalog) Blob(ctx context.Context, path string, d oci.Digest) (Blob, error) {
	fresh := c.cache.fresh(ctx)
	if b, ok := get(c.cache, fresh, c.cache.blobs, contentKey{path, d}, c.cache.content(path)); ok {
		return b, nil
	}
	return c.BlobNow(ctx, path, d)
}

// BlobNow is like Blob, but reads the database and not the cache. It is called when the store
// doesn't have the object that a cached blob names: the blob may have another object by now.
// OFFSET 0 in its SQL makes PostgreSQL look rows up by an index: see "Plans" in package db.
func (c *Catalog) BlobNow(ctx context.Context, path string, d oci.Digest) (Blob, error) {
	gen := c.cache.content(path)
	b := Blob{Digest: d}
	var size *int64
	var mediaType, key *string
	err := c.db.Pool.QueryRow(ctx, `
		SELECT b.size, b.media_type, b.storage_key
		FROM live_repositories r
		LEFT JOIN LATERAL (
			SELECT blob_digest FROM repository_blobs
			WHERE top_level_namespace_id = r.top_level_namespace_id AND repository_id = r.id AND blob_digest = $2
			OFFSET 0) rb ON true
		LEFT JOIN blobs b ON b.digest = rb.blob_digest AND b.lost_at IS NULL
		WHERE r.path = $1`, path, d.Bytes()).Scan(&size, &mediaType, &key)
	switch {
	case isNoRows(err):
		return b, NameUnknown(path)
	case err != nil:
		return b, fmt.Errorf("looking for blob %s of %s: %w", d, path, err)
	case size == nil:
		return b, blobUnknown(path, d)
	}
	b.Size, b.MediaType, b.StorageKey = *size, *mediaType, *key
	keep(c.cache, c.cache.blobs, contentKey{path, d}, b, gen)
	return b, nil
}

// PromiseBlobExists is like Blob, for a client that asks by HEAD whether it has to upload the
// blob. If the blob exists, the answer is a promise of existence: the blob stays for the
// review delay, so that the manifest which the client pushes next finds it. The promise is a
// row in gc_blob_review_queue. PromiseBlobExists writes the row first and looks up the blob by
// a second statement in the same round trip. In the other order, or in one statement, garbage
// collection could delete the blob after it was found and before the promise was written.
// PromiseBlobExists caches the promise in this process, and answers from the cache while more
// than half of the promised time remains.
// Before it answers from the database, PromiseBlobExists checks the object in the store
// (VerifyBlob), since a client that is told "it exists" won't push the blob.
func (c *Catalog) PromiseBlobExists(ctx context.Context, path string, d oci.Digest) (Blob, error) {
	fresh := c.cache.fresh(ctx)
	gen, everywhere := c.cache.content(path), c.cache.everywhere()
	if b, ok := get(c.cache, fresh, c.cache.blobs, contentKey{path, d}, gen); ok && c.promised(contentKey{digest: d}, everywhere) {
		return b, nil
	}
	var size *int64
	var mediaType, key *string
	var delay time.Duration
	asked := time.Now()
	b := new(batch)
	b.Exec(`
		INSERT INTO gc_blob_review_queue AS q (digest, review_after, event)
		SELECT rb.blob_digest, gc_review_after('blob_upload'), 'blob_upload'
		FROM live_repositories r
		CROSS JOIN LATERAL (
			SELECT blob_digest FROM repository_blobs
			WHERE top_level_namespace_id = r.top_level_namespace_id AND repository_id = r.id AND blob_digest = $2
			OFFSET 0) rb
		WHERE r.path = $1
		ON CONFLICT (digest) DO UPDATE SET
			review_after = GREATEST(q.review_after, EXCLUDED.review_after), review_count = 0, set_aside_at = NULL`,
		path, d.Bytes())
	b.Row([]any{&size, &mediaType, &key, &delay}, `
		SELECT b.size, b.media_type, b.storage_key, COALESCE(q.review_after - now(), '0')
		FROM live_repositories r
		LEFT JOIN LATERAL (
			SELECT blob_digest FROM repository_blobs
			WHERE top_level_namespace_id = r.top_level_namespace_id AND repository_id = r.id AND blob_digest = $2
			OFFSET 0) rb ON true
		LEFT JOIN blobs b ON b.digest = rb.blob_digest AND b.lost_at IS NULL
		LEFT JOIN gc_blob_review_queue q ON q.digest = b.digest
		WHERE r.path = $1`, path, d.Bytes())
	switch err := b.Send(ctx, c.db.Pool); {
	case isNoRows(err):
		return Blob{}, NameUnknown(path)
	case err != nil:
		return Blob{}, fmt.Errorf("looking for blob %s of %s: %w", d, path, err)
	case size == nil:
		return Blob{}, blobUnknown(path, d)
	}
	blob := Blob{Digest: d, Size: *size, MediaType: *mediaType, StorageKey: *key}
	if whole, err := c.VerifyBlob(ctx, path, blob); err != nil {
		return Blob{}, err
	} else if !whole {
		return Blob{}, blobUnknown(path, d)
	}
	keep(c.cache, c.cache.blobs, contentKey{path, d}, blob, gen)
	c.keepPromise(contentKey{digest: d}, asked.Add(delay/2), everywhere)
	return blob, nil
}

// promised says whether this process has cached a promise of existence for the manifest or
// blob k, and more than half of the promised time remains. For a manifest, gen is the current
// generation of its repository; a promise from an earlier generation isn't valid any more,
// since the manifest may have been deleted and put again. For a blob, gen is that of cache.everywhere and
// k has no path: the promise holds in every repository, and the blob isn't deleted while the promise
// lasts, unless a failover has lost it.
func (c *Catalog) promised(k contentKey, gen uint64) bool {
	e, ok := c.cache.promises.Get(k)
	return ok && e.gen == gen && time.Now().Before(e.value)
}

func (c *Catalog) keepPromise(k contentKey, until time.Time, gen uint64) {
	c.cache.promises.Set(k, entry[time.Time]{until, gen})
}

// ManifestUnknown returns the client's error for a manifest, named by a tag or digest, that
// its repository doesn't have.
func ManifestUnknown(path, reference string) error {
	return oci.Errorf(oci.ManifestUnknown, "manifest %s is not known to repository %s", reference, path).
		WithDetail(map[string]string{"name": path, "reference": reference})
}

func blobUnknown(path string, d oci.Digest) error {
	return oci.Errorf(oci.BlobUnknown, "blob %s is not known to repository %s", d, path).
		WithDetail(map[string]string{"name": path, "digest": d.String()})
}

package distribution_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/blob/blobtest"
	"github.com/purser-registry/purser/internal/blob/s3"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// file returns the path of a blob's object.
func (r *registry) file(t *testing.T, d oci.Digest) string {
	t.Helper()
	key := r.Key(t, d)
	return filepath.Join(r.Dir, "objects", key[:2], key)
}

// TestLostBlobIsHealedByAPush: the store has lost or truncated the object of a blob that two
// repositories have, and a client fails to read the blob. From then on the registry must report
// the blob as unknown in both repositories. Then a client pushes the same content to one
// repository, and both repositories must have the blob again.
func TestLostBlobIsHealedByAPush(t *testing.T) {
	t.Parallel()
	for name, harm := range map[string]func(t *testing.T, path string){
		"missing": servertest.Remove,
		"truncated": func(t *testing.T, path string) {
			if err := os.Truncate(path, 3); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			const content = "the content of a layer"
			d := r.Push(t, "team/app", content)
			r.Do(t, "POST", "/v2/team/web/blobs/uploads/?mount="+d.String()+"&from=team/app", "").Want(t, 201, "")
			r.WantBlob(t, "team/web", d, content)
			at := "/v2/team/app/blobs/" + d.String()
			harm(t, r.file(t, d))
			r.Try(t.Context(), "GET", at, http.NoBody) //nolint:errcheck // a truncated blob's answer ends early
			eventually(t, "it is taken for lost", func() bool { return r.lost(t, d) })
			r.Do(t, "GET", at, "").Want(t, 404, oci.BlobUnknown)
			r.Do(t, "HEAD", at, "").Want(t, 404, "")
			eventually(t, "the other repository hears of it", func() bool {
				return r.Do(t, "HEAD", "/v2/team/web/blobs/"+d.String(), "").StatusCode == 404
			})
			r.Do(t, "POST", "/v2/team/new/blobs/uploads/?mount="+d.String()+"&from=team/app", "").Want(t, 202, "")
			r.Do(t, "PUT", "/v2/team/app/manifests/v1", image(t, d, nil, nil)).Want(t, 400, oci.ManifestBlobUnknown)
			r.Push(t, "team/new", content)
			for _, repository := range []string{"team/new", "team/app", "team/web"} {
				r.WantBlob(t, repository, d, content)
			}
		})
	}
}

// TestLostBlobIsFoundByAPush: the store has lost a blob's object, and nobody has read the blob
// since. The registry must answer a HEAD of the blob with 404, and a request to mount the blob
// with 202, which starts an upload instead. A push must restore the blob, whether or not such a
// HEAD or mount came before it.
func TestLostBlobIsFoundByAPush(t *testing.T) {
	t.Parallel()
	const content = "the content of a layer"
	for name, meet := range map[string]func(r *registry, d oci.Digest){
		"HEAD": func(r *registry, d oci.Digest) {
			r.Do(t, "HEAD", "/v2/team/app/blobs/"+d.String(), "").Want(t, 404, "")
			r.Push(t, "team/app", content)
		},
		"mount": func(r *registry, d oci.Digest) {
			r.Do(t, "POST", "/v2/team/web/blobs/uploads/?mount="+d.String()+"&from=team/app", "").Want(t, 202, "")
			r.Push(t, "team/web", content)
		},
		"push": func(r *registry, _ oci.Digest) { r.Push(t, "team/web", content) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			d := r.Push(t, "team/app", content)
			servertest.Remove(t, r.file(t, d))
			meet(r, d)
			r.WantBlob(t, "team/app", d, content)
		})
	}
}

// TestLostBlobOnOtherReplicas: one replica finds that the store has lost a blob, while another
// replica has the blob in its cache. The other replica must report the blob as unknown too.
// After a push of the blob, it must serve the blob again.
func TestLostBlobOnOtherReplicas(t *testing.T) {
	t.Parallel()
	const content = "the content of a layer"
	one := setup(t)
	other := replica(t, one.DSN, one.Dir)
	other.Listen(t)
	d := one.Push(t, "team/app", content)
	at := "/v2/team/app/blobs/" + d.String()
	other.Do(t, "HEAD", at, "").Want(t, 200, "")
	other.WantBlob(t, "team/app", d, content)
	servertest.Remove(t, one.file(t, d))
	one.Do(t, "GET", at, "").Want(t, 404, oci.BlobUnknown)
	eventually(t, "the other replica hears of it", func() bool { return other.Do(t, "HEAD", at, "").StatusCode == 404 })
	one.Push(t, "team/app", content)
	other.WantBlob(t, "team/app", d, content)
}

// wrong is a store that doesn't belong to the database.
type wrong struct{ blob.Store }

func (wrong) Stat(context.Context, string) (blob.Object, error) {
	return blob.Object{}, fmt.Errorf("it is away: %w", blob.ErrWrongStore)
}

// TestNothingIsLostInAWrongStore: the store of a replica isn't the one that belongs to the
// database, and so lacks the blobs. The replica must answer requests about blobs with 503, and
// mark no blob as lost.
func TestNothingIsLostInAWrongStore(t *testing.T) {
	t.Parallel()
	r := setup(t)
	d := r.Push(t, "team/app", "content")
	away := replica(t, r.DSN, r.Dir, func(o *servertest.Options) { o.Distribution.WrongStore = func() bool { return true } })
	for _, req := range []string{"GET /blobs/" + d.String(), "HEAD /blobs/" + d.String(), "POST /blobs/uploads/", "PUT /manifests/v1"} {
		var method, path string
		fmt.Sscan(req, &method, &path) //nolint:errcheck // two words
		away.Do(t, method, "/v2/team/app"+path, "{}").Want(t, 503, oci.Unavailable)
	}
	away.Do(t, "GET", "/v2/team/app/tags/list", "").Want(t, 200, "")
	c := catalog.New(catalog.Options{DB: r.DB, CacheOff: true, Look: func(ctx context.Context, key string, size int64) (string, error) {
		return blob.Look(ctx, wrong{}, key, size)
	}})
	b, err := c.BlobNow(t.Context(), "team/app", d)
	if err != nil {
		t.Fatal(err)
	}
	if whole, err := c.VerifyBlob(t.Context(), "team/app", b); whole || err == nil || r.lost(t, d) {
		t.Errorf("whole %v, error %v, lost %v", whole, err, r.lost(t, d))
	}
}

// TestLostBlobInS3: somebody deletes an object from the S3 bucket. The registry must then
// report the object's blob as unknown, and a push must restore the blob. That must work with
// and without redirects of clients to the bucket.
func TestLostBlobInS3(t *testing.T) {
	t.Parallel()
	for _, redirect := range []bool{false, true} {
		t.Run(fmt.Sprintf("redirect %v", redirect), func(t *testing.T) {
			t.Parallel()
			r, bucket := setup(t), blobtest.S3Server(t)
			store, err := s3.New(bucket)
			if err != nil {
				t.Fatal(err)
			}
			c := catalog.New(catalog.Options{DB: r.DB, CacheOff: true, Look: func(ctx context.Context, key string, size int64) (string, error) {
				return blob.Look(ctx, store, key, size)
			}})
			on := replica(t, r.DSN, r.Dir, func(o *servertest.Options) { o.Store, o.Catalog, o.Distribution.Redirect = store, c, redirect })
			const content = "the content of a layer"
			d := on.Push(t, "team/app", content)
			at := "/v2/team/app/blobs/" + d.String()
			if err := store.Delete(t.Context(), []string{r.Key(t, d)}); err != nil {
				t.Fatal(err)
			}
			on.Do(t, "GET", at, "").Want(t, 404, oci.BlobUnknown)
			on.Push(t, "team/app", content)
			status := http.StatusOK
			if redirect {
				status = http.StatusTemporaryRedirect
			}
			on.Do(t, "GET", at, "").Want(t, status, "")
		})
	}
}

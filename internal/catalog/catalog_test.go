package catalog_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
)

// bundle is a catalog on a database of the test's own.
type bundle struct {
	*catalog.Catalog
	db *db.DB
}

func TestMain(m *testing.M) { dbtest.Main(m) }

func setup(t *testing.T) bundle {
	t.Helper()
	return replica(t, dbtest.DSN(t))
}

// atBoth runs a test twice: with the default number of partitions and with many.
func atBoth(t *testing.T, test func(t *testing.T, dsn string)) {
	t.Parallel()
	for _, n := range []int{db.DefaultPartitions, 64} {
		t.Run(fmt.Sprintf("%d partitions", n), func(t *testing.T) {
			t.Parallel()
			test(t, dbtest.DSNPartitions(t, n))
		})
	}
}

// replica opens a catalog as one more process on dsn.
func replica(t *testing.T, dsn string) bundle {
	t.Helper()
	id := uuid.New()
	d, err := db.Open(t.Context(), db.Options{DSN: dsn, Replica: id.String(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	reviews, err := db.Open(t.Context(), db.Options{DSN: dsn, LockTimeout: 200 * time.Millisecond, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(reviews.Close)
	return bundle{catalog.New(catalog.Options{DB: d, Background: reviews, Replica: id, Log: slog.New(slog.DiscardHandler)}), d}
}

// listen runs Listen until the test ends, and waits until the caches are in use.
func (b bundle) listen(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- b.Listen(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("listening: %v", err)
		}
	})
	b.waitCaching(t)
}

func (b bundle) waitCaching(t *testing.T) {
	t.Helper()
	eventually(t, "caches in use", b.Caching)
}

// eventually waits for ok, at most 2 min.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// push stores content as a blob in repository path.
func (b bundle) push(t *testing.T, path, content string) oci.Digest {
	t.Helper()
	d, err := b.tryPush(t.Context(), path, content)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (b bundle) tryPush(ctx context.Context, path, content string) (oci.Digest, error) {
	d := oci.Compute(oci.SHA256, []byte(content))
	list, err := b.StartUploads(ctx, 1)
	if err != nil {
		return d, err
	}
	u := list[0]
	u.Repository, u.Size = path, int64(len(content))
	return d, b.CommitUpload(ctx, u, d, fmt.Sprintf("%s-%d", u.StorageKey, u.Ticket), false)
}

// image returns a manifest of existing blobs.
func image(t *testing.T, config oci.Digest, layers []oci.Digest, more map[string]any) []byte {
	t.Helper()
	descriptor := func(mt string, d oci.Digest) map[string]any {
		return map[string]any{"mediaType": mt, "digest": d.String(), "size": 1}
	}
	m := map[string]any{
		"schemaVersion": 2, "mediaType": oci.MediaTypeImageManifest,
		"config": descriptor("application/vnd.oci.image.config.v1+json", config),
	}
	list := []any{}
	for _, l := range layers {
		list = append(list, descriptor("application/vnd.oci.image.layer.v1.tar+gzip", l))
	}
	m["layers"] = list
	for k, v := range more {
		m[k] = v
	}
	payload, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return payload
}

func index(t *testing.T, children ...oci.Digest) []byte {
	t.Helper()
	list := []any{}
	for _, d := range children {
		list = append(list, map[string]any{"mediaType": oci.MediaTypeImageManifest, "digest": d.String(), "size": 1})
	}
	payload, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": oci.MediaTypeImageIndex, "manifests": list})
	if err != nil {
		t.Fatal(err)
	}
	return payload
}

func (b bundle) put(t *testing.T, path string, payload []byte, tags ...string) oci.Digest {
	t.Helper()
	d, err := b.tryPut(t.Context(), path, payload, tags...)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (b bundle) tryPut(ctx context.Context, path string, payload []byte, tags ...string) (oci.Digest, error) {
	d := oci.Compute(oci.SHA256, payload)
	m, err := oci.ParseManifest("", payload)
	if err != nil {
		return d, err
	}
	return d, b.PutManifest(ctx, catalog.NewManifest{Repository: path, Digest: d, Manifest: m, Payload: payload, Tags: tags})
}

// count returns the number that a query returns.
func (b bundle) count(t *testing.T, sql string, args ...any) int {
	t.Helper()
	var n int
	if err := b.db.Pool.QueryRow(t.Context(), sql, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return n
}

func wantCode(t *testing.T, err error, code oci.Code) {
	t.Helper()
	if oci.CodeOf(err) != code {
		t.Fatalf("error is %v, want %s", err, code)
	}
}

func TestPushAndPull(t *testing.T) { atBoth(t, testPushAndPull) }

func testPushAndPull(t *testing.T, dsn string) {
	b := replica(t, dsn)
	ctx := t.Context()
	config, layer := b.push(t, "a/b/c", "config"), b.push(t, "a/b/c", "layer")
	payload := image(t, config, []oci.Digest{layer, layer}, nil)
	d := b.put(t, "a/b/c", payload, "v1", "latest")

	for _, get := range []func() (*catalog.Manifest, error){
		func() (*catalog.Manifest, error) { return b.ManifestByTag(ctx, "a/b/c", "v1") },
		func() (*catalog.Manifest, error) { return b.ManifestByDigest(ctx, "a/b/c", d) },
		func() (*catalog.Manifest, error) { return b.PromiseManifest(ctx, "a/b/c", d) },
	} {
		m, err := get()
		if err != nil {
			t.Fatal(err)
		}
		if m.Digest != d || string(m.Payload) != string(payload) || m.MediaType != oci.MediaTypeImageManifest {
			t.Errorf("got %+v", m)
		}
	}
	bl, err := b.PromiseBlob(ctx, "a/b/c", layer)
	if err != nil || bl.Size != 5 {
		t.Errorf("blob %+v, %v", bl, err)
	}
	tags, more, err := b.Tags(ctx, "a/b/c", "", 10)
	if err != nil || more || fmt.Sprint(tags) != "[latest v1]" {
		t.Errorf("tags %v, %v, %v", tags, more, err)
	}
	if n := b.count(t, "SELECT count(*) FROM layers"); n != 1 {
		t.Errorf("%d layers, want the repeated one once", n)
	}
	if n := b.count(t, "SELECT count(*) FROM gc_manifest_review_queue WHERE event = 'manifest_upload'"); n != 1 {
		t.Errorf("%d manifests in review, want the one promised by digest", n)
	}
}

func TestUnknown(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	b.push(t, "known", "x")
	d := oci.Compute(oci.SHA256, []byte("nowhere"))
	for path, codes := range map[string][2]oci.Code{
		"known":   {oci.ManifestUnknown, oci.BlobUnknown},
		"unknown": {oci.NameUnknown, oci.NameUnknown},
	} {
		_, err := b.ManifestByTag(ctx, path, "t")
		wantCode(t, err, codes[0])
		_, err = b.ManifestByDigest(ctx, path, d)
		wantCode(t, err, codes[0])
		_, err = b.PromiseManifest(ctx, path, d)
		wantCode(t, err, codes[0])
		wantCode(t, b.DeleteTag(ctx, path, "t"), codes[0])
		wantCode(t, b.DeleteManifest(ctx, path, d), codes[0])
		_, err = b.Blob(ctx, path, d)
		wantCode(t, err, codes[1])
		_, err = b.PromiseBlob(ctx, path, d)
		wantCode(t, err, codes[1])
		wantCode(t, b.DeleteBlob(ctx, path, d), codes[1])
	}
	if n := b.count(t, "SELECT count(*) FROM gc_blob_review_queue WHERE event <> 'blob_upload'"); n != 0 {
		t.Errorf("%d blobs in review that nobody has", n)
	}
}

func TestRoundTrips(t *testing.T) {
	t.Parallel()
	b := setup(t)
	config, layer := b.push(t, "r", "config"), b.push(t, "r", "layer")
	d := b.put(t, "r", image(t, config, []oci.Digest{layer}, nil), "v1")

	check := func(what string, want int64, f func(ctx context.Context) error) {
		t.Helper()
		ctx, n := db.WithCounter(t.Context())
		if err := f(ctx); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if n.Count() != want {
			t.Errorf("%s: %d round trips, want %d", what, n.Count(), want)
		}
	}
	reads := map[string]func(ctx context.Context) error{
		"manifest by tag":    func(ctx context.Context) error { _, err := b.ManifestByTag(ctx, "r", "v1"); return err },
		"manifest by digest": func(ctx context.Context) error { _, err := b.ManifestByDigest(ctx, "r", d); return err },
		"GET blob":           func(ctx context.Context) error { _, err := b.Blob(ctx, "r", layer); return err },
		"HEAD blob":          func(ctx context.Context) error { _, err := b.PromiseBlob(ctx, "r", layer); return err },
	}
	for what, f := range reads {
		check(what, 1, f)
	}
	b.listen(t)
	for what, f := range reads {
		if err := f(t.Context()); err != nil {
			t.Fatal(err)
		}
		check(what+", cached", 0, f)
	}
	put := func(n string) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			_, err := b.tryPut(ctx, "r", image(t, config, []oci.Digest{layer}, map[string]any{"annotations": map[string]string{"n": n}}), "v2")
			return err
		}
	}
	check("put of a new manifest to a repository not seen before", 2, put("2"))
	check("put of a new manifest", 1, put("3"))
	check("put of a known manifest", 2, put("3"))
	check("upload of a new blob: start, commit", 2, func(ctx context.Context) error {
		_, err := b.tryPush(ctx, "r", "another layer")
		return err
	})
	check("deletion of a manifest, with its repository", 2, func(ctx context.Context) error {
		return b.DeleteManifest(ctx, "r", oci.Compute(oci.SHA256, image(t, config, []oci.Digest{layer}, map[string]any{"annotations": map[string]string{"n": "3"}})))
	})
}

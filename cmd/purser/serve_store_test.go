package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/cmd/purser/internal/backend"
	"github.com/purser-registry/purser/cmd/purser/internal/serve"
	"github.com/purser-registry/purser/cmd/purser/internal/servetest"
	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/blob/blobtest"
	"github.com/purser-registry/purser/internal/blob/s3"
	"github.com/purser-registry/purser/internal/builtinpg/pgtest"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/testscale"
)

// onStore returns the settings of a server that uses the database `dsn` and keeps blobs in
// the directory `dir`.
func onStore(t *testing.T, dsn, dir string) []string {
	t.Helper()
	return []string{"PURSER_DATABASE_MAIN=" + dsn, "PURSER_STORAGE_FILESYSTEM_PATH=" + dir}
}

// refusedStart starts a server, which must refuse to start, and returns its error message.
func refusedStart(t *testing.T, environ []string) string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, w := io.Pipe()
	go func() { // stops a server that starts nevertheless
		io.ReadFull(r, make([]byte, 1)) //nolint:errcheck // the error of run is looked at
		cancel()
		io.Copy(io.Discard, r) //nolint:errcheck // as above
	}()
	err := serve.Run(ctx, servetest.Config(t, environ...), w, quiet, nil)
	w.Close() //nolint:errcheck // a pipe
	if err == nil {
		t.Fatal("the server started")
	}
	return err.Error()
}

// send makes a request and returns the status.
func send(t *testing.T, method, url, body string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	if resp.StatusCode >= http.StatusInternalServerError {
		t.Logf("%s %s: %s, %s", method, url, resp.Status, text)
	}
	return resp.StatusCode
}

// pushBlob pushes `content` to library/app in one request, and returns its digest and the
// status.
func pushBlob(t *testing.T, s *servetest.Server, content string) (oci.Digest, int) {
	t.Helper()
	d := oci.Compute(oci.SHA256, []byte(content))
	return d, send(t, "POST", s.Registry+"/v2/library/app/blobs/uploads/?digest="+d.String(), content)
}

// A server refuses to start on a store to which its database isn't bound: an empty
// directory, such as a mount point without its volume, or the store of another registry.
func TestServeRefusesAnotherStore(t *testing.T) {
	t.Parallel()
	dsn, dir := dbtest.DSN(t), t.TempDir()
	s := start(t, servetest.Config(t, onStore(t, dsn, dir)...))
	if _, code := pushBlob(t, s, "content"); code != http.StatusCreated {
		t.Fatalf("push: %d", code)
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	otherDSN, other := dbtest.DSN(t), t.TempDir()
	if err := start(t, servetest.Config(t, onStore(t, otherDSN, other)...)).Stop(); err != nil {
		t.Fatal(err)
	}
	empty := t.TempDir()
	refused := refusedStart(t, onStore(t, dsn, empty))
	for _, want := range []string{empty, dir, "purser store adopt"} {
		if !strings.Contains(refused, want) {
			t.Errorf("on an empty directory: %s\nwant %q", refused, want)
		}
	}
	if left, err := os.ReadDir(empty); err != nil || len(left) != 0 {
		t.Errorf("the refused server made %v in the directory (%v)", left, err)
	}
	ids := []string{storeID(t, dsn), storeID(t, otherDSN)}
	refused = refusedStart(t, onStore(t, dsn, other))
	for _, want := range append(ids, other, "purser store adopt") {
		if !strings.Contains(refused, want) {
			t.Errorf("on another registry's directory: %s\nwant %q", refused, want)
		}
	}
	refused = refusedStart(t, onStore(t, dbtest.DSN(t), dir))
	for _, want := range []string{ids[0], dir, "purser store adopt"} {
		if !strings.Contains(refused, want) {
			t.Errorf("a fresh database on a directory in use: %s\nwant %q", refused, want)
		}
	}
	if err := start(t, servetest.Config(t, onStore(t, dsn, dir)...)).Stop(); err != nil {
		t.Errorf("on its own directory: %v", err)
	}
}

// A server that can't use its store says what is wrong with it, and offers a new, empty store only where
// it has seen an empty one.
func TestAdviceAboutTheStore(t *testing.T) {
	t.Parallel()
	dsn, dir := dbtest.DSN(t), t.TempDir()
	if err := start(t, servetest.Config(t, onStore(t, dsn, dir)...)).Stop(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	bucket := blobtest.S3Server(t)
	onS3 := func(change func(*s3.Options)) []string {
		o := bucket
		change(&o)
		return []string{"PURSER_DATABASE_MAIN=" + dsn, "PURSER_STORAGE_S3_ENDPOINT=" + o.Endpoint, "PURSER_STORAGE_S3_BUCKET=" + o.Bucket,
			"PURSER_STORAGE_S3_REGION=" + o.Region, "PURSER_STORAGE_S3_PATH_STYLE=true", "PURSER_STORAGE_S3_ACCESS_KEY=" + o.AccessKey,
			"PURSER_STORAGE_S3_SECRET_KEY=" + o.SecretKey}
	}
	otherRegion := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { // as S3 answers
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(http.StatusBadRequest)
		if r.Method != http.MethodHead {
			fmt.Fprint(w, `<Error><Code>AuthorizationHeaderMalformed</Code><Message>the region is wrong</Message><Region>eu-central-1</Region></Error>`)
		}
	}))
	t.Cleanup(otherRegion.Close)
	for name, c := range map[string]struct {
		environ []string
		want    string
		force   bool
	}{
		"an empty directory":              {onStore(t, dsn, t.TempDir()), "is empty", true},
		"no directory":                    {onStore(t, dsn, filepath.Join(dir, "nothere")), "is its volume mounted?", false},
		"a file":                          {onStore(t, dsn, file), file, false},
		"a directory of something else":   {onStore(t, dsn, filepath.Dir(dir)), "is its volume mounted?", false},
		"a wrong secret key":              {onS3(func(o *s3.Options) { o.SecretKey = "wrong" }), "the credentials are wrong", false},
		"a wrong access key":              {onS3(func(o *s3.Options) { o.AccessKey = "nobody" }), "the credentials are wrong", false},
		"no such bucket":                  {onS3(func(o *s3.Options) { o.Bucket = "b-" + blob.NewBase() }), "create it or correct its name", false},
		"an empty bucket of the registry": {onS3(func(*s3.Options) {}), "is its path or bucket right?", false},
		"a wrong region":                  {onS3(func(o *s3.Options) { o.Endpoint = otherRegion.URL }), "is the region right?", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			refused := refusedStart(t, c.environ)
			if !strings.Contains(refused, c.want) || !strings.Contains(refused, dir) || strings.Contains(refused, "--force") != c.force {
				t.Errorf("%s\nwant %q, the place %s, and --force: %v", refused, c.want, dir, c.force)
			}
		})
	}
}

// When S3 stays away, a server gives up after a minute with this error.
func TestAdviceWhileS3IsAway(t *testing.T) {
	t.Parallel()
	dsn, dir := dbtest.DSN(t), t.TempDir()
	if err := start(t, servetest.Config(t, onStore(t, dsn, dir)...)).Stop(); err != nil {
		t.Fatal(err)
	}
	cfg := servetest.Config(t, "PURSER_DATABASE_MAIN="+dsn, "PURSER_STORAGE_S3_ENDPOINT=http://"+freeAddress(t), "PURSER_STORAGE_S3_BUCKET=images",
		"PURSER_STORAGE_S3_ACCESS_KEY=key", "PURSER_STORAGE_S3_SECRET_KEY=secret")
	_, err := backend.OpenStore(t.Context(), cfg.Storage, dbtest.Open(t, dsn), quiet, nil)
	if err == nil || !strings.Contains(err.Error(), "can it be reached from here?") || !strings.Contains(err.Error(), dir) || strings.Contains(err.Error(), "--force") {
		t.Errorf("%v\nwant that it can't be reached, the place %s, and no --force", err, dir)
	}
}

// storeID returns the identity of the store to which the database is bound.
func storeID(t *testing.T, dsn string) (id string) {
	t.Helper()
	if err := dbtest.Open(t, dsn).Pool.QueryRow(t.Context(), "SELECT id FROM store_identity").Scan(&id); err != nil {
		t.Fatal(err)
	}
	return id
}

// While a server runs, its blob directory is replaced by one without its identity, as if
// the volume were unmounted. The server notices this: it answers 503, isn't ready, and
// writes nothing to the new directory. When the old directory is back, the server goes on,
// and the blob can be pulled.
func TestStoreVanishesUnderARunningServer(t *testing.T) {
	t.Parallel()
	dsn, dir := dbtest.DSN(t), filepath.Join(t.TempDir(), "blobs")
	s := start(t, servetest.Config(t, onStore(t, dsn, dir)...))
	d, code := pushBlob(t, s, "content")
	if code != http.StatusCreated {
		t.Fatalf("push: %d", code)
	}
	at := s.Registry + "/v2/library/app/blobs/" + d.String()
	if err := os.Rename(dir, dir+"-away"); err != nil {
		t.Fatal(err)
	}
	for i := range 256 { // as an earlier start without the volume left the mount point
		if err := os.MkdirAll(filepath.Join(dir, "objects", fmt.Sprintf("%02x", i)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if _, code := pushBlob(t, s, "other content"); code != http.StatusServiceUnavailable {
		t.Errorf("push without the disk: %d, want 503", code)
	}
	if code := send(t, "GET", at, ""); code != http.StatusServiceUnavailable {
		t.Errorf("GET without the disk: %d, want 503", code)
	}
	servetest.WaitFor(t, "not ready", func() bool {
		code, text := get(t, s.Debug+"/readyz")
		return code == 503 && strings.Contains(text, dir)
	})
	servetest.WaitFor(t, "HEAD answers 503", func() bool { return send(t, "HEAD", at, "") == http.StatusServiceUnavailable })
	if err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			t.Errorf("%s was written", path)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(dir, dir+"-mountpoint"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(dir+"-away", dir); err != nil {
		t.Fatal(err)
	}
	servetest.WaitFor(t, "ready again", func() bool { code, _ := get(t, s.Debug+"/readyz"); return code == 200 })
	servetest.WaitFor(t, "pull", func() bool { return send(t, "GET", at, "") == http.StatusOK })
	if _, code := pushBlob(t, s, "other content"); code != http.StatusCreated {
		t.Errorf("push with the disk: %d", code)
	}
}

// pushImage pushes an image to library/app under a tag. Its only layer is `content`, which
// is also its configuration.
func pushImage(t *testing.T, s *servetest.Server, tag, content string) (layer, manifest oci.Digest) {
	t.Helper()
	d, code := pushBlob(t, s, content)
	if code != http.StatusCreated {
		t.Fatalf("push of %q: %d", content, code)
	}
	payload := fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":"application/vnd.oci.image.config.v1+json",`+
		`"digest":%q,"size":%d},"layers":[]}`, oci.MediaTypeImageManifest, d, len(content))
	if code := send(t, "PUT", s.Registry+"/v2/library/app/manifests/"+tag, payload); code != http.StatusCreated {
		t.Fatalf("push of manifest %s: %d", tag, code)
	}
	return d, oci.Compute(oci.SHA256, []byte(payload))
}

// After content was deleted and garbage collected, a backup of the database is restored
// that still has this content. With gc.keep_doomed, the blob store still has it, and it can
// be pulled. Without that setting, pulls of the missing content answer 404, and another
// push restores it.
func TestRestoredDatabase(t *testing.T) {
	t.Parallel()
	for _, keep := range testscale.Pick([]string{"0s"}, []string{"24h", "0s"}) {
		t.Run("keep_doomed "+keep, func(t *testing.T) {
			t.Parallel()
			dsn, dir := dbtest.DSN(t), t.TempDir()
			settings := func(dsn string) []string {
				return append(onStore(t, dsn, dir), "PURSER_GC_KEEP_DOOMED="+keep, "PURSER_GC_REVIEW_AFTER=0s",
					"PURSER_GC_REVIEW_AFTER_EVENTS=blob_upload=10s") // until its manifest is pushed
			}
			s := start(t, servetest.Config(t, settings(dsn)...))
			old, manifest := pushImage(t, s, "v1", "pushed before the backup")
			if err := s.Stop(); err != nil {
				t.Fatal(err)
			}
			backup := pgtest.Clone(t, nameOf(t, dsn))
			s = start(t, servetest.Config(t, settings(dsn)...))
			young, _ := pushImage(t, s, "v2", "pushed after the backup")
			if code := send(t, "DELETE", s.Registry+"/v2/library/app/manifests/"+manifest.String(), ""); code != http.StatusAccepted {
				t.Fatalf("DELETE: %d", code)
			}
			after := dbtest.Open(t, dsn) // a HEAD request would make the registry keep the blob
			servetest.WaitFor(t, "the blob is collected", func() bool {
				var n int
				err := after.Pool.QueryRow(t.Context(), "SELECT count(*) FROM blobs WHERE digest = $1", old.Bytes()).Scan(&n)
				return err == nil && n == 0
			})
			if err := s.Stop(); err != nil {
				t.Fatal(err)
			}
			_, ran, stderr := purser(t, settings(dsn), "gc", "run")
			_, status, _ := purser(t, settings(dsn), "gc", "status")
			if kept := strings.Contains(ran, "Kept in the store") && strings.Contains(status, "  kept "); kept != (keep != "0s") {
				t.Errorf("it printed\n%s%s%s", ran, stderr, status)
			}
			// The registry now starts on the restored backup.
			s = start(t, servetest.Config(t, settings(backup)...))
			at := s.Registry + "/v2/library/app/blobs/" + old.String()
			code, text := get(t, at)
			switch {
			case keep != "0s" && (code != 200 || text != "pushed before the backup"):
				t.Errorf("GET of what the backup knows: %d %s", code, text)
			case keep == "0s" && code != 404:
				t.Errorf("GET of what was swept: %d, want 404", code)
			}
			pushImage(t, s, "v1", "pushed before the backup")
			if code, text := get(t, at); code != 200 || text != "pushed before the backup" {
				t.Errorf("GET after another push: %d %s", code, text)
			}
			if code := send(t, "HEAD", s.Registry+"/v2/library/app/blobs/"+young.String(), ""); code != 404 {
				t.Errorf("HEAD of what the backup doesn't know: %d", code)
			}
			if err := s.Stop(); err != nil {
				t.Fatal(err)
			}
			checkRestored(t, settings(backup), dir, keep != "0s")
			_, err := os.Stat(objectFile(t, dsn, dir, young))
			if keep != "0s" && err != nil {
				t.Errorf("what only the newer database knows: %v", err)
			}
		})
	}
}

// checkRestored runs "purser check --repair" after the restore. If `kept` is set
// (gc.keep_doomed is 24h), the repair must not touch the objects that only the newer
// database knew, since they are younger than 24 hours. Otherwise it must report them as
// objects that nothing owns.
func checkRestored(t *testing.T, environ []string, dir string, kept bool) {
	t.Helper()
	long := time.Now().Add(-12 * time.Hour) // longer than any request
	if err := filepath.WalkDir(filepath.Join(dir, "objects"), func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		return os.Chtimes(path, long, long)
	}); err != nil {
		t.Fatal(err)
	}
	code, text, stderr := purser(t, environ, "check", "--repair")
	if code != 0 || strings.Contains(text, "younger than gc.keep_doomed") != kept || strings.Contains(text, "that nothing owns") == kept {
		t.Errorf("check --repair: exit code %d\n%s\n%s", code, text, stderr)
	}
	if code, text, stderr = purser(t, environ, "gc", "run"); code != 0 {
		t.Errorf("gc run: exit code %d\n%s\n%s", code, text, stderr)
	}
}

// objectFile returns the path of the file that holds a blob, according to the blob's row in
// the table blobs.
func objectFile(t *testing.T, dsn, dir string, d oci.Digest) string {
	t.Helper()
	var key string
	if err := dbtest.Open(t, dsn).Pool.QueryRow(t.Context(), "SELECT storage_key FROM blobs WHERE digest = $1", d.Bytes()).Scan(&key); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "objects", key[:2], key)
}

func nameOf(t *testing.T, dsn string) string {
	t.Helper()
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	return cfg.Database
}

package distribution_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/blob/blobtest"
	"github.com/purser-registry/purser/internal/blob/s3"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// failing is a store whose operations all fail.
type failing struct {
	blob.Store
	err error
}

func (f failing) Open(context.Context, string, int64, int64) (io.ReadCloser, error) {
	return nil, f.err
}

func (f failing) Resume(ctx context.Context, base string, state blob.State, size int64, claim blob.Claim, numbers blob.Numbers) (blob.Writer, error) {
	if _, err := claim(ctx); err != nil {
		return nil, err
	}
	return nil, f.err
}

func (f failing) Stat(context.Context, string) (blob.Object, error) { return blob.Object{}, f.err }

// TestStoreTrouble: every operation of the store fails with an error of the file system. The
// registry must answer 503, or 507 if the disk is full, with a text that explains the kind of
// failure without details. It must log the cause once, with the request's id.
func TestStoreTrouble(t *testing.T) {
	t.Parallel()
	path := func(err error) error { return &os.PathError{Op: "open", Path: "objects/aa/secret", Err: err} }
	for word, err := range map[string]error{
		"permissions":   path(syscall.EACCES),
		"credentials":   path(syscall.EPERM),
		"read-only":     path(syscall.EROFS),
		"missing":       path(syscall.ENOTDIR),
		"restore its":   fmt.Errorf("no volume: %w", path(syscall.ENOENT)),
		"not available": path(syscall.EIO),
		"try again":     &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, // the same error as from an unreachable database
		"full":          path(syscall.ENOSPC),
	} {
		t.Run(word, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			d := r.Push(t, "a", pattern(1, 100_000))
			on := replica(t, r.DSN, r.Dir, func(o *servertest.Options) { o.Store = failing{o.Store, err} })
			status := 503
			if word == "full" {
				status = 507
			}
			on.storeFails(t, d, status, word)
		})
	}
}

// storeFails sends one request of each kind that needs the store to a registry whose store
// fails. It checks that each answer has the status `status` and a text with `word`, and that
// each failure is logged.
func (r *registry) storeFails(t *testing.T, d oci.Digest, status int, word string) {
	t.Helper()
	before := len(r.Log.Records(t, "request failed"))
	requests := [][3]string{
		{"GET", "/v2/a/blobs/" + d.String(), ""},
		{"PATCH", r.StartUpload(t, "a", ""), pattern(2, 100_000)},
		{"PUT", r.StartUpload(t, "a", "") + "?digest=" + digest("small").String(), "small"},
		{"POST", "/v2/a/blobs/uploads/?digest=" + digest("small").String(), "small"},
	}
	t.Run("requests", func(t *testing.T) { // beside each other, since a client of S3 tries again for seconds
		for _, q := range requests {
			t.Run(q[0], func(t *testing.T) {
				t.Parallel()
				a := r.Do(t, q[0], q[1], q[2]).Want(t, status, oci.Unavailable)
				text := string(a.Content)
				if !strings.Contains(text, word) || !strings.Contains(text, "storage") || strings.Contains(text, "database") || strings.Contains(text, "secret") {
					t.Errorf("%s is told %s, which doesn't say %q, of %v", q[1], text, word, r.Log.Records(t, "request failed"))
				}
			})
		}
	})
	r.Do(t, "HEAD", "/v2/a/blobs/"+d.String(), "").Want(t, 200, "") // answered from the database alone
	failures := r.Log.Records(t, "request failed")[before:]
	if len(failures) != len(requests) {
		t.Errorf("%d of %d failures are in the log", len(failures), len(requests))
	}
	ids := map[any]bool{}
	for _, f := range failures {
		ids[f["request_id"]] = true
		if f["error"] == "" {
			t.Errorf("no cause in %v", f)
		}
	}
	for _, line := range r.Log.Records(t, "request") {
		if ids[line["request_id"]] && line["error"] != nil {
			t.Errorf("the cause is in the log a second time: %v", line)
		}
	}
}

// TestS3Trouble checks the same as TestStoreTrouble, but with an S3 store that fails because of
// wrong credentials, a missing bucket, an unreachable server, or a server that answers 501.
func TestS3Trouble(t *testing.T) {
	t.Parallel()
	bucket := blobtest.S3Server(t)
	good, err := s3.New(bucket)
	if err != nil {
		t.Fatal(err)
	}
	r := setup(t)
	use := func(store blob.Store) func(*servertest.Options) {
		c := catalog.New(catalog.Options{DB: r.DB, CacheOff: true, Look: func(ctx context.Context, key string, size int64) (string, error) {
			return blob.Look(ctx, store, key, size)
		}})
		return func(o *servertest.Options) { o.Catalog, o.Store, o.StoreTrouble = c, store, s3.TroubleOf }
	}
	d := replica(t, r.DSN, r.Dir, use(good)).Push(t, "a", pattern(1, 100_000))
	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotImplemented) }))
	t.Cleanup(broken.Close)
	for word, change := range map[string]func(*s3.Options){
		"credentials":   func(o *s3.Options) { o.SecretKey = "wrong" },
		"permissions":   func(o *s3.Options) { o.AccessKey = "nobody" },
		"bucket":        func(o *s3.Options) { o.Bucket = "b-" + blob.NewBase() },
		"not available": func(o *s3.Options) { o.Endpoint = "http://127.0.0.1:1" },
		"try again":     func(o *s3.Options) { o.Endpoint = broken.URL },
	} {
		t.Run(word, func(t *testing.T) {
			t.Parallel()
			o := bucket
			change(&o)
			store, err := s3.New(o)
			if err != nil {
				t.Fatal(err)
			}
			on := replica(t, r.DSN, r.Dir, use(store))
			on.storeFails(t, d, 503, word)
		})
	}
}

// TestStoreTroubleIsNotTheDatabases: the database can't be reached while a client sends an
// upload whose bytes are written to the store. The answer must say that the database failed,
// and not the store.
func TestStoreTroubleIsNotTheDatabases(t *testing.T) {
	t.Parallel()
	r := setup(t)
	at := r.StartUpload(t, "a", "")
	r.Do(t, "PATCH", at, pattern(1, 100_000)).Want(t, 202, "")
	r.DB.Close()
	a := r.Do(t, "PATCH", at, pattern(1, 100_000)).Want(t, 503, oci.Unavailable)
	if !strings.Contains(string(a.Content), "database") {
		t.Errorf("an upload without a database is told %s", a.Content)
	}
}

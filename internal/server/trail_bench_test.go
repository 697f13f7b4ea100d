package server_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/pullstats"
	"github.com/purser-registry/purser/internal/server"
)

// nowhere takes an answer.
type nowhere struct{ header http.Header }

func (w nowhere) Header() http.Header         { return w.header }
func (w nowhere) Write(p []byte) (int, error) { return len(p), nil }
func (w nowhere) WriteHeader(int)             {}

// BenchmarkPull is a pull of a manifest by tag from the cache, without the network,
// with and without the log.
func BenchmarkPull(b *testing.B) {
	for _, logging := range []bool{false, true} {
		b.Run(fmt.Sprintf("log %v", logging), func(b *testing.B) {
			dsn := dbtest.DSN(b)
			recorder := audit.NewRecorder(audit.RecorderOptions{DB: dbtest.Open(b, dsn), Alive: catalog.AliveRepositories, Buffer: 1 << 30})
			r := replica(b, dsn, b.TempDir(), func(o *server.Options) {
				if o.AccessLog = false; logging {
					o.Recorder = pullstats.NewRecorder(pullstats.RecorderOptions{Log: recorder})
				}
			})
			r.listen(b)
			r.put(b, "app", "v1", r.simple(b, "app", 1, nil))
			req := httptest.NewRequest("GET", "/v2/app/manifests/v1", nil)
			req.Header.Set("User-Agent", "containerd/2.1")
			b.ReportAllocs()
			for b.Loop() {
				r.handler.ServeHTTP(nowhere{http.Header{}}, req)
			}
		})
	}
}

// BenchmarkPut is a push of a new manifest to a tag that moves, with and without
// the log.
func BenchmarkPut(b *testing.B) {
	for _, logging := range []bool{false, true} {
		b.Run(fmt.Sprintf("log %v", logging), func(b *testing.B) {
			r := replica(b, dbtest.DSN(b), b.TempDir())
			payload := r.simple(b, "app", "0000000000", nil)
			o := catalog.Options{DB: r.db, Replica: uuid.New()}
			if logging {
				o.Audit = catalog.Audit{Insert: audit.InsertFrom, Who: audit.Who}
			}
			c := catalog.New(o)
			for n := 0; b.Loop(); n++ {
				p := catalog.NewManifest{Repository: "app", Tags: []string{"v1"}}
				p.Payload = []byte(strings.Replace(payload, "0000000000", fmt.Sprintf("%010d", n), 1))
				p.Digest = digest(string(p.Payload))
				var err error
				if p.Manifest, err = oci.ParseManifest("", p.Payload); err == nil {
					err = c.PutManifest(b.Context(), p)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

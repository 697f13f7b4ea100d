package distribution_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/pullstats"
	"github.com/purser-registry/purser/internal/pullstats/redispulls"
	"github.com/purser-registry/purser/internal/pullstats/redistest"
	"github.com/purser-registry/purser/internal/pullstats/statsdb"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// nowhere is a ResponseWriter that discards the answer.
type nowhere struct{ header http.Header }

func (w nowhere) Header() http.Header         { return w.header }
func (w nowhere) Write(p []byte) (int, error) { return len(p), nil }
func (w nowhere) WriteHeader(int)             {}

// BenchmarkPull pulls a manifest by tag from the cache, without the network. Its variant "none"
// doesn't record the pulls. "log" records them for the audit log, but only in memory: the
// entries are never written to the database. "redis" counts the pulls in Redis and does send
// the counts there; with -cpu 1 the result includes the time for sending.
func BenchmarkPull(b *testing.B) {
	for _, how := range []string{"none", "log", "redis"} {
		b.Run(how, func(b *testing.B) {
			dsn := dbtest.DSN(b)
			d := dbtest.Open(b, dsn)
			var rec *pullstats.Recorder
			switch how {
			case "log":
				log := audit.NewRecorder(audit.RecorderOptions{DB: d, Alive: catalog.AliveRepositories, Buffer: 1 << 30})
				rec = pullstats.NewRecorder(pullstats.RecorderOptions{Log: log})
			case "redis":
				rec = countingInRedis(b, d)
			}
			r := replica(b, dsn, b.TempDir(), func(o *servertest.Options) { o.Server.AccessLog, o.Recorder = false, rec })
			r.Listen(b)
			r.Put(b, "app", "v1", r.Simple(b, "app", 1, nil))
			req := httptest.NewRequest("GET", "/v2/app/manifests/v1", nil)
			req.Header.Set("User-Agent", "containerd/2.1")
			b.ReportAllocs()
			for b.Loop() {
				r.Handler.ServeHTTP(nowhere{http.Header{}}, req)
			}
		})
	}
}

// countingInRedis starts a Redis server and a recorder that counts pulls in it, and stops the
// recorder when the benchmark ends.
func countingInRedis(b *testing.B, d *db.DB) *pullstats.Recorder {
	b.Helper()
	redis, err := redispulls.NewClient(redistest.Start(b).URL(), d)
	if err != nil {
		b.Fatal(err)
	}
	lastUsed, err := pullstats.NewLastUsedRecorder(pullstats.LastUsedOptions{Databases: statsdb.Databases{Log: d, Stats: d, Alive: catalog.LivingNamespaces}})
	if err != nil {
		b.Fatal(err)
	}
	rec := pullstats.NewRecorder(pullstats.RecorderOptions{Count: true, Redis: redis, LastUsed: lastUsed, Buffer: 100_000})
	ctx, stop := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- rec.Run(ctx) }()
	b.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			b.Error(err)
		}
		redis.Close() //nolint:errcheck // the test is over
	})
	return rec
}

// BenchmarkPut pushes new manifests to an existing tag. The registry writes audit entries for
// each push.
func BenchmarkPut(b *testing.B) {
	r := replica(b, dbtest.DSN(b), b.TempDir())
	payload := r.Simple(b, "app", "0000000000", nil)
	c := catalog.New(catalog.Options{DB: r.DB, Replica: uuid.New()})
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
}

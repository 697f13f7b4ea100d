package redispulls

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/pullstats/redistest"
	"github.com/purser-registry/purser/internal/pullstats/statsdb"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

// The tests of this package are about Redis and the database alone. Those in which recorders send
// pulls, and workers count what Redis has lost, are in package pullstats.

var (
	quiet = slog.New(slog.DiscardHandler)
	noon  = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	// midnight is a moment at which a day begins.
	midnight = time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func digest(name string) oci.Digest { return oci.Compute(oci.SHA256, []byte(name)) }

// redisServer is a Redis server for one test.
type redisServer struct{ *redistest.Server }

func startRedis(t testing.TB) redisServer {
	t.Helper()
	return redisServer{redistest.Start(t)}
}

func (s redisServer) client(t testing.TB) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{Network: "unix", Addr: s.Socket, DisableIdentity: true})
	t.Cleanup(func() { c.Close() }) //nolint:errcheck // the test is over
	return c
}

// open returns the client of the registry with these statistics.
func (s redisServer) open(t testing.TB, stats *db.DB) *Client {
	t.Helper()
	r, err := NewClient(s.URL(), stats)
	must(t, err)
	t.Cleanup(func() { r.Close() }) //nolint:errcheck // the test is over
	return r
}

// newFlusher returns a worker that flushes r into the database d, where all repositories exist, in the
// namespace 1.
func newFlusher(t testing.TB, r *Client, d *db.DB, m *Metrics) *FlushWorker {
	t.Helper()
	exist := func(_ context.Context, _ pgx.Tx, ids []int64) (map[int64]int64, error) {
		of := map[int64]int64{}
		for _, id := range ids {
			of[id] = 1
		}
		return of, nil
	}
	w, err := NewFlushWorker(FlushOptions{
		Databases: statsdb.Databases{Log: d, Stats: d, Alive: exist}, Redis: r, Backoff: time.Millisecond, Logger: quiet, Metrics: m,
	})
	must(t, err)
	return w
}

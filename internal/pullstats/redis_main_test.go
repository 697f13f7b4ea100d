package pullstats

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/pullstats/redispulls"
	"github.com/purser-registry/purser/internal/pullstats/redistest"
	"github.com/purser-registry/purser/internal/pullstats/statsdb"
)

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

// open returns the Redis client of the registry with these statistics.
func (s redisServer) open(t testing.TB, stats *db.DB) *redispulls.Client {
	t.Helper()
	r, err := redispulls.NewClient(s.URL(), stats)
	must(t, err)
	t.Cleanup(func() { r.Close() }) //nolint:errcheck // the test is over
	return r
}

func (s *shop) databases() statsdb.Databases {
	return statsdb.Databases{Log: s.log, Stats: s.stats, Alive: namespaces}
}

// flusher is a FlushWorker that calls crash at each of its steps.
type flusher struct {
	*redispulls.FlushWorker
	crash func(step string)
}

func (s *shop) flusher(t testing.TB, r *redispulls.Client, change ...func(*redispulls.FlushOptions)) *flusher {
	t.Helper()
	w := &flusher{crash: func(string) {}}
	o := redispulls.FlushOptions{
		Databases: s.databases(), Redis: r, Backoff: time.Millisecond, Logger: quiet, Step: func(step string) { w.crash(step) },
	}
	for _, f := range change {
		f(&o)
	}
	var err error
	w.FlushWorker, err = redispulls.NewFlushWorker(o)
	must(t, err)
	return w
}

// recorder returns a recorder whose pulls Redis counts or, if r is nil, the SyncWorker
// counts from the audit log.
func (s *shop) recorder(t testing.TB, r *redispulls.Client, change ...func(*RecorderOptions)) *Recorder {
	t.Helper()
	lastUsed, err := NewLastUsedRecorder(LastUsedOptions{Databases: s.databases(), Log: quiet})
	must(t, err)
	o := RecorderOptions{
		Log:   audit.NewRecorder(audit.RecorderOptions{DB: s.log, Alive: alive, Log: quiet}),
		Count: true, Redis: r, LastUsed: lastUsed, Logger: quiet,
	}
	for _, f := range change {
		f(&o)
	}
	return NewRecorder(o)
}

// finish ends a recorder: it sends its pulls to Redis, and writes its entries and last-used
// times.
func finish(t testing.TB, r *Recorder) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	r.Close(ctx)
	must(t, r.opt.Log.Close(ctx))
	must(t, r.opt.LastUsed.Close(ctx))
	must(t, r.Leave(ctx, false))
}

// client returns the entry of a request that the client called name makes.
func (s *shop) client(name string, repository int, tag, content string) audit.Entry {
	e := s.pull(repository, tag, content, time.Time{})
	e.Address, e.UserAgent = name, "containerd/1.7"
	return e
}

// logged returns the number of pulls in the audit log whose entries have this counted_by.
func (s *shop) logged(t testing.TB, countedBy string) int64 {
	t.Helper()
	return number(t, s.log, "SELECT COALESCE(sum(pulls), 0) FROM auditlog WHERE counted_by = $1", countedBy)
}

// These are keys in Redis, and what the keys of counters and of their sets begin with.
const (
	counterPrefix   = "pull_events:repo:"
	uncountedPrefix = "pull_events:uncounted:"
	epochKey        = "pull_events:flush"
	ownerKey        = "pull_events:owner"
)

// counterKey returns the key of the counter of a manifest's pulls by tag.
func counterKey(repository int64, tag string, d oci.Digest) string {
	return fmt.Sprintf("%s{%d}:tag:%s:%s", counterPrefix, repository, tag, d)
}

func uncountedKey(repository int64) string { return fmt.Sprintf("%s{%d}", uncountedPrefix, repository) }

func keysOf(t testing.TB, c *redis.Client) []string {
	t.Helper()
	list, err := c.Keys(t.Context(), counterPrefix+"*").Result()
	must(t, err)
	return list
}

func tagName(s *shop, repository int, tag string) string {
	return fmt.Sprintf("tag %d %s", s.repositories[repository], tag)
}

func manifestName(s *shop, repository int, content string) string {
	return fmt.Sprintf("manifest %d %s", s.repositories[repository], digest(content))
}

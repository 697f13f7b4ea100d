package pullstats

import (
	"context"
	"fmt"
	"os"
	osexec "os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/db"
)

// redisServer is a Redis of a test's own, on a socket, that writes down each command
// before it answers.
type redisServer struct {
	program, dir, socket string
	cmd                  *osexec.Cmd
}

// redisProgram is the path of a server, if one is installed: the test is skipped
// otherwise, but fails in CI.
func redisProgram(t testing.TB) string {
	t.Helper()
	for _, name := range []string{"redis-server", "valkey-server"} {
		if path, err := osexec.LookPath(name); err == nil {
			return path
		}
	}
	if os.Getenv("CI") != "" {
		t.Fatal("redis-server isn't installed: see tools/packages")
	}
	t.Skip("needs redis-server: see tools/packages")
	return ""
}

// startRedis starts a Redis, or skips the test where none is installed.
func startRedis(t testing.TB) *redisServer {
	t.Helper()
	s := &redisServer{program: redisProgram(t)}
	dir, err := os.MkdirTemp("", "redis-") // t.TempDir may be too long for a socket
	must(t, err)
	s.dir, s.socket = dir, filepath.Join(dir, "s")
	t.Cleanup(func() {
		s.kill(t)
		os.RemoveAll(dir) //nolint:errcheck // a leftover temporary directory harms nobody
	})
	s.start(t)
	return s
}

func (s *redisServer) start(t testing.TB) {
	t.Helper()
	s.cmd = osexec.Command(s.program, "--port", "0", "--unixsocket", s.socket, "--save", "",
		"--appendonly", "yes", "--appendfsync", "always", "--dir", s.dir)
	must(t, s.cmd.Start())
	c := s.client(t)
	for deadline := time.Now().Add(30 * time.Second); c.Ping(t.Context()).Err() != nil; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("Redis doesn't answer")
		}
	}
}

// kill ends it without a word.
func (s *redisServer) kill(t testing.TB) {
	t.Helper()
	if s.cmd == nil {
		return
	}
	s.cmd.Process.Kill() //nolint:errcheck // it may have ended
	s.cmd.Wait()         //nolint:errcheck // by the signal
	s.cmd = nil
}

func (s *redisServer) url() string { return "unix://" + s.socket }

func (s *redisServer) client(t testing.TB) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{Network: "unix", Addr: s.socket, DisableIdentity: true})
	t.Cleanup(func() { c.Close() }) //nolint:errcheck // the test is over
	return c
}

// open makes the client of a registry.
func (s *redisServer) open(t testing.TB, stats *db.DB) *Redis {
	t.Helper()
	r, err := NewRedis(s.url(), stats)
	must(t, err)
	t.Cleanup(func() { r.Close() }) //nolint:errcheck // the test is over
	return r
}

func (s *shop) databases() Databases { return Databases{s.log, s.stats, alive} }

func (s *shop) flusher(t testing.TB, r *Redis, change ...func(*FlushOptions)) *FlushWorker {
	t.Helper()
	o := FlushOptions{Databases: s.databases(), Redis: r, Backoff: time.Millisecond, Logger: quiet}
	for _, f := range change {
		f(&o)
	}
	w, err := NewFlushWorker(o)
	must(t, err)
	return w
}

// recorder is one that counts in Redis, or from the log if r is nil.
func (s *shop) recorder(t testing.TB, r *Redis, change ...func(*RecorderOptions)) *Recorder {
	t.Helper()
	marks, err := NewMarks(MarksOptions{Databases: s.databases(), Log: quiet})
	must(t, err)
	o := RecorderOptions{
		Log:   audit.NewRecorder(audit.RecorderOptions{DB: s.log, Alive: alive, Log: quiet}),
		Count: true, Redis: r, Marks: marks, Logger: quiet,
	}
	for _, f := range change {
		f(&o)
	}
	return NewRecorder(o)
}

// finish has a recorder send and write all that it has.
func finish(t testing.TB, r *Recorder) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	r.Close(ctx)
	must(t, r.opt.Log.Close(ctx))
	must(t, r.opt.Marks.Close(ctx))
}

// client is an entry of a client's request.
func (s *shop) client(name string, repository int, tag, content string) audit.Entry {
	e := s.pull(repository, tag, content, time.Time{})
	e.Address, e.UserAgent = name, "containerd/1.7"
	return e
}

// logged are the entries of the log.
func (s *shop) logged(t testing.TB, countedBy string) int64 {
	t.Helper()
	return number(t, s.log, "SELECT count(*) FROM auditlog WHERE counted_by = $1", countedBy)
}

func keysOf(t testing.TB, c *redis.Client) []string {
	t.Helper()
	list, err := c.Keys(t.Context(), pullPrefix+"*").Result()
	must(t, err)
	return list
}

func tagName(s *shop, repository int, tag string) string {
	return fmt.Sprintf("tag %d %s", s.repositories[repository], tag)
}

func manifestName(s *shop, repository int, content string) string {
	return fmt.Sprintf("manifest %d %s", s.repositories[repository], digest(content))
}

package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/purser-registry/purser/loosefk/contrib/redislock"
)

// server is a Redis server of one test, which listens on a socket.
type server struct {
	socket string
	cmd    *exec.Cmd
}

// startRedis starts a Redis server. If no Redis is installed, it skips the test; in CI it
// fails the test.
func startRedis(t *testing.T) *server {
	t.Helper()
	var program string
	for _, name := range []string{"redis-server", "valkey-server"} {
		if path, err := exec.LookPath(name); err == nil && program == "" {
			program = path
		}
	}
	if program == "" {
		if os.Getenv("CI") != "" {
			t.Fatal("redis-server isn't installed: see tools/packages")
		}
		t.Skip("needs redis-server: see tools/packages")
	}
	dir, err := os.MkdirTemp("", "redis-") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	s := &server{socket: filepath.Join(dir, "s")}
	s.cmd = exec.Command(program, "--port", "0", "--unixsocket", s.socket, "--save", "", "--appendonly", "no", "--dir", dir)
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.stop()
		os.RemoveAll(dir) //nolint:errcheck // a leftover temporary directory harms nobody
	})
	client := s.client(t)
	deadline := time.Now().Add(2 * time.Minute)
	for client.Ping(t.Context()).Err() != nil {
		if time.Now().After(deadline) {
			t.Fatal("Redis doesn't answer")
		}
		time.Sleep(10 * time.Millisecond)
	}
	return s
}

func (s *server) stop() {
	s.cmd.Process.Kill() //nolint:errcheck // it may be gone
	s.cmd.Wait()         //nolint:errcheck // it was killed
}

func (s *server) client(t *testing.T) *redis.Client {
	c := redis.NewClient(&redis.Options{Network: "unix", Addr: s.socket, MaxRetries: -1})
	t.Cleanup(func() { c.Close() }) //nolint:errcheck // the test is over
	return c
}

func TestHold(t *testing.T) {
	t.Parallel()
	client := startRedis(t).client(t)
	a, b := &redislock.Lock{Client: client, Prefix: "app/"}, &redislock.Lock{Client: client, Prefix: "app/"}
	ran := false
	held, err := a.TryRun(t.Context(), nil, "projects", func(ctx context.Context) error {
		ran = true
		if ttl := client.PTTL(ctx, "app/projects").Val(); ttl <= 0 || ttl > redislock.DefaultTTL {
			t.Errorf("the key lives for %s", ttl)
		}
		held, err := b.TryRun(ctx, nil, "projects", func(context.Context) error {
			t.Error("it ran under a lock that another has")
			return nil
		})
		if held || err != nil {
			t.Errorf("a lock that another has: %v, %v", held, err)
		}
		held, err = b.TryRun(ctx, nil, "users", func(context.Context) error { return errors.New("mine") })
		if !held || err == nil || err.Error() != "mine" {
			t.Errorf("another lock: %v, %v", held, err)
		}
		return nil
	})
	if !held || err != nil || !ran {
		t.Errorf("held %v, ran %v, %v", held, ran, err)
	}
	if n := client.DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("%d keys are left", n)
	}
	if held, err := b.TryRun(t.Context(), nil, "projects", func(context.Context) error { return nil }); !held || err != nil {
		t.Errorf("a lock that was released: %v, %v", held, err)
	}
}

// TestHoldRenews holds a lock for four times its TTL: the lock must not expire.
func TestHoldRenews(t *testing.T) {
	t.Parallel()
	client := startRedis(t).client(t)
	const ttl = 300 * time.Millisecond
	lock := &redislock.Lock{Client: client, TTL: ttl}
	held, err := lock.TryRun(t.Context(), nil, "x", func(ctx context.Context) error {
		token := client.Get(ctx, "x").Val()
		for end := time.Now().Add(4 * ttl); time.Now().Before(end); time.Sleep(ttl / 20) {
			if got := client.Get(ctx, "x").Val(); got != token || token == "" {
				return fmt.Errorf("the key is %q, was %q", got, token)
			}
		}
		return ctx.Err()
	})
	if !held || err != nil {
		t.Error(held, err)
	}
}

// TestHoldLost replaces the lock's Redis key as if another process had taken the lock. The
// context of fn must end, and the other process's key must stay.
func TestHoldLost(t *testing.T) {
	t.Parallel()
	client := startRedis(t).client(t)
	lock := &redislock.Lock{Client: client, TTL: 150 * time.Millisecond}
	held, err := lock.TryRun(t.Context(), nil, "x", func(ctx context.Context) error {
		if err := client.Set(ctx, "x", "another's", 0).Err(); err != nil {
			return err
		}
		return wait(t, ctx)
	})
	if !held || !errors.Is(err, redislock.ErrLost) || !errors.Is(err, context.Canceled) {
		t.Error(held, err)
	}
	if got := client.Get(t.Context(), "x").Val(); got != "another's" {
		t.Errorf("the key is %q: the lock of another was touched", got)
	}
}

// wait waits until ctx ends.
func wait(t *testing.T, ctx context.Context) error {
	t.Helper()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(2 * time.Minute):
		t.Error("the context doesn't end")
		return nil
	}
}

// TestHoldUnreachable stops Redis while a lock is held. The context of fn must end before
// the lock would have expired.
func TestHoldUnreachable(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	lock := &redislock.Lock{Client: s.client(t), TTL: 300 * time.Millisecond}
	began := time.Now()
	held, err := lock.TryRun(t.Context(), nil, "x", func(ctx context.Context) error {
		s.stop()
		return wait(t, ctx)
	})
	if !held || !errors.Is(err, redislock.ErrLost) {
		t.Error(held, err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %s to notice", took)
	}
	held, err = lock.TryRun(t.Context(), nil, "x", func(context.Context) error { return nil })
	if held || err == nil || !strings.Contains(err.Error(), "in Redis") || !strings.Contains(err.Error(), s.socket) {
		t.Errorf("without Redis: %v, %v", held, err)
	}
}

// TestHoldEnds ends the caller's context: TryRun must release the lock at once.
func TestHoldEnds(t *testing.T) {
	t.Parallel()
	client := startRedis(t).client(t)
	lock := &redislock.Lock{Client: client}
	ctx, cancel := context.WithCancel(t.Context())
	held, err := lock.TryRun(ctx, nil, "x", func(ctx context.Context) error {
		cancel()
		return wait(t, ctx)
	})
	if !held || !errors.Is(err, context.Canceled) || errors.Is(err, redislock.ErrLost) {
		t.Error(held, err)
	}
	if n := client.Exists(t.Context(), "x").Val(); n != 0 {
		t.Error("the lock outlives its holder")
	}
}

// Package redislock provides a lock in Redis, which keeps two workers of loose foreign keys
// from processing the same parent table at once. By default workers use advisory locks of
// PostgreSQL. Use redislock instead if no database connection should be held open for a
// lock, or if the application keeps its other locks in Redis already.
//
// The lock is a Redis key that expires; its value is a random text of the process that
// holds the lock. Redis may lose the key, and a process that was stopped for a long time
// may believe that it still holds the lock. Neither does harm: two workers that run at once
// only do the same work twice.
package redislock

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/purser-registry/purser/loosefk"
)

// DefaultTTL is the default time after which the lock of a process that died expires.
const DefaultTTL = 30 * time.Second

// Lock implements loosefk.Lock in Redis. Don't change its fields after the first use.
type Lock struct {
	Client redis.UniversalClient // required; the caller closes it
	// TTL is the time after which the lock expires unless the process renews it. The
	// process renews it three times within this time. Default DefaultTTL.
	TTL time.Duration
	// Prefix is put before the lock's name to make the Redis key. Default none.
	Prefix string
}

var _ loosefk.Lock = (*Lock)(nil)

// ErrLost is the cause (context.Cause) with which TryRun ends the context of fn when the lock
// is lost. From then on another process may hold the lock.
var ErrLost = errors.New("the lock in Redis is lost")

// The scripts change a Redis key only if its value is the caller's random text.
var (
	renew = redis.NewScript(`if redis.call("GET", KEYS[1]) == ARGV[1] then
	return redis.call("PEXPIRE", KEYS[1], ARGV[2])
end
return 0`)
	release = redis.NewScript(`if redis.call("GET", KEYS[1]) == ARGV[1] then
	return redis.call("DEL", KEYS[1])
end
return 0`)
)

// TryRun implements loosefk.Lock. If Redis can't be reached, it returns an error with
// Redis's address. If another process holds the lock, it returns false and no error.
// Otherwise it returns true and the error of fn, joined with ErrLost if fn failed after the
// lock was lost.
func (l *Lock) TryRun(ctx context.Context, _ *loosefk.Database, name string, fn func(ctx context.Context) error) (held bool, err error) {
	ttl := l.TTL
	if ttl <= 0 {
		ttl = DefaultTTL
	}
	if ttl < 10*time.Millisecond { // must leave time for three renewals
		return false, fmt.Errorf("taking lock %s in Redis: the lock's time to live is %s: it has to be at least 10ms", name, ttl)
	}
	key, token := l.Prefix+name, rand.Text()
	expires := time.Now().Add(ttl)
	held, err = l.take(ctx, key, token, ttl)
	if err != nil {
		return false, fmt.Errorf("taking lock %s in Redis: %w", key, err)
	}
	if !held {
		return false, nil
	}
	lockCtx, lost := context.WithCancelCause(ctx)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		if err := l.keep(lockCtx, key, token, ttl, expires); err != nil {
			lost(err)
		}
	}()
	err = fn(lockCtx)
	cause := context.Cause(lockCtx)
	lost(nil)
	<-stopped
	l.release(ctx, key, token, ttl)
	if err != nil && errors.Is(cause, ErrLost) {
		err = errors.Join(err, cause)
	}
	return true, err
}

func (l *Lock) take(ctx context.Context, key, token string, ttl time.Duration) (bool, error) {
	err := l.Client.SetArgs(ctx, key, token, redis.SetArgs{Mode: "NX", TTL: ttl}).Err()
	if errors.Is(err, redis.Nil) {
		return false, nil
	}
	return err == nil, err
}

// keep renews the lock until ctx ends. It returns ErrLost if Redis no longer has the key
// with the caller's value, or if Redis couldn't be reached until shortly before the lock
// expires.
func (l *Lock) keep(ctx context.Context, key, token string, ttl time.Duration, expires time.Time) error {
	tick := time.NewTicker(ttl / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		began := time.Now()
		try, cancel := context.WithDeadline(ctx, expires)
		kept, err := renew.Run(try, l.Client, []string{key}, token, ttl.Milliseconds()).Int()
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil && kept == 0:
			return fmt.Errorf("%w: %s has expired or was removed", ErrLost, key)
		case err == nil:
			expires = began.Add(ttl)
		case !time.Now().Add(ttl / 3).Before(expires):
			return fmt.Errorf("%w: renewing %s: %w", ErrLost, key, err)
		}
	}
}

// release deletes the Redis key, even if ctx has ended. If this fails, the key expires by
// itself.
func (l *Lock) release(ctx context.Context, key, token string, ttl time.Duration) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(ttl, 5*time.Second))
	defer cancel()
	release.Run(ctx, l.Client, []string{key}, token) //nolint:errcheck // see above
}

// Open returns a Lock in the Redis at a URL: redis://, rediss:// or unix://. It connects at
// the first use of the lock. The caller closes the lock's Client.
func Open(url string) (*Lock, error) {
	o, err := redis.ParseURL(url)
	if err != nil {
		return nil, fmt.Errorf("the URL of Redis: %w", err)
	}
	// Retry at most once: the worker reports the error, and its next run tries again.
	o.MaxRetries, o.DialerRetries = 1, 1
	return &Lock{Client: redis.NewClient(o)}, nil
}

// Package redislock provides a lock in Redis, so that workers of loose foreign keys don't
// process the same parent at once. Use it instead of PostgreSQL's advisory locks if no
// connection should be held open for a lock, or if all other locks are in Redis already.
//
// The lock is a key with a random value that expires. Redis may lose it, and a process that
// was stopped for long may believe that it still has the lock. Neither does harm, since
// workers that run at once only do the same work twice.
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

// DefaultTTL is how long a lock outlives a process that dies with it.
const DefaultTTL = 30 * time.Second

// Lock is a loosefk.Lock in Redis. Its fields aren't changed after first use.
type Lock struct {
	Client redis.UniversalClient // required; the caller closes it
	// TTL is the time after which the lock expires unless it is renewed. It is renewed three
	// times in this time. Default DefaultTTL.
	TTL time.Duration
	// Prefix comes before the lock's name in the key. Default none.
	Prefix string
}

var _ loosefk.Lock = (*Lock)(nil)

// ErrLost is the cause with which the context of fn ends when the lock is lost: by then
// another process may have it.
var ErrLost = errors.New("the lock in Redis is lost")

// The scripts change a key only if it has the caller's random value.
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

// TryRun implements loosefk.Lock. It fails if Redis can't be reached, with Redis's address
// in the error. Otherwise it returns the error of fn, joined with ErrLost if the lock was
// lost while fn ran.
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

// keep renews the lock until ctx ends. It returns an error when the lock is lost: Redis
// says so, or couldn't be reached before the lock expired.
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

// release deletes the lock, even if ctx has ended. If that fails the lock expires.
func (l *Lock) release(ctx context.Context, key, token string, ttl time.Duration) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(ttl, 5*time.Second))
	defer cancel()
	release.Run(ctx, l.Client, []string{key}, token) //nolint:errcheck // see above
}

// Open makes a lock of the Redis at a URL: redis://, rediss:// or unix://. It
// connects when it is first used. The caller closes the lock's Client.
func Open(url string) (*Lock, error) {
	o, err := redis.ParseURL(url)
	if err != nil {
		return nil, fmt.Errorf("the URL of Redis: %w", err)
	}
	// No retries: the next run of the worker tries again, and reports errors.
	o.MaxRetries, o.DialerRetries = 1, 1
	return &Lock{Client: redis.NewClient(o)}, nil
}

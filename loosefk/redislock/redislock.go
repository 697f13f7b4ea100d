// Package redislock keeps workers of loose foreign keys apart with Redis, where
// PostgreSQL's advisory locks won't do: across databases that a connection should
// not be held open on, or because everything else is locked there.
//
// The lock is a key with a random value that expires. Redis may lose it, and a
// process that was stopped for long may hold it no more without knowing; nothing
// goes wrong then, since workers that run at once only do the same work twice.
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
	// TTL is how long a lock is held without being renewed, which is tried three
	// times in that time. Default DefaultTTL.
	TTL time.Duration
	// Prefix comes before the lock's name in the key. Default none.
	Prefix string
}

var _ loosefk.Lock = (*Lock)(nil)

// ErrLost is why the context of what runs under a lock ended: somebody else may
// hold it by now.
var ErrLost = errors.New("the lock in Redis is lost")

// A key is only touched by who set it.
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

// Hold is loosefk.Lock's. Errors: that Redis can't be reached, which names it;
// fn's, with ErrLost when the lock was lost meanwhile.
func (l *Lock) Hold(ctx context.Context, _ *loosefk.Database, name string, fn func(ctx context.Context) error) (held bool, err error) {
	ttl := l.TTL
	if ttl <= 0 {
		ttl = DefaultTTL
	}
	if ttl < 10*time.Millisecond { // it is renewed three times in it
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

// keep renews the lock until ctx ends, and returns an error when it is lost: when
// Redis says so, or wasn't reached until it had to expire.
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

// release gives the lock back, also when ctx has ended. When that fails it
// expires.
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
	// The next run tries again, and says so.
	o.MaxRetries, o.DialerRetries = 1, 1
	return &Lock{Client: redis.NewClient(o)}, nil
}

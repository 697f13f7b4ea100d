package pullstats

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/purser-registry/purser/internal/db"
)

const (
	redisDialTimeout = 2 * time.Second
	// redisTimeout is the default of Wait: of a command, and of a pipeline.
	redisTimeout = 3 * time.Second
)

// Redis is a client of one server, or of a cluster, of Redis or Valkey; it finds out by
// itself whether the server belongs to a cluster. It never repeats a call that got no
// answer: the caller decides whether that is safe. Its methods may be called concurrently.
type Redis struct {
	opt   *redis.Options
	stats *db.DB

	mu     sync.Mutex
	client redis.UniversalClient // nil: the server wasn't reached yet
}

// NewRedis makes a client of the server at a URL (redis://, rediss:// or unix://). It
// doesn't connect yet. `stats` is the database of the registry's statistics. The error doesn't
// repeat the URL, which may contain a password.
func NewRedis(rawURL string, stats *db.DB) (*Redis, error) {
	opt, err := parseRedisURL(rawURL)
	if err != nil {
		return nil, err
	}
	silence()
	opt.MaxRetries = -1
	opt.Protocol = 2
	opt.ContextTimeoutEnabled = true
	opt.DialerRetries = 1
	opt.DisableIdentity = true
	r := &Redis{opt: opt, stats: stats}
	r.Wait(redisTimeout)
	return r, nil
}

// Wait sets how long a command, and a pipeline, may take; by default 3 seconds. Connecting takes at most
// 2 seconds of it. It is called before the first use. It must be well below 15 seconds, in which a batch
// of pulls is sent.
func (r *Redis) Wait(limit time.Duration) {
	r.opt.DialTimeout = min(limit, redisDialTimeout)
	r.opt.ReadTimeout, r.opt.WriteTimeout, r.opt.PoolTimeout = limit, limit, limit
}

// silence switches off the client library's own logger, which all clients in the process
// share. The library's logger writes to standard error instead of Purser's log, and writes
// only errors that this package returns anyway.
var silence = sync.OnceFunc(func() { redis.SetLogger(silent{}) })

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

func parseRedisURL(rawURL string) (*redis.Options, error) {
	opt, err := redis.ParseURL(rawURL)
	if err == nil {
		return opt, nil
	}
	// An error of package url contains the URL, with its password; keep only the cause.
	if inner := (*url.Error)(nil); errors.As(err, &inner) {
		err = inner.Err
	}
	return nil, fmt.Errorf("this is no URL of a Redis (redis://[user:password@]host:port[/number], rediss:// with TLS, or unix:///path): %w", err)
}

// Trust lets the server's certificate be signed by the authorities `roots`, instead of those of the
// system. It is called before the first use. It has no effect without TLS, or if roots is nil.
func (r *Redis) Trust(roots *x509.CertPool) {
	if r.opt.TLSConfig != nil && roots != nil {
		r.opt.TLSConfig.RootCAs = roots
	}
}

// Ping asks the server whether it answers, without a look at what it has.
func (r *Redis) Ping(ctx context.Context) error {
	c, err := r.dial(ctx)
	if err != nil {
		return fmt.Errorf("reaching Redis at %s: %w", r.opt.Addr, err)
	}
	return c.Close()
}

// Address returns the server's address, without user and password.
func (r *Redis) Address() string { return r.opt.Addr }

// Close ends the connections.
func (r *Redis) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.client == nil {
		return nil
	}
	return r.client.Close()
}

// ErrNotOwner says that a Redis has the pulls of another registry. The two registries have
// repositories with the same ids, so their keys would mix.
var ErrNotOwner = errors.New("it has pulls of another registry: give each its own Redis, or its own database of one " +
	"(redis://host:port/1), or delete the key " + ownerKey + " if the other one is no more")

// connect returns the connected client. The first call finds out whether the server is a
// cluster, and whether the pulls in it belong to this registry. Errors: ErrNotOwner if they
// belong to another one, or why Redis or the statistics' database couldn't be asked.
func (r *Redis) connect(ctx context.Context) (redis.UniversalClient, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.client != nil {
		return r.client, nil
	}
	c, err := r.dial(ctx)
	if err == nil {
		if err = r.own(ctx, c); err != nil {
			c.Close() //nolint:errcheck // it was of no use
		}
	}
	if err != nil {
		return nil, fmt.Errorf("reaching Redis at %s: %w", r.opt.Addr, err)
	}
	r.client = c
	return c, nil
}

func (r *Redis) dial(ctx context.Context) (redis.UniversalClient, error) {
	c := redis.NewClient(r.opt)
	info, err := c.Info(ctx, "cluster").Result()
	if err == nil && !strings.Contains(info, "cluster_enabled:1") {
		return c, nil
	}
	c.Close() //nolint:errcheck // it was of no use, or a cluster's clients take its place
	if err != nil {
		return nil, err
	}
	return redis.NewClusterClient(r.clusterOptions()), nil
}

// own stores this registry's identity in a Redis that has none yet, so that no other
// registry uses it. Error: ErrNotOwner if the Redis has another registry's identity.
func (r *Redis) own(ctx context.Context, c redis.UniversalClient) error {
	var owner string
	if err := r.stats.Pool.QueryRow(ctx, "SELECT owner::text FROM redisprocessingstate").Scan(&owner); err != nil {
		return fmt.Errorf("asking the database whose Redis it is: %w", err)
	}
	if err := c.SetNX(ctx, ownerKey, owner, 0).Err(); err != nil {
		return err
	}
	got, err := c.Get(ctx, ownerKey).Result()
	if err != nil {
		return err
	}
	if got != owner {
		return ErrNotOwner
	}
	return nil
}

func (r *Redis) clusterOptions() *redis.ClusterOptions {
	o := r.opt
	return &redis.ClusterOptions{
		Addrs: []string{o.Addr}, Username: o.Username, Password: o.Password, TLSConfig: o.TLSConfig,
		MaxRedirects: -1, // the library would retry after network errors too, and a call that is sent twice counts twice
		Protocol:     o.Protocol, DialTimeout: o.DialTimeout, ReadTimeout: o.ReadTimeout, WriteTimeout: o.WriteTimeout,
		PoolTimeout: o.PoolTimeout, ContextTimeoutEnabled: true, DialerRetries: 1, DisableIdentity: true,
	}
}

// eachMaster calls fn for each server that holds keys (each master of a cluster), one after
// another.
func (r *Redis) eachMaster(ctx context.Context, fn func(ctx context.Context, c *redis.Client) error) error {
	c, err := r.connect(ctx)
	if err != nil {
		return err
	}
	switch c := c.(type) {
	case *redis.Client:
		return fn(ctx, c)
	case *redis.ClusterClient:
		var mu sync.Mutex // ForEachMaster calls back concurrently
		var masters []*redis.Client
		if err := c.ForEachMaster(ctx, func(_ context.Context, c *redis.Client) error {
			mu.Lock()
			defer mu.Unlock()
			masters = append(masters, c)
			return nil
		}); err != nil {
			return err
		}
		for _, c := range masters {
			if err := fn(ctx, c); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("a client of Redis of type %T is unknown", c)
}

// call is one execution of a script in Redis. On a cluster, all of its keys must be in one
// slot.
type call struct {
	script *redis.Script
	keys   []string
	args   []any

	cmd *redis.Cmd
	err error // why it wasn't sent
}

// run sends calls in one round trip (on a cluster, one per server). It returns when each
// call was answered or has failed; see call.outcome.
func (r *Redis) run(ctx context.Context, calls []*call) {
	c, err := r.connect(ctx)
	if err != nil {
		for _, call := range calls {
			call.err = err
		}
		return
	}
	r.send(ctx, c, calls)
	var unknown []*call // calls that did nothing, since the server doesn't have their script
	for _, call := range calls {
		if redis.HasErrorPrefix(call.cmd.Err(), "NOSCRIPT") {
			unknown = append(unknown, call)
		}
	}
	if len(unknown) == 0 {
		return
	}
	if err := r.load(ctx, unknown); err == nil {
		r.send(ctx, c, unknown)
	}
}

func (r *Redis) send(ctx context.Context, c redis.UniversalClient, calls []*call) {
	p := c.Pipeline()
	for _, call := range calls {
		call.cmd = call.script.EvalSha(ctx, p, call.keys, call.args...)
	}
	_, err := p.Exec(ctx)
	for _, call := range calls {
		// A server may refuse the connection (because of a wrong password, or too many
		// clients). Then the library sends nothing, but sets no error in the commands. A
		// script that has run always has a result, so a command with neither result nor
		// error wasn't sent.
		if err != nil && call.cmd.Err() == nil && call.cmd.Val() == nil {
			call.cmd.SetErr(err)
		}
	}
}

// load loads the scripts of the calls into all servers.
func (r *Redis) load(ctx context.Context, calls []*call) error {
	return r.eachMaster(ctx, func(ctx context.Context, c *redis.Client) error {
		loaded := map[*redis.Script]bool{}
		for _, call := range calls {
			if loaded[call.script] {
				continue
			}
			loaded[call.script] = true
			if err := call.script.Load(ctx, c).Err(); err != nil {
				return err
			}
		}
		return nil
	})
}

// outcome says what is known about a call.
type outcome int

const (
	answered   outcome = iota // it was executed
	refused                   // it wasn't executed, and changed nothing
	unanswered                // it isn't known whether it was executed
)

// outcome says whether Redis executed the call: answered if it did, refused if it didn't,
// unanswered if that isn't known. Unless the call was answered, the error says why.
func (c *call) outcome() (outcome, error) {
	if c.err != nil {
		return refused, c.err
	}
	return outcomeOf(c.cmd.Err())
}

func outcomeOf(err error) (outcome, error) {
	var reply redis.Error
	var network *net.OpError
	switch {
	case err == nil, errors.Is(err, redis.Nil):
		return answered, nil
	case errors.As(err, &reply):
		return refused, err // a script that fails has changed no counter: see scripts.go
	case errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted), errors.Is(err, redis.ErrClosed):
		return refused, err // it wasn't sent
	case errors.As(err, &network) && network.Op == "dial":
		return refused, err
	}
	return unanswered, err
}

// ping returns an error unless all servers answer.
func (r *Redis) ping(ctx context.Context) error {
	err := r.eachMaster(ctx, func(ctx context.Context, c *redis.Client) error { return c.Ping(ctx).Err() })
	if err != nil {
		return fmt.Errorf("reaching Redis at %s: %w", r.opt.Addr, err)
	}
	return nil
}

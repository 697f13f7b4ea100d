// Package redispulls counts pulls in Redis, and flushes the counts into the statistics. It is one of
// the two ways of counting pulls; package pullstats has the other one, by the audit log, and decides
// which pulls are sent here. Only the tests of pullstats know Redis besides this package.
//
// A [Client] sends pulls to Redis, stores HEADs by tag there, and finds the HEAD that belongs to a
// GET by digest. It never repeats a call that got no answer, and says of each call whether Redis
// executed it ([Outcome]), so that the caller can have a pull counted from the audit log if, and
// only if, Redis hasn't counted it. A [FlushWorker] adds the counts to the statistics.
//
// # Why each pull in Redis counts once
//
// A script in Redis adds each pull to the counter of its tag or manifest. As long as the
// counter's key exists, the counter only grows. A [FlushWorker] adds to the statistics
// those pulls of a counter that the statistics don't have yet. In the same transaction it
// stores, in the table redispullcounters, that all of the counter's pulls are now in the
// statistics. The FlushWorker takes nothing out of Redis. So after a rollback nothing was
// counted, and if the outcome of a commit is unknown, the next attempt adds only the pulls
// that are missing, if any.
//
// Before a flush's transaction reads counters from Redis, it takes one lock for the counters
// of all repositories, and holds it until it ends (lockCounters). So two workers can't add
// the same pulls, and the later of two transactions has read later values. A worker that
// stalls while it holds the lock blocks the other workers until PostgreSQL ends its idle
// transaction; after that the stalled worker can't commit what it has read.
//
// When the statistics have all pulls of a counter, the FlushWorker settles the counter: a
// script sets the counter's key to expire in a minute, unless another pull comes. The
// script compares the counter's present values with those in the statistics, so a late call
// of the script doesn't change a counter with newer pulls. After a counter has expired, the
// next pull makes it again. The new counter starts at 0, and its field `born`, the sequence
// number of its first pull, is greater than before. If a worker dies before it settles a
// counter, the next flush settles it.
//
// Each flush has a number, the epoch. The flush stores the epoch in Redis before it reads
// counters, and checks after each read that Redis still has it. If Redis was emptied or
// restored to an older state, the epoch is missing or too low. Then the flush adds no pulls
// to the statistics until the pulls that Redis lost have been marked to be counted from the
// audit log, as far as the log has them (see recount). If only some counters were restored
// to an older state (on one node of a cluster), they have smaller values than the
// statistics: the flush adds nothing for them and records that the statistics are complete
// only from now on.
//
// If the statistics' database was restored to an older state, redispullcounters went back
// together with the counts. So the next flush adds the pulls that are missing, except those
// of counters that have expired since. Redis then has a greater epoch than the database, by
// which the FlushWorker notices the restore; it records that the statistics are complete
// only from now on.
//
// The FlushWorker locks the repositories of the counters until the statistics are committed
// (statsdb.Databases.WithAlive). Pulls of deleted repositories are recorded as counted in
// redispullcounters, but added to no statistics. A complete flush finds every counter that
// exists in Redis; a row of redispullcounters is deleted when complete flushes have not
// found its counter for a day.
//
// For each repository, a set in Redis has the names of the counters that aren't settled. The
// script that adds a pull also adds the counter to the set, and the script that settles the
// counter removes it. A reader that adds the pulls in Redis to the statistics reads the set
// and its counters first (Client.Unsettled), and then the statistics and redispullcounters
// in one snapshot (Counters.Unflushed). A pull that Redis had counted by then is either in
// the statistics, or among those pulls of its counter that redispullcounters doesn't have.
// So the sum has every pull that Redis counted before the counters were read, and none
// twice.
//
// # Decisions
//
// Counters in Redis grow, and a flush adds to the statistics how much they have grown, in one
// transaction that locks all counters. Flushes that move counts into numbered batches with leases
// and states would let any number of workers take part. That needs more code and proof than it is
// worth, since one worker flushes 10,000 keys a second.
//
// Counters stay for a minute after all their pulls are flushed, not for a day, so that Redis holds
// only what is pulled between two flushes. If a counter is created again, it has a greater sequence
// number, unless the server's clock goes back by more than a minute.
//
// To learn when a tag was last used, Purser also reads the pulls that aren't flushed yet, from the
// repository's counters in Redis. The names of the set and of the counters have the repository's id
// in braces, so that a Redis cluster keeps all of them on one node.
package redispulls

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

// Client is a client of one server, or of a cluster, of Redis or Valkey; it finds out by
// itself whether the server belongs to a cluster. It never repeats a call that got no
// answer: the caller decides whether that is safe. Its methods may be called concurrently.
type Client struct {
	opt   *redis.Options
	stats *db.DB

	mu     sync.Mutex
	client redis.UniversalClient // nil: the server wasn't reached yet
}

// NewClient makes a client of the server at a URL (redis://, rediss:// or unix://). It
// doesn't connect yet. `stats` is the database of the registry's statistics. The error doesn't
// repeat the URL, which may contain a password.
func NewClient(rawURL string, stats *db.DB) (*Client, error) {
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
	r := &Client{opt: opt, stats: stats}
	r.Wait(redisTimeout)
	return r, nil
}

// Wait sets how long a command, and a pipeline, may take; by default 3 seconds. Connecting takes at most
// 2 seconds of it. It is called before the first use. It must be well below 15 seconds, in which a batch
// of pulls is sent.
func (r *Client) Wait(limit time.Duration) {
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
func (r *Client) Trust(roots *x509.CertPool) {
	if r.opt.TLSConfig != nil && roots != nil {
		r.opt.TLSConfig.RootCAs = roots
	}
}

// Ping asks the server whether it answers, without a look at what it has.
func (r *Client) Ping(ctx context.Context) error {
	c, err := r.dial(ctx)
	if err != nil {
		return fmt.Errorf("reaching Redis at %s: %w", r.opt.Addr, err)
	}
	return c.Close()
}

// Address returns the server's address, without user and password.
func (r *Client) Address() string { return r.opt.Addr }

// Close ends the connections.
func (r *Client) Close() error {
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
func (r *Client) connect(ctx context.Context) (redis.UniversalClient, error) {
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

func (r *Client) dial(ctx context.Context) (redis.UniversalClient, error) {
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
func (r *Client) own(ctx context.Context, c redis.UniversalClient) error {
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

func (r *Client) clusterOptions() *redis.ClusterOptions {
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
func (r *Client) eachMaster(ctx context.Context, fn func(ctx context.Context, c *redis.Client) error) error {
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
func (r *Client) run(ctx context.Context, calls []*call) {
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

func (r *Client) send(ctx context.Context, c redis.UniversalClient, calls []*call) {
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
func (r *Client) load(ctx context.Context, calls []*call) error {
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

// Outcome says what is known about a call.
type Outcome int

const (
	Answered   Outcome = iota // it was executed
	Refused                   // it wasn't executed, and changed nothing
	Unfit                     // as Refused, because a key holds a value of another type, which no retry changes
	Unanswered                // it isn't known whether it was executed
)

// outcome says whether Redis executed the call. Unless the call was answered, the error says why.
func (c *call) outcome() (Outcome, error) {
	got, err := Refused, c.err
	if err == nil {
		got, err = outcomeOf(c.cmd.Err())
	}
	if got == Refused && unfit(err) {
		got = Unfit
	}
	return got, err
}

func outcomeOf(err error) (Outcome, error) {
	var reply redis.Error
	var network *net.OpError
	switch {
	case err == nil, errors.Is(err, redis.Nil):
		return Answered, nil
	case errors.As(err, &reply):
		return Refused, err // a script that fails has changed no counter: see scripts.go
	case errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted), errors.Is(err, redis.ErrClosed):
		return Refused, err // it wasn't sent
	case errors.As(err, &network) && network.Op == "dial":
		return Refused, err
	}
	return Unanswered, err
}

// Answers returns an error unless all servers of the registry answer.
func (r *Client) Answers(ctx context.Context) error {
	err := r.eachMaster(ctx, func(ctx context.Context, c *redis.Client) error { return c.Ping(ctx).Err() })
	if err != nil {
		return fmt.Errorf("reaching Redis at %s: %w", r.opt.Addr, err)
	}
	return nil
}

// unfit says whether an error means that a Redis key holds a value of the wrong type, which
// no retry changes. Redis 6 reports an error inside a script with the prefix ERR, which it
// also uses for temporary errors; so unfit searches the error's text.
func unfit(err error) bool {
	for _, text := range []string{"WRONGTYPE ", "is not an integer", "would overflow", "attempt to "} {
		if strings.Contains(err.Error(), text) {
			return true
		}
	}
	return false
}

package pullstats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/purser-registry/purser/internal/oci"
)

const (
	// liveTimeout bounds reading a repository's counters in Redis.
	liveTimeout = 2 * time.Second
	// liveAttempts is how often the counters are read when a flush changes them meanwhile.
	liveAttempts = 3
	// liveScan is how many keys a step of a scan looks at.
	liveScan = 10_000
)

// ErrNotLive says that pulls which aren't flushed yet couldn't be read.
var ErrNotLive = errors.New("pulls that aren't counted yet can't be read now")

// Live are the pulls of a repository that are in Redis and not yet in the statistics.
type Live struct{ tags, manifests map[string]pulled }

// Tag returns a tag's statistics with its live pulls added.
func (l Live) Tag(r Row) Row { return added(r, l.tags[r.Name]) }

// Manifest returns a manifest's statistics with its live pulls added.
func (l Live) Manifest(r Row) Row { return added(r, l.manifests[r.Name]) }

// Tags returns the names of the tags that have live pulls.
func (l Live) Tags() []string { return names(l.tags) }

// Manifests returns the digests of the manifests that have live pulls.
func (l Live) Manifests() []string { return names(l.manifests) }

func names(m map[string]pulled) (list []string) {
	for name := range m {
		list = append(list, name)
	}
	return list
}

func added(r Row, p pulled) Row {
	r.Count += p.count
	if p.other != "" && !p.lastBoth.Before(r.Last) {
		r.Other = p.other
	}
	if p.last.After(r.Last) {
		r.Last = p.last
	}
	return r
}

// Live reads a repository's counters in Redis, and calls read, which reads the statistics,
// at the same time, so that each pull is in exactly one of the two. When a flush interferes
// it calls read again. Error: the one of read, or ErrNotLive, after which the statistics
// that read has read are valid without live pulls.
func (r *Reader) Live(ctx context.Context, repository int64, read func(ctx context.Context) error) (Live, error) {
	if r.redis == nil {
		if err := read(ctx); err != nil {
			return Live{}, err
		}
		return Live{}, ErrNotLive
	}
	var cause error
	for range liveAttempts {
		if cause != nil && !errors.Is(cause, errFlushing) {
			break
		}
		var l Live
		var reading error
		l, cause = r.liveOnce(ctx, repository, func(ctx context.Context) error {
			reading = read(ctx)
			return reading
		})
		if reading != nil {
			return Live{}, reading
		}
		if cause == nil {
			return l, nil
		}
	}
	if err := read(ctx); err != nil {
		return Live{}, err
	}
	return Live{}, fmt.Errorf("%w: %w", ErrNotLive, cause)
}

// errFlushing says that a flush has changed what was being read.
var errFlushing = errors.New("they are being flushed")

// liveOnce makes one attempt. The counters are valid if neither their claims nor the states
// of the claims' batches change from before read to after it. Error: errFlushing.
func (r *Reader) liveOnce(ctx context.Context, repository int64, read func(ctx context.Context) error) (l Live, err error) {
	scanning, cancel := context.WithTimeout(ctx, liveTimeout)
	defer cancel()
	keys, err := r.redis.keysOf(scanning, repository)
	if err != nil {
		return l, err
	}
	before, err := r.redis.counters(scanning, keys)
	if err != nil {
		return l, err
	}
	states, err := r.claimStates(ctx, before)
	if err != nil {
		return l, err
	}
	if err := read(ctx); err != nil {
		return l, err
	}
	statesNow, err := r.claimStates(ctx, before)
	if err != nil {
		return l, err
	}
	after, err := r.redis.counters(scanning, keys)
	if err != nil {
		return l, err
	}
	if !maps.Equal(states, statesNow) || !sameClaims(before, after) {
		return l, errFlushing
	}
	return sumLive(repository, before, states), nil
}

func sameClaims(a, b []counter) bool {
	for i := range a {
		if a[i].claim != b[i].claim || a[i].done != b[i].done {
			return false
		}
	}
	return true
}

// counter is a key of Redis that counts pulls.
type counter struct {
	count, claimed int64
	claim, done    int64 // numbers of batches, 0: none
	last           time.Time
	tag            string
	digest         oci.Digest
}

// keysOf returns the keys of a repository's counters.
func (r *Redis) keysOf(ctx context.Context, repository int64) (list []string, err error) {
	found := map[string]bool{}
	err = r.eachMaster(ctx, func(ctx context.Context, c *redis.Client) error {
		for cursor := uint64(0); ; {
			page, next, err := c.Scan(ctx, cursor, fmt.Sprintf("%s%d:*", pullPrefix, repository), liveScan).Result()
			if err != nil {
				return fmt.Errorf("reading which pulls Redis has: %w", err)
			}
			for _, key := range page {
				found[key] = true
			}
			if cursor = next; cursor == 0 {
				return nil
			}
		}
	})
	for key := range found {
		list = append(list, key)
	}
	return list, err
}

// counters reads keys. A key that isn't a counter gives a zero counter.
func (r *Redis) counters(ctx context.Context, keys []string) ([]counter, error) {
	c, err := r.connect(ctx)
	if err != nil || len(keys) == 0 {
		return nil, err
	}
	p := c.Pipeline()
	for _, key := range keys {
		p.HMGet(ctx, key, "pull_count", "claimed_count", "claim", "done", "last_pull_timestamp", "tag_name", "manifest_digest")
	}
	answers, err := p.Exec(ctx)
	list := make([]counter, len(keys))
	for i, a := range answers {
		if cause := cmp.Or(a.Err(), err); cause != nil && a.(*redis.SliceCmd).Val() == nil && !unfit(cause) {
			return nil, fmt.Errorf("reading the pulls in Redis: %w", cause)
		}
		if fields := a.(*redis.SliceCmd).Val(); len(fields) == 7 {
			list[i] = parseCounter(fields)
		}
	}
	return list, nil
}

// parseCounter returns a zero counter for fields that can't be read; a flush reports those.
func parseCounter(fields []any) (c counter) {
	text := func(i int) string {
		s, _ := fields[i].(string)
		return s
	}
	number := func(i int) int64 {
		n, _ := strconv.ParseInt(text(i), 10, 64)
		return n
	}
	c = counter{count: number(0), claimed: number(1), claim: number(2), done: number(3), tag: text(5)}
	var err error
	if c.digest, err = oci.ParseDigest(text(6)); err != nil {
		return counter{}
	}
	if c.last, err = parseRedisTime(text(4)); err != nil {
		return counter{}
	}
	return c
}

// claimStates returns the states of the batches that have claims.
func (r *Reader) claimStates(ctx context.Context, list []counter) (map[int64]string, error) {
	var ids []int64
	for _, c := range list {
		if c.claim != 0 {
			ids = append(ids, c.claim)
		}
	}
	if len(ids) == 0 {
		return nil, nil
	}
	return batches{r.db}.states(ctx, sorted(ids))
}

func sumLive(repository int64, list []counter, states map[int64]string) Live {
	a := newAdder()
	for _, c := range list {
		n := c.count
		if c.claim != 0 && states[c.claim] != batchApplied {
			n += c.claimed
		}
		if n > 0 {
			a.add(repository, c.tag, c.digest, n, c.last)
		}
	}
	l := Live{map[string]pulled{}, map[string]pulled{}}
	for k, p := range a.tags {
		l.tags[k.name] = *p
	}
	for k, p := range a.manifests {
		l.manifests[k.name] = *p
	}
	return l
}

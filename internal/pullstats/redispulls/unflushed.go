package redispulls

import (
	"context"
	"fmt"
	"time"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/pullstats/statsdb"
)

// Counters are counters of a repository, as they were read from Redis.
type Counters []counter

// Unsettled returns those counters of a repository that may have pulls which aren't in
// the statistics: the counters in the repository's set (uncountedPrefix). A counter leaves
// this set only after the statistics have all of its pulls. So each pull that Redis has
// counted before the call is either in a returned counter or in the statistics.
func (r *Client) Unsettled(ctx context.Context, repository int64) (Counters, error) {
	c, err := r.connect(ctx)
	if err != nil {
		return nil, err
	}
	keys, err := c.SMembers(ctx, uncountedKey(repository)).Result()
	if err != nil {
		return nil, fmt.Errorf("reading which pulls Redis has: %w", err)
	}
	list, _, err := r.counters(ctx, keys) // a flush reports invalid counters
	return list, err
}

// Unflushed adds up those pulls of the counters that the statistics don't have in the snapshot
// of q. All pulls of a counter count for the day of its last one: the sums aren't for the history.
func (list Counters) Unflushed(ctx context.Context, q db.Querier) (statsdb.Sums, error) {
	has, err := countedOf(ctx, q, idsOf(list))
	if err != nil {
		return statsdb.Sums{}, err
	}
	a := statsdb.NewAdder(nil)
	for _, c := range list {
		if n, _ := c.uncounted(has[idOf(c.key)]); n > 0 {
			a.Add(c.repository, c.tag, c.digest, n, statsdb.DayOf(c.last), c.last)
		}
	}
	return a.Sums(), nil
}

// Uses reads from Redis when tags and manifests of a repository were last used, and calls add
// with each time: the statistics may not have these times yet. The tag is "" if the manifest was
// asked for by digest. Errors: ErrLost, or why Redis or the epoch couldn't be read.
func (r *Client) Uses(ctx context.Context, repository int64, add func(tag string, d oci.Digest, at time.Time)) error {
	list, err := r.Unsettled(ctx, repository)
	if err != nil {
		return err
	}
	for _, c := range list {
		add(c.tag, c.digest, c.last)
	}
	c, err := r.connect(ctx)
	if err != nil {
		return err
	}
	// Compare the epochs only after reading the counters, so that the comparison shows
	// whether Redis was emptied before the counters were read.
	e, err := r.epoch(ctx, c)
	if err == nil && e.lost() {
		err = ErrLost
	}
	return err
}

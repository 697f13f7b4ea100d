package pullstats

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// liveTimeout bounds the time for reading a repository's counters from Redis.
const liveTimeout = 2 * time.Second

// ErrNotLive says that the pulls in Redis that aren't flushed yet couldn't be read.
var ErrNotLive = errors.New("pulls that aren't counted yet can't be read now")

// Live has the pulls of a repository that Redis has counted and that aren't in the
// statistics yet (live pulls).
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

// Live calls the function `read`, which reads a repository's statistics, and returns the
// pulls of the repository that are only in Redis. `read` must use the Reader that it is
// given, so that the statistics and redispullcounters are read in one snapshot. Errors: the
// error of `read`, or ErrNotLive. After ErrNotLive, the statistics that `read` has read are
// valid, but there are no live pulls to add to them.
//
// Live reads the counters from Redis first. A pull that Redis has counted by then is either
// in the statistics, or among those pulls of its counter that redispullcounters doesn't
// have. So the sum of statistics and live pulls includes every pull that Redis counted
// before the counters were read, and none from after the snapshot of the statistics. The
// sum doesn't fall from one call to the next.
func (r *Reader) Live(ctx context.Context, repository int64, read func(ctx context.Context, r *Reader) error) (Live, error) {
	list, cause := r.inRedis(ctx, repository)
	if cause != nil || len(list) == 0 {
		if err := read(ctx, r); err != nil || cause == nil {
			return Live{}, err
		}
		return Live{}, fmt.Errorf("%w: %w", ErrNotLive, cause)
	}
	var has map[counterID]counted
	err := pgx.BeginTxFunc(ctx, r.stats.Pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) (err error) {
		if has, err = countedOf(ctx, tx, idsOf(list)); err != nil {
			return err
		}
		inside := *r
		inside.q = tx
		return read(ctx, &inside)
	})
	if err != nil {
		return Live{}, err
	}
	return sumLive(list, has), nil
}

func (r *Reader) inRedis(ctx context.Context, repository int64) ([]counter, error) {
	if r.redis == nil {
		return nil, errors.New("there is no Redis")
	}
	ctx, cancel := context.WithTimeout(ctx, liveTimeout)
	defer cancel()
	return r.redis.ofRepository(ctx, repository)
}

func sumLive(list []counter, has map[counterID]counted) Live {
	a := newAdder(nil)
	for _, c := range list {
		if n, _ := c.uncounted(has[idOf(c.key)]); n > 0 {
			a.add(c.repository, c.tag, c.digest, n, dayOf(c.last), c.last)
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

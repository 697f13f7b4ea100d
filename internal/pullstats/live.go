package pullstats

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/pullstats/redispulls"
	"github.com/purser-registry/purser/internal/pullstats/statsdb"
)

// liveTimeout bounds the time for reading a repository's counters from Redis.
const liveTimeout = 2 * time.Second

// ErrNotLive says that the pulls in Redis that aren't flushed yet couldn't be read.
var ErrNotLive = errors.New("pulls that aren't counted yet can't be read now")

// Live has the pulls of a repository that Redis has counted and that aren't in the
// statistics yet (live pulls).
type Live struct{ tags, manifests map[string]statsdb.Sum }

// Tag returns a tag's statistics with its live pulls added.
func (l Live) Tag(r Row) Row { return added(r, l.tags[r.Name]) }

// Manifest returns a manifest's statistics with its live pulls added.
func (l Live) Manifest(r Row) Row { return added(r, l.manifests[r.Name]) }

// Tags returns the names of the tags that have live pulls.
func (l Live) Tags() []string { return namesOf(l.tags) }

// Manifests returns the digests of the manifests that have live pulls.
func (l Live) Manifests() []string { return namesOf(l.manifests) }

func namesOf(m map[string]statsdb.Sum) (list []string) {
	for name := range m {
		list = append(list, name)
	}
	return list
}

func added(r Row, p statsdb.Sum) Row {
	r.Count += p.Count
	if p.Other != "" && !p.OtherAt.Before(r.Last) {
		r.Other = p.Other
	}
	if p.Last.After(r.Last) {
		r.Last = p.Last
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
	var sums statsdb.Sums
	err := pgx.BeginTxFunc(ctx, r.stats.Pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) (err error) {
		if sums, err = list.Unflushed(ctx, tx); err != nil {
			return err
		}
		inside := *r
		inside.q = tx
		return read(ctx, &inside)
	})
	if err != nil {
		return Live{}, err
	}
	return Live{byName(sums.Tags), byName(sums.Manifests)}, nil
}

func (r *Reader) inRedis(ctx context.Context, repository int64) (redispulls.Counters, error) {
	if r.redis == nil {
		return nil, errors.New("there is no Redis")
	}
	ctx, cancel := context.WithTimeout(ctx, liveTimeout)
	defer cancel()
	return r.redis.Unsettled(ctx, repository)
}

func byName(list []statsdb.Sum) map[string]statsdb.Sum {
	m := make(map[string]statsdb.Sum, len(list))
	for _, s := range list {
		m[s.Name] = s
	}
	return m
}

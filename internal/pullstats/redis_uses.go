package pullstats

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// errRedisLost says that Redis has lost data that it was given.
var errRedisLost = errors.New("Redis has lost pulls, so it can't be told what was used lately")

// uses returns when names were last used in a repository, from the last-used times that
// Redis keeps for usesFor at least, flushed or not.
func (r *Redis) uses(ctx context.Context, repository int64, names []string) (map[string]time.Time, error) {
	c, err := r.connect(ctx)
	if err != nil {
		return nil, err
	}
	fields := make([]string, len(names))
	for i, name := range names {
		fields[i] = useField(name)
	}
	last := make([]int64, len(names))
	for from := 0; from < len(names); from += 1000 {
		to := min(len(names), from+1000)
		if err := lastUses(ctx, c, repository, fields[from:to], last[from:to]); err != nil {
			return nil, fmt.Errorf("reading in Redis what was used: %w", err)
		}
	}
	// Compare epochs after reading: Redis may have been emptied before the read.
	known, kept, err := r.epochs(ctx, c)
	if err != nil {
		return nil, err
	}
	if known < kept {
		return nil, errRedisLost
	}
	out := make(map[string]time.Time)
	for i, at := range last {
		if at > 0 {
			out[names[i]] = time.Unix(at, 0)
		}
	}
	return out, nil
}

// lastUses raises the times in last by those of each hour that may matter. It includes
// hours beyond now and usesFor, since the clocks of the writing processes may differ.
func lastUses(ctx context.Context, c redis.UniversalClient, repository int64, fields []string, last []int64) error {
	p := c.Pipeline()
	var hours []*redis.SliceCmd
	now := time.Now()
	for at := now.Add(-usesFor - time.Hour); at.Before(now.Add(time.Hour + time.Second)); at = at.Add(time.Hour) {
		hours = append(hours, p.HMGet(ctx, usesKey(repository, at), fields...))
	}
	if _, err := p.Exec(ctx); err != nil {
		return err
	}
	for _, hour := range hours {
		for i, v := range hour.Val() {
			text, _ := v.(string)
			if at, err := strconv.ParseInt(text, 10, 64); err == nil {
				last[i] = max(last[i], at)
			}
		}
	}
	return nil
}

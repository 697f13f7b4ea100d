package pullstats

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/oci"
)

// record sends pulls to Redis to be counted, and returns those that Redis refused. Pulls
// for which Redis sent no answer are treated as counted.
func (q *redisQueue) record(ctx context.Context, batch []*event) (kept []*event, err error) {
	// Don't interrupt calls when the process stops: otherwise it would be unknown whether
	// Redis has executed them.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	if kept, err = q.heads.join(ctx, batch); err != nil {
		return kept, err
	}
	groups := grouped(batch)
	calls := make([]*call, len(groups))
	for i, g := range groups {
		calls[i] = g.call
	}
	q.r.opt.Redis.run(ctx, calls)
	for _, g := range groups {
		got, cause := g.call.outcome()
		switch {
		case got == refused && unfit(cause):
			q.allFallBackToLog(ctx, g.events)
			q.r.opt.Logger.WarnContext(ctx, "Redis has something else in the place of a counter of pulls", "key", g.call.keys[0], "error", cause)
		case got == refused:
			kept, err = append(kept, g.events...), cause
		default:
			seq, _ := g.call.cmd.Int64() // 0: unknown
			q.counted(ctx, g.events, got, seq)
			if got == unanswered {
				err = cause
			}
		}
	}
	if err != nil {
		return kept, fmt.Errorf("sending pulls to Redis: %w", err)
	}
	return kept, nil
}

// counted writes the log entries of pulls that Redis has counted or, if Redis didn't answer,
// may have counted. In both cases the entries say that Redis counted the pulls: counting
// them from the log too might count them twice.
func (q *redisQueue) counted(ctx context.Context, list []*event, got outcome, seq int64) {
	n := 0
	for _, e := range list {
		n += e.n
		e.CountedBy, e.RedisSeq = audit.CountedByRedis, seq
		q.r.log(ctx, e.Entry)
		if e.name != "" && e.Tag != "" {
			q.heads.used(ctx, e.Entry)
		}
		if got == unanswered {
			q.r.uncounted(e.Entry)
		}
	}
	if got == unanswered {
		q.r.opt.Metrics.event(eventUnanswered, n)
		return
	}
	q.r.opt.Metrics.event(eventRecorded, n)
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

// group has those pulls of a batch that belong to one counter.
type group struct {
	events []*event
	n      int // pulls
	last   time.Time
	call   *call
}

// counterName identifies a counter by repository, tag and digest.
type counterName struct {
	repository int64
	tag        string
	digest     oci.Digest
}

// groupName identifies a group. Pulls from before and after midnight (UTC) aren't in one group,
// so that each counts for its day.
type groupName struct {
	counterName
	day time.Time
}

func grouped(batch []*event) []*group {
	groups := make(map[groupName]*group, len(batch))
	var list []*group
	for _, e := range batch {
		name := groupName{counterName{e.RepositoryID, e.Tag, e.Digest}, dayOf(e.Time)}
		g := groups[name]
		if g == nil {
			g = &group{}
			groups[name] = g
			list = append(list, g)
		}
		g.events, g.n = append(g.events, e), g.n+e.n
		if e.Time.After(g.last) {
			g.last = e.Time
		}
	}
	for _, g := range list {
		e, method := g.events[0], "tag"
		if e.Tag == "" {
			method = "digest"
		}
		g.call = &call{
			script: recordScript, keys: []string{counterKey(e.RepositoryID, e.Tag, e.Digest), uncountedKey(e.RepositoryID)},
			args: []any{g.n, redisTime(g.last), e.RepositoryID, e.Tag, e.Digest.String(), method},
		}
	}
	return list
}

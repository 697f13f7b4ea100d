package pullstats

import (
	"context"
	"fmt"
	"time"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/pullstats/redispulls"
	"github.com/purser-registry/purser/internal/pullstats/statsdb"
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
	pulls, events := grouped(batch)
	for i, a := range q.r.opt.Redis.Add(ctx, pulls) {
		switch a.Outcome {
		case redispulls.Unfit:
			q.allFallBackToLog(ctx, events[i])
			q.r.opt.Logger.WarnContext(ctx, "Redis has something else in the place of a counter of pulls", "key", a.Key, "error", a.Err)
		case redispulls.Refused:
			kept, err = append(kept, events[i]...), a.Err
		case redispulls.Unanswered:
			q.counted(ctx, events[i], a)
			err = a.Err
		case redispulls.Answered:
			q.counted(ctx, events[i], a)
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
func (q *redisQueue) counted(ctx context.Context, list []*event, a redispulls.Answer) {
	n := 0
	for _, e := range list {
		n += e.n
		e.CountedBy, e.RedisSeq = audit.CountedByRedis, a.Seq
		q.r.log(ctx, e.Entry)
		if e.name != "" && e.Tag != "" {
			q.heads.used(ctx, e.Entry)
		}
		if a.Outcome == redispulls.Unanswered {
			q.r.uncounted(e.Entry)
		}
	}
	if a.Outcome == redispulls.Unanswered {
		q.r.opt.Metrics.event(eventUnanswered, n)
		return
	}
	q.r.opt.Metrics.event(eventRecorded, n)
}

// counterName identifies a counter by repository, tag and digest.
type counterName struct {
	repository int64
	tag        string
	digest     oci.Digest
}

// groupName identifies pulls that are added to a counter together. Pulls from before and after midnight
// (UTC) aren't, so that each counts for its day.
type groupName struct {
	counterName
	day time.Time
}

// grouped adds up the pulls of a batch by counter and day. The i-th element of `of` has the events
// of the i-th sum.
func grouped(batch []*event) (pulls []redispulls.Pulls, of [][]*event) {
	index := make(map[groupName]int, len(batch))
	for _, e := range batch {
		name := groupName{counterName{e.RepositoryID, e.Tag, e.Digest}, statsdb.DayOf(e.Time)}
		i, known := index[name]
		if !known {
			i, index[name] = len(pulls), len(pulls)
			pulls, of = append(pulls, redispulls.Pulls{Repository: e.RepositoryID, Tag: e.Tag, Digest: e.Digest}), append(of, nil)
		}
		p := &pulls[i]
		if of[i], p.N = append(of[i], e), p.N+e.n; e.Time.After(p.Last) {
			p.Last = e.Time
		}
	}
	return pulls, of
}

package pullstats

import (
	"context"
	"time"

	"github.com/purser-registry/purser/internal/audit"
)

// othersFor is how long a report of another process that it counts from the log is believed.
// It is longer than the time between two reports.
const othersFor = 3 * busyTick

// fallBackToLog writes n pulls that Redis didn't count to the audit log, marked so that the
// SyncWorker counts and joins them. If there is no log, or it has no room, the pulls are
// dropped, and only the last-used times of their tag and manifest are recorded.
func (q *redisQueue) fallBackToLog(ctx context.Context, e audit.Entry, n int) {
	e.CountedBy = audit.CountedByAudit
	if q.r.opt.Log != nil && q.r.opt.Log.Record(ctx, e) {
		q.r.opt.Metrics.event(eventLogged, n)
		if e.Tag == "" && q.r.opt.Join > 0 {
			q.countFromLog()
		}
		return
	}
	q.r.opt.Metrics.event(eventDropped, n)
	q.r.uncounted(e)
}

func (q *redisQueue) allFallBackToLog(ctx context.Context, list []*event) {
	for _, e := range list {
		if e.name != "" && q.r.opt.Log != nil {
			e.Tag = ""
		}
		q.fallBackToLog(ctx, e.Entry, e.n)
	}
}

// byLog says whether pulls by digest are counted from the audit log at the moment, because this
// process or another one can't rely on Redis. The caller must hold q.mu.
func (q *redisQueue) byLog() bool {
	now := time.Now()
	return q.r.opt.Log != nil && (q.failing || now.Before(q.settled) || now.Before(q.others))
}

// fromLog says whether this process, by itself, has pulls by digest counted from the audit log:
// Redis is away, or was some seconds ago, or didn't take such a pull in time. The process tells
// the others so, and all of them have to write their HEADs to the log's database.
func (q *redisQueue) fromLog() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.r.opt.Log != nil && (q.failing || time.Now().Before(q.settled))
}

// countFromLog has pulls by digest counted from the audit log for the next seconds, since one
// of them was.
func (q *redisQueue) countFromLog() {
	q.mu.Lock()
	before := q.byLog()
	q.settled = time.Now().Add(2 * redisBackoff)
	q.mu.Unlock()
	if !before {
		q.r.presence.loop.Wake() // to tell the others
	}
}

// learn takes note of what other processes have reported.
func (q *redisQueue) learn(got answers) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.headsTo = got.headsTo
	if got.fromLog {
		q.others = time.Now().Add(othersFor)
	}
}

// watch moves pulls that have waited too long from the queue to the audit log, even while the
// sending of a batch hangs, and writes HEADs there as long as any process needs them there. It
// runs until ctx ends.
func (q *redisQueue) watch(ctx context.Context) error {
	if q.r.opt.Log == nil {
		<-ctx.Done()
		return nil
	}
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			q.r.presence.hold()
			q.allFallBackToLog(ctx, q.overdue(time.Now()))
			q.mu.Lock()
			byLog := q.byLog()
			q.mu.Unlock()
			if byLog {
				q.heads.toLog(ctx)
			}
			q.r.presence.end()
		}
	}
}

// overdue removes from the queue, and returns, the pulls that have waited too long.
func (q *redisQueue) overdue(now time.Time) (late []*event) {
	q.mu.Lock()
	defer q.mu.Unlock()
	kept := q.pulls[:0]
	for _, e := range q.pulls {
		if e.overdue(now) {
			late = append(late, e)
		} else {
			kept = append(kept, e)
		}
	}
	clear(q.pulls[len(kept):])
	q.pulls = kept
	q.count()
	return late
}

// keep ends the sending of a batch. `list` has the pulls that Redis didn't take: keep
// writes them to the audit log or, if pulls aren't logged, puts them back into the queue,
// where their order doesn't matter.
func (q *redisQueue) keep(ctx context.Context, list []*event) {
	if q.r.opt.Log != nil {
		q.allFallBackToLog(ctx, list)
		list = nil
	}
	q.mu.Lock()
	q.flying = nil
	q.pulls = append(q.pulls, list...)
	q.count()
	n := len(q.pulls) // while Redis is away, each attempt updates this metric
	q.mu.Unlock()
	q.r.opt.Metrics.waiting(n)
}

// markWaiting records the last-used times of the pulls in the queue. Other processes may
// reach Redis, but can't see these pulls, and must not take their tags for unused.
func (q *redisQueue) markWaiting() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, e := range q.pulls {
		if !e.marked {
			e.marked = true
			q.r.used(e.Entry)
		}
	}
}

// back is called when Redis answers again after a failure. It marks all HEADs to be sent
// again, and has pulls by digest counted from the audit log for another 2 * redisBackoff,
// until the other processes have noticed too that Redis is back.
func (q *redisQueue) back() {
	q.heads.again() // Redis may have lost HEADs, and lacks those that came while it was away
	q.mu.Lock()
	q.settled = time.Now().Add(2 * redisBackoff)
	q.failing = false
	q.mu.Unlock()
}

package pullstats

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/worker"
)

const (
	// redisLinger is how long a pull waits to be sent with others. One by digest waits
	// for a HEAD that another process has answered to be there.
	redisLinger  = 200 * time.Millisecond
	digestLinger = time.Second
	headLinger   = 20 * time.Millisecond
	// redisPatience is how long a pull waits for Redis at most, beyond the time that it
	// lingers, where it can be counted from the log.
	redisPatience = time.Second
	// watchEvery is how often that is looked at.
	watchEvery = 250 * time.Millisecond
	// redisBackoff bounds the time between two attempts to reach a Redis that is away.
	redisBackoff = 5 * time.Second
	// contactEvery is how often Redis is asked whether it is there while it has HEADs that
	// the log hasn't.
	contactEvery = time.Second
	// recordTimeout bounds sending a batch. Each step has its own, which is shorter.
	recordTimeout = 15 * time.Second
)

// redisQueue holds the pulls that Redis is to count until it has answered.
//
// Where there is a log it doesn't wait for Redis: a pull that isn't sent within
// redisPatience is counted from the log, and so is all that comes while Redis is away.
type redisQueue struct {
	r       *Recorder
	loop    *worker.Loop
	heads   *redisHeads
	sending chan struct{} // has a value while a batch is under way
	contact time.Time     // by the batch alone: when Redis last answered

	mu      sync.Mutex
	failing bool      // the last batch wasn't taken
	settled time.Time // until then pulls by digest are counted from the log: see pulled
	pulls   []*event
	flying  time.Time              // the oldest of those being sent; zero: none is
	same    map[counterName]*event // those of pulls that others may join
	closed  bool
}

// event is a pull that waits, or several of the same name that have no entries.
type event struct {
	audit.Entry // its time is the last one's
	n           int
	since       time.Time // it waits
	name        string    // of a pull by digest that may belong to a HEAD
	looked      bool      // for the HEAD
	marked      bool      // as used
	unseen      bool      // as a use, until it is flushed
}

// ready says whether an event has lingered.
func (e *event) ready(now time.Time) bool {
	linger := redisLinger
	if e.name != "" {
		linger = digestLinger
	}
	return now.Sub(e.since) >= linger
}

func newRedisQueue(r *Recorder) *redisQueue {
	q := &redisQueue{r: r, sending: make(chan struct{}, 1), same: map[counterName]*event{}}
	q.heads = &redisHeads{q: q, process: rand.Uint64()}
	q.loop = worker.New(worker.Options{
		Name: "pulls to Redis", Batch: q.batch, Next: q.next, Timeout: 2 * recordTimeout,
		BackoffMin: 200 * time.Millisecond, BackoffMax: redisBackoff, Log: r.opt.Logger, Metrics: r.opt.Worker,
	})
	return q
}

// pulled takes a pull, or has it counted from the log where there is no room, or where
// Redis is away. HEADs that other processes have answered are in the log then, too. When
// Redis is back these processes need a while to find out; until then pulls by digest
// are counted from the log.
func (q *redisQueue) pulled(ctx context.Context, e audit.Entry) {
	q.mu.Lock()
	if q.join(e) {
		q.mu.Unlock()
		return
	}
	full := q.closed || len(q.pulls) >= q.r.opt.Buffer || q.r.opt.Log != nil && (q.failing || e.Tag == "" && time.Now().Before(q.settled))
	if !full {
		ev := &event{Entry: e, n: 1, since: time.Now()}
		if e.Tag == "" && q.r.opt.Join > 0 {
			ev.name = q.heads.name()
		}
		q.add(ev)
	}
	first := len(q.pulls) == 1 || len(q.pulls) == q.r.opt.Batch
	q.mu.Unlock()
	switch {
	case full:
		q.spill(ctx, e, 1)
	case first:
		q.loop.Wake()
	}
}

// join adds a pull to one of the same name that waits, where none of them is logged.
func (q *redisQueue) join(e audit.Entry) bool {
	if q.r.opt.Log != nil || e.Tag == "" {
		return false
	}
	other := q.same[counterName{e.RepositoryID, e.Tag, e.Digest}]
	if other == nil {
		return false
	}
	other.n, other.marked = other.n+1, false
	if e.Time.After(other.Time) {
		other.Time = e.Time
	}
	return true
}

func (q *redisQueue) add(e *event) {
	q.pulls = append(q.pulls, e)
	if q.r.opt.Log == nil && e.Tag != "" {
		q.same[counterName{e.RepositoryID, e.Tag, e.Digest}] = e
	}
}

// spill has a pull that Redis didn't take counted from the log, where it is joined anew.
func (q *redisQueue) spill(ctx context.Context, e audit.Entry, n int) {
	e.CountedBy = audit.CountedByAudit
	if q.r.opt.Log != nil && q.r.opt.Log.Record(ctx, e) {
		q.r.opt.Metrics.event(eventLogged, n)
		return
	}
	q.r.opt.Metrics.event(eventDropped, n)
	q.r.uncounted(e)
}

// checked takes a HEAD by tag.
func (q *redisQueue) checked(ctx context.Context, e audit.Entry) {
	q.mu.Lock()
	byLog := q.byLog()
	q.mu.Unlock()
	if q.heads.add(ctx, e, byLog) {
		q.loop.Wake()
	}
}

// byLog says whether pulls by digest are counted from the log now.
func (q *redisQueue) byLog() bool {
	return q.r.opt.Log != nil && (q.failing || time.Now().Before(q.settled))
}

// oldest is the time of the oldest pull that isn't written down.
func (q *redisQueue) oldest() time.Time {
	q.mu.Lock()
	defer q.mu.Unlock()
	oldest := q.flying
	for _, e := range q.pulls {
		if oldest.IsZero() || e.Time.Before(oldest) {
			oldest = e.Time
		}
	}
	return oldest
}

// next says how long it is until something has lingered.
func (q *redisQueue) next(context.Context) (time.Duration, error) {
	idle := q.heads.next(time.Now())
	q.mu.Lock()
	defer q.mu.Unlock()
	tag, digest := false, false
	for _, e := range q.pulls {
		switch { // later ones of its kind are due later
		case e.name == "" && !tag:
			idle, tag = min(idle, time.Until(e.since.Add(redisLinger))), true
		case e.name != "" && !digest:
			idle, digest = min(idle, time.Until(e.since.Add(digestLinger))), true
		}
		if tag && digest {
			break
		}
	}
	return idle, nil
}

// batch sends what has lingered.
func (q *redisQueue) batch(ctx context.Context) (more bool, err error) {
	now := time.Now()
	return q.send(ctx, now.Add(-headLinger), now)
}

// send sends HEADs that came before a time, and a batch of pulls that have lingered at
// another.
func (q *redisQueue) send(ctx context.Context, heads, now time.Time) (more bool, err error) {
	select {
	case q.sending <- struct{}{}:
		defer func() { <-q.sending }()
	case <-ctx.Done():
		return false, ctx.Err()
	}
	defer func() { q.reached(ctx, err) }()
	if q.isFailing() || q.heads.unwatched(time.Now()) && time.Since(q.contact) >= contactEvery {
		// What is sent to a server that doesn't answer is lost: ask first.
		if err := q.r.opt.Redis.ping(ctx); err != nil {
			return false, err
		}
		if q.isFailing() {
			q.back()
		}
		q.contact = time.Now()
	}
	if err := q.heads.send(ctx, heads); err != nil {
		return false, err
	}
	batch, more := q.take(now)
	if len(batch) == 0 {
		return false, nil
	}
	kept, err := q.record(ctx, batch)
	q.keep(ctx, kept)
	return more && err == nil, err
}

func (q *redisQueue) isFailing() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.failing
}

// reached takes note of whether Redis can be reached.
func (q *redisQueue) reached(ctx context.Context, err error) {
	q.r.presence.hold()
	defer q.r.presence.end()
	q.mu.Lock()
	before := q.failing
	q.failing = err != nil
	waiting := q.pulls
	if q.failing && q.r.opt.Log != nil {
		q.pulls = nil
	}
	q.mu.Unlock()
	switch {
	case err == nil:
		q.contact = time.Now()
	case q.r.opt.Log == nil:
		q.markWaiting()
	default:
		if !before {
			q.heads.toLog(ctx)
		}
		q.spillAll(ctx, waiting)
	}
}

func (q *redisQueue) spillAll(ctx context.Context, list []*event) {
	for _, e := range list {
		if e.name != "" && q.r.opt.Log != nil {
			e.Tag = ""
		}
		q.spill(ctx, e.Entry, e.n)
	}
}

// back is called when Redis can be reached again.
func (q *redisQueue) back() {
	q.heads.again() // it may have lost them, and has none that came meanwhile
	q.mu.Lock()
	q.settled = time.Now().Add(2 * redisBackoff)
	q.failing = false
	q.mu.Unlock()
}

// watch has pulls that wait for Redis for too long counted from the log, whatever the
// batch under way waits for.
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
			q.spillAll(ctx, q.overdue(time.Now().Add(-redisPatience)))
			q.r.presence.end()
		}
	}
}

// overdue takes off the pulls that had lingered at a time already.
func (q *redisQueue) overdue(then time.Time) (late []*event) {
	q.mu.Lock()
	defer q.mu.Unlock()
	kept := q.pulls[:0]
	for _, e := range q.pulls {
		if e.ready(then) {
			late = append(late, e)
		} else {
			kept = append(kept, e)
		}
	}
	clear(q.pulls[len(kept):])
	q.pulls = kept
	return late
}

// take takes off pulls that have lingered, or as many as a batch has, and says whether a
// batch is left. Pulls by digest always linger.
func (q *redisQueue) take(now time.Time) (batch []*event, more bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	full := len(q.pulls) >= q.r.opt.Batch
	var kept []*event
	for i, e := range q.pulls {
		if len(batch) == q.r.opt.Batch {
			kept = append(kept, q.pulls[i:]...)
			more = true
			break
		}
		if !e.ready(now) && (!full || e.name != "") {
			kept = append(kept, e)
			continue
		}
		batch = append(batch, e)
		if q.flying.IsZero() || e.Time.Before(q.flying) {
			q.flying = e.Time
		}
		delete(q.same, counterName{e.RepositoryID, e.Tag, e.Digest}) // it is complete
	}
	q.pulls = kept
	return batch, more
}

// keep puts pulls back that weren't taken, whose order doesn't matter, or has them
// counted from the log. The batch is over.
func (q *redisQueue) keep(ctx context.Context, list []*event) {
	if q.r.opt.Log != nil {
		q.spillAll(ctx, list)
		list = nil
	}
	q.mu.Lock()
	q.flying = time.Time{}
	q.pulls = append(q.pulls, list...)
	n := len(q.pulls) // while Redis is away it is what came until the last attempt
	q.mu.Unlock()
	q.r.opt.Metrics.waiting(n)
}

// markWaiting marks what waits as used: others, who may reach Redis, can't see it.
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

// close sends what is left, and has the rest counted from the log.
func (q *redisQueue) close(ctx context.Context) {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	var err error
	for err == nil && ctx.Err() == nil && q.waiting() > 0 {
		// HEADs don't linger. Pulls by digest do, since those of others may be on their way.
		if _, err = q.send(ctx, time.Now().Add(time.Hour), time.Now().Add(redisLinger)); err == nil {
			q.linger(ctx)
		}
	}
	q.sending <- struct{}{} // a batch of Run has its timeout
	defer func() { <-q.sending }()
	q.mu.Lock()
	rest := q.pulls
	q.pulls, q.same = nil, nil
	q.mu.Unlock()
	if len(rest) > 0 {
		q.r.opt.Logger.WarnContext(ctx, "stopping with pulls that Redis didn't take", "pulls", len(rest), "error", errors.Join(err, ctx.Err()))
	}
	q.spillAll(ctx, rest)
}

// linger waits until a pull has lingered, if any waits.
func (q *redisQueue) linger(ctx context.Context) {
	q.mu.Lock()
	first := time.Time{}
	if len(q.pulls) > 0 {
		first = q.pulls[0].since
	}
	q.mu.Unlock()
	if first.IsZero() {
		return
	}
	timer := time.NewTimer(min(time.Until(first.Add(digestLinger-redisLinger)), redisLinger))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

func (q *redisQueue) waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.pulls) + q.heads.unsent()
}

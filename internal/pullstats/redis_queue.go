package pullstats

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/pullstats/statsdb"
	"github.com/purser-registry/purser/internal/worker"
)

const (
	// redisLinger is how long a pull by tag waits in the queue, so that it is sent together
	// with others. A pull by digest waits for digestLinger: by then HEADs that other
	// processes have answered are in Redis. A HEAD waits for headLinger.
	redisLinger  = 200 * time.Millisecond
	digestLinger = time.Second
	headLinger   = 20 * time.Millisecond
	// redisPatience is how long after its linger time a pull by tag may still wait to be sent to
	// Redis; digestPatience is that of a pull by digest, which also waits until all processes
	// have reported that their HEADs are in Redis. Then the pull is counted from the audit log
	// instead, if pulls are logged.
	redisPatience  = time.Second
	digestPatience = 2 * time.Second
	// watchEvery is how often the queue looks for pulls that have waited longer than
	// redisPatience.
	watchEvery = 250 * time.Millisecond
	// redisBackoff is the longest pause between two attempts to reach a Redis that doesn't
	// answer.
	redisBackoff = 5 * time.Second
	// contactEvery is how often the process pings Redis while Redis has HEADs that the table
	// pullheads doesn't have. If Redis goes away, these HEADs must be written to that table.
	contactEvery = time.Second
	// recordTimeout bounds the time for sending one batch of pulls to Redis. Each command to
	// Redis has a shorter timeout of its own (Redis.Wait).
	recordTimeout = 15 * time.Second
)

// redisQueue is a process's queue of pulls that Redis is to count. A pull leaves the queue
// when its batch is sent. If Redis refuses the pull, the method keep writes it to the audit
// log or puts it back.
//
// If pulls are logged, no pull waits long for Redis: a pull that isn't sent within
// redisPatience is counted from the audit log, and so is every pull while Redis can't be
// reached.
type redisQueue struct {
	r       *Recorder
	loop    *worker.Loop
	heads   *redisHeads
	sending chan struct{} // has a value while a batch is being sent
	contact time.Time     // used by send alone: when Redis last answered

	mu      sync.Mutex
	failing bool      // the last batch failed
	settled time.Time // until this time pulls by digest are counted from the log: see fromLog
	others  time.Time // until this time other processes count pulls by digest from the log
	headsTo time.Time // before this time the HEADs of all other processes are in Redis; zero: not known
	pulls   []*event
	places  *limit.Buffer          // of pulls, by namespace: whoever changes pulls calls count
	flying  []*event               // pulls that are being sent
	same    map[counterName]*event // the events in the queue that join may add pulls to
	closed  bool
}

// event is a pull that waits in the queue. If pulls aren't logged, one event may stand for
// several pulls of the same tag and manifest.
type event struct {
	audit.Entry // Time is that of the last pull
	n           int
	since       time.Time // when it began to wait
	name        string    // the name in Redis of a pull by digest that may belong to a HEAD; else ""
	looked      bool      // its HEAD was looked for
	marked      bool      // its last-used time was recorded
}

// lingered says whether the event has waited for its linger time (redisLinger or digestLinger).
func (e *event) lingered(now time.Time) bool {
	linger := redisLinger
	if e.name != "" {
		linger = digestLinger
	}
	return now.Sub(e.since) >= linger
}

// overdue says whether the event has waited longer for Redis than pulls do.
func (e *event) overdue(now time.Time) bool {
	patience := redisPatience
	if e.name != "" {
		patience = digestPatience
	}
	return e.lingered(now.Add(-patience))
}

// ready says whether an event that has lingered may be sent. A pull by digest also waits until
// Redis has all HEADs that came before it, of this process (the first one that isn't sent came
// at `unsent`) and of the others. If pulls aren't logged, it doesn't wait for ever: then its HEAD
// may be missed.
func (q *redisQueue) ready(e *event, now, unsent time.Time) bool {
	switch {
	case e.name == "":
		return true
	case q.r.opt.Log == nil && e.overdue(now):
		if !q.known(e, unsent) {
			q.r.opt.LastUsed.markUncounted(e.Time)
		}
		return true
	}
	return q.known(e, unsent)
}

// known says whether Redis has every HEAD that came before the pull e.
func (q *redisQueue) known(e *event, unsent time.Time) bool {
	return (q.headsTo.IsZero() || e.Time.Before(q.headsTo)) && (unsent.IsZero() || e.Time.Before(unsent))
}

func newRedisQueue(r *Recorder) *redisQueue {
	q := &redisQueue{r: r, sending: make(chan struct{}, 1), same: map[counterName]*event{}, places: limit.NewBuffer(r.opt.Buffer)}
	q.heads = &redisHeads{q: q, process: rand.Uint64(), places: limit.NewBuffer(maxHeads)}
	q.loop = worker.New(worker.Options{
		Name: "pulls to Redis", Batch: q.batch, Next: q.next, Timeout: 2 * recordTimeout,
		BackoffMin: 200 * time.Millisecond, BackoffMax: redisBackoff, Log: r.opt.Logger, Metrics: r.opt.Worker,
	})
	return q
}

// pulled adds a pull to the queue. If the queue is full, or Redis is away, the pull is
// counted from the audit log instead. Without a log, a pull is dropped if the queue is full,
// and waits in the queue while Redis is away.
//
// As long as one process has pulls by digest counted from the log (fromLog), all processes do, and
// write their HEADs to the log's database too, so that the SyncWorker can join the pulls with
// them: see byLog.
func (q *redisQueue) pulled(ctx context.Context, e audit.Entry) {
	q.mu.Lock()
	if q.join(e) {
		q.mu.Unlock()
		return
	}
	full := q.closed || q.places.Full(namespaceOf(e)) || q.r.opt.Log != nil && (q.failing || e.Tag == "" && q.byLog())
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
		q.fallBackToLog(ctx, e, 1)
	case first:
		q.loop.Wake()
	}
}

// join adds a pull by tag to an event of the same tag and manifest that waits in the queue,
// and returns true. It returns false for a pull by digest, and if the queue has no such
// event. It also returns false if pulls are logged, because each pull then needs an entry
// of its own, and if the event is of another day, unless the queue is full.
func (q *redisQueue) join(e audit.Entry) bool {
	if q.r.opt.Log != nil || e.Tag == "" {
		return false
	}
	other := q.same[counterName{e.RepositoryID, e.Tag, e.Digest}]
	if other == nil || len(q.pulls) < q.r.opt.Buffer && !statsdb.DayOf(other.Time).Equal(statsdb.DayOf(e.Time)) {
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
	q.places.Add(namespaceOf(e.Entry))
	if q.r.opt.Log == nil && e.Tag != "" {
		q.same[counterName{e.RepositoryID, e.Tag, e.Digest}] = e
	}
}

// count counts the places of the queue anew, after some pulls have left it or come back. The caller must
// hold q.mu.
func (q *redisQueue) count() {
	q.places.Clear()
	for _, e := range q.pulls {
		q.places.Add(namespaceOf(e.Entry))
	}
}

// namespaceOf returns the namespace of an entry's repository.
func namespaceOf(e audit.Entry) string {
	namespace, _, _ := strings.Cut(e.Repository, "/")
	return namespace
}

// checked records a HEAD by tag, to be sent to Redis.
func (q *redisQueue) checked(ctx context.Context, e audit.Entry) {
	q.mu.Lock()
	byLog := q.byLog()
	q.mu.Unlock()
	if q.heads.add(ctx, e, byLog) {
		q.loop.Wake()
	}
}

// oldest returns the time of the oldest pull that is neither in Redis nor in the audit log
// yet; zero if there is none.
func (q *redisQueue) oldest() (oldest time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, e := range slices.Concat(q.flying, q.pulls) {
		oldest = first(oldest, e.Time)
	}
	return oldest
}

// waits returns when the oldest pull came, by the process's monotonic clock, that is neither in
// Redis nor in the audit log yet, and whose use isn't recorded otherwise (markWaiting).
func (q *redisQueue) waits() (oldest time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, e := range slices.Concat(q.flying, q.pulls) {
		if !e.marked {
			oldest = first(oldest, e.Came)
		}
	}
	return oldest
}

// next returns how long it is until the first pull or HEAD has waited for its linger time
// and is to be sent.
func (q *redisQueue) next(context.Context) (time.Duration, error) {
	idle := q.heads.next(time.Now())
	q.mu.Lock()
	defer q.mu.Unlock()
	tag, digest := false, false
	for _, e := range q.pulls {
		switch { // the first event of each kind is due first
		case e.name == "" && !tag:
			idle, tag = min(idle, time.Until(e.since.Add(redisLinger))), true
		case e.name != "" && !digest: // if it has lingered, it waits for the HEADs of other processes
			idle, digest = min(idle, max(time.Until(e.since.Add(digestLinger)), watchEvery)), true
		}
		if tag && digest {
			break
		}
	}
	return idle, nil
}

// batch sends the pulls and HEADs that have waited for their linger time. The queue's loop
// calls it.
func (q *redisQueue) batch(ctx context.Context) (more bool, err error) {
	now := time.Now()
	return q.send(ctx, now.Add(-headLinger), now)
}

// send sends to Redis the HEADs that came before the time `heads`, and a batch of those
// pulls whose linger time is over at the time `now`.
func (q *redisQueue) send(ctx context.Context, heads, now time.Time) (more bool, err error) {
	select {
	case q.sending <- struct{}{}:
		defer func() { <-q.sending }()
	case <-ctx.Done():
		return false, ctx.Err()
	}
	defer func() { q.reached(ctx, err) }()
	if q.isFailing() || q.heads.unwatched(time.Now()) && time.Since(q.contact) >= contactEvery {
		// A pull that is sent to a server that doesn't answer may be lost: nobody knows
		// whether Redis has counted it, so it isn't sent again. So ping the server first.
		if err := q.r.opt.Redis.Answers(ctx); err != nil {
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

// reached records whether the last attempt to reach Redis succeeded (err is nil). After a
// failure the waiting pulls go to the audit log; without a log they stay in the queue, and
// their last-used times are recorded.
func (q *redisQueue) reached(ctx context.Context, err error) {
	q.r.presence.hold()
	defer q.r.presence.end()
	q.mu.Lock()
	before := q.failing
	q.failing = err != nil
	waiting := q.pulls
	if q.failing && q.r.opt.Log != nil {
		q.pulls = nil
		q.count()
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
		q.allFallBackToLog(ctx, waiting)
	}
}

// take removes up to one batch of pulls whose linger time is over from the queue and
// returns them; `more` says whether another batch is left. If the queue has a full batch,
// take also takes pulls by tag whose linger time isn't over yet. It never does so with
// pulls by digest, whose HEADs may still be on their way to Redis.
func (q *redisQueue) take(now time.Time) (batch []*event, more bool) {
	unsent := q.heads.oldestUnsent()
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
		if !e.lingered(now) && (!full || e.name != "") || !q.ready(e, now, unsent) {
			kept = append(kept, e)
			continue
		}
		batch = append(batch, e)
		delete(q.same, counterName{e.RepositoryID, e.Tag, e.Digest}) // nothing is added to it from now on
	}
	q.pulls, q.flying = kept, batch
	q.count()
	return batch, more
}

// close sends the waiting pulls to Redis when the process stops. Those that Redis doesn't
// take are written to the audit log, or dropped if there is none (fallBackToLog).
func (q *redisQueue) close(ctx context.Context) {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	var err error
	for err == nil && ctx.Err() == nil && q.waiting() > 0 {
		// Send all HEADs at once. Pulls by digest still wait for their linger time, since
		// HEADs that other processes have answered may be on their way to Redis.
		if _, err = q.send(ctx, time.Now().Add(time.Hour), time.Now().Add(redisLinger)); err == nil {
			q.linger(ctx)
			q.ask(ctx)
			if q.r.opt.Log != nil { // watch has ended
				q.allFallBackToLog(ctx, q.overdue(time.Now()))
			}
		}
	}
	q.sending <- struct{}{} // wait for a batch of Run, which has a timeout
	defer func() { <-q.sending }()
	q.mu.Lock()
	rest := q.pulls
	q.pulls, q.same = nil, nil
	q.count()
	q.mu.Unlock()
	if len(rest) > 0 {
		q.r.opt.Logger.WarnContext(ctx, "stopping with pulls that Redis didn't take", "pulls", len(rest), "error", errors.Join(err, ctx.Err()))
	}
	q.allFallBackToLog(ctx, rest)
}

// ask learns from the rows of other processes up to when their HEADs are in Redis, for pulls by
// digest that wait for this.
func (q *redisQueue) ask(ctx context.Context) {
	q.mu.Lock()
	needed := !q.headsTo.IsZero() && len(q.pulls) > 0
	q.mu.Unlock()
	if !needed {
		return
	}
	if _, err := q.r.presence.tick(ctx); err != nil {
		q.r.opt.Logger.WarnContext(ctx, "asking for the HEADs of other processes", "error", err)
	}
}

// linger sleeps until the first pull in the queue may be sent, but at least for settleEvery, since that
// pull may wait for other processes, and at most for redisLinger. It returns at once if the queue is
// empty.
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
	timer := time.NewTimer(min(max(time.Until(first.Add(digestLinger-redisLinger)), settleEvery), redisLinger))
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

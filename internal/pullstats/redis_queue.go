package pullstats

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/worker"
)

const (
	// redisLinger is how long a pull waits to be sent with others, and for a HEAD that
	// another process has answered to be there.
	redisLinger = 200 * time.Millisecond
	hintLinger  = 20 * time.Millisecond
	// recordTimeout bounds sending a batch. Each step has its own, which is shorter.
	recordTimeout = 15 * time.Second
	// usesFor is how long Redis remembers at least what was used: longer than any
	// statistics that policies go by may be behind.
	usesFor = 2 * time.Hour
)

// redisQueue holds the pulls that Redis is to count until it has answered.
type redisQueue struct {
	r       *Recorder
	loop    *worker.Loop
	sending chan struct{} // has a value while a batch is under way
	failing bool          // by the batch alone: the last one wasn't taken

	mu     sync.Mutex
	pulls  []*event
	same   map[counterName]*event // those of pulls that others may join
	hints  []heldHint
	closed bool
}

// event is a pull that waits, or several of the same name that have no entries.
type event struct {
	audit.Entry // its time is the last one's
	n           int
	since       time.Time // it waits
	hint        hint      // of a pull by digest
	looked      bool      // for a hint
	marked      bool      // as used
	unseen      bool      // as a use, until it is flushed
}

type heldHint struct {
	hint
	tag string
	at  time.Time
}

func newRedisQueue(r *Recorder) *redisQueue {
	q := &redisQueue{r: r, sending: make(chan struct{}, 1), same: map[counterName]*event{}}
	q.loop = worker.New(worker.Options{
		Name: "pulls to Redis", Batch: q.batch, Next: q.next, Timeout: 2 * recordTimeout,
		BackoffMin: 200 * time.Millisecond, BackoffMax: 5 * time.Second, Log: r.opt.Logger, Metrics: r.opt.Worker,
	})
	return q
}

// pulled takes a pull, or has it counted from the log where there is no room.
func (q *redisQueue) pulled(ctx context.Context, e audit.Entry, byDigest hint) {
	q.mu.Lock()
	if q.join(e, byDigest) {
		q.mu.Unlock()
		return
	}
	full := q.closed || len(q.pulls) >= q.r.opt.Buffer
	if !full {
		q.add(&event{Entry: e, n: 1, since: e.Time, hint: byDigest})
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
func (q *redisQueue) join(e audit.Entry, byDigest hint) bool {
	if q.r.opt.Log != nil || byDigest != (hint{}) {
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
	if q.r.opt.Log == nil && e.hint == (hint{}) {
		q.same[counterName{e.RepositoryID, e.Tag, e.Digest}] = e
	}
}

// spill has a pull that Redis didn't take counted from the log.
func (q *redisQueue) spill(ctx context.Context, e audit.Entry, n int) {
	e.CountedBy = audit.CountedByAudit
	if q.r.opt.Log != nil && q.r.opt.Log.Record(ctx, e) {
		q.r.opt.Metrics.event(eventLogged, n)
		return
	}
	q.r.opt.Metrics.event(eventDropped, n)
	q.r.missed(e)
}

// checked takes a hint. What finds no room is joined by this process alone.
func (q *redisQueue) checked(h hint, tag string) {
	q.mu.Lock()
	first := len(q.hints) == 0
	if len(q.hints) < q.r.opt.Buffer {
		q.hints = append(q.hints, heldHint{h, tag, time.Now()})
	}
	q.mu.Unlock()
	if first {
		q.loop.Wake()
	}
}

// next says how long it is until something has lingered.
func (q *redisQueue) next(context.Context) (time.Duration, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	idle := worker.MaxIdle
	if len(q.pulls) > 0 {
		idle = time.Until(q.pulls[0].since.Add(redisLinger))
	}
	if len(q.hints) > 0 {
		idle = min(idle, time.Until(q.hints[0].at.Add(hintLinger)))
	}
	return idle, nil
}

// batch sends what has lingered.
func (q *redisQueue) batch(ctx context.Context) (more bool, err error) {
	now := time.Now()
	return q.send(ctx, now.Add(-hintLinger), now.Add(-redisLinger))
}

// send sends hints and a batch of pulls that came before their times.
func (q *redisQueue) send(ctx context.Context, hints, pulls time.Time) (more bool, err error) {
	select {
	case q.sending <- struct{}{}:
		defer func() { <-q.sending }()
	case <-ctx.Done():
		return false, ctx.Err()
	}
	if q.failing {
		// What is sent to a server that doesn't answer is lost: ask first.
		if err := q.r.opt.Redis.ping(ctx); err != nil {
			q.markWaiting()
			return false, err
		}
		q.failing = false
	}
	defer func() {
		if q.failing = err != nil; q.failing {
			q.markWaiting()
		}
	}()
	if err := q.sendHints(ctx, hints); err != nil {
		return false, err
	}
	batch, more := q.take(pulls)
	if len(batch) == 0 {
		return false, nil
	}
	kept, err := q.record(ctx, batch)
	q.keep(kept)
	return more && err == nil, err
}

// take takes off pulls that came before a time, and says whether a batch is left.
func (q *redisQueue) take(before time.Time) (batch []*event, more bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	limit := min(len(q.pulls), q.r.opt.Batch)
	full := limit == q.r.opt.Batch
	n := 0
	for n < limit && (full || q.pulls[n].since.Before(before)) {
		n++
	}
	batch = append(batch, q.pulls[:n]...)
	for _, e := range batch {
		delete(q.same, counterName{e.RepositoryID, e.Tag, e.Digest}) // it is complete
	}
	clear(q.pulls[:n])
	q.pulls = q.pulls[n:]
	return batch, len(q.pulls) >= q.r.opt.Batch
}

// keep puts pulls back that weren't taken. Their order doesn't matter.
func (q *redisQueue) keep(list []*event) {
	q.mu.Lock()
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
			q.r.missed(e.Entry)
		}
	}
}

func (q *redisQueue) sendHints(ctx context.Context, before time.Time) error {
	q.mu.Lock()
	n := 0
	for n < len(q.hints) && q.hints[n].at.Before(before) {
		n++
	}
	list := append([]heldHint(nil), q.hints[:n]...)
	q.hints = q.hints[n:]
	q.mu.Unlock()
	var calls []*call
	for _, h := range list {
		calls = append(calls, &call{script: hintScript, key: h.key(), args: []any{h.tag, int(hintTime.Seconds()), redisTime(h.at), maxSameHints}})
	}
	if len(calls) == 0 {
		return nil
	}
	q.r.opt.Redis.run(ctx, calls)
	for _, c := range calls {
		if got, err := c.outcome(); got != answered {
			return fmt.Errorf("sending pulls to Redis: %w", err)
		}
	}
	return nil
}

// record has Redis count pulls, and returns those that it didn't take.
func (q *redisQueue) record(ctx context.Context, batch []*event) (kept []*event, err error) {
	// The end of the process doesn't cut off what is under way: it would be lost.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	if kept, err = q.lookHints(ctx, batch); err != nil {
		return kept, err
	}
	groups := grouped(batch)
	uses := usesOf(groups)
	calls := make([]*call, 0, len(uses)+len(groups))
	for _, u := range uses {
		calls = append(calls, u.call)
	}
	for _, g := range groups {
		calls = append(calls, g.call)
	}
	q.r.opt.Redis.run(ctx, calls)
	for _, u := range uses {
		if got, _ := u.call.outcome(); got != answered {
			for _, e := range u.events {
				e.unseen = true // if it is counted all the same
			}
		}
	}
	for _, g := range groups {
		got, cause := g.call.outcome()
		switch {
		case got == refused && unfit(cause):
			for _, e := range g.events {
				q.spill(ctx, e.Entry, e.n)
			}
			q.r.opt.Logger.WarnContext(ctx, "Redis has something else in the place of a counter of pulls", "key", g.call.key, "error", cause)
		case got == refused:
			kept, err = append(kept, g.events...), cause
		default:
			q.counted(ctx, g.events, got)
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

// counted logs pulls that Redis has counted or, where it didn't answer, may have:
// who would count them again might count them twice.
func (q *redisQueue) counted(ctx context.Context, list []*event, got outcome) {
	n := 0
	for _, e := range list {
		n += e.n
		e.CountedBy = audit.CountedByRedis
		q.r.log(ctx, e.Entry)
		if got == unanswered || e.unseen {
			q.r.missed(e.Entry)
		}
	}
	if got == unanswered {
		q.r.opt.Metrics.event(eventUnanswered, n)
		return
	}
	q.r.opt.Metrics.event(eventRecorded, n)
}

// unfit says whether an answer tells that a key holds something else than it should,
// and always will. Redis 6 has what a script met inside an ERR of its own, where it has
// causes that pass too.
func unfit(err error) bool {
	for _, text := range []string{"WRONGTYPE ", "is not an integer", "would overflow", "attempt to "} {
		if strings.Contains(err.Error(), text) {
			return true
		}
	}
	return false
}

// lookHints finds the tags of pulls by digest that belong to a HEAD which another
// process has answered, and removes the hints, also of those that this process has
// joined. All pulls are returned when one look fails: none was counted yet.
func (q *redisQueue) lookHints(ctx context.Context, batch []*event) ([]*event, error) {
	var looking []*event
	var calls []*call
	for _, e := range batch {
		if e.hint != (hint{}) && !e.looked {
			looking = append(looking, e)
			calls = append(calls, &call{script: takeHintScript, key: e.hint.key(), args: []any{int(hintTime.Seconds()), redisTime(e.Time)}})
		}
	}
	if len(calls) == 0 {
		return nil, nil
	}
	q.r.opt.Redis.run(ctx, calls)
	var failed error
	for i, c := range calls {
		got, err := c.outcome()
		bad := got == refused && unfit(err)
		if got != answered && !bad {
			failed = fmt.Errorf("sending pulls to Redis: %w", err)
		}
		looking[i].looked = got != refused || bad // of what stays unanswered the tag isn't known
		if e := looking[i]; got == answered && e.Tag == "" {
			e.Tag, _ = c.cmd.Text()
		}
	}
	if failed != nil {
		return batch, failed // of what is sent to a server that doesn't answer nothing is known
	}
	return nil, nil
}

// group is the pulls of a batch that have one key.
type group struct {
	events []*event
	n      int // pulls
	last   time.Time
	call   *call
}

// counterName is what a counter counts.
type counterName struct {
	repository int64
	tag        string
	digest     oci.Digest
}

func grouped(batch []*event) []*group {
	groups := make(map[counterName]*group, len(batch))
	var list []*group
	for _, e := range batch {
		name := counterName{e.RepositoryID, e.Tag, e.Digest}
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
			script: recordScript, key: pullKey(e.RepositoryID, e.Tag, e.Digest),
			args: []any{g.n, redisTime(g.last), e.RepositoryID, e.Tag, e.Digest.String(), method},
		}
	}
	return list
}

// usesOf are the calls by which Redis remembers when names of groups were used, one
// for each repository and hour.
func usesOf(groups []*group) []*group {
	uses := map[string]*group{}
	var list []*group
	for _, g := range groups {
		e := g.events[0]
		key := usesKey(e.RepositoryID, g.last)
		u := uses[key]
		if u == nil {
			u = &group{call: &call{script: useScript, key: key, args: []any{int((usesFor + 2*time.Hour).Seconds())}}}
			uses[key] = u
			list = append(list, u)
		}
		u.events = append(u.events, g.events...)
		at := g.last.Unix() + 1
		u.call.args = append(u.call.args, useField(e.Digest.String()), at)
		if e.Tag != "" {
			u.call.args = append(u.call.args, useField(e.Tag), at)
		}
	}
	return list
}

// usesKey is the key of what was used in a repository in the hour of a time.
func usesKey(repository int64, at time.Time) string {
	return fmt.Sprintf("%s%d:%d", usesPrefix, repository, at.Unix()/3600)
}

// useField is a short name for a tag or a digest: of two that share one both count
// as used.
func useField(name string) string {
	sum := sha256.Sum256([]byte(name))
	return fmt.Sprintf("%011x", binary.BigEndian.Uint64(sum[:8])>>20)
}

// close sends what is left, and has the rest counted from the log.
func (q *redisQueue) close(ctx context.Context) {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	var err error
	for err == nil && ctx.Err() == nil && q.waiting() > 0 {
		end := time.Now().Add(time.Hour) // nothing lingers
		_, err = q.send(ctx, end, end)
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
	for _, e := range rest {
		q.spill(ctx, e.Entry, e.n)
	}
}

func (q *redisQueue) waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.pulls) + len(q.hints)
}

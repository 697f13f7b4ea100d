package pullstats

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/pullstats/redispulls"
	"github.com/purser-registry/purser/internal/worker"
)

const (
	// maxHeads bounds the number of HEADs that a process keeps in memory, besides those of
	// namespaces of which it keeps few (limit.Buffer).
	maxHeads = 75_000
	// headBatch is how many HEADs are sent to Redis at once.
	headBatch = 2000
	// headsKept is how much longer than a GET by digest can be joined with it a HEAD stays in
	// memory. A GET waits for Redis for some seconds; then it is counted from the audit log, and
	// the other processes must still have its HEAD when they learn of that.
	headsKept = 15 * time.Second
	// headsToo is for how long GETs that Redis has joined are still written to the table
	// pullheads, after pulls by digest were last counted from the audit log: other processes may
	// learn later than this one that Redis counts again.
	headsToo = 10 * time.Second
)

// redisHeads sends to Redis the HEADs by tag that this process has answered. Redis finds the
// HEAD for each GET by digest, whichever process answered the HEAD; no process joins
// requests in its own memory. redisHeads keeps each HEAD in memory as long as a GET can be
// joined with it. When Redis goes away, pulls are counted from the audit log, so redisHeads
// writes these HEADs to the table pullheads in the log's database. It also writes to
// pullheads the GETs that Redis has joined, so that their HEADs aren't used again. When
// Redis is back, redisHeads sends the HEADs once more. Each HEAD has a name, by which
// Redis stores a repeated HEAD once and remembers whether a GET has used it.
type redisHeads struct {
	q       *redisQueue
	process uint64

	mu     sync.Mutex
	named  uint64        // how many names were given to HEADs and pulls by digest
	recent []*recentHead // in the order in which they came
	places *limit.Buffer // of recent, by namespace
	unsaid int           // how many of recent Redis doesn't have
	logged int           // how many of recent the audit log has
	taken  []audit.Entry // pulls by digest that Redis has joined with HEADs and counted
	// both is until when HEADs and joined GETs go to Redis and to the audit log's database.
	both time.Time
}

type recentHead struct {
	audit.Entry
	name         string
	since        time.Time
	sent, logged bool
}

// name returns a new name for a HEAD or a pull by digest in Redis: no other HEAD or pull of
// any process has it.
func (h *redisHeads) name() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.nextName()
}

func (h *redisHeads) nextName() string {
	h.named++
	return fmt.Sprintf("%016x%010x", h.process, h.named)
}

// add remembers a HEAD as long as a GET by digest may be joined with it, so that the HEAD can
// be sent to Redis. If `byLog` is set, pulls by digest are currently counted from the audit
// log; then add also writes the HEAD to the table pullheads. If memory has no room for the
// HEAD, add drops it, and no pull is joined with it. `first` is true if no other HEAD waits
// to be sent, so that the caller must wake the queue's loop.
func (h *redisHeads) add(ctx context.Context, e audit.Entry, byLog bool) (first bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.forget(time.Now())
	if h.places.Full(namespaceOf(e)) {
		h.q.r.opt.LastUsed.markUncounted(e.Time)
		return false
	}
	head := &recentHead{Entry: e, name: h.nextName(), since: time.Now()}
	h.recent = append(h.recent, head)
	h.places.Add(namespaceOf(e))
	h.unsaid++
	if byLog {
		h.log(ctx, head)
	}
	return h.unsaid == 1
}

// forget removes from memory the HEADs (h.recent) that are so old that no new GET is joined
// with them. It also removes GETs that Redis has joined (h.taken), joinLag later, when the
// HEADs that they have used are as old.
//
// A HEAD that is forgotten may be missing where its GET looks for it: in the log's database if
// pulls by digest are counted from the log, or in Redis if there is no log. Then it is told that
// a pull may not be counted for its tag.
func (h *redisHeads) forget(now time.Time) {
	n := 0
	for n < len(h.recent) && now.Sub(h.recent[n].since) > h.q.r.opt.Join+headsKept {
		head := h.recent[n]
		if !head.sent {
			h.unsaid--
		}
		if head.logged {
			h.logged--
		}
		if !head.logged && now.Before(h.both) || !head.sent && h.q.r.opt.Log == nil {
			h.q.r.opt.LastUsed.markUncounted(h.q.r.presence.now())
		}
		h.places.Remove(namespaceOf(head.Entry))
		head.sent = true // so that send, if it is sending this head now, doesn't count it as well
		h.recent[n] = nil
		n++
	}
	h.recent = h.recent[n:]
	n = 0
	for n < len(h.taken) && now.Sub(h.taken[n].Came) > h.q.r.opt.Join+headsKept {
		n++
	}
	h.taken = h.taken[n:]
}

// used remembers a pull by digest that Redis has joined with a HEAD and counted, so that
// toLog can write the pull to pullheads if Redis goes away. If memory has no room for it,
// the SyncWorker may later join another pull with the same HEAD.
func (h *redisHeads) used(ctx context.Context, e audit.Entry) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.q.r.opt.Log == nil:
	case time.Now().Before(h.both):
		h.q.r.opt.Log.RecordHead(ctx, e)
	case len(h.taken) < maxHeads:
		h.taken = append(h.taken, e)
	}
}

func (h *redisHeads) log(ctx context.Context, head *recentHead) {
	if !head.logged && h.q.r.opt.Log.RecordHead(ctx, head.Entry) {
		head.logged = true
		h.logged++
	}
}

// toLog is called while pulls by digest are counted from the audit log. It writes to the table
// pullheads the HEADs that aren't in this table yet, and the GETs that Redis has joined.
func (h *redisHeads) toLog(ctx context.Context) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.both = time.Now().Add(headsToo)
	h.forget(time.Now())
	if h.logged < len(h.recent) {
		for _, head := range h.recent {
			h.log(ctx, head)
		}
	}
	for _, e := range h.taken {
		h.q.r.opt.Log.RecordHead(ctx, e)
	}
	h.taken = nil
}

// again marks all HEADs as unsent, because Redis is back and may have lost those that were
// sent.
func (h *redisHeads) again() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.forget(time.Now())
	for _, head := range h.recent {
		head.sent = false
	}
	h.unsaid = len(h.recent)
}

// unlogged returns the time of the oldest HEAD that isn't in the table pullheads, nor on its way
// there through the audit log's buffer; nil if there is none, or if pulls aren't logged, so that
// nobody looks for HEADs there.
func (h *redisHeads) unlogged() *time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.forget(time.Now())
	var oldest time.Time
	for _, head := range h.recent {
		if !head.logged {
			oldest = first(oldest, head.Time)
		}
	}
	if oldest.IsZero() || h.q.r.opt.Log == nil {
		return nil
	}
	return &oldest
}

// oldestUnsent returns the time of the oldest HEAD that Redis doesn't have; zero if there is
// none.
func (h *redisHeads) oldestUnsent() (oldest time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.forget(time.Now())
	if h.unsaid == 0 {
		return oldest
	}
	for _, head := range h.recent {
		if !head.sent {
			oldest = first(oldest, head.Time)
		}
	}
	return oldest
}

// unsent returns how many HEADs wait to be sent to Redis.
func (h *redisHeads) unsent() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.forget(time.Now())
	return h.unsaid
}

// unwatched says whether memory has HEADs, or GETs that Redis has joined, that aren't in
// the table pullheads. While there are any, the process pings Redis, so that it notices
// when Redis goes away and can write them there (toLog).
func (h *redisHeads) unwatched(now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.forget(now)
	return h.q.r.opt.Log != nil && len(h.recent)+len(h.taken) > h.logged
}

// next returns how long it is until HEADs are to be sent to Redis or, if none wait, until
// Redis is to be pinged. Redis is pinged while it has HEADs that the table pullheads
// doesn't have, since these must be written there when Redis goes away.
func (h *redisHeads) next(now time.Time) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.forget(now)
	switch {
	case h.unsaid > 0:
		return headLinger
	case h.q.r.opt.Log != nil && len(h.recent)+len(h.taken) > h.logged:
		return contactEvery
	}
	return worker.MaxIdle
}

// send sends to Redis the unsent HEADs that came before the time `before`, but at most
// headBatch of them.
func (h *redisHeads) send(ctx context.Context, before time.Time) error {
	h.mu.Lock()
	var list []*recentHead
	for i := 0; i < len(h.recent) && len(list) < min(h.unsaid, headBatch); i++ {
		if head := h.recent[i]; !head.sent && head.since.Before(before) {
			list = append(list, head)
		}
	}
	h.mu.Unlock()
	if len(list) == 0 {
		return nil
	}
	requests := make([]redispulls.Request, len(list))
	for i, head := range list {
		requests[i] = redispulls.Request{Name: head.name, Entry: head.Entry}
	}
	answers := h.q.r.opt.Redis.StoreHeads(ctx, requests, h.q.r.opt.Join)
	var failed error
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, a := range answers {
		if a.Outcome == redispulls.Answered || a.Outcome == redispulls.Unfit {
			if !list[i].sent {
				list[i].sent = true
				h.unsaid--
			}
			continue
		}
		failed = fmt.Errorf("sending pulls to Redis: %w", a.Err)
	}
	return failed
}

// join asks Redis, for each pull by digest in `batch`, for the tag of the HEAD that belongs
// to the pull, and stores the tag in the event. If Redis refuses or doesn't answer one of
// these requests, join returns the whole batch and an error: none of the pulls is counted
// yet, so the caller may send the batch again (a repeated request gets the same tag), or
// have it counted from the audit log.
func (h *redisHeads) join(ctx context.Context, batch []*event) ([]*event, error) {
	var looking []*event
	var requests []redispulls.Request
	for _, e := range batch {
		if e.name != "" && !e.looked {
			looking, requests = append(looking, e), append(requests, redispulls.Request{Name: e.name, Entry: e.Entry})
		}
	}
	if len(requests) == 0 {
		return nil, nil
	}
	var failed error
	for i, a := range h.q.r.opt.Redis.TakeHeads(ctx, requests, h.q.r.opt.Join) {
		if a.Outcome != redispulls.Answered && a.Outcome != redispulls.Unfit {
			failed = fmt.Errorf("sending pulls to Redis: %w", a.Err)
			continue
		}
		e := looking[i]
		e.looked = true
		if a.Outcome == redispulls.Answered {
			e.Tag = a.Tag
		}
	}
	if failed != nil {
		return batch, failed // the calls that the server didn't answer may have been executed
	}
	return nil, nil
}

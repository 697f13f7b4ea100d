package pullstats

import (
	"context"
	"encoding/hex"
	"fmt"
	"sync"
	"time"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/worker"
)

const (
	// maxHeads bounds the HEADs in a process's memory.
	maxHeads = 50_000
	// maxSameHeads bounds the HEADs of one client and manifest in Redis.
	maxSameHeads = 1000
	// headBatch is how many HEADs are sent together.
	headBatch = 2000
	// headMargin is how much longer Redis keeps a HEAD than it can be joined, since the
	// pull that looks for it may be sent late.
	headMargin = time.Minute
)

// redisHeads sends the HEADs by tag that this process answers to Redis. In Redis, pulls by
// digest find their HEADs, whichever process answered them; the process itself joins
// nothing. It keeps each HEAD in memory as long as the HEAD can be joined. When Redis goes
// away, the process writes these HEADs to the log, since pulls are then counted from the
// log; when Redis is back, it sends them again. It also writes to the log the pulls that
// Redis has joined, so that no HEAD is used twice. Each HEAD has a name, by which Redis
// stores a repeated HEAD once and remembers whether it was used.
type redisHeads struct {
	q       *redisQueue
	process uint64

	mu     sync.Mutex
	named  uint64        // number of names given to HEADs and pulls by digest
	recent []*recentHead // in the order in which they came
	unsaid int           // of recent, those that Redis doesn't have
	logged int           // of recent, those that the log has
	taken  []audit.Entry // pulls by digest that Redis has joined with HEADs and counted
}

type recentHead struct {
	audit.Entry
	name         string
	since        time.Time
	sent, logged bool
}

// name returns a name that no other HEAD or pull of any process has.
func (h *redisHeads) name() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.nextName()
}

func (h *redisHeads) nextName() string {
	h.named++
	return fmt.Sprintf("%016x%010x", h.process, h.named)
}

func headKey(e audit.Entry) string {
	client := e.Client()
	return headPrefix + hex.EncodeToString(client[:])
}

// add takes a HEAD, and returns whether it is the only one that waits to be sent. byLog
// says that pulls by digest are counted from the log now, so add logs the HEAD too. A HEAD
// that finds no room isn't joined with any pull.
func (h *redisHeads) add(ctx context.Context, e audit.Entry, byLog bool) (first bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.forget(time.Now())
	if len(h.recent) >= maxHeads {
		h.q.r.opt.LastUsed.markUncounted(e.Time)
		return false
	}
	head := &recentHead{Entry: e, name: h.nextName(), since: time.Now()}
	h.recent = append(h.recent, head)
	h.unsaid++
	if byLog {
		h.log(ctx, head)
	}
	return h.unsaid == 1
}

// forget drops HEADs that are too old to be joined.
func (h *redisHeads) forget(now time.Time) {
	n := 0
	for n < len(h.recent) && now.Sub(h.recent[n].since) > h.q.r.opt.Join {
		if head := h.recent[n]; !head.sent {
			h.unsaid--
		}
		if h.recent[n].logged {
			h.logged--
		}
		h.recent[n] = nil
		n++
	}
	h.recent = h.recent[n:]
	n = 0
	for n < len(h.taken) && h.q.r.presence.now().Sub(h.taken[n].Time) > h.q.r.opt.Join+joinLag {
		n++
	}
	h.taken = h.taken[n:]
}

// used notes a pull by digest that Redis has joined and counted. If there is no room for
// it, its HEAD may be joined a second time.
func (h *redisHeads) used(e audit.Entry) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.q.r.opt.Log != nil && len(h.taken) < maxHeads {
		h.taken = append(h.taken, e)
	}
}

func (h *redisHeads) log(ctx context.Context, head *recentHead) {
	if !head.logged && h.q.r.opt.Log.RecordHead(ctx, head.Entry) {
		head.logged = true
		h.logged++
	}
}

// toLog writes to the log the HEADs that the log doesn't have, because Redis is away.
func (h *redisHeads) toLog(ctx context.Context) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.forget(time.Now())
	for _, head := range h.recent {
		h.log(ctx, head)
	}
	for _, e := range h.taken {
		h.q.r.opt.Log.RecordHead(ctx, e)
	}
	h.taken = nil
}

// again marks all HEADs as unsent, because Redis is back and may not have them.
func (h *redisHeads) again() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.forget(time.Now())
	for _, head := range h.recent {
		head.sent = false
	}
	h.unsaid = len(h.recent)
}

// unsent returns how many HEADs wait to be sent.
func (h *redisHeads) unsent() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.forget(time.Now())
	return h.unsaid
}

// unwatched says whether Redis has HEADs that the log doesn't have, so that they must be
// logged when Redis goes away.
func (h *redisHeads) unwatched(now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.forget(now)
	return h.q.r.opt.Log != nil && len(h.recent)+len(h.taken) > h.logged
}

// next returns how long it is until there is something to do.
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

// send sends Redis a batch of the HEADs that came before a time.
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
	holds := h.q.r.opt.Join
	calls := make([]*call, len(list))
	for i, head := range list {
		calls[i] = &call{script: headScript, keys: []string{headKey(head.Entry)}, args: []any{
			head.name, head.Time.UnixMicro(), head.Port, head.Tag, (holds + headMargin).Microseconds(), maxSameHeads, int((holds + headMargin).Seconds()) + 1,
		}}
	}
	h.q.r.opt.Redis.run(ctx, calls)
	var failed error
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, c := range calls {
		got, err := c.outcome()
		if got == answered || got == refused && unfit(err) {
			if !list[i].sent {
				list[i].sent = true
				h.unsaid--
			}
			continue
		}
		failed = fmt.Errorf("sending pulls to Redis: %w", err)
	}
	return failed
}

// join asks Redis for the tags of the pulls by digest in batch that belong to a HEAD. If a
// request fails, join returns the whole batch, to be tried again: none of it was counted
// yet, and a repeated request gets the same tag.
func (h *redisHeads) join(ctx context.Context, batch []*event) ([]*event, error) {
	var looking []*event
	var calls []*call
	for _, e := range batch {
		if e.name != "" && !e.looked {
			looking = append(looking, e)
			calls = append(calls, &call{script: takeScript, keys: []string{headKey(e.Entry)}, args: []any{
				e.name, e.Time.UnixMicro(), e.Port, h.q.r.opt.Join.Microseconds(),
			}})
		}
	}
	if len(calls) == 0 {
		return nil, nil
	}
	h.q.r.opt.Redis.run(ctx, calls)
	var failed error
	for i, c := range calls {
		got, err := c.outcome()
		bad := got == refused && unfit(err)
		if got != answered && !bad {
			failed = fmt.Errorf("sending pulls to Redis: %w", err)
			continue
		}
		e := looking[i]
		e.looked = true
		if got == answered {
			e.Tag, _ = c.cmd.Text()
		}
	}
	if failed != nil {
		return batch, failed // after a failure nothing is known about calls that the server didn't answer
	}
	return nil, nil
}

package audit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/worker"
)

// RecorderOptions says how to write pulls.
type RecorderOptions struct {
	DB *db.DB // required
	// Buffer is how many entries wait at most, those being written included.
	// Default 10,000.
	Buffer int
	// Join is how long after the first of them pulls of one thing by one client are one
	// entry. Default DefaultJoin; below 0 each has its own.
	Join time.Duration
	// Patience is how long a pull waits at most for room in a full buffer. Default 1 s.
	Patience time.Duration
	// Batch is how many are written together. Default 500.
	Batch int
	// Every is the longest that an entry waits for its batch to fill while the
	// database is there. Default 1 s.
	Every time.Duration
	// Timeout bounds a batch. Default 10 s.
	Timeout time.Duration
	// BackoffMin and BackoffMax bound the pause after a failure. Defaults 200 ms,
	// 5 s.
	BackoffMin, BackoffMax time.Duration
	// Alive locks those of the repositories that exist, in the order of their ids
	// and until the transaction ends, and returns them: entries of others lose
	// their repository's id, which nobody would clear any more. Nil: ids are
	// written as they are.
	Alive   func(ctx context.Context, tx pgx.Tx, ids []int64) ([]int64, error)
	Log     *slog.Logger    // default slog.Default()
	Metrics *Metrics        // nil: none
	Worker  *worker.Metrics // nil: none
}

// Recorder writes entries of pulls, in batches and behind the pulls' back. Its
// methods may be called concurrently. A nil Recorder records nothing.
type Recorder struct {
	opt     RecorderOptions
	log     *slog.Logger
	loop    *worker.Loop
	writing chan struct{} // has a value while a batch is being written

	mu      sync.Mutex
	queue   []*waiting           // its first entries are those being written
	open    map[joinKey]*waiting // those of the queue that take more
	heads   int                  // of the queue, that are no pulls
	failing bool                 // the last batch wasn't written
	since   time.Time            // a batch is being written; zero: none is
	room    chan struct{}        // closed when entries leave the queue
	resting bool                 // the loop sleeps until an entry comes
	began   bool                 // an entry came while it did, and the loop has just been woken
	closed  bool
	dropped uint64
	unfit   uint64 // of these, that PostgreSQL doesn't take
}

// NewRecorder makes a recorder. It writes nothing before Run or Close.
func NewRecorder(o RecorderOptions) *Recorder {
	if o.Buffer <= 0 {
		o.Buffer = 10_000
	}
	if o.Batch <= 0 {
		o.Batch = 500
	}
	if o.Every <= 0 {
		o.Every = time.Second
	}
	if o.Join == 0 {
		o.Join = DefaultJoin
	}
	if o.Patience <= 0 {
		o.Patience = time.Second
	}
	if o.Timeout <= 0 {
		o.Timeout = 10 * time.Second
	}
	if o.BackoffMin <= 0 {
		o.BackoffMin = 200 * time.Millisecond
	}
	if o.BackoffMax <= 0 {
		o.BackoffMax = 5 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	r := &Recorder{opt: o, log: o.Log, writing: make(chan struct{}, 1), open: map[joinKey]*waiting{}, room: make(chan struct{})}
	r.loop = worker.New(worker.Options{
		Name: "audit of pulls", Batch: r.round, Next: r.rest, Timeout: o.Timeout,
		BackoffMin: o.BackoffMin, BackoffMax: o.BackoffMax, Log: o.Log, Metrics: o.Worker,
	})
	return r
}

// Record takes an entry. It never blocks, waits for nothing but a moment's lock,
// and has no error: what finds no room is dropped and counted, and not taken. The
// context's source is the entry's, and now its time, unless it has its own.
func (r *Recorder) Record(ctx context.Context, e Entry) (taken bool) {
	if r == nil {
		return false
	}
	reason := r.take(ctx, &e)
	if reason == "" {
		return true
	}
	r.mu.Lock()
	r.dropped += uint64(e.pulls())
	r.mu.Unlock()
	r.opt.Metrics.drop(reason, e.pulls())
	return false
}

// Offer is Record for who may wait for room: what isn't taken isn't dropped either.
func (r *Recorder) Offer(ctx context.Context, e Entry) (taken bool) {
	return r != nil && r.take(ctx, &e) == ""
}

// take takes an entry, or says why not.
func (r *Recorder) take(ctx context.Context, e *Entry) (reason string) {
	r.prepare(ctx, e)
	r.mu.Lock()
	defer r.mu.Unlock()
	full := len(r.queue) >= r.opt.Buffer
	switch {
	case r.closed:
		return droppedClosed
	case r.join(e, full):
		return ""
	case full:
		return droppedFull
	}
	r.add(e)
	if len(r.queue)%r.opt.Batch == 0 {
		r.loop.Wake()
	}
	return ""
}

// prepare fills in what an entry doesn't say. Its time is to the microsecond, as in the log.
func (r *Recorder) prepare(ctx context.Context, e *Entry) {
	*e = e.from(SourceOf(ctx))
	e.ID = 0
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	e.Time = e.Time.Truncate(time.Microsecond)
}

// join adds a request to an entry that waits, if there is one for it. Where the buffer is
// full it doesn't matter how old that is.
func (r *Recorder) join(e *Entry, full bool) bool {
	if r.opt.Join < 0 || !e.joinable() {
		return false
	}
	w := r.open[e.joinKey()]
	span := r.opt.Join
	if full {
		span = 1<<63 - 1
	}
	return w != nil && w.join(e, span)
}

// add puts an entry at the end of the queue.
func (r *Recorder) add(e *Entry) {
	e.Pulls = e.pulls()
	w := &waiting{Entry: *e, first: e.Time}
	if !e.FirstTime.IsZero() {
		w.first = e.FirstTime
	}
	if r.opt.Join >= 0 && e.joinable() {
		w.key = e.joinKey()
		r.open[w.key] = w
	}
	r.queue = append(r.queue, w)
	if e.Kind == headOfTag {
		r.heads++
	}
	if r.resting {
		r.resting, r.began = false, true
		r.loop.Wake()
	}
}

// Wait waits until a full buffer has room, or until a moment, and says whether it is of
// use to offer an entry again. It isn't when batches fail, or the one under way has taken
// longer than a pull may wait.
func (r *Recorder) Wait(ctx context.Context, until time.Time) bool {
	if r == nil {
		return false
	}
	r.mu.Lock()
	room, usable := r.room, !r.closed && !r.failing
	if !r.since.IsZero() && r.since.Add(r.opt.Patience).Before(until) {
		until = r.since.Add(r.opt.Patience)
	}
	r.mu.Unlock()
	if !usable {
		return false
	}
	r.loop.Wake()
	t := time.NewTimer(time.Until(until))
	defer t.Stop()
	select {
	case <-room:
		return true
	case <-ctx.Done():
	case <-t.C:
	}
	return false
}

// Patience is how long a pull waits for room at most.
func (r *Recorder) Patience() time.Duration {
	if r == nil {
		return 0
	}
	return r.opt.Patience
}

// RecordHead is Record for a HEAD of a tag, which may be the first half of a pull, or for
// the second half that Redis has counted (CountedBy), so that no other pull is joined with
// that HEAD: it is written beside the entries, for the statistics alone. Heads take half of the room
// at most, and what is dropped isn't counted as dropped: a pull by digest isn't joined.
func (r *Recorder) RecordHead(ctx context.Context, e Entry) (taken bool) {
	if r == nil {
		return false
	}
	e.Kind = headOfTag
	r.prepare(ctx, &e)
	r.mu.Lock()
	defer r.mu.Unlock()
	full := len(r.queue) >= r.opt.Buffer || r.heads >= (r.opt.Buffer+1)/2
	switch {
	case r.closed:
		return false
	case r.join(&e, full):
	case full:
		return false
	default:
		r.add(&e)
	}
	return true
}

// Oldest is the time of the oldest request that waits to be written; zero: none waits.
func (r *Recorder) Oldest() (oldest time.Time) {
	if r == nil {
		return oldest
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.queue { // they come nearly in order
		if at := r.queue[i].first; oldest.IsZero() || at.Before(oldest) {
			oldest = at
		}
	}
	return oldest
}

// Pending is how many entries wait to be written.
func (r *Recorder) Pending() int {
	if r == nil {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.queue)
}

// Dropped is how many pulls were dropped, for whatever reason.
func (r *Recorder) Dropped() uint64 {
	if r == nil {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dropped
}

// Unfit is how many pulls were dropped because PostgreSQL doesn't take them.
func (r *Recorder) Unfit() uint64 {
	if r == nil {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.unfit
}

// Run writes batches until ctx ends, and returns nil then. What is left is for
// Close.
func (r *Recorder) Run(ctx context.Context) error { return r.loop.Run(ctx) }

// Close takes no more entries and writes those that wait, trying again after
// failures, until they are written or ctx ends: then they are dropped and counted,
// and the error says how many. (A batch whose last attempt stayed unanswered may be
// there all the same.) Run should be over, or soon be.
func (r *Recorder) Close(ctx context.Context) error {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	var err error
	for failures := 0; r.Pending() > 0 && ctx.Err() == nil; {
		try, cancel := context.WithTimeout(ctx, r.opt.Timeout)
		_, err = r.flush(try)
		cancel()
		if err != nil {
			failures++
			pause(ctx, worker.Backoff(failures, r.opt.BackoffMin, r.opt.BackoffMax))
		}
	}
	if n := r.abandon(); n > 0 {
		return fmt.Errorf("%d pulls are missing in the audit log: %w", n, errors.Join(ctx.Err(), err))
	}
	return nil
}

// abandon drops what is left when the batch under way, which has its timeout, is
// over.
func (r *Recorder) abandon() int {
	r.writing <- struct{}{}
	defer func() { <-r.writing }()
	r.mu.Lock()
	n := 0
	for _, w := range r.queue {
		if w.Kind != headOfTag {
			n += w.pulls()
		}
	}
	r.queue, r.heads, r.dropped = nil, 0, r.dropped+uint64(n)
	clear(r.open)
	r.leave()
	r.mu.Unlock()
	r.opt.Metrics.drop(droppedClosed, n)
	return n
}

package audit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/worker"
)

// RecorderOptions configures a Recorder.
type RecorderOptions struct {
	DB *db.DB // required
	// Buffer is the maximum number of entries in memory, including those that are being
	// written. Half as many more are for namespaces that have few entries there: one that
	// fills the buffer doesn't cost others their pulls (limit.Buffer). Default 10,000.
	Buffer int
	// Join is how long after an entry's first pull further pulls of the same content by
	// the same client are joined into that entry. Default DefaultJoin. If Join is
	// negative, each pull gets its own entry.
	Join time.Duration
	// Patience is how long a pull waits at most while the buffer is full. Default 1 s.
	Patience time.Duration
	// Batch is how many entries are written together. Default 500.
	Batch int
	// Every is how long an entry waits at most for its batch to fill, as long as the
	// database can be reached. Default 1 s.
	Every time.Duration
	// Timeout bounds the time for writing one batch. Default 10 s.
	Timeout time.Duration
	// BackoffMin and BackoffMax bound the pause after a batch that failed. Defaults 200 ms
	// and 5 s.
	BackoffMin, BackoffMax time.Duration
	// Alive returns those of the repository ids `ids` that exist, and locks these
	// repositories until the transaction tx ends, in the order of their ids. The recorder
	// writes entries of all other repositories without a repository id: after a
	// repository's deletion has been processed, nothing would clear that id any more. If
	// Alive is nil, all ids are written unchanged.
	Alive   func(ctx context.Context, tx pgx.Tx, ids []int64) ([]int64, error)
	Log     *slog.Logger    // default slog.Default()
	Metrics *Metrics        // nil: none
	Worker  *worker.Metrics // nil: none
}

// Recorder writes entries of pulls to the audit log in batches, in the background, so that
// no client's pull waits until its entry is written. Its methods may be called
// concurrently. A nil Recorder records nothing.
type Recorder struct {
	opt     RecorderOptions
	log     *slog.Logger
	loop    *worker.Loop
	writing chan struct{} // has a value while a batch is being written

	mu      sync.Mutex
	queue   []*waiting           // begins with the entries being written
	open    map[joinKey]*waiting // entries of the queue that still take further requests
	places  *limit.Buffer        // entries in the queue, by namespace
	heads   *limit.Buffer        // those of them that are HEADs, not pulls
	failing bool                 // the last batch failed
	since   time.Time            // since when a batch is being written; zero: none is
	room    chan struct{}        // closed when entries leave the queue
	resting bool                 // the loop sleeps until an entry comes
	began   bool                 // the first entry came while the loop slept, and the loop has just been woken
	closed  bool
	dropped uint64
	unfit   uint64 // of the dropped pulls, those that PostgreSQL refuses
}

// NewRecorder makes a recorder. It writes nothing before Run or Close.
func NewRecorder(o RecorderOptions) *Recorder {
	o.Buffer = cmp.Or(o.Buffer, 10_000)
	o.Batch = cmp.Or(o.Batch, 500)
	o.Every = cmp.Or(o.Every, time.Second)
	o.Join = cmp.Or(o.Join, DefaultJoin)
	o.Patience = cmp.Or(o.Patience, time.Second)
	o.Timeout = cmp.Or(o.Timeout, 10*time.Second)
	o.BackoffMin = cmp.Or(o.BackoffMin, 200*time.Millisecond)
	o.BackoffMax = cmp.Or(o.BackoffMax, 5*time.Second)
	o.Log = cmp.Or(o.Log, slog.Default())
	r := &Recorder{
		opt: o, log: o.Log, writing: make(chan struct{}, 1), open: map[joinKey]*waiting{}, room: make(chan struct{}),
		places: limit.NewBuffer(o.Buffer), heads: limit.NewBuffer((o.Buffer + 1) / 2),
	}
	r.loop = worker.New(worker.Options{
		Name: "audit of pulls", Batch: r.runBatch, Next: r.sleepTime, Timeout: o.Timeout,
		BackoffMin: o.BackoffMin, BackoffMax: o.BackoffMax, Log: o.Log, Metrics: o.Worker,
	})
	return r
}

// Record puts an entry into the buffer, or joins it with an entry there, and returns true.
// If it can do neither, because the buffer is full or closed, it drops the entry, counts
// the drop, and returns false. It never waits for the database.
// An entry without a time gets the present time; empty fields that say who sent the request
// are filled from the context (WithSource).
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

// Offer is like Record, but doesn't count a refused entry as dropped: the caller can wait
// until the buffer has room (Wait) and offer the entry again.
func (r *Recorder) Offer(ctx context.Context, e Entry) (taken bool) {
	return r != nil && r.take(ctx, &e) == ""
}

// take puts an entry into the buffer, or joins it with an entry there, and returns "". If
// it can do neither, it returns the reason: droppedClosed or droppedFull.
func (r *Recorder) take(ctx context.Context, e *Entry) (reason string) {
	r.prepare(ctx, e)
	r.mu.Lock()
	defer r.mu.Unlock()
	full := r.places.Full(e.Namespace)
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

// prepare sets the entry's time to the present if it has none, and fills its empty fields
// that say who sent the request from the context. It truncates the time to microseconds,
// the precision of the table's column.
func (r *Recorder) prepare(ctx context.Context, e *Entry) {
	*e = e.from(SourceOf(ctx))
	e.ID = 0
	e.setNamespace()
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	e.Time = e.Time.Truncate(time.Microsecond)
	if e.Came.IsZero() {
		e.Came = time.Now()
	}
}

// join joins a request with a matching entry in the buffer, if there is one, and returns
// whether it did. As a rule the entry's first request must have come at most
// RecorderOptions.Join before. If `full` is set (the buffer has no room for a further entry
// of this kind), an older entry will do.
func (r *Recorder) join(e *Entry, full bool) bool {
	if r.opt.Join < 0 || !e.joinable() {
		return false
	}
	w := r.open[e.joinKey()]
	if w != nil && !full && !w.timed() && !sameDay(w.first, e.Time) {
		return false // so that the statistics know the day of each pull
	}
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
	r.places.Add(e.Namespace)
	if e.Kind == headOfTag {
		r.heads.Add(e.Namespace)
	}
	if r.resting {
		r.resting, r.began = false, true
		r.loop.Wake()
	}
}

// Wait waits until entries leave a full buffer, at most until the time `until`. It returns
// true if the caller should offer its entry again. It returns false if the time is over or
// ctx ends, if the recorder is closed, if writing the last batch failed, or if the present
// batch takes longer than RecorderOptions.Patience.
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

// Patience returns how long a pull waits at most while the buffer is full.
func (r *Recorder) Patience() time.Duration {
	if r == nil {
		return 0
	}
	return r.opt.Patience
}

// RecordHead puts a HEAD request for a tag into the buffer, from where it is written to the
// table pullheads, which only the statistics read. They need it because the client's GET by
// digest may follow, and HEAD and GET are one pull of the tag. If Redis has counted such a
// pull, the caller also records its GET here, with CountedByRedis, so that the statistics
// join no other pull with the same HEAD. HEADs fill at most half of the buffer. A dropped
// HEAD isn't counted as dropped: its only effect is that a pull by digest isn't counted for
// its tag.
func (r *Recorder) RecordHead(ctx context.Context, e Entry) (taken bool) {
	if r == nil {
		return false
	}
	e.Kind = headOfTag
	r.prepare(ctx, &e)
	r.mu.Lock()
	defer r.mu.Unlock()
	full := r.places.Full(e.Namespace) || r.heads.Full(e.Namespace)
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

// Oldest returns the time of the oldest request in the buffer, zero if the buffer is
// empty.
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

// Waits returns when the oldest request in the buffer came (Entry.Came), zero if the buffer is
// empty. A request is in the buffer until the commit of its batch is confirmed.
func (r *Recorder) Waits() (oldest time.Time) {
	if r == nil {
		return oldest
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.queue {
		if oldest.IsZero() || w.Came.Before(oldest) {
			oldest = w.Came
		}
	}
	return oldest
}

// Hurry makes Run write the entries in the buffer now, without waiting for further entries.
func (r *Recorder) Hurry() {
	if r == nil {
		return
	}
	r.mu.Lock()
	r.began = false
	r.mu.Unlock()
	r.loop.Wake()
}

// Pending returns how many entries are in the buffer, including those that are being
// written.
func (r *Recorder) Pending() int {
	if r == nil {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.queue)
}

// Dropped returns how many pulls were dropped, for any reason.
func (r *Recorder) Dropped() uint64 {
	if r == nil {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dropped
}

// Unfit returns how many pulls were dropped because PostgreSQL refuses their entries.
func (r *Recorder) Unfit() uint64 {
	if r == nil {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.unfit
}

// Run writes batches until ctx ends, and then returns nil. Call Close afterwards to write
// the entries that remain in the buffer.
func (r *Recorder) Run(ctx context.Context) error { return r.loop.Run(ctx) }

// Close makes the recorder refuse further entries, and writes those in the buffer. It
// repeats failed batches until all are written or ctx ends. If ctx ends first, Close drops
// the remaining entries, counts their pulls as dropped, and returns an error with the number
// of these pulls. (If PostgreSQL didn't answer the last attempt to write a batch, the batch
// may be in the log nevertheless.) Call Close when Run has returned or is about to return.
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
			_ = worker.Sleep(ctx, worker.Backoff(failures, r.opt.BackoffMin, r.opt.BackoffMax))
		}
	}
	if n := r.abandon(); n > 0 {
		return fmt.Errorf("%d pulls are missing in the audit log: %w", n, errors.Join(ctx.Err(), err))
	}
	return nil
}

// abandon drops the entries that are left in the buffer and returns how many pulls they
// stand for. It first waits until the current batch is written or its timeout ends.
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
	r.queue, r.dropped = nil, r.dropped+uint64(n)
	clear(r.open)
	r.places.Clear()
	r.heads.Clear()
	r.leave()
	r.mu.Unlock()
	r.opt.Metrics.drop(droppedClosed, n)
	return n
}

package pullstats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/semaphore"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/pullstats/redispulls"
	"github.com/purser-registry/purser/internal/pullstats/statsdb"
	"github.com/purser-registry/purser/internal/worker"
)

// SyncOptions configures a SyncWorker.
type SyncOptions struct {
	statsdb.Databases
	// Redis is read by SyncWorker.Uses, which returns when tags and manifests were last
	// used: it may have pulls that aren't flushed to the statistics yet. Nil if no Redis is
	// configured.
	Redis *redispulls.Client
	// Interval is the longest time between two reads of the audit log. Default 5 min.
	Interval time.Duration
	// Batch is how many entries of the audit log one transaction counts. Default 1,000.
	Batch int
	// Join is how long after a HEAD by tag a GET by digest counts as the second half of the
	// same pull. Default DefaultJoin.
	Join time.Duration
	// Retention is how long the audit log keeps entries at least, even unread ones. If
	// counting was switched off for longer, unread entries may have been dropped. 0: entries
	// are kept for ever.
	Retention time.Duration
	// Patience is how long Settle waits for processes before it returns ErrUnsettled. Default
	// 15 s.
	Patience time.Duration
	// ClocksFit returns an error while the clocks aren't fit to judge by. Then no time in the future
	// is mended: the clock may be behind, and the time right. Nil: they always are.
	ClocksFit func(ctx context.Context) error
	Logger    *slog.Logger    // default slog.Default()
	Metrics   *Metrics        // nil: none
	Worker    *worker.Metrics // nil: none
}

// SyncWorker counts the pulls that are in the audit log and adds them to the statistics.
// (Quay's design calls it PullStatsSyncWorker.) Any number of processes may run one. Its
// methods may be called concurrently.
type SyncWorker struct {
	opt   SyncOptions
	audit *audit.Log
	log   *slog.Logger
	loop  *worker.Loop
	// reading is taken while this worker reads and counts a batch. Who waits for it may have a
	// connection and locks, and gives up with its context.
	reading *semaphore.Weighted

	due      time.Time // used by the loop alone, as is observed
	observed time.Time // when the lag was last observed
	started  bool      // guarded by reading: start has succeeded

	local      atomic.Pointer[presence] // of this process's recorder: see Hastens
	inVain     atomic.Int64             // when Settle last waited in vain, in Unix nanoseconds; 0: the last call succeeded
	suspecting sync.Mutex
	suspects   map[int64]suspect // processes that were found silent, by their ids

	lag      time.Duration           // joinLag, except in tests
	patience time.Duration           // SyncOptions.Patience
	confirm  time.Duration           // confirmAfter, except in tests
	crash    func(step string) error // for tests: may end the batch as a crash of the process would
}

// NewSyncWorker makes a worker. It counts nothing until Run or Sync is called.
func NewSyncWorker(o SyncOptions) (*SyncWorker, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	if o.Interval <= 0 {
		o.Interval = 5 * time.Minute
	}
	if o.Batch <= 0 {
		o.Batch = 1000
	}
	if o.Join <= 0 {
		o.Join = DefaultJoin
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	w := &SyncWorker{reading: semaphore.NewWeighted(1), opt: o, audit: audit.New(o.Log), log: o.Logger, lag: joinLag, patience: cmp.Or(o.Patience, settleFor), confirm: confirmAfter, crash: func(string) error { return nil }}
	w.loop = worker.New(worker.Options{
		Name: "pull statistics", Batch: w.round, Next: w.next, Log: o.Logger, Metrics: o.Worker,
	})
	return w, nil
}

// Run counts the pulls in the audit log, in batches, until ctx ends. The end of ctx also
// cancels the batch that is running; Run returns nil once that batch has ended.
func (w *SyncWorker) Run(ctx context.Context) error { return w.loop.Run(ctx) }

// round counts a batch of the audit log's entries, if a read is due. The worker's loop calls
// it.
func (w *SyncWorker) round(ctx context.Context) (more bool, err error) {
	if time.Now().Before(w.due) {
		return false, nil
	}
	if more, err = w.batch(ctx); err != nil {
		w.opt.Metrics.failed()
		w.observe(ctx) //nolint:errcheck // the batch's error matters
		return false, err
	}
	if more {
		if time.Since(w.observed) < observeEvery {
			return true, nil
		}
		return true, w.observe(ctx)
	}
	wait := w.opt.Interval
	if w.hasSuspects() {
		wait = min(wait, w.confirm)
	}
	w.due = time.Now().Add(wait)
	return false, w.observe(ctx)
}

// observeEvery is how often the lag is observed while a worker catches up, which may take hours.
const observeEvery = 10 * time.Second

// next returns how long it is until the audit log is to be read again.
func (w *SyncWorker) next(context.Context) (time.Duration, error) { return time.Until(w.due), nil }

// observe sets the metric of Status.Behind: the age of the oldest pull in the audit log
// that isn't counted yet. If that can't be known, the lag grows from when it was last known.
func (w *SyncWorker) observe(ctx context.Context) error {
	if ctx.Err() != nil { // the process stops
		return ctx.Err()
	}
	w.observed = time.Now()
	s, err := w.Status(ctx)
	if err != nil {
		w.opt.Metrics.lagging(statsdb.LagUnknown())
		return err
	}
	w.opt.Metrics.lagging(statsdb.LagKnown(s.Behind))
	return nil
}

// Sync counts all pulls in the audit log that can be counted now.
func (w *SyncWorker) Sync(ctx context.Context) error {
	for {
		if more, err := w.batch(ctx); err != nil || !more {
			return err
		}
	}
}

// ErrForeignLog says that PostgreSQL's transaction ids have begun anew, because the database
// was restored or moved. The order of the audit log's entries by transaction id is then no
// longer the order in which they were written.
var ErrForeignLog = errors.New("the audit log was restored or moved, and its transaction ids began anew, " +
	"so it can't be told which pulls were counted; nothing is counted until \"purser pulls reset\" has put them in order")

// batch reads and counts one batch of the audit log's entries, and returns whether there may
// be more.
func (w *SyncWorker) batch(ctx context.Context) (more bool, err error) {
	if err := w.reading.Acquire(ctx, 1); err != nil {
		return false, err
	}
	defer w.reading.Release(1)
	if err := w.start(ctx); err != nil {
		return false, err
	}
	s, err := readState(ctx, w.opt.Stats.Pool, false)
	if err != nil {
		return false, err
	}
	log, err := w.audit.PullState(ctx, s.Read)
	if err != nil {
		return false, err
	}
	if log.Foreign {
		return false, ErrForeignLog
	}
	written, err := w.written(ctx)
	if err != nil {
		return false, err
	}
	pulls, err := w.audit.Pulls(ctx, s.Read, w.opt.Batch)
	if err != nil {
		return false, err
	}
	ripe, err := w.ripe(ctx, s.Read, pulls, written)
	if err != nil {
		return false, err
	}
	pending, err := w.pendingRepositories(ctx, ripe)
	if err != nil {
		return false, err
	}
	if len(pulls) == 0 && len(pending) == 0 {
		return false, w.looked(ctx)
	}
	if err := w.crash("read"); err != nil {
		return false, err
	}
	counted, err := w.count(ctx, s, pulls, ripe, pending)
	if err != nil {
		return false, fmt.Errorf("counting pulls of the audit log: %w", err)
	}
	w.opt.Metrics.read(counted)
	if more = len(pulls) == w.opt.Batch || counted.lost || counted.more; !more {
		err = w.bury(ctx)
	}
	return more, err
}

// ripe returns the time before which pulls by digest can be joined, because every pull and
// HEAD before it was read. `read` is the watermark before `pulls`, the entries that were
// just read. `written` is the time before which all processes had written their pulls and
// HEADs; the caller must have asked for it before it read `pulls`.
func (w *SyncWorker) ripe(ctx context.Context, read audit.Position, pulls []audit.Pull, written time.Time) (time.Time, error) {
	if len(pulls) == w.opt.Batch { // the next batch has entries of about the same time and later
		var newest time.Time
		for i := range pulls {
			if pulls[i].Time.After(newest) {
				newest = pulls[i].Time
			}
		}
		return earlier(written, newest.Add(-joinLate)), nil
	}
	if len(pulls) > 0 {
		read = pulls[len(pulls)-1].Position
	}
	unread, err := w.audit.OldestUnread(ctx, read) // time of the oldest entry that an open transaction keeps from being read
	if err != nil || unread.IsZero() {
		return written, err
	}
	return earlier(written, unread), nil
}

// tally is the result of a batch: how many pulls the SyncWorker counted, how many it left
// out because Redis counts them or nobody does (elsewhere), and how many belong to deleted
// repositories (gone).
type tally struct {
	counted, elsewhere, gone int
	more                     bool // there are more pulls by digest to join
	lost                     bool // another worker has moved the watermark, so nothing was done
}

// count adds `pulls` to the statistics and moves the watermark past them, in one
// transaction. It also joins pulls by digest from before the time `ripe`, and counts them
// for their tags, as far as `pending` has their repositories. If another worker has moved the
// watermark since s was read, count does nothing and returns a tally with `lost` set.
func (w *SyncWorker) count(ctx context.Context, s state, pulls []audit.Pull, ripe time.Time, pending []int64) (t tally, err error) {
	mine, elsewhere, heads := split(pulls)
	asked := sorted(append(repositories(mine), pending...))
	err = w.opt.WithAlive(ctx, asked, func(alive statsdb.Living, tx pgx.Tx) error {
		var living []audit.Pull
		for _, p := range mine {
			if alive.Has(p.RepositoryID) {
				living = append(living, p)
			}
		}
		n := pullCount(living)
		t = tally{counted: n, elsewhere: elsewhere, gone: pullCount(mine) - n}
		moved, err := s.move(ctx, tx, pulls, n)
		if err != nil || !moved {
			t = tally{lost: !moved}
			return err
		}
		if err := keepPending(ctx, tx, pulls); err != nil {
			return err
		}
		sum := statsdb.NewAdder(alive)
		sum.AddPulls(living)
		if t.more, err = w.joinPending(ctx, tx, ripe, asked, alive, sum); err != nil {
			return err
		}
		if err := sum.Sums().Write(ctx, tx); err != nil { // each row once, in key order
			return err
		}
		return w.crash("before commit")
	})
	if err != nil {
		return tally{}, err
	}
	if heads > 0 && !t.lost {
		if err := w.audit.ForgetHeads(ctx, pulls[len(pulls)-1].Position); err != nil {
			w.log.WarnContext(ctx, "HEAD requests that were read stay until the next are", "error", err)
		}
	}
	return t, w.crash("after commit")
}

// pullCount returns the number of pulls that the entries stand for.
func pullCount(pulls []audit.Pull) (n int) {
	for i := range pulls {
		n += pulls[i].N
	}
	return n
}

// split returns the entries whose pulls the SyncWorker counts (mine), the number of pulls
// that it doesn't count (elsewhere), and the number of entries that are HEADs.
func split(pulls []audit.Pull) (mine []audit.Pull, elsewhere, heads int) {
	for i := range pulls {
		switch p := &pulls[i]; {
		case p.Head:
			heads++
		case countedHere(p):
			mine = append(mine, *p)
		default:
			elsewhere += p.N
		}
	}
	return mine, elsewhere, heads
}

// countedHere says whether the SyncWorker counts this entry's pulls: Redis doesn't count
// them, nor does the recorder ignore them.
func countedHere(p *audit.Pull) bool {
	return p.CountedBy != audit.CountedByRedis && p.CountedBy != audit.CountedByNone
}

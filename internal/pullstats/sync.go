package pullstats

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/worker"
)

// SyncOptions configures a SyncWorker.
type SyncOptions struct {
	Databases
	// Redis counts pulls too, and Uses looks there. Nil: there is no Redis.
	Redis *Redis
	// Interval is how often the log is read, at least. Default 5 min.
	Interval time.Duration
	// Batch is how many entries are read and counted together. Default 1,000.
	Batch int
	// Join is how long after a HEAD by tag a GET by digest counts as the second half of the
	// same pull. Default DefaultJoin.
	Join time.Duration
	// Retention is the least time that the log keeps entries, read or not. If statistics
	// were switched off for longer, unread entries may have been dropped. 0: entries are
	// kept for ever.
	Retention time.Duration
	Logger    *slog.Logger    // default slog.Default()
	Metrics   *Metrics        // nil: none
	Worker    *worker.Metrics // nil: none
}

// SyncWorker counts the pulls that are in the audit log (PullStatsSyncWorker). Any number
// of processes may run one. Its methods may be called concurrently.
type SyncWorker struct {
	opt     SyncOptions
	audit   *audit.Log
	log     *slog.Logger
	loop    *worker.Loop
	reading sync.Mutex // locked while a batch is read and counted

	due     time.Time // used by the loop alone
	started bool      // guarded by reading: start has been done

	lag   time.Duration           // joinLag, except in tests
	crash func(step string) error // for tests: may end the batch as the end of the process would
}

// NewSyncWorker makes a worker. It counts nothing before Run or Sync.
func NewSyncWorker(o SyncOptions) (*SyncWorker, error) {
	if err := o.check(); err != nil {
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
	w := &SyncWorker{opt: o, audit: audit.New(o.Log), log: o.Logger, lag: joinLag, crash: func(string) error { return nil }}
	w.loop = worker.New(worker.Options{
		Name: "pull statistics", Batch: w.round, Next: w.next, Log: o.Logger, Metrics: o.Worker,
	})
	return w, nil
}

// Run counts until ctx ends, and returns nil when the last batch is over.
func (w *SyncWorker) Run(ctx context.Context) error { return w.loop.Run(ctx) }

// round counts a batch, when one is due.
func (w *SyncWorker) round(ctx context.Context) (more bool, err error) {
	if time.Now().Before(w.due) {
		return false, nil
	}
	if more, err = w.batch(ctx); err != nil {
		w.opt.Metrics.failed()
		return false, err
	}
	if more {
		return true, nil
	}
	w.due = time.Now().Add(w.opt.Interval)
	return false, w.observe(ctx)
}

// next returns how long it is until the log is read again.
func (w *SyncWorker) next(context.Context) (time.Duration, error) { return time.Until(w.due), nil }

// observe measures how far behind the statistics are.
func (w *SyncWorker) observe(ctx context.Context) error {
	s, err := w.Status(ctx)
	if err != nil {
		return err
	}
	w.opt.Metrics.lagging(s.Behind)
	return nil
}

// Sync counts all pulls that can be counted now.
func (w *SyncWorker) Sync(ctx context.Context) error {
	for {
		if more, err := w.batch(ctx); err != nil || !more {
			return err
		}
	}
}

// ErrForeignLog says that transaction ids have begun anew, so that the log's entries in the
// order of these ids are no longer in the order in which they were written.
var ErrForeignLog = errors.New("the audit log was restored or moved, and its transaction ids began anew, " +
	"so it can't be told which pulls were counted; nothing is counted until \"purser pulls reset\" has put them in order")

// batch reads and counts one batch, and returns whether there may be more.
func (w *SyncWorker) batch(ctx context.Context) (more bool, err error) {
	w.reading.Lock()
	defer w.reading.Unlock()
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
// HEAD before it was read. written is the time before which all processes had written
// everything; it must have been asked for before the pulls were read.
func (w *SyncWorker) ripe(ctx context.Context, read audit.Position, pulls []audit.Pull, written time.Time) (time.Time, error) {
	if len(pulls) == w.opt.Batch { // more entries are to be read, of about the same time and later
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
	unread, err := w.audit.OldestUnread(ctx, read) // of entries that an open transaction delays
	if err != nil || unread.IsZero() {
		return written, err
	}
	return earlier(written, unread), nil
}

// tally says how many pulls of a batch were counted, are counted elsewhere, or belong to
// deleted repositories (gone).
type tally struct {
	counted, elsewhere, gone int
	more                     bool // there are more pulls by digest to join
	lost                     bool // another worker has moved the watermark, so nothing was done
}

// count moves the watermark over pulls and adds them to the statistics, in one transaction.
// It does nothing if another worker has moved the watermark. Pulls by digest before ripe
// are also counted for the tags that they belong to.
func (w *SyncWorker) count(ctx context.Context, s state, pulls []audit.Pull, ripe time.Time, pending []int64) (t tally, err error) {
	mine, elsewhere, heads := split(pulls)
	err = w.opt.withAlive(ctx, sorted(append(repositories(mine), pending...)), func(alive map[int64]bool, tx pgx.Tx) error {
		var living []audit.Pull
		for _, p := range mine {
			if alive[p.RepositoryID] {
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
		sum := newAdder()
		sum.addPulls(living)
		if t.more, err = w.joinPending(ctx, tx, ripe, alive, sum); err != nil {
			return err
		}
		if err := sum.counts().write(ctx, tx); err != nil { // rows in their order, each once
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

// pullCount returns the number of pulls in entries.
func pullCount(pulls []audit.Pull) (n int) {
	for i := range pulls {
		n += pulls[i].N
	}
	return n
}

// split returns the pulls to be counted here, the number of pulls counted elsewhere, and
// the number of heads.
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

// countedHere says whether the SyncWorker counts this pull.
func countedHere(p *audit.Pull) bool {
	return p.CountedBy != audit.CountedByRedis && p.CountedBy != audit.CountedByNone
}

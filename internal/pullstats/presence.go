package pullstats

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/worker"
)

const (
	// busyTick is how often a process that records pulls reports the time up to which its
	// pulls are written; idleTick is how often a process reports that it is alive while it
	// has no pulls to write.
	busyTick = time.Second
	idleTick = 30 * time.Second
	// goneAfter is how long a process with unwritten pulls may go without reporting before
	// it counts as killed. (readState treats statistics as incomplete already after 15 s
	// without a report.)
	goneAfter = time.Minute
	// clockSamples is the number of recent clock measurements of which the method measure
	// uses the most exact one.
	clockSamples = 8
	// clockSlack is how far the clock's offset in use may be from the measured offset, beyond
	// the error of the measurement, before the method measure corrects it.
	clockSlack = 2 * time.Millisecond
)

// presence maintains this process's row in the table pullrecorders. With it the process
// reports that it records pulls, and the time up to which its pulls are written. The
// SyncWorker learns two things from the row: whether a pull by digest can be joined, because
// every HEAD before it is written; and, when the process is killed, whether pulls were lost.
//
// presence also measures the offset of the process's clock from the clock of the statistics'
// database. Requests of one client may reach different processes, and their times must tell
// which request came first.
type presence struct {
	r     *Recorder
	stats *db.DB
	wall  func() time.Time // for tests: the process's clock
	loop  *worker.Loop

	taking sync.RWMutex // read-locked while a pull gets its time and is put into a queue
	gap    atomic.Bool  // a pull that Redis counts is missing in the audit log
	busy   atomic.Bool  // a pull or HEAD came since the row last said that all are written
	came   atomic.Int64 // number of pulls and HEADs so far
	offset atomic.Int64 // of the database's clock, in nanoseconds

	mu      sync.Mutex // guards the row and the fields below
	id      int64      // 0: there is no row yet
	seen    int64      // value of came when the row was last written
	samples []clockSample
	unfit   uint64 // the log's Unfit when lostPulls was last called
}

type clockSample struct{ offset, trip time.Duration }

func newPresence(r *Recorder) *presence {
	p := &presence{r: r, stats: r.opt.LastUsed.opt.Stats, wall: time.Now}
	p.loop = worker.New(worker.Options{
		Name: "presence of pulls", Batch: p.tick, Next: p.next, BackoffMax: 5 * time.Second, Log: r.opt.Logger, Metrics: r.opt.Worker,
	})
	return p
}

// now returns the present time by the clock of the statistics' database.
func (p *presence) now() time.Time {
	if p == nil {
		return time.Now()
	}
	return p.wall().Add(time.Duration(p.offset.Load()))
}

// begin must be called before a pull gets its time, and the method end when the pull is in
// a queue. Between the two calls the method cut waits. So cut doesn't return a time later
// than that of a pull which is in no queue yet.
func (p *presence) begin() {
	if p == nil {
		return
	}
	p.taking.RLock()
	p.came.Add(1)
	if !p.busy.Load() && !p.busy.Swap(true) {
		p.loop.Wake()
	}
}

// hold makes the method cut wait while pulls are moved from one queue to another and are in
// neither. The caller must call the method end afterwards.
func (p *presence) hold() {
	if p != nil {
		p.taking.RLock()
	}
}

func (p *presence) end() {
	if p != nil {
		p.taking.RUnlock()
	}
}

// cut returns a time before which this process has no request left to write: no pull to the
// audit log or to Redis, and no HEAD to the table pullheads. It returns zero if three things
// hold: no request is left to write, no request came since the last call of cut, and the
// LastUsedRecorder has nothing to save.
func (p *presence) cut() time.Time {
	p.taking.Lock()
	defer p.taking.Unlock()
	came := p.came.Load()
	oldest := p.r.oldest()
	if oldest.IsZero() && came == p.seen && !p.r.opt.LastUsed.unsaved() {
		p.busy.Store(false) // from now on a pull wakes the loop
		return time.Time{}
	}
	p.seen = came
	if oldest.IsZero() {
		return p.now()
	}
	return oldest
}

func (p *presence) next(context.Context) (time.Duration, error) {
	if p.busy.Load() {
		return busyTick, nil
	}
	return idleTick, nil
}

// tick writes this process's row in pullrecorders, and measures the clock's offset with the
// same statement.
func (p *presence) tick(ctx context.Context) (more bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.r.opt.Log.Unfit(); n > p.unfit {
		if err := lostPulls(ctx, p.stats); err != nil {
			return false, err
		}
		p.unfit = n
	}
	logged := p.r.opt.Log != nil && !p.gap.Load()
	var to *time.Time
	if cut := p.cut(); !cut.IsZero() {
		to = &cut
	}
	var theirs time.Time
	begun := p.wall()
	err = p.stats.Pool.QueryRow(ctx, `
		UPDATE pullrecorders SET seen_at = now(), written_to = $2, logged = $3 WHERE id = $1 AND ended_at IS NULL
		RETURNING clock_timestamp()`, p.id, to, logged).Scan(&theirs)
	if errors.Is(err, pgx.ErrNoRows) { // there is no row yet, or another process declared this process dead
		begun = p.wall()
		err = p.stats.Pool.QueryRow(ctx,
			"INSERT INTO pullrecorders (redis, written_to, logged) VALUES ($1, $2, $3) RETURNING id, clock_timestamp()",
			p.r.queue != nil, to, logged).Scan(&p.id, &theirs)
	}
	if err != nil {
		p.busy.Store(true) // the row is out of date
		return false, fmt.Errorf("telling that this process takes note of pulls: %w", err)
	}
	trip := p.wall().Sub(begun)
	p.measure(clockSample{theirs.Sub(begun.Add(trip / 2)), trip})
	return false, nil
}

// measure adds a measurement of the clock. Among the last clockSamples measurements, the one
// with the shortest round trip is the most exact. measure adopts the offset of this one if it
// differs from the offset in use by more than half of its round trip plus clockSlack.
func (p *presence) measure(s clockSample) {
	p.samples = append(p.samples, s)
	if len(p.samples) > clockSamples {
		p.samples = p.samples[1:]
	}
	best := s
	for _, other := range p.samples {
		if other.trip < best.trip {
			best = other
		}
	}
	off := best.offset - time.Duration(p.offset.Load())
	if off.Abs() > best.trip/2+clockSlack {
		p.offset.Store(int64(best.offset))
	}
}

// close reports that this process records no more pulls. If `lost` is set, it also reports
// that some pulls of the process were not written.
func (p *presence) close(ctx context.Context, lost bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if lost {
		if err := lostPulls(ctx, p.stats); err != nil {
			return err
		}
	}
	if p.id == 0 {
		return nil
	}
	if _, err := p.stats.Pool.Exec(ctx,
		"UPDATE pullrecorders SET ended_at = now(), seen_at = now(), written_to = NULL WHERE id = $1 AND ended_at IS NULL", p.id); err != nil {
		return fmt.Errorf("telling that this process takes no more pulls: %w", err)
	}
	return nil
}

// lostPulls records that pulls from before now may be missing in the audit log and in the
// statistics.
func lostPulls(ctx context.Context, stats *db.DB) error { return Unrecorded(ctx, stats, 0) }

// ErrUnseen says that Redis counts pulls, or has unflushed pulls, and that this process
// can't read them because it has no redis.url.
var ErrUnseen = errors.New("pulls are counted in Redis, which this process can't read, so it can't tell what was used: " +
	"set redis.url here too; or, where Redis counts no more, run \"purser pulls flush\" on a process that has it; " +
	"or, where it is no more, give up what it had with \"purser pulls reset --redis\"")

// unseen says whether this process has no Redis client although Redis counts the pulls of
// some process or may have pulls that weren't flushed to the statistics.
func (w *SyncWorker) unseen(ctx context.Context) (unseen bool, err error) {
	if w.opt.Redis != nil {
		return false, nil
	}
	err = w.opt.Stats.Pool.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM pullrecorders
			WHERE redis AND (ended_at IS NULL OR ended_at >= (SELECT last_processed_timestamp FROM redisprocessingstate)))`).Scan(&unseen)
	if err != nil {
		return false, fmt.Errorf("asking whether pulls are counted in Redis: %w", err)
	}
	return unseen, nil
}

// AbandonRedis gives up the pulls in a Redis that no longer exists. It records that
// statistics are complete only from now on. It doesn't affect processes that still count in
// Redis.
func (w *SyncWorker) AbandonRedis(ctx context.Context) error {
	return w.opt.Stats.Tx(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "DELETE FROM pullrecorders WHERE redis AND ended_at IS NOT NULL"); err != nil {
			return fmt.Errorf("giving up the pulls in Redis: %w", err)
		}
		_, err := tx.Exec(ctx, "UPDATE pullstatisticsprocessingstate SET recorded_since = GREATEST(recorded_since, now())")
		if err != nil {
			return fmt.Errorf("giving up the pulls in Redis: %w", err)
		}
		return nil
	})
}

// bury looks in pullrecorders for processes that were killed. If one of them had unwritten
// pulls, bury records that statistics are complete only from now on. It also deletes the
// rows of processes that ended more than an hour ago, unless Redis may have unflushed pulls
// of them.
func (w *SyncWorker) bury(ctx context.Context) error {
	return w.opt.Stats.Tx(ctx, func(tx pgx.Tx) error {
		gone, err := tx.Exec(ctx, `
			UPDATE pullrecorders SET ended_at = now()
			WHERE ended_at IS NULL AND seen_at < now() - $1::bigint * interval '1 microsecond' AND written_to IS NOT NULL`, goneAfter.Microseconds())
		if err == nil && gone.RowsAffected() > 0 {
			w.log.WarnContext(ctx, "a process was killed with pulls that it hadn't written down: statistics are complete from now on only", "processes", gone.RowsAffected())
			_, err = tx.Exec(ctx, "UPDATE pullstatisticsprocessingstate SET recorded_since = GREATEST(recorded_since, now())")
		}
		if err == nil { // processes killed with everything written
			_, err = tx.Exec(ctx, `
				UPDATE pullrecorders SET ended_at = now() WHERE ended_at IS NULL AND seen_at < now() - $1::bigint * interval '1 microsecond'`,
				(10 * idleTick).Microseconds())
		}
		if err == nil {
			_, err = tx.Exec(ctx, `
				DELETE FROM pullrecorders WHERE ended_at < now() - interval '1 hour'
					AND (NOT redis OR ended_at < (SELECT last_processed_timestamp FROM redisprocessingstate))`)
		}
		if err != nil {
			return fmt.Errorf("looking for processes that were killed: %w", err)
		}
		return nil
	})
}

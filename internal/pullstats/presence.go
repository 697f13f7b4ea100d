package pullstats

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/pullstats/statsdb"
	"github.com/purser-registry/purser/internal/worker"
)

const (
	// busyTick is how often a process that records pulls reports the time up to which its
	// pulls are written; idleTick is how often a process reports that it is alive while it
	// has no pulls to write. askedTick is how often it reports while somebody waits for it.
	busyTick  = time.Second
	idleTick  = 10 * time.Second
	askedTick = 100 * time.Millisecond
	// tickTimeout bounds the time of a report. PostgreSQL may execute a statement later than
	// that, when nobody waits for it any more. Therefore a report that there are no unwritten
	// uses is executed within quietTimeout or not at all.
	tickTimeout  = 5 * time.Second
	quietTimeout = 2 * time.Second
)

// presence maintains this process's row in the table pullrecorders. With it the process
// reports that it records pulls, and up to where its pulls, HEADs and other uses are written:
// see the section "Why no use is overlooked" of the package's comment. Others learn from the
// row which GETs by digest can be joined, whether they may judge tags by their last use, and,
// when the process is killed, whether uses were lost.
//
// presence also measures the offset of the process's clock from the clock of the statistics'
// database. Requests of one client may reach different processes, and their times must tell
// which request came first.
type presence struct {
	r        *Recorder
	stats    *db.DB
	wall     func() time.Time // for tests: the process's clock
	loop     *worker.Loop
	instance string

	gate   gate
	taking sync.RWMutex // read-locked while a pull gets its time and is put into a queue
	gap    atomic.Bool  // a pull that Redis counts is missing in the audit log
	came   atomic.Int64 // number of pulls and HEADs so far
	offset atomic.Int64 // of the database's clock, in nanoseconds
	pace   atomic.Int64 // time until the next report, in nanoseconds

	mu      sync.Mutex // guards the row and the fields below
	id      int64      // 0: there is no row yet
	reports int64      // number of reports so far
	unsure  bool       // the last report failed, or there was none: it isn't known what the row says, nor what the database's clock shows
	left    bool       // the process records no more
	leaving bool       // the process records until its requests end, and doesn't report meanwhile
	seen    int64      // value of came when the row was last written
	samples []clockSample
	unfit   uint64 // the log's Unfit when lostPulls was last called
	asked   asked
}

// asked is what others have asked this process: to write every use that it answered before the
// number `number` was taken from pullrecorders_asked. They wait until the row says so
// (`answered`).
type asked struct {
	number, answered int64
	// mark is a time after the number was read, by the process's monotonic clock: uses that
	// came before it have to be written. clear is when none of them was in a queue any more;
	// zero: some were. From the queues they may have gone to the LastUsedRecorder.
	mark, clear time.Time
}

func newPresence(r *Recorder) *presence {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	p := &presence{r: r, stats: r.opt.LastUsed.opt.Stats, wall: time.Now, instance: fmt.Sprintf("%s %d (%08x)", host, os.Getpid(), rand.Uint32())}
	p.gate.base, p.gate.changed, p.unsure = time.Now(), make(chan struct{}), true
	p.loop = worker.New(worker.Options{
		Name: "presence of pulls", Batch: p.tick, Next: p.next, Timeout: tickTimeout, BackoffMin: 250 * time.Millisecond, BackoffMax: 2 * time.Second,
		Log: r.opt.Logger, Metrics: r.opt.Worker,
	})
	return p
}

// run reports until ctx ends. The last report says that there may be unwritten uses, since
// requests may come until the process has ended.
func (p *presence) run(ctx context.Context) error {
	p.gate.on.Store(true)
	err := p.loop.Run(ctx)
	p.mu.Lock()
	p.leaving = true
	p.mu.Unlock()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), tickTimeout)
	defer cancel()
	if _, failed := p.tick(last); failed != nil {
		p.r.opt.Logger.WarnContext(ctx, "the last report of the process's pulls failed", "error", failed)
	}
	p.gate.on.Store(false)
	return err
}

// report is what a process tells in its row: see the comments of the columns.
type report struct {
	writtenTo, headsTo, sentTo *time.Time
	fromLog                    bool
	busy                       bool // it reports soon again
}

// cut returns a report that is true at the moment. Its writtenTo is nil if three things hold:
// no use is left to write, none came since the last call of cut, and no request waits at the
// gate. Requests that come from then on wait at the gate.
func (p *presence) cut() (r report) {
	p.taking.Lock()
	defer p.taking.Unlock()
	came, now := p.came.Load(), p.now()
	r.fromLog = p.r.opt.Log != nil
	var unsent time.Time
	if q := p.r.queue; q != nil {
		r.headsTo, unsent, r.fromLog = q.heads.unlogged(), q.heads.oldestUnsent(), q.fromLog()
	}
	oldest := p.r.oldest()
	p.cutAsked()
	if oldest.IsZero() && came == p.seen && !p.r.opt.LastUsed.unsaved() && p.gate.waiting.Load() == 0 && !p.leaving && !p.unsure {
		p.gate.shut()
		if r.busy = r.headsTo != nil; !unsent.IsZero() {
			r.sentTo = &unsent
		}
		return r
	}
	p.seen, r.busy = came, true
	for _, at := range []*time.Time{&oldest, &unsent} {
		if at.IsZero() {
			*at = now
		}
	}
	if r.writtenTo = &oldest; p.r.queue != nil {
		r.sentTo = &unsent
	}
	return r
}

// cutAsked answers what others have asked, if everything that they have asked for is written.
func (p *presence) cutAsked() {
	a := &p.asked
	if a.answered >= a.number {
		return
	}
	if a.clear.IsZero() && !p.r.waitsSince(a.mark) {
		a.clear = time.Now()
		p.r.opt.LastUsed.loop.Wake()
	}
	if !a.clear.IsZero() && p.r.opt.LastUsed.savedSince(a.clear) {
		a.answered = a.number
	}
}

// ask takes note of the newest number that others have taken from pullrecorders_asked. All
// requests that were answered before are in a queue when ask has the lock, or are written.
func (p *presence) ask(number int64) {
	a := &p.asked
	if number <= a.number || a.answered < a.number {
		return // the present number is answered before a newer one
	}
	p.taking.Lock()
	*a = asked{number: number, answered: a.answered, mark: time.Now()}
	p.taking.Unlock()
	p.r.opt.Log.Hurry()
}

func (p *presence) next(context.Context) (time.Duration, error) {
	return time.Duration(p.pace.Load()), nil
}

// answers is what a process learns from its report.
type answers struct {
	now   time.Time // by the database's clock
	asked int64     // the newest number that was taken from pullrecorders_asked
	// headsTo is a time before which Redis has all HEADs of the other processes.
	headsTo time.Time
	fromLog bool // other processes have pulls by digest counted from the audit log
}

// tick writes this process's row in pullrecorders, and measures the clock's offset with the
// same statement.
func (p *presence) tick(ctx context.Context) (more bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.left {
		return false, nil
	}
	started := time.Now()
	r := p.cut()
	defer func() {
		p.unsure = err != nil
		p.gate.told(started, r.writtenTo != nil, err)
	}()
	// A pull that PostgreSQL refuses leaves the log's buffer. Look for such pulls after cut, so
	// that the report doesn't say that they are written before recorded_since has moved.
	if n := p.r.opt.Log.Unfit(); n > p.unfit {
		if err := lostPulls(ctx, p.stats); err != nil {
			return false, err
		}
		p.unfit = n
	}
	begun := p.wall()
	got, err := p.write(ctx, r)
	if errors.Is(err, errRow) {
		p.unsure = true
		r, begun = p.cut(), p.wall()
		got, err = p.write(ctx, r)
	}
	if err != nil {
		return false, fmt.Errorf("telling that this process takes note of pulls: %w", err)
	}
	trip := p.wall().Sub(begun)
	p.measure(clockSample{got.now.Sub(begun.Add(trip / 2)), trip})
	p.ask(got.asked)
	if p.r.queue != nil {
		p.r.queue.learn(got)
	}
	pace := idleTick
	switch {
	case p.asked.answered < p.asked.number && r.writtenTo != nil:
		pace = askedTick
	case r.busy:
		pace = busyTick
	}
	p.pace.Store(int64(pace))
	return false, nil
}

// reportStatements returns the statements that write a report. update writes it into the process's
// row; a report without unwritten uses must not come late. insert makes the row. If the answer to an
// earlier INSERT was lost, its row stands for this process too, and ends.
//
// Both return the answers. GETs by digest wait for the HEADs of others (headsTo). A process without
// unsent HEADs answers none before it has changed its row; so, before the time of the statement, it
// has answered none that isn't sent.
func reportStatements() (update, insert string) {
	const learned = ` RETURNING id, clock_timestamp(), (SELECT last_value FROM pullrecorders_asked),
		COALESCE((SELECT min(CASE WHEN o.written_to IS NULL THEN COALESCE(o.sent_to, statement_timestamp()) ELSE o.sent_to END)
			FROM pullrecorders o WHERE o.id <> pullrecorders.id AND o.redis AND o.ended_at IS NULL AND o.seen_at > now() - @gone::bigint * interval '1 microsecond'),
			statement_timestamp()),
		EXISTS (SELECT FROM pullrecorders o
			WHERE o.id <> pullrecorders.id AND o.from_log AND o.ended_at IS NULL AND o.seen_at > now() - @gone::bigint * interval '1 microsecond')`
	const updated = `
		UPDATE pullrecorders SET seen_at = now(), written_to = @written, logged = @logged, heads_to = @heads, sent_to = @sent, from_log = @by_log,
			answered = @answered, instance = @instance, reports = @reports
		WHERE id = @id AND ended_at IS NULL AND reports < @reports AND (@written::timestamptz IS NOT NULL OR clock_timestamp() < @until)` + learned
	const inserted = `
		WITH lost AS (UPDATE pullrecorders SET ended_at = now(), written_to = NULL, heads_to = NULL, sent_to = NULL, from_log = false
			WHERE instance = @instance AND ended_at IS NULL)
		INSERT INTO pullrecorders (redis, written_to, logged, heads_to, sent_to, from_log, answered, instance, reports)
		VALUES (@redis, @written, @logged, @heads, @sent, @by_log, @answered, @instance, @reports)` + learned
	return updated, inserted
}

// errRow says that a report without unwritten uses found no row, or came too late by the database's
// clock, which may have been set. Then a report must say that there may be unwritten uses; it
// inserts a row if there is none.
var errRow = errors.New("the process's row is gone, or the report was late")

// write writes the report into this process's row. If there is no row yet, or another process
// has declared this process dead, it inserts one.
func (p *presence) write(ctx context.Context, r report) (got answers, err error) {
	p.reports++
	args := db.SharedArgs{"id": p.id, "redis": p.r.queue != nil, "written": r.writtenTo, "logged": p.r.opt.Log != nil && !p.gap.Load(),
		"heads": r.headsTo, "sent": r.sentTo, "by_log": r.fromLog, "answered": p.asked.answered, "gone": statsdb.GoneAfter.Microseconds(),
		"instance": p.instance, "reports": p.reports, "until": p.now().Add(quietTimeout)}
	update, insert := reportStatements()
	scan := func(sql string) error {
		return p.stats.Pool.QueryRow(ctx, sql, args).Scan(&p.id, &got.now, &got.asked, &got.headsTo, &got.fromLog)
	}
	if err = scan(update); !errors.Is(err, pgx.ErrNoRows) {
		return got, err
	}
	if r.writtenTo == nil {
		return got, errRow
	}
	return got, scan(insert)
}

// close reports that this process records no more pulls. If `lost` is set, it also reports
// that some pulls of the process were not written.
func (p *presence) close(ctx context.Context, lost bool) error {
	p.gate.on.Store(false)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left = true
	if lost {
		if err := lostPulls(ctx, p.stats); err != nil {
			return err
		}
	}
	if p.id == 0 {
		return nil
	}
	if _, err := p.stats.Pool.Exec(ctx, `
		UPDATE pullrecorders SET ended_at = now(), seen_at = now(), written_to = NULL, heads_to = NULL, sent_to = NULL, from_log = false
		WHERE id = $1 AND ended_at IS NULL`, p.id); err != nil {
		return fmt.Errorf("telling that this process takes no more pulls: %w", err)
	}
	return nil
}

// lostPulls records that pulls from before now may be missing in the audit log and in the
// statistics.
func lostPulls(ctx context.Context, stats *db.DB) error { return statsdb.Unrecorded(ctx, stats, 0) }

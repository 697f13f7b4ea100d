// Package clock keeps Purser from deleting by a wrong clock.
//
// Workers delete things for their age: tags by policies, untagged manifests, abandoned uploads, the
// trash. They judge ages by the database's clock. If that clock runs ahead, everything fresh looks
// old. So a [Guard] looks at the clocks every few seconds. A worker asks it before it deletes
// ([Guard.Check]), and may show it the time by which it judges ([Guard.CheckTime]). The guard compares
//
//   - the clock of each database with the clock of this process;
//   - what the database's clock has advanced since an earlier look with how long the machine has
//     run meanwhile, which no setting of a clock changes (uptime). This finds a machine on which
//     database and registry run and whose clock is set;
//   - the database's clock with the times that are stored: the last look of any process, and the
//     newest entry of the audit log. So a clock that was set while nothing ran is found too.
//
// A clock that differs from another ends deletion while it differs. The two other findings are a
// doubt: it is stored (table clock), ends deletion in all processes, and lasts until somebody says
// that the database's clock is right now ([Confirm]), since nothing else can tell.
//
// Two findings are no doubt unless they exceed Options.LongestAbsence. If no process has looked for
// a while, and this machine can't tell for how long that was, the registry may just have been
// stopped. And if the operating system says that a time server keeps its clock, a clock that jumped
// was corrected.
//
// Leases of reporters and dates of the trash end by the database's clock too, but nobody can renew a
// lease, or restore anything, while the registry is stopped, its database is away, or a backup waits to
// be restored. So if nobody has trusted the clock for a minute, or until a doubt is confirmed, the first
// look postpones all that hadn't ended before by this time (absence.go). Each process that deletes looks
// first, so nothing is deleted before.
//
// A pushed tag always gets a push time that is neither before the last trusted time nor before the
// push times of the repository's other tags (routine purser_push_time). So policies don't take it for
// older than those, even if the clock was wrong for a moment at which no process looked.
//
// Why nothing is deleted by a clock that jumps at any moment: a judge takes a time T from the
// database and deletes what is old at T. CheckTime(T) compares T itself with the time that the last
// look predicts for this moment, so it doesn't matter when the clock jumped. A transaction that
// deletes by its own now() asks for this time before it commits ([CheckTx]): in garbage collection, by
// whose now() holds end, in auto-pruning, in the trash, and for expiration dates and uploads. Workers
// of sessions, tokens, notices and pull statistics' rows call Check, which has looked at most lookAge
// ago: they may miss a jump of this last moment.
package clock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/worker"
)

const (
	// lookAge is how old the last look may be for Check; lookEvery is how often Run looks. For
	// CheckTime the last look may be so old that Run has failed to look.
	lookAge   = time.Second
	lookEvery = 10 * time.Second
	timeAge   = 2 * lookEvery
	// lookTimeout bounds a look.
	lookTimeout = 5 * time.Second
	// baseAge is how long guards compare with the same earlier look. A clock that is set in small
	// steps is found by what they add up to in this time.
	baseAge = time.Hour
)

// Options configures a Guard.
type Options struct {
	DB *db.DB // required: the metadata's database
	// Statistics is the database of the pull statistics. Nil: it is DB.
	Statistics *db.DB
	// Tolerance is how far clocks may differ. Default 5 min.
	Tolerance time.Duration
	// LongestAbsence is how long the registry may have been stopped without a doubt about the
	// clock. Default 3 days.
	LongestAbsence time.Duration
	Log            *slog.Logger          // default slog.Default()
	Metrics        prometheus.Registerer // nil: none
	Worker         *worker.Metrics       // nil: none
}

// Guard tells whether the clocks are fit to delete by. Its methods may be called concurrently. Each
// process has one.
type Guard struct {
	opt     Options
	loop    *worker.Loop
	machine machine
	gauges  *gauges

	// looks is held during a look, which waits for a connection; mu never is. CheckTime takes mu only.
	looks sync.Mutex
	mu    sync.Mutex // guards what follows
	base  sample     // an earlier look, with which later ones are compared; zero: none
	last  sample     // the last look
	why   error      // what the last look found; nil: nothing
	// offset is how far the database's clock was ahead of this process's clock at the last look.
	offset time.Duration
	told   string // what the log has said last; guarded by looks
	// statistics is what was last found about the clock of the statistics' database.
	statistics string
}

// sample is a moment by two clocks.
type sample struct {
	database time.Time     // of the database
	up       time.Duration // of the machine, see uptime
}

// New makes a guard.
func New(o Options) (*Guard, error) {
	if o.DB == nil {
		return nil, errors.New("clock: a database is needed")
	}
	o.Tolerance = cmp.Or(o.Tolerance, 5*time.Minute)
	o.LongestAbsence = cmp.Or(o.LongestAbsence, 72*time.Hour)
	o.Log = cmp.Or(o.Log, slog.Default())
	g := &Guard{opt: o, machine: thisMachine(), gauges: newGauges(o.Metrics)}
	g.loop = worker.New(worker.Options{
		Name: "clock", Idle: lookEvery, Timeout: 2 * lookTimeout, Log: o.Log, Metrics: o.Worker, Batch: g.run,
	})
	return g, nil
}

// Run looks at the clocks until ctx ends, and then returns nil.
func (g *Guard) Run(ctx context.Context) error { return g.loop.Run(ctx) }

func (g *Guard) run(ctx context.Context) (more bool, err error) {
	g.lookAtStatistics(ctx)
	g.looks.Lock()
	defer g.looks.Unlock()
	if err := g.look(ctx, true); err != nil {
		g.gauges.unknown()
		return false, err
	}
	g.tell(ctx)
	return false, nil
}

// Check returns nil if what is old may be deleted now. It returns a [*Disagreement] if the clocks
// disagree or are in doubt, and another error if the clocks can't be read.
func (g *Guard) Check(ctx context.Context) error {
	_, err := g.Offset(ctx)
	return err
}

// looked returns whether the last look is no older than lookAge.
func (g *Guard) looked() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.base != (sample{}) && g.machine.up()-g.last.up <= lookAge
}

// refresh looks unless the last look is no older than lookAge. The caller has no connection.
func (g *Guard) refresh(ctx context.Context) error {
	if g.looked() {
		return nil
	}
	g.looks.Lock()
	defer g.looks.Unlock()
	if g.looked() {
		return nil
	}
	return g.look(ctx, false)
}

// CheckTime is Check for a time that the database has just given: it is compared with the time that
// the last look predicts. What the look found and what it predicts are read under one lock: another
// look in between might find that the clock was set, and would predict by the clock as it was set.
//
// The caller may be in a transaction, and a look needs a connection. So CheckTime never looks, nor waits
// for a look: otherwise transactions that have all connections of the pool would wait for a look that
// waits for one. If nobody has looked for timeAge, it returns an error that wraps worker.ErrRest. Who
// doesn't run Run calls Check before.
func (g *Guard) CheckTime(_ context.Context, now time.Time) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.base == (sample{}) || g.machine.up()-g.last.up > timeAge {
		return fmt.Errorf("nobody has looked at the clocks in the last %v: %w", timeAge, worker.ErrRest)
	}
	if g.why != nil {
		return g.why
	}
	expected := g.last.database.Add(g.machine.up() - g.last.up)
	if d := now.Sub(expected); d.Abs() > g.opt.Tolerance {
		return &Disagreement{Text: fmt.Sprintf("the database's clock shows %s, and should show about %s", clockTime(now), clockTime(expected))}
	}
	return nil
}

// CheckTx asks `check`, which is [Guard.CheckTime], for the time by which the statements of a
// transaction judge ages: now() of the transaction. The caller commits what it has deleted for its
// age only if CheckTx returns nil, so it doesn't matter when the clock was set. A nil `check` lets
// everything pass.
func CheckTx(ctx context.Context, tx pgx.Tx, check func(ctx context.Context, now time.Time) error) error {
	if check == nil {
		return nil
	}
	var now time.Time
	if err := tx.QueryRow(ctx, "SELECT now()").Scan(&now); err != nil {
		return err
	}
	return check(ctx, now)
}

// Tx runs fn, which deletes things for their age by now(), in a transaction. The transaction commits
// only if the clock was fit for that, by `check` as in [CheckTx].
func Tx(ctx context.Context, d *db.DB, check func(ctx context.Context, now time.Time) error, fn func(tx pgx.Tx) error) error {
	return d.Tx(ctx, func(tx pgx.Tx) error {
		if err := fn(tx); err != nil {
			return err
		}
		return CheckTx(ctx, tx, check)
	})
}

// Offset returns how far the database's clock is ahead of this process's clock, and what Check
// returns.
func (g *Guard) Offset(ctx context.Context) (time.Duration, error) {
	err := g.refresh(ctx)
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.offset, cmp.Or(err, g.why)
}

// tell logs what has changed. The caller has locked g.looks.
func (g *Guard) tell(ctx context.Context) {
	text := ""
	if g.why != nil {
		text = g.why.Error()
	}
	switch {
	case text == g.told:
		return
	case text == "":
		g.opt.Log.InfoContext(ctx, "the clocks agree, so what is old is deleted again")
	default:
		g.opt.Log.ErrorContext(ctx, "nothing is deleted for its age: "+text)
	}
	g.told = text
}

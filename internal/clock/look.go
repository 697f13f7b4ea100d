package clock

import (
	"context"
	"fmt"
	"time"

	"github.com/purser-registry/purser/internal/db"
)

// row is what a look reads from the database.
type row struct {
	now       time.Time
	seenAt    *time.Time // when a process last looked; nil: none has
	boot      string     // the boot of the machine of this process
	up        int64      // microseconds that the machine had run then
	doubt     *string
	newest    *time.Time // time of the newest entry of the audit log
	confirmed *time.Time // newest entries up to this time were confirmed
	trusted   *time.Time // the latest time without a doubt
}

// look reads the clocks and sets g.why. With `write`, or if it finds a doubt or an absence, it also
// writes the row, so that others know when somebody looked. The caller has locked g.looks, and
// so base, last, why and offset don't change meanwhile.
func (g *Guard) look(ctx context.Context, write bool) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	begun, up := g.machine.now(), g.machine.up()
	r, err := g.read(ctx)
	if err != nil {
		return fmt.Errorf("looking at the database's clock: %w", err)
	}
	present := sample{r.now, g.machine.up()}
	trip := present.up - up
	offset := r.now.Sub(begun.Add(trip / 2))
	first := g.base == sample{}
	doubt := g.doubtful(r, present, trip)
	absent := false
	if doubt == "" && r.doubt == nil {
		if absent, err = g.skipAbsence(ctx, r); err != nil {
			return err
		}
		if absent { // that may have taken longer than a look may
			ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), lookTimeout)
			defer cancel()
		}
	}
	if first || write || doubt != "" || absent {
		if err := g.write(ctx, r, present, doubt); err != nil {
			return fmt.Errorf("noting the time of a look at the database's clock: %w", err)
		}
		if doubt != "" && r.doubt == nil {
			r.doubt = &doubt
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if first || doubt != "" || present.up-g.base.up > baseAge {
		g.base = present
	}
	g.last, g.offset = present, offset
	g.why = g.judge(r, offset, trip)
	g.gauges.set(offset, g.why != nil)
	return nil
}

// judge returns what keeps things from being deleted.
func (g *Guard) judge(r row, offset, trip time.Duration) error {
	switch {
	case offset.Abs() > g.opt.Tolerance+trip:
		return &Disagreement{Text: fmt.Sprintf("the database's clock is %s the clock of this process (%s): set the wrong one right", ahead(offset), clockTime(r.now))}
	case g.statistics != "":
		return &Disagreement{Text: g.statistics}
	case r.doubt != nil:
		return &Disagreement{Text: *r.doubt, Doubt: true}
	}
	return nil
}

// doubtful returns why the database's clock is in doubt, "" if it isn't.
func (g *Guard) doubtful(r row, present sample, trip time.Duration) string {
	slack := g.opt.Tolerance + trip
	if r.newest != nil && r.newest.Sub(r.now) > slack && (r.confirmed == nil || r.newest.After(*r.confirmed)) {
		return fmt.Sprintf("the newest entry of the audit log is of %s, and the database's clock showed %s: it was wrong then, or is now",
			clockTime(*r.newest), clockTime(r.now))
	}
	if g.base != (sample{}) {
		jump := present.database.Sub(g.base.database) - (present.up - g.base.up)
		if jump.Abs() <= slack || jump.Abs() <= g.opt.LongestAbsence && g.machine.synchronized() {
			return ""
		}
		return fmt.Sprintf("the database's clock was set while the registry ran: at %s it was %s what it should have shown", clockTime(r.now), ahead(jump))
	}
	if r.seenAt == nil {
		return "" // nothing was ever deleted here, and nothing is old
	}
	return g.doubtAtStart(r, present, slack)
}

// doubtAtStart compares with the last look of another process, or of this one before a restart.
func (g *Guard) doubtAtStart(r row, present sample, slack time.Duration) string {
	since := r.now.Sub(*r.seenAt)
	if r.boot != "" && r.boot == g.machine.boot {
		jump := since - (present.up - time.Duration(r.up)*time.Microsecond)
		if jump.Abs() <= slack || jump.Abs() <= g.opt.LongestAbsence && g.machine.synchronized() {
			return ""
		}
		return fmt.Sprintf("the database's clock was set since %s: at %s it was %s what it should have shown", clockTime(*r.seenAt), clockTime(r.now), ahead(jump))
	}
	switch {
	case since > g.opt.LongestAbsence:
		return fmt.Sprintf("by the database's clock no process of this registry ran from %s to %s, %s; that is longer than clock.longest_absence",
			clockTime(*r.seenAt), clockTime(r.now), span(since))
	case since < -slack && (-since > g.opt.LongestAbsence || !g.machine.synchronized()):
		return fmt.Sprintf("the database's clock showed %s, which is before the time at which the registry last ran, %s", clockTime(r.now), clockTime(*r.seenAt))
	}
	return ""
}

func (g *Guard) read(ctx context.Context) (r row, err error) {
	err = g.opt.DB.Pool.QueryRow(ctx, `
		SELECT clock_timestamp(), c.seen_at, COALESCE(c.boot, ''), COALESCE(c.up, 0), c.doubt, c.confirmed_to, c.trusted_at,
			(SELECT max(time) FROM auditlog)
		FROM (SELECT) one LEFT JOIN clock c ON true`).Scan(&r.now, &r.seenAt, &r.boot, &r.up, &r.doubt, &r.confirmed, &r.trusted, &r.newest)
	return r, err
}

func (g *Guard) write(ctx context.Context, r row, present sample, doubt string) error {
	_, err := g.opt.DB.Pool.Exec(ctx, `
		INSERT INTO clock AS c (seen_at, boot, up, doubt, trusted_at) VALUES (@now::timestamptz, @boot, @up, NULLIF(@doubt::text, ''), CASE WHEN @doubt::text = '' THEN @now::timestamptz END)
		ON CONFLICT (one) DO UPDATE SET seen_at = EXCLUDED.seen_at, boot = EXCLUDED.boot, up = EXCLUDED.up, doubt = COALESCE(c.doubt, EXCLUDED.doubt),
			trusted_at = CASE WHEN c.doubt IS NULL THEN GREATEST(c.trusted_at, EXCLUDED.trusted_at) ELSE c.trusted_at END`,
		db.Args{"now": r.now, "boot": g.machine.boot, "up": present.up.Microseconds(), "doubt": doubt})
	return err
}

// lookAtStatistics compares the clock of the statistics' database with that of this process. While
// that database can't be reached, what was found last stands.
func (g *Guard) lookAtStatistics(ctx context.Context) {
	if g.opt.Statistics == nil || g.opt.Statistics == g.opt.DB {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	begun, up := g.machine.now(), g.machine.up()
	var now time.Time
	if err := g.opt.Statistics.Pool.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&now); err != nil {
		return
	}
	trip := g.machine.up() - up
	offset := now.Sub(begun.Add(trip / 2))
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.statistics = ""; offset.Abs() > g.opt.Tolerance+trip {
		g.statistics = fmt.Sprintf("the clock of the statistics' database is %s the clock of this process (%s): set the wrong one right", ahead(offset), clockTime(now))
	}
}

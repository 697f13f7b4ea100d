package loosefk

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// Options configures a worker. Zero numbers and times have their default; see Check for
// their bounds.
type Options struct {
	// Databases are the databases that have the tables; required. While a database is
	// cleaned up its pool needs two free connections, or one if Lock isn't an AdvisoryLock.
	Databases   Databases
	Definitions Definitions
	Lock        Lock // default AdvisoryLock

	// Interval is the time between two runs of a worker. The runs handle the databases in
	// turn. Default 1 min.
	Interval time.Duration
	// MaxDeletes and MaxUpdates bound the rows that a run changes. Defaults
	// 100,000 and 50,000.
	MaxDeletes, MaxUpdates int
	// MaxRuntime bounds a run. Default 30 s.
	MaxRuntime time.Duration
	// Batch is how many deleted records are processed together. Default 500.
	Batch int
	// DeleteLimit and UpdateLimit bound the rows of a query. Defaults 1,000 and 500. A
	// definition's delete_limit lowers the bound for a child whose rows are expensive to
	// change, because of triggers or cascades.
	DeleteLimit, UpdateLimit int
	// UrgentRecords bounds how many records of a parent table a run processes in the urgent
	// lane (see Database.Expedite). Default 100.
	UrgentRecords int
	// LockTimeout bounds each wait for a lock. Keep it below PostgreSQL's deadlock_timeout,
	// so that in a deadlock the worker gives up and not a client. Default 200 ms.
	LockTimeout time.Duration
	// StatementTimeout bounds a query. A query that takes longer is tried again with half
	// the rows. Default 10 s.
	StatementTimeout time.Duration
	// MaxAttempts is the number of runs that may leave a record unfinished. After them the
	// record is postponed by RescheduleAfter. Defaults 3 and 10 min.
	MaxAttempts     int
	RescheduleAfter time.Duration
	// SecondLook is the time after which a worker looks again for children on another
	// server, since a transaction that still saw the parent may have inserted one. Default
	// 1 h; negative: never.
	SecondLook time.Duration
	// PartitionAge is how old the first record of the newest partition must be before a new
	// partition is added. Default 24 h.
	PartitionAge time.Duration
	// Retention is how long detached partitions are kept. Default 7 days.
	Retention time.Duration
	// Observer is told what the worker does, for metrics. Default: nobody is told.
	Observer Observer
	Log      *slog.Logger // default slog.Default()
}

// tuning is an option that is a number or a time.
type tuning struct {
	name string
	// Of these one is set: where the value is.
	number   *int
	duration *time.Duration
	// The default, the least and the largest value: numbers, or nanoseconds.
	def, least, most int64
	never            bool // a negative value is "never"
}

const day = 24 * time.Hour

// tuning lists the options that are numbers and times, with their defaults and
// bounds.
func (o *Options) tuning() []tuning {
	number := func(name string, n *int, def, most int64) tuning {
		return tuning{name: name, number: n, def: def, least: 1, most: most}
	}
	duration := func(name string, d *time.Duration, def, least, most time.Duration) tuning {
		return tuning{name: name, duration: d, def: int64(def), least: int64(least), most: int64(most)}
	}
	second := duration("second look", &o.SecondLook, time.Hour, time.Millisecond, 30*day)
	second.never = true
	return []tuning{
		duration("interval", &o.Interval, time.Minute, time.Millisecond, day),
		number("max deletes", &o.MaxDeletes, 100_000, 1_000_000_000),
		number("max updates", &o.MaxUpdates, 50_000, 1_000_000_000),
		duration("max runtime", &o.MaxRuntime, 30*time.Second, time.Millisecond, day),
		number("batch", &o.Batch, 500, 100_000),
		number("delete limit", &o.DeleteLimit, 1000, 1_000_000),
		number("update limit", &o.UpdateLimit, 500, 1_000_000),
		number("urgent records", &o.UrgentRecords, 100, 100_000),
		duration("lock timeout", &o.LockTimeout, 200*time.Millisecond, time.Millisecond, time.Hour),
		duration("statement timeout", &o.StatementTimeout, 10*time.Second, time.Millisecond, day),
		number("max attempts", &o.MaxAttempts, 3, 1000),
		duration("reschedule after", &o.RescheduleAfter, 10*time.Minute, time.Millisecond, 30*day),
		second,
		duration("partition age", &o.PartitionAge, day, time.Millisecond, 365*day),
		duration("retention", &o.Retention, 7*day, time.Millisecond, 3650*day),
	}
}

func (t tuning) value() int64 {
	if t.number != nil {
		return int64(*t.number)
	}
	return int64(*t.duration)
}

// text is a value as people write it.
func (t tuning) text(value int64) string {
	if t.number != nil {
		return fmt.Sprint(value)
	}
	return time.Duration(value).String()
}

// Check returns an error that names all numbers and times that are out of bounds. Zero is
// valid and stands for the default.
func (o Options) Check() error {
	var errs []error
	for _, t := range o.tuning() {
		v := t.value()
		if v == 0 || v >= t.least && v <= t.most || v < 0 && t.never {
			continue
		}
		never := ""
		if t.never {
			never = ", or less than 0 for never"
		}
		errs = append(errs, fmt.Errorf("loose foreign keys: %s is %s: it has to be from %s to %s%s", t.name, t.text(v), t.text(t.least), t.text(t.most), never))
	}
	return errors.Join(errs...)
}

func (o *Options) defaults() {
	for _, t := range o.tuning() {
		switch {
		case t.number != nil:
			*t.number = cmp.Or(*t.number, int(t.def))
		default:
			*t.duration = cmp.Or(*t.duration, time.Duration(t.def))
		}
	}
	if o.Lock == nil {
		o.Lock = AdvisoryLock{}
	}
	if o.Observer == nil {
		o.Observer = unobserved{}
	}
	o.Log = cmp.Or(o.Log, slog.Default())
}

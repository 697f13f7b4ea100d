package loosefk

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// Options configures a worker. A number or duration that is 0 stands for its default. If a
// number or duration is out of its bounds, New fails with an error that names the bounds.
type Options struct {
	// Databases are the databases that contain the parent and child tables; required. While
	// a run cleans up children of a database's parents, it needs two free connections in
	// that database's pool, or one if Lock isn't an AdvisoryLock.
	Databases   Databases
	Definitions Definitions
	Lock        Lock // default AdvisoryLock

	// Interval is the time between two runs of a worker. Each run works on one database;
	// the databases take turns. Default 1 min.
	Interval time.Duration
	// MaxDeletes and MaxUpdates bound the child rows that one run deletes or updates.
	// Defaults 100,000 and 50,000.
	MaxDeletes, MaxUpdates int
	// MaxRuntime bounds a run. Default 30 s.
	MaxRuntime time.Duration
	// Batch is how many deleted records of a parent table a run loads and processes
	// together. Default 500.
	Batch int
	// DeleteLimit and UpdateLimit bound the child rows that one query deletes or updates.
	// Defaults 1,000 and 500. The field DeleteLimit of a definition replaces both bounds
	// for this definition, for children whose rows are expensive to change because of
	// triggers or cascades.
	DeleteLimit, UpdateLimit int
	// UrgentRecords bounds how many urgent deleted records of one parent table a run
	// processes. A record is urgent after Database.Expedite. Default 100.
	UrgentRecords int
	// LockTimeout is the longest time for which a query waits for one lock. Keep it below
	// PostgreSQL's deadlock_timeout, so that in a deadlock the worker's query fails and not
	// the query of another client. Default 200 ms.
	LockTimeout time.Duration
	// StatementTimeout is the longest time that a query may take. If a query takes longer,
	// the worker repeats it with half as many rows. Default 10 s.
	StatementTimeout time.Duration
	// MaxAttempts is the number of runs that may leave the same deleted record unfinished.
	// After them the record is postponed by RescheduleAfter. Defaults 3 and 10 min.
	MaxAttempts     int
	RescheduleAfter time.Duration
	// SecondLook applies to parents that have children in another database. After
	// a worker has cleaned up the children of such a parent, the deleted record stays pending
	// for this time. Then a worker searches for children once more, since a transaction that
	// still saw the parent may have inserted a child. Default 1 h; negative: there is no
	// second search.
	SecondLook time.Duration
	// PartitionAge is how old the first record of the newest partition of the table of
	// deleted records must be before a run adds the next partition. Default 24 h.
	PartitionAge time.Duration
	// Retention is how long a partition of the table of deleted records is kept after it
	// was detached; then a run drops it. Default 7 days.
	Retention time.Duration
	// Observer receives the results of the worker's runs, for metrics. Default: none.
	Observer Observer
	Log      *slog.Logger // default slog.Default()
}

// tuning describes a field of Options that is a number or a duration.
type tuning struct {
	name string
	// number or duration points to the option's field in Options; the other is nil.
	number   *int
	duration *time.Duration
	// def, least and most are the option's default, smallest and largest value; those of
	// durations are in nanoseconds.
	def, least, most int64
	never            bool // a negative value is allowed and means "never"
}

const day = 24 * time.Hour

// tuning returns a description of each option that is a number or a duration, with its
// default and bounds.
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

// text formats a value of the option for messages: a number or a duration such as "10s".
func (t tuning) text(value int64) string {
	if t.number != nil {
		return fmt.Sprint(value)
	}
	return time.Duration(value).String()
}

// Check returns an error that names each number and duration that is out of its bounds, and
// these bounds; it returns nil if there is none. 0 is valid and stands for the default.
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

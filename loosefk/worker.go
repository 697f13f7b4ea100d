package loosefk

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"
)

// Worker cleans up the children of deleted parents. Its methods may be called concurrently,
// and workers in any number of processes may use the same databases.
type Worker struct {
	opt  Options
	runs atomic.Uint64 // number of runs; each begins with another parent table
}

// New makes a worker. It starts nothing and connects to nothing: Run does. It returns an
// error if the options or definitions are invalid in themselves, or if a pool has too few
// connections for the lock and the work. It doesn't compare the definitions with the
// databases; Validate does.
func New(o Options) (*Worker, error) {
	if err := errors.Join(o.Databases.Check(), o.Definitions.check(), o.Check()); err != nil {
		return nil, err
	}
	o.defaults()
	for _, d := range o.Databases {
		if _, ok := o.Lock.(AdvisoryLock); ok && d.Pool.Config().MaxConns < 2 {
			return nil, fmt.Errorf("loose foreign keys: the pool of database %s has one connection: a lock takes one and the work another", d.Name)
		}
	}
	return &Worker{opt: o}, nil
}

// Options returns the worker's options with their defaults.
func (w *Worker) Options() Options { return w.opt }

// Run cleans up children until ctx ends, and then returns nil. In each Interval it works on
// one database, which the clock determines, so that the workers of several processes work
// on the same database at the same time. While a database has no pending deleted record,
// only one in ten of its turns is a complete run; the other nine only look for a pending
// record. Run logs the error of a run and continues with the next one.
func (w *Worker) Run(ctx context.Context) error {
	databases := w.parentDatabases()
	if len(databases) == 0 {
		<-ctx.Done()
		return nil
	}
	rests := make(map[*Database]*rest, len(databases))
	for _, db := range databases {
		rests[db] = new(rest)
	}
	for {
		turn, next := turnAt(time.Now(), w.opt.Interval)
		db := databases[turn%int64(len(databases))]
		if r, _, err := w.turnOf(ctx, db, rests[db]); err != nil && ctx.Err() == nil {
			w.opt.Log.ErrorContext(ctx, "cleaning up loose foreign keys failed", "database", db.Name, "error", err)
		} else if r.Records > 0 {
			w.opt.Log.InfoContext(ctx, "cleaned up loose foreign keys", "database", db.Name, "records", r.Records,
				"processed", r.Processed, "deletes", r.Deletes, "updates", r.Updates, "over_limit", r.OverLimit)
		}
		if sleep(ctx, max(time.Until(next), 0)) != nil {
			return nil
		}
	}
}

// runBounded calls RunOnce with a timeout that is longer than MaxRuntime: it only ends runs
// on a database that has stopped answering.
func (w *Worker) runBounded(ctx context.Context, database string) (Result, error) {
	ctx, cancel := context.WithTimeout(ctx, w.opt.MaxRuntime+2*w.opt.StatementTimeout+2*time.Minute)
	defer cancel()
	return w.RunOnce(ctx, database)
}

// turnAt returns the number of the interval that contains the time `now`, counted from 1970,
// and when the next interval begins. The number is the same in all processes.
func turnAt(now time.Time, interval time.Duration) (turn int64, next time.Time) {
	turn = now.UnixNano() / int64(interval)
	return turn, time.Unix(0, (turn+1)*int64(interval))
}

// parentDatabases returns the databases that have parent tables. Only these contain deleted
// records.
func (w *Worker) parentDatabases() []*Database {
	var list []*Database
	for i := range w.opt.Databases {
		db := &w.opt.Databases[i]
		if slices.ContainsFunc(w.opt.Definitions, func(d Definition) bool { return w.opt.Databases.Of(d.Parent) == db }) {
			list = append(list, db)
		}
	}
	return list
}

// Result says what a run did.
type Result struct {
	Database  string `json:"database"`
	Records   int    `json:"records"`   // deleted records that the run loaded
	Processed int    `json:"processed"` // records that were finished
	// Again is the number of deleted records whose children the run has cleaned up, and
	// which stay pending until a second search for children in another database.
	Again int `json:"again"`
	// Incremented and Rescheduled count deleted records that the run left unfinished.
	// Rescheduled counts those that MaxAttempts runs have left unfinished, so that they wait
	// for RescheduleAfter; Incremented counts those that fewer runs have left unfinished.
	Incremented int      `json:"incremented"`
	Rescheduled int      `json:"rescheduled"`
	Deletes     int      `json:"deletes"`
	Updates     int      `json:"updates"`
	Failed      int      `json:"failed,omitempty"`     // records that name no table, marked as failed
	Locked      int      `json:"locked"`               // parent tables that another worker has locked
	OverLimit   string   `json:"over_limit,omitempty"` // the limit that ended the run
	Rotation    Rotation `json:"partitions"`
}

// RunOnce cleans up the children of parents in the named database, until no deleted record
// is due there or a limit is reached, and rotates the partitions of the table of deleted
// records. Workers that run at the same time work on different parent tables.
//
// If the definitions don't fit the databases, RunOnce returns Problems and changes nothing. If
// an error occurs for one parent table, RunOnce cleans up the children of the other parent
// tables and then returns the joined errors. If another database can't be reached, the deleted
// records of parents with children there stay pending, and the error names that database.
func (w *Worker) RunOnce(ctx context.Context, database string) (Result, error) {
	db, err := w.database(database)
	if err != nil || !slices.Contains(w.parentDatabases(), db) {
		return Result{Database: database}, err
	}
	began := time.Now()
	rs, away, gone, err := w.lookUpReachable(ctx, db)
	if err != nil {
		w.opt.Observer.Ran(db.Name, time.Since(began), err)
		w.opt.Observer.Uncounted(db.Name)
		return Result{Database: database}, explain(err)
	}
	c := w.cleaner(db, w.opt)
	c.away = away
	c.begin = (w.runs.Add(1) - 1) / uint64(len(w.parentDatabases()))
	// If rotate fails, the run can still process the records in the existing partitions, so
	// its error doesn't end the run.
	c.Rotation, err = db.rotate(ctx, rotationOptions{w.opt.PartitionAge, w.opt.Retention, w.opt.LockTimeout, 5})
	var unknown error
	if c.Failed, unknown = db.fail(ctx, slices.AppendSeq(rs.parents(db), maps.Keys(away))); c.Failed > 0 {
		w.opt.Log.WarnContext(ctx, "deleted records name no table: they are marked as failed", "database", db.Name, "records", c.Failed)
	}
	err = errors.Join(err, unknown, gone, c.run(ctx, rs))
	w.opt.Observer.Ran(db.Name, time.Since(began), err)
	return c.result(), errors.Join(err, w.observePending(ctx, db))
}

func (w *Worker) database(name string) (*Database, error) {
	i := slices.IndexFunc(w.opt.Databases, func(d Database) bool { return d.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("loose foreign keys: there is no database %q", name)
	}
	return &w.opt.Databases[i], nil
}

// Drain processes every pending deleted record of a parent table now, including postponed
// records, and ignores MaxDeletes, MaxUpdates and MaxRuntime. It returns when no pending
// record is left; then a migration may add a foreign key again. After each batch it calls
// `progress`, unless that is nil. While another worker has the table locked, Drain waits.
func (w *Worker) Drain(ctx context.Context, parent string, progress func(Result)) (Result, error) {
	rs, _, err := lookUp(ctx, w.opt.Databases, w.opt.Definitions)
	if err != nil {
		return Result{}, err
	}
	db := w.opt.Databases.Of(parent)
	if db == nil {
		return Result{}, fmt.Errorf("draining %s: it belongs to no database", parent)
	}
	name := db.table(parent)
	refs := rs.of(db, name)
	if len(refs) == 0 {
		return Result{}, fmt.Errorf("draining %s: no definition names it as a parent", parent)
	}
	o := w.opt
	o.MaxRuntime, o.MaxDeletes, o.MaxUpdates, o.SecondLook = 365*24*time.Hour, int(^uint(0)>>1), int(^uint(0)>>1), -1
	c := w.cleaner(db, o)
	for {
		more, err := c.turn(ctx, name, refs, laneAll, o.Batch)
		if err != nil {
			return c.result(), fmt.Errorf("draining %s: %w", parent, err)
		}
		if progress != nil {
			progress(c.result())
		}
		if more {
			continue
		}
		if left, err := db.load(ctx, name, laneAll, 1, nil); err != nil || len(left) == 0 {
			return c.result(), err
		}
		for _, err := range c.refused {
			return c.result(), fmt.Errorf("draining %s: %w", parent, err)
		}
		// Another worker has locked the parent table, or another transaction has locked a
		// child. Forget which records couldn't be finished, and try all pending ones again.
		clear(c.stuck)
		clear(c.waited)
		if err := sleep(ctx, w.opt.LockTimeout); err != nil {
			return c.Result, fmt.Errorf("draining %s: %w", parent, err)
		}
	}
}

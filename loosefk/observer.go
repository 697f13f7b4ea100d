package loosefk

import (
	"context"
	"time"
)

// Observer receives the results of a worker's runs, for metrics; package loosefk/contrib/metrics has
// one for Prometheus. Workers call its methods concurrently.
type Observer interface {
	// Records is called with three numbers of deleted records of a parent table:
	// `processed` that a run has finished, `incremented` that it left unfinished for the
	// next run, and `rescheduled` that it left unfinished and postponed by
	// Options.RescheduleAfter, because Options.MaxAttempts runs had left these records
	// unfinished.
	Records(database, table string, processed, incremented, rescheduled int)
	// Rows is called with the numbers of rows of a child table that a query has deleted and
	// updated.
	Rows(database, table string, deleted, updated int)
	// Ran is called after each run on a database. err is the run's error, or nil. A run that
	// couldn't begin, because the definitions don't fit the databases or their tables couldn't
	// be looked up, is one that failed.
	Ran(database string, took time.Duration, err error)
	// Pending is called after Ran with the counts of the deleted records that are still
	// pending in the database.
	Pending(database string, list []Pending)
	// Uncounted is called instead of Pending if the records couldn't be counted. What the last
	// call of Pending has said of this database is then no longer known.
	Uncounted(database string)
}

// unobserved is the Observer of a worker whose options name none.
type unobserved struct{}

func (unobserved) Records(string, string, int, int, int) {}
func (unobserved) Rows(string, string, int, int)         {}
func (unobserved) Ran(string, time.Duration, error)      {}
func (unobserved) Pending(string, []Pending)             {}
func (unobserved) Uncounted(string)                      {}

// observePending passes the counts of a database's pending records to the observer, or that they
// aren't known.
func (w *Worker) observePending(ctx context.Context, db *Database) error {
	if _, ok := w.opt.Observer.(unobserved); ok {
		return nil
	}
	list, err := db.Pending(ctx)
	if err != nil {
		w.opt.Observer.Uncounted(db.Name)
		return err
	}
	w.opt.Observer.Pending(db.Name, list)
	return nil
}

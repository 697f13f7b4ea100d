package loosefk

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// restTurns is the number of turns for which a worker, in a database without pending
// records, only looks for one. After these turns it makes a run nevertheless, which
// compares the definitions with the tables and rotates the partitions.
const restTurns = 10

// rest is the state of a database that a worker keeps between its turns. A run costs some
// fifty statements, most of them on the catalog; looking for a pending record costs one.
type rest struct {
	left int // turns without a run, while no record is pending
}

// turnOf makes a run on a database or, while the database rests, only looks for a record. A
// database rests after a run that succeeded and began without a pending record: such a run
// has set the gauges of pending records to 0. ran says whether turnOf made a run.
func (w *Worker) turnOf(ctx context.Context, db *Database, r *rest) (_ Result, ran bool, err error) {
	pending, err := db.hasPending(ctx)
	none := err == nil && !pending
	if none && r.left > 0 {
		r.left--
		return Result{}, false, nil
	}
	r.left = 0 // if looking failed, the run reports the error
	result, err := w.runBounded(ctx, db.Name)
	if err == nil && none && result.Records == 0 {
		r.left = restTurns - 1
	}
	return result, true, err
}

// hasPending says whether there is a record that isn't processed, even one that isn't due.
func (d *Database) hasPending(ctx context.Context) (pending bool, err error) {
	err = indexed(ctx, d.Pool, fmt.Sprintf("SELECT EXISTS (SELECT FROM %s WHERE status = 1)", d.records()), nil,
		func(rows pgx.Rows) error {
			pending, err = pgx.CollectExactlyOneRow(rows, pgx.RowTo[bool])
			return err
		})
	if err != nil {
		return false, fmt.Errorf("looking for pending records of database %s: %w", d.Name, err)
	}
	return pending, nil
}

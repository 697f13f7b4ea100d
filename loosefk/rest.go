package loosefk

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// restTurns says how rarely a worker makes a complete run on a database that has no pending
// deleted record: in every tenth turn of the database, that is, interval in which the worker
// works on it. In the other turns the worker only looks for a pending record. The complete
// run is still needed, because it compares the definitions with the tables and rotates the
// partitions.
const restTurns = 10

// rest counts, for one database, the runs that a worker may leave out while no deleted
// record is pending. A run costs some fifty statements, most of them on the system catalog;
// looking for a pending record costs one.
type rest struct {
	left int // number of the next runs to leave out, unless a record becomes pending
}

// turnOf is called when it is a database's turn. If no deleted record is pending and `r`
// allows it, turnOf leaves the run out; otherwise it makes a run. `ran` says whether it
// made one. After a run that succeeded and began without a pending record, the next
// restTurns-1 runs may be left out: that run has set the metrics of pending records to 0.
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

// hasPending returns whether a deleted record is pending, even one that isn't due yet.
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

package pullstats

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
)

// Databases are the databases in which pulls are logged and counted.
type Databases struct {
	Log   *db.DB // required: the database of the audit log
	Stats *db.DB // required: the database of the statistics; the same pool if it is the same database
	// Alive locks those of the repositories that exist, in the order of their ids, until
	// the transaction, which is one of Log, ends, and returns them. Nothing is counted for
	// the others, since nothing would delete their statistics any more. Required.
	Alive func(ctx context.Context, tx pgx.Tx, ids []int64) ([]int64, error)
}

func (d *Databases) check() error {
	if d.Log == nil || d.Stats == nil || d.Alive == nil {
		return errors.New("pullstats: the databases of the log and of the statistics are required, and who knows which repositories exist")
	}
	return nil
}

// withAlive calls fn in a transaction of the statistics' database. Meanwhile the
// repositories can't be deleted, so the clean-up after a deletion comes later and finds
// what fn wrote. If both databases are the same, there is one transaction. fn may be called
// again although its first call was committed, and must detect that.
func (d *Databases) withAlive(ctx context.Context, ids []int64, fn func(alive map[int64]bool, tx pgx.Tx) error) error {
	lock := func(tx pgx.Tx) (map[int64]bool, error) {
		alive := make(map[int64]bool, len(ids))
		if len(ids) == 0 {
			return alive, nil
		}
		list, err := d.Alive(ctx, tx, ids)
		if err != nil {
			return nil, fmt.Errorf("looking for the repositories of pulls: %w", err)
		}
		for _, id := range list {
			alive[id] = true
		}
		return alive, nil
	}
	return d.Log.Tx(ctx, func(tx pgx.Tx) error {
		alive, err := lock(tx)
		if err != nil {
			return err
		}
		if d.Log == d.Stats {
			return fn(alive, tx)
		}
		// This transaction is idle while the other database works, where a statement may
		// take 30 s.
		if _, err := tx.Exec(ctx, "SET LOCAL idle_in_transaction_session_timeout = '1min'"); err != nil {
			return err
		}
		return d.Stats.Tx(ctx, func(tx pgx.Tx) error { return fn(alive, tx) })
	})
}

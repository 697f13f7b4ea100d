package pullstats

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
)

// Databases are where pulls are logged and counted.
type Databases struct {
	Log   *db.DB // required: the database of the audit log
	Stats *db.DB // required: that of the statistics, the same pool where it is the same
	// Alive locks those of the repositories that exist, in the order of their ids and
	// until the transaction ends, and returns them: nothing is counted for others,
	// whose statistics nobody would remove any more. The transaction is one of Log.
	// Required.
	Alive func(ctx context.Context, tx pgx.Tx, ids []int64) ([]int64, error)
}

func (d *Databases) check() error {
	if d.Log == nil || d.Stats == nil || d.Alive == nil {
		return errors.New("pullstats: the databases of the log and of the statistics are required, and who knows which repositories exist")
	}
	return nil
}

// withAlive calls fn in a transaction of the statistics' database while
// repositories are kept from being deleted, so that the clean-up after a deletion
// comes later and finds what fn wrote. Where both databases are one it is one
// transaction. fn may be called again after it was committed, and has to find that
// out.
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
		// It is idle while the other database works, which has 30 s for a statement.
		if _, err := tx.Exec(ctx, "SET LOCAL idle_in_transaction_session_timeout = '1min'"); err != nil {
			return err
		}
		return d.Stats.Tx(ctx, func(tx pgx.Tx) error { return fn(alive, tx) })
	})
}

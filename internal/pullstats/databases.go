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
	// Alive locks those of the repositories `ids` that exist, in the order of their ids,
	// until the transaction tx (of the database Log) ends. It returns the ids of their
	// namespaces, by the ids of the repositories. Pulls of repositories that don't exist
	// aren't counted, since nothing would ever delete their statistics. Required.
	Alive func(ctx context.Context, tx pgx.Tx, ids []int64) (map[int64]int64, error)
}

// living maps the ids of repositories that exist to the ids of their namespaces.
type living map[int64]int64

func (l living) has(repository int64) bool {
	_, ok := l[repository]
	return ok
}

func (d *Databases) check() error {
	if d.Log == nil || d.Stats == nil || d.Alive == nil {
		return errors.New("pullstats: the databases of the log and of the statistics are required, and who knows which repositories exist")
	}
	return nil
}

// withAlive calls fn in a transaction tx of the statistics' database; `alive` has those of
// the repositories `ids` that exist. These can't be deleted until tx has ended, so the
// clean-up after a deletion comes later and finds the rows that fn wrote. If audit log and
// statistics are in one database, tx also locks the repositories; otherwise a second
// transaction, in the log's database, locks them, and ends after tx. If this second transaction fails
// after tx was committed, withAlive may call fn again. So fn must add nothing twice, and it may find
// other rows than those for whose repositories `ids` was made.
func (d *Databases) withAlive(ctx context.Context, ids []int64, fn func(alive living, tx pgx.Tx) error) error {
	lock := func(tx pgx.Tx) (living, error) {
		if len(ids) == 0 {
			return nil, nil
		}
		alive, err := d.Alive(ctx, tx, ids)
		if err != nil {
			return nil, fmt.Errorf("looking for the repositories of pulls: %w", err)
		}
		return alive, nil
	}
	if d.Log == d.Stats {
		return d.Log.Tx(ctx, func(tx pgx.Tx) error {
			alive, err := lock(tx)
			if err != nil {
				return err
			}
			return fn(alive, tx)
		})
	}
	return db.Retry(ctx, func() error {
		// The transaction of the statistics begins first, so nothing is locked in the log's database
		// while it waits for a connection of a server that is slow or gone.
		stats, err := d.Stats.Pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
		if err != nil {
			return err
		}
		defer stats.Rollback(context.WithoutCancel(ctx)) //nolint:errcheck // after the commit it does nothing
		if err := mayBeIdle(ctx, stats); err != nil {
			return err
		}
		return pgx.BeginTxFunc(ctx, d.Log.Pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
			alive, err := lock(tx)
			if err != nil {
				return err
			}
			if err := mayBeIdle(ctx, tx); err != nil {
				return err
			}
			if err := fn(alive, stats); err != nil {
				return err
			}
			return stats.Commit(ctx)
		})
	})
}

// mayBeIdle lets a transaction be idle while a statement runs in the other database, which may take 30 s.
func mayBeIdle(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, "SET LOCAL idle_in_transaction_session_timeout = '1min'")
	return err
}

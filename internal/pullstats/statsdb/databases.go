// Package statsdb writes the database of the pull statistics: it adds up pulls and adds the sums to
// the counts and to the history, and records since when the statistics are complete. Both ways of
// counting pulls use it (packages pullstats and redispulls).
//
// A worker adds pulls in the transaction that records that it has counted them. The repositories of
// the pulls are locked until this transaction has ended ([Databases.WithAlive]), so a repository can
// be deleted only after it, and the clean-up that follows the deletion finds all rows. All
// transactions add their sums in the same order, so that they can't deadlock.
//
// # Why the history has the same pulls
//
// The history says how many pulls there were on each day, in UTC: of the registry, and of each
// namespace, repository, tag and manifest. The statements that add a batch of pulls to the
// counts add the same pulls to the history (Sums.Write). So a pull is in both or in neither,
// and for each tag and manifest the days add up to the count, as long as the retention has
// deleted none of them.
//
// The statistics row of a tag or manifest has the pulls of its newest day itself, and the
// history tables have those of earlier days. The day of a row never goes back. An upsert that
// moves it forward has locked the row, and moves the pulls of the day before to the history
// table in the same statement; pulls of an earlier day go there at once. So each pull of a tag
// or manifest is in exactly one of the two places, and a reader adds them up in one statement.
//
// A pull counts for the day of its own time. The audit log has this time; an entry that stands
// for several pulls has the time of each, or all of its pulls are of one day. A counter in Redis
// has, for each of its earlier days, the count at the end of that day. A pull that Redis gets
// after a pull of a later day, in the same counter, counts for the later day; processes send
// their pulls within two seconds.
package statsdb

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

// Living maps the ids of repositories that exist to the ids of their namespaces.
type Living map[int64]int64

// Has says whether the repository exists.
func (l Living) Has(repository int64) bool {
	_, ok := l[repository]
	return ok
}

// Check returns an error if a database or the function is missing.
func (d *Databases) Check() error {
	if d.Log == nil || d.Stats == nil || d.Alive == nil {
		return errors.New("pullstats: the databases of the log and of the statistics are required, and who knows which repositories exist")
	}
	return nil
}

// WithAlive calls fn in a transaction tx of the statistics' database; `alive` has those of
// the repositories `ids` that exist. These can't be deleted until tx has ended, so the
// clean-up after a deletion comes later and finds the rows that fn wrote. If audit log and
// statistics are in one database, tx also locks the repositories; otherwise a second
// transaction, in the log's database, locks them, and ends after tx. If this second transaction fails
// after tx was committed, WithAlive may call fn again. So fn must add nothing twice, and it may find
// other rows than those for whose repositories `ids` was made.
func (d *Databases) WithAlive(ctx context.Context, ids []int64, fn func(alive Living, tx pgx.Tx) error) error {
	lock := func(tx pgx.Tx) (Living, error) {
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

// Unhurried lifts the pool's time limits for the transaction tx, which takes long. It also
// lets tx be idle for up to 30 minutes, since tx waits while a statement runs in the other
// database (of the audit log or of the statistics).
func Unhurried(ctx context.Context, tx pgx.Tx) error {
	if err := db.LiftLimits(ctx, tx); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, "SET LOCAL idle_in_transaction_session_timeout = '30min'")
	return err
}

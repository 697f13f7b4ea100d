package loosefk

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/loosefk/internal/pg"
)

// Partition is one of the partitions of the table of deleted records.
type Partition struct {
	Table   string // with its schema
	Value   int64  // of the column partition; 0 for the default partition
	Default bool   // takes records that fit no other
	Current bool   // the column's default value is in this partition
}

// Rotation says what a rotation of the partitions of the table of deleted records changed.
type Rotation struct {
	Repaired int64    `json:"repaired,omitempty"` // the wrong default of the column partition that was corrected; -1: it had no default, or one that is no number; 0: the default was right
	Moved    int64    `json:"moved,omitempty"`    // number of records moved out of the default partition
	Added    string   `json:"added,omitempty"`    // the new partition, or ""
	Detached []string `json:"detached,omitempty"` // partitions
	Dropped  []string `json:"dropped,omitempty"`
	// Busy says that other transactions locked the table for so long that a step of the
	// rotation gave up. The next run tries it again.
	Busy bool `json:"busy,omitempty"`
}

// rotationOptions are the times and the number of tries that control rotation.
type rotationOptions struct {
	age       time.Duration // age of the first record of the newest partition at which the next one is added
	retention time.Duration // time between detaching and dropping a partition
	lockWait  time.Duration
	tries     int
}

// ErrBusy says that a transaction was tried several times and didn't get a lock that it
// needs, mostly the lock of the table of deleted records. Another transaction stays open and
// holds the lock, for example one that has deleted rows from a tracked parent. Each try was
// rolled back.
var ErrBusy = errors.New("open transactions have locked the table of deleted records")

// rotate rotates the partitions of the table of deleted records. It adds a missing default
// partition, corrects a wrong default of the column `partition`, adds the next partition if
// the newest is old enough, detaches partitions without pending records, and drops
// partitions that were detached longer ago than the retention time.
func (d *Database) rotate(ctx context.Context, o rotationOptions) (Rotation, error) {
	var s Rotation
	steps := []func(context.Context, rotationOptions, *Rotation) error{d.addMissing, d.repairDefault, d.addNext, d.detachSettled, d.dropDetached}
	for _, step := range steps {
		err := step(ctx, o, &s)
		if errors.Is(err, ErrBusy) {
			s.Busy = true
			continue
		}
		if err != nil {
			return s, fmt.Errorf("partitions of %s in database %s: %w", RecordsTable, d.Name, err)
		}
	}
	return s, nil
}

// Partitions lists the attached partitions of the table of deleted records, ordered by
// value, with the default partition last.
func (d *Database) Partitions(ctx context.Context) ([]Partition, error) {
	found, current, err := d.in().Partitions(ctx, d.catalog())
	if err != nil {
		return nil, fmt.Errorf("listing the partitions of %s: %w", RecordsTable, err)
	}
	var list []Partition
	for _, p := range found {
		list = append(list, Partition{Table: p.Table, Value: p.Value, Default: p.Default, Current: !p.Default && p.Value == current})
	}
	return list, nil
}

// underLock runs fn in a transaction that first takes an advisory lock, so that no other
// worker changes the partitions until the commit. The transaction waits for each lock for
// o.lockWait only: while it waits for a lock on the table of deleted records, every client
// that deletes a row of a tracked parent table has to wait behind it. If the transaction
// doesn't get a lock, it is rolled back and repeated, o.tries times in all; then underLock
// returns ErrBusy.
func (d *Database) underLock(ctx context.Context, o rotationOptions, fn func(tx pgx.Tx) error) error {
	var err error
	for attempt := range o.tries {
		err = pgx.BeginTxFunc(ctx, d.Pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, pg.PinPath); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, "SELECT set_config('lock_timeout', $1, true)", milliseconds(o.lockWait)); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", "loose_foreign_keys/slide/"+d.records())
			if err != nil {
				return err
			}
			return fn(tx)
		})
		if !pg.IsState(err, pg.StateLockNotAvailable) && !pg.IsState(err, pg.StateDeadlock) {
			return err
		}
		pause := o.lockWait + rand.N(o.lockWait*time.Duration(min(attempt+1, 8))+1)
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: %w", ErrBusy, err)
}

// repairDefault sets the default of the column `partition` to the newest partition's
// number, and then moves there the records that went to the default partition. If the
// default named an older partition, no new record would go to the newest one, which then
// would never get old enough for rotation to add another.
func (d *Database) repairDefault(ctx context.Context, o rotationOptions, s *Rotation) error {
	list, current, err := d.in().Partitions(ctx, d.catalog())
	if err != nil {
		return err
	}
	if last, err := pg.Newest(list); err == nil && last.Value != current {
		if err := d.underLock(ctx, o, func(tx pgx.Tx) error { return d.setDefault(ctx, tx, s) }); err != nil {
			return err
		}
		if list, _, err = d.in().Partitions(ctx, d.catalog()); err != nil {
			return err
		}
	}
	last, err := pg.Newest(list)
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(list, func(p pg.Partition) bool { return p.Default }); i >= 0 {
		return d.emptyDefault(ctx, list[i].Table, last.Value, s)
	}
	return nil
}

// setDefault sets the default of the column `partition` to the newest partition's number.
func (d *Database) setDefault(ctx context.Context, tx pgx.Tx, s *Rotation) error {
	list, current, err := d.in().Partitions(ctx, tx)
	if err != nil {
		return err
	}
	last, err := pg.Newest(list)
	if err != nil || last.Value == current {
		return err
	}
	_, err = tx.Exec(ctx, fmt.Sprintf("ALTER TABLE %s ALTER COLUMN partition SET DEFAULT %d", d.records(), last.Value))
	if err == nil {
		if s.Repaired = current; current == 0 {
			s.Repaired = -1
		}
	}
	return err
}

// emptyDefault moves the records of the default partition, `table`, to the partition with
// the number `to`, since records left there could prevent rotation from attaching a
// partition with their number. If a worker marks a record as processed at the same moment,
// the record stays pending and is processed once more.
func (d *Database) emptyDefault(ctx context.Context, table string, to int64, s *Rotation) error {
	for {
		// The condition EXISTS comes first, so that the statement ends at once if the default
		// partition is empty. Without EXISTS, PostgreSQL may choose a plan that reads all
		// records of all partitions.
		tag, err := d.catalog().Exec(ctx, fmt.Sprintf(`
			UPDATE %[1]s SET partition = $1
			WHERE EXISTS (SELECT FROM %[2]s)
				AND (partition, id) IN (SELECT partition, id FROM %[2]s LIMIT 1000 FOR UPDATE SKIP LOCKED)`,
			d.records(), d.table(table).Quoted()), to)
		if err != nil {
			return err
		}
		if s.Moved += tag.RowsAffected(); tag.RowsAffected() == 0 {
			return nil
		}
	}
}

// addNext adds the next partition, and sets the default of the column `partition` to its
// number, if the first record of the newest partition is older than o.age.
func (d *Database) addNext(ctx context.Context, o rotationOptions, s *Rotation) error {
	list, _, err := d.in().Partitions(ctx, d.catalog())
	if err != nil {
		return err
	}
	last, err := pg.Newest(list)
	if err != nil {
		return err
	}
	var due bool
	err = indexed(ctx, d.Pool, fmt.Sprintf(
		"SELECT COALESCE((SELECT created_at < now() - $1::interval FROM %s ORDER BY partition, id LIMIT 1), false)",
		d.table(last.Table).Quoted()), []any{o.age}, func(rows pgx.Rows) (err error) {
		due, err = pgx.CollectExactlyOneRow(rows, pgx.RowTo[bool])
		return err
	})
	if err != nil || !due {
		return err
	}
	return d.underLock(ctx, o, func(tx pgx.Tx) error {
		again, _, err := d.in().Partitions(ctx, tx)
		if err != nil {
			return err
		}
		if now, err := pg.Newest(again); err != nil || now.Value != last.Value {
			return err // another worker was faster
		}
		value, err := d.nextValue(ctx, tx, again, last.Value)
		if err != nil {
			return err
		}
		next := d.table(fmt.Sprintf("%s_%d", RecordsTable, value))
		for _, sql := range []string{
			fmt.Sprintf("CREATE TABLE %s (LIKE %s INCLUDING ALL)", next.Quoted(), d.records()),
			fmt.Sprintf("REVOKE ALL ON %s FROM PUBLIC", next.Quoted()), // rights that default privileges have granted
			fmt.Sprintf("ALTER TABLE %s ATTACH PARTITION %s FOR VALUES IN (%d)", d.records(), next.Quoted(), value),
			fmt.Sprintf("ALTER TABLE %s ALTER COLUMN partition SET DEFAULT %d", d.records(), value),
		} {
			if _, err := tx.Exec(ctx, sql); err != nil {
				return err
			}
		}
		s.Added = next.String()
		return nil
	})
}

// nextValue returns the number of the partition to be added. It is greater than three kinds
// of numbers: that of the newest partition; the partition numbers in the records of the
// default partition; and the numbers at the end of the names of all tables that are named
// like partitions, such as detached partitions.
func (d *Database) nextValue(ctx context.Context, tx pgx.Tx, list []pg.Partition, newest int64) (value int64, err error) {
	caught := d.records()
	if i := slices.IndexFunc(list, func(p pg.Partition) bool { return p.Default }); i >= 0 {
		caught = d.table(list[i].Table).Quoted()
	}
	err = tx.QueryRow(ctx, fmt.Sprintf(`
		SELECT 1 + GREATEST($1, (SELECT max(partition) FROM %s),
			(SELECT max(substring(relname FROM '_([0-9]{1,15})$')::bigint) FROM pg_class
			WHERE starts_with(relname, $2) AND relkind IN ('r', 'p', 'f') AND relnamespace = $3::regnamespace))`, caught),
		newest, RecordsTable+"_", pg.Quote(d.in().Schema())).Scan(&value)
	return value, err
}

// errPending is the error of detach if it leaves a partition as it is: mostly because the
// partition has pending records, or else because new records now go to the partition, or
// because it was detached before.
var errPending = errors.New("records are pending")

// detachSettled detaches each partition that has no pending records, except the newest
// partition and the partition that the default of the column `partition` names. A partition
// with pending records doesn't prevent later partitions from being detached.
func (d *Database) detachSettled(ctx context.Context, o rotationOptions, s *Rotation) error {
	list, current, err := d.in().Partitions(ctx, d.catalog())
	if err != nil {
		return err
	}
	last, err := pg.Newest(list)
	if err != nil {
		return err
	}
	for _, p := range list {
		if p.Default || p.Value == current || p.Value == last.Value {
			continue
		}
		// A partition with pending records must stay attached. This check without locks
		// avoids the transaction below, whose lock every client that deletes a tracked
		// parent would wait for.
		if pending, err := d.in().AnyPending(ctx, d.catalog(), p.Table); err != nil || pending {
			if err != nil {
				return err
			}
			continue
		}
		err := d.underLock(ctx, o, func(tx pgx.Tx) error { return d.detach(ctx, tx, p, o) })
		switch {
		case errors.Is(err, errPending), pg.IsState(err, pg.StateQueryCanceled):
		case err != nil:
			return err
		default:
			s.Detached = append(s.Detached, p.Table)
		}
	}
	return nil
}

// detach detaches a partition and then searches it for pending records. If it finds one, it
// returns errPending and the transaction is rolled back. The order matters: DETACH waits
// until all transactions that inserted records have ended, so the search after DETACH sees
// the records of these transactions.
func (d *Database) detach(ctx context.Context, tx pgx.Tx, p pg.Partition, o rotationOptions) error {
	table := d.table(p.Table)
	if list, current, err := d.in().Partitions(ctx, tx); err != nil || current == p.Value || !pg.Exists(list, p.Value) {
		return errors.Join(err, errPending)
	}
	if _, err := tx.Exec(ctx, fmt.Sprintf("ALTER TABLE %s DETACH PARTITION %s", d.records(), table.Quoted())); err != nil {
		return err
	}
	// The transaction holds the lock of DETACH until it ends, and every client that deletes
	// a tracked parent waits for it. So the search for pending records gets a short timeout
	// and may not scan the partition sequentially.
	_, err := tx.Exec(ctx, "SELECT set_config('statement_timeout', $1, true), set_config('enable_seqscan', 'off', true)",
		milliseconds(max(o.lockWait, 200*time.Millisecond)))
	if err != nil {
		return err
	}
	if pending, err := d.in().AnyPending(ctx, tx, p.Table); err != nil || pending {
		return errors.Join(err, errPending)
	}
	_, err = tx.Exec(ctx, fmt.Sprintf(`
		INSERT INTO %s (table_name, drop_after) VALUES ($1, now() + $2::interval)
		ON CONFLICT (table_name) DO UPDATE SET drop_after = EXCLUDED.drop_after, updated_at = now()`,
		d.table(DetachedTable).Quoted()), p.Table, o.retention)
	return err
}

// dropDetached drops the detached partitions whose time drop_after has passed. It keeps a
// partition that somebody has attached again, or that has pending records.
func (d *Database) dropDetached(ctx context.Context, o rotationOptions, s *Rotation) error {
	rows, err := d.catalog().Query(ctx, fmt.Sprintf(
		"SELECT table_name FROM %s WHERE drop_after < now() ORDER BY id", d.table(DetachedTable).Quoted()))
	if err != nil {
		return err
	}
	due, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, name := range due {
		var dropped bool
		err := d.underLock(ctx, o, func(tx pgx.Tx) (err error) {
			dropped, err = d.drop(ctx, tx, name)
			return err
		})
		if err != nil {
			return err
		}
		if dropped {
			s.Dropped = append(s.Dropped, name)
		}
	}
	return nil
}

// drop drops a detached partition and removes its row from the table detached_partitions.
// If somebody attached the partition again or dropped it, drop only removes the row. If the
// partition has pending records, drop changes nothing: somebody must have made these
// records pending after the partition was detached.
func (d *Database) drop(ctx context.Context, tx pgx.Tx, name string) (dropped bool, err error) {
	table := d.table(name)
	var attached *bool
	err = tx.QueryRow(ctx, "SELECT (SELECT relispartition FROM pg_class WHERE oid = to_regclass($1))", table.Quoted()).Scan(&attached)
	if err != nil {
		return false, err
	}
	if attached != nil && !*attached {
		if pending, err := d.in().AnyPending(ctx, tx, name); err != nil || pending {
			return false, err
		}
		if _, err := tx.Exec(ctx, "DROP TABLE "+table.Quoted()); err != nil {
			return false, err
		}
		dropped = true
	}
	_, err = tx.Exec(ctx, fmt.Sprintf("DELETE FROM %s WHERE table_name = $1", d.table(DetachedTable).Quoted()), name)
	return dropped, err
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(max(d.Milliseconds(), 1), 10) }

// sleep waits for d. If the context ends first, it returns the context's error at once.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

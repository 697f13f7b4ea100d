package loosefk

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/loosefk/internal/pg"
)

// Installed returns whether the database has the table of deleted records.
func (d *Database) Installed(ctx context.Context) (ok bool, err error) {
	err = d.catalog().QueryRow(ctx, "SELECT to_regclass($1) IS NOT NULL", d.records()).Scan(&ok)
	if err != nil {
		return false, fmt.Errorf("looking for %s in database %s: %w", d.records(), d.Name, err)
	}
	return ok, nil
}

// RepairDefault makes sure that deleted records have a partition to go to. It adds a
// numbered partition and a default partition if they are missing, sets the default of the
// column `partition` to the newest partition's number, and moves records from the default
// partition to the newest one. Each run of a worker does the same. RepairDefault returns
// ErrBusy if open transactions keep the table of deleted records locked for some seconds.
func (d *Database) RepairDefault(ctx context.Context) (Rotation, error) {
	var s Rotation
	o := rotationOptions{lockWait: 200 * time.Millisecond, tries: 15}
	for _, step := range []func(context.Context, rotationOptions, *Rotation) error{d.addMissing, d.repairDefault} {
		if err := step(ctx, o, &s); err != nil {
			return s, fmt.Errorf("repairing the partitions of %s in database %s: %w", RecordsTable, d.Name, err)
		}
	}
	return s, nil
}

// addMissing adds a partition with a number if there is none, and a default partition if
// there is none.
func (d *Database) addMissing(ctx context.Context, o rotationOptions, s *Rotation) error {
	list, _, err := d.in().Partitions(ctx, d.catalog())
	if err != nil {
		return err
	}
	isDefault := func(p pg.Partition) bool { return p.Default }
	if _, err := pg.Newest(list); err == nil && slices.ContainsFunc(list, isDefault) {
		return nil
	}
	return d.underLock(ctx, o, func(tx pgx.Tx) error {
		list, current, err := d.in().Partitions(ctx, tx)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(list, isDefault) {
			name := d.table(RecordsTable + "_default")
			for n := 2; ; n++ { // a default partition that somebody has detached keeps its name
				var taken bool
				if err := tx.QueryRow(ctx, "SELECT to_regclass($1) IS NOT NULL", name.Quoted()).Scan(&taken); err != nil {
					return err
				}
				if !taken {
					break
				}
				name = d.table(fmt.Sprintf("%s_default%d", RecordsTable, n))
			}
			if err := d.addPartition(ctx, tx, name, "DEFAULT"); err != nil {
				return err
			}
		}
		if _, err := pg.Newest(list); err == nil {
			return nil
		}
		value, err := d.nextValue(ctx, tx, list, max(current, 0))
		if err != nil {
			return err
		}
		table := d.table(fmt.Sprintf("%s_%d", RecordsTable, value))
		err = d.addPartition(ctx, tx, table, fmt.Sprintf("FOR VALUES IN (%d)", value))
		if err == nil {
			s.Added = table.String()
		}
		return err
	})
}

// addPartition creates a partition, and revokes the rights on it that default privileges
// have granted to PUBLIC.
func (d *Database) addPartition(ctx context.Context, tx pgx.Tx, table pg.Table, bound string) error {
	for _, sql := range []string{
		fmt.Sprintf("CREATE TABLE %s PARTITION OF %s %s", table.Quoted(), d.records(), bound),
		fmt.Sprintf("REVOKE ALL ON %s FROM PUBLIC", table.Quoted()),
	} {
		if _, err := tx.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// IsPartitioned returns whether a table exists and is partitioned.
func (d *Database) IsPartitioned(ctx context.Context, table string) (yes bool, err error) {
	err = d.catalog().QueryRow(ctx, "SELECT COALESCE((SELECT relkind = 'p' FROM pg_class WHERE oid = to_regclass($1)), false)",
		d.table(table).Quoted()).Scan(&yes)
	if err != nil {
		return false, fmt.Errorf("looking at table %s in database %s: %w", table, d.Name, err)
	}
	return yes, nil
}

// FullName returns the name of a table with its schema, as deleted records contain it.
func (d *Database) FullName(table string) string { return d.table(table).String() }

// Change runs fn in a transaction that waits for each lock for 200 ms only, since other
// users of a table queue behind a transaction that waits for the table's lock. If it
// doesn't get a lock, it rolls the transaction back and runs fn again, for some seconds. fn
// may call Install, TrackRecordDeletions and similar functions on tables that are in use.
// Change returns ErrBusy if open transactions keep a table locked.
func (d *Database) Change(ctx context.Context, fn func(tx pgx.Tx) error) error {
	return d.underLock(ctx, rotationOptions{lockWait: 200 * time.Millisecond, tries: 15}, fn)
}

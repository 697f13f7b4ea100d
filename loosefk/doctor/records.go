package doctor

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/loosefk"
	"github.com/purser-registry/purser/loosefk/internal/pg"
)

// partitions examines the partitions of the table of deleted records.
func (e *examination) partitions(ctx context.Context, db *loosefk.Database) error {
	list, current, err := in(db).Partitions(ctx, in(db).Catalog())
	if err != nil {
		return err
	}
	records := in(db).Table(pg.RecordsTable)
	repair, run := "loosefk fix-default-partition "+db.Name, "loosefk run "+db.Name
	withDefault := slices.IndexFunc(list, func(p pg.Partition) bool { return p.Default })
	last, newestErr := pg.Newest(list)
	switch {
	case current == 0:
		e.add(SeverityError, db, records, repair, "the column partition has no default that is a number: deletes from parents fail")
	case !pg.Exists(list, current) && withDefault < 0:
		e.add(SeverityError, db, records, repair, "the default of the column partition is %d, which no partition takes, and there is no default partition: deletes from parents fail", current)
	case !pg.Exists(list, current):
		e.add(SeverityError, db, records, repair, "the default of the column partition is %d, which no partition takes but the default one", current)
	case newestErr == nil && last.Value != current:
		e.add(SeverityWarning, db, records, repair, "the default of the column partition is %d, and not %d, the newest partition: partitions don't rotate", current, last.Value)
	case withDefault < 0:
		e.add(SeverityWarning, db, records, repair, "there is no default partition: if the column's default is ever wrong, deletes from parents fail")
	}
	if withDefault >= 0 {
		var rows bool
		err := in(db).Catalog().QueryRow(ctx, fmt.Sprintf("SELECT EXISTS (SELECT FROM %s)", in(db).Table(list[withDefault].Table).Quoted())).Scan(&rows)
		if err != nil {
			return err
		}
		if rows {
			e.add(SeverityWarning, db, records, repair, "the default partition holds rows: they stand in the way of the next partition")
		}
	}
	n := len(list)
	if withDefault >= 0 {
		n--
	}
	if n > doctorPartitions {
		e.add(SeverityWarning, db, records, run, "%d partitions are attached: their records have been pending for days. See 'loosefk status'", n)
	}
	if err := e.rotation(ctx, db, list, run); err != nil {
		return err
	}
	if err := e.defaults(ctx, db); err != nil {
		return err
	}
	return e.recordsIndex(ctx, db)
}

// rotation reports that the next partition of the table of deleted records is overdue.
func (e *examination) rotation(ctx context.Context, db *loosefk.Database, list []pg.Partition, run string) error {
	last, err := pg.Newest(list)
	if err != nil {
		return nil //nolint:nilerr // another check reported it
	}
	var seconds float64
	err = in(db).Catalog().QueryRow(ctx, fmt.Sprintf(
		"SELECT COALESCE((SELECT EXTRACT(epoch FROM now() - created_at) FROM %s ORDER BY partition, id LIMIT 1), 0)::float8",
		in(db).Table(last.Table).Quoted())).Scan(&seconds)
	if err != nil {
		return err
	}
	if age := time.Duration(seconds) * time.Second; age > e.opt.PartitionAge+doctorOverdue {
		e.add(SeverityWarning, db, in(db).Table(last.Table), run, "the newest partition has been in use for %s: no worker runs, or none gets the table's locks", age)
	}
	return nil
}

func (e *examination) recordsIndex(ctx context.Context, db *loosefk.Database) error {
	records := in(db).Table(pg.RecordsTable)
	var there bool
	err := in(db).Catalog().QueryRow(ctx, `
		SELECT EXISTS (
			SELECT FROM pg_index i
			WHERE i.indrelid = to_regclass($1) AND i.indisvalid AND i.indnkeyatts >= 3
				AND (SELECT array_agg(a.attname::text ORDER BY k.place)
					FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, place)
					JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
					WHERE k.place <= 3) = ARRAY['partition', 'fully_qualified_table_name', 'consume_after'])`, in(db).Records()).Scan(&there)
	if err == nil && !there {
		e.add(SeverityError, db, records, "loosefk install "+db.Name, "the table of deleted records has lost its index: each batch reads it whole")
	}
	return err
}

// detached examines the detached partitions that still exist.
func (e *examination) detached(ctx context.Context, db *loosefk.Database) error {
	var there bool
	if err := in(db).Catalog().QueryRow(ctx, "SELECT to_regclass($1) IS NOT NULL", in(db).Table(pg.DetachedTable).Quoted()).Scan(&there); err != nil {
		return err
	}
	if !there {
		e.add(SeverityError, db, in(db).Table(pg.DetachedTable), "loosefk install "+db.Name, "the table of detached partitions is missing: none can be detached")
		return nil
	}
	rows, err := in(db).Catalog().Query(ctx, fmt.Sprintf(`
		SELECT table_name FROM %s
		WHERE drop_after < now() - $1::interval AND to_regclass(regexp_replace(table_name, '^([^.]+)[.](.+)$', '"\1"."\2"')) IS NOT NULL
		ORDER BY id`, in(db).Table(pg.DetachedTable).Quoted()), doctorOverdue)
	if err != nil {
		return err
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, name := range names {
		table := in(db).Table(name)
		pending, err := in(db).AnyPending(ctx, in(db).Catalog(), name)
		if err != nil {
			return err
		}
		if pending {
			e.add(SeverityError, db, table, fmt.Sprintf(`WITH again AS (UPDATE %s SET status = %d WHERE status = %d RETURNING *)
INSERT INTO %s (fully_qualified_table_name, primary_key_value, primary_key_text) SELECT fully_qualified_table_name, primary_key_value, primary_key_text FROM again`, table.Quoted(), pg.StatusProcessed, pg.StatusPending, in(db).Records()),
				"a detached partition has pending records: no worker processes them")
		} else {
			e.add(SeverityWarning, db, table, "loosefk run "+db.Name, "a detached partition should have been dropped: no worker runs, or it may not drop the table")
		}
	}
	return nil
}

// failed reports records that are marked as failed.
func (e *examination) failed(ctx context.Context, db *loosefk.Database) error {
	var count int64
	var example *string
	err := in(db).Catalog().QueryRow(ctx, fmt.Sprintf("SELECT count(*), min(fully_qualified_table_name) FROM %s WHERE status = %d", in(db).Records(), pg.StatusFailed)).
		Scan(&count, &example)
	if err == nil && count > 0 {
		e.add(SeverityWarning, db, in(db).Table(pg.RecordsTable), fmt.Sprintf("DELETE FROM %s WHERE status = %d", in(db).Records(), pg.StatusFailed),
			"%d records name no table of this database, or a key of another type than the table has (%q is one), so they were marked as failed. If it was dropped or renamed, its children may be orphans: see 'loosefk audit'", count, *example)
	}
	return err
}

// pending reports records that have been waiting for too long.
func (e *examination) pending(ctx context.Context, db *loosefk.Database) error {
	rows, err := in(db).Catalog().Query(ctx, fmt.Sprintf(`
		SELECT fully_qualified_table_name, count(*),
			COALESCE(EXTRACT(epoch FROM now() - min(created_at) FILTER (WHERE cleanup_attempts >= 0 OR consume_after < now())), 0)::float8,
			count(*) FILTER (WHERE cleanup_attempts >= 0 AND consume_after > now())
		FROM %s WHERE status = 1 GROUP BY 1 ORDER BY 1`, in(db).Records()))
	if err != nil {
		return err
	}
	parents := e.named(db)
	var name string
	var count, putOff int64
	var seconds float64
	_, err = pgx.ForEachRow(rows, []any{&name, &count, &seconds, &putOff}, func() error {
		t := in(db).Table(name)
		if !slices.Contains(parents, t) {
			e.add(SeverityWarning, db, t, "loosefk untrack "+in(db).Plain(t), "%d records of %s are pending, but no definition names it as a parent: no worker processes them", count, t)
			return nil
		}
		drain := "loosefk drain --table " + in(db).Plain(t)
		if age := time.Duration(seconds) * time.Second; age > doctorPending+max(e.opt.SecondLook, 0) {
			e.add(SeverityWarning, db, t, drain, "a record of %s has been pending for %s: see that a worker runs, and what its log says", t, age)
		}
		if putOff > 0 {
			e.add(SeverityWarning, db, t, drain, "%d records of %s were postponed after %d runs that didn't finish them: they have more children than runs can change, or the children are locked", putOff, t, e.opt.MaxAttempts)
		}
		return nil
	})
	return err
}

package loosefk

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/purser-registry/purser/loosefk/internal/pg"
)

// parentKey is the value of a parent's key in PostgreSQL's text form.
type parentKey = string

// record is a pending row of the table of deleted records.
type record struct {
	partition, id int64
	parent        parentKey // primary_key_text, or if that is NULL primary_key_value
	// attempts is the column cleanup_attempts. A value of 0 or more is the number of runs
	// that left the record unfinished. A negative value means that the record was finished
	// once and waits for the second search for children in another database; -attempts-1
	// runs have left it unfinished since.
	attempts int16
	// putOff says that the record was postponed to a time that hasn't come, and was loaded
	// early, in lanePutOff.
	putOff bool
}

// secondLook returns whether the record was finished once and waits for the second search
// for children in another database.
func (r record) secondLook() bool { return r.attempts < 0 }

// runs returns how many runs left the record unfinished.
func (r record) runs() int { return int(max(r.attempts, -r.attempts-1)) }

// lane selects the pending records that load returns.
type lane int

const (
	laneDue    lane = iota // records whose consume_after has passed
	laneUrgent             // consume_after is -infinity
	laneAll                // records with any consume_after
	// lanePutOff selects the records that were postponed because their parents have so many
	// children that runs reached their limits before they had changed all of them. A run
	// processes these records when nothing else is due.
	lanePutOff
)

// load returns up to `limit` pending records of a parent table in the lane `which`, those
// that have waited longest first. It leaves out the records in `without`. It reads each
// partition through an index.
func (d *Database) load(ctx context.Context, parent pg.Table, which lane, limit int, without []record) (pending []record, err error) {
	var unfit []record // records whose key isn't of the type of the parent's key
	list, current, err := d.in().Partitions(ctx, d.catalog())
	if err != nil {
		return nil, err
	}
	values := []int64{current} // if no partition has this number, its records are in the default partition
	for _, p := range list {
		for _, v := range p.Values {
			if v != current {
				values = append(values, v)
			}
		}
	}
	key, err := d.in().Key(ctx, parent)
	if err != nil {
		return nil, err
	}
	when := map[lane]string{
		laneDue:    "consume_after <= now()",
		laneUrgent: "consume_after = '-infinity'",
		laneAll:    "true",
		lanePutOff: "consume_after > now() AND cleanup_attempts > 0",
	}[which]
	_, skip := keys(without) // an id is unique in all partitions
	err = indexed(ctx, d.Pool, fmt.Sprintf(`
		SELECT r.partition, r.id, %[1]s, COALESCE(r.cleanup_attempts, 0), %[2]s
		FROM unnest($2::bigint[]) AS w (partition)
		CROSS JOIN LATERAL (
			SELECT * FROM %[3]s d
			WHERE d.partition = w.partition AND d.fully_qualified_table_name = $1 AND d.status = 1 AND %[4]s AND d.id <> ALL ($4::bigint[])
			ORDER BY d.consume_after, d.id LIMIT $3) r
		ORDER BY r.consume_after, r.partition, r.id LIMIT $3`, key.Recorded("r"), key.Fits("r"), d.records(), when),
		[]any{parent.String(), values, limit, append([]int64{}, skip...)},
		func(rows pgx.Rows) error {
			r := record{putOff: which == lanePutOff}
			var fits bool
			_, err := pgx.ForEachRow(rows, []any{&r.partition, &r.id, &r.parent, &r.attempts, &fits}, func() error {
				if fits {
					pending = append(pending, r)
				} else {
					unfit = append(unfit, r)
				}
				return nil
			})
			return err
		})
	if err != nil || len(unfit) == 0 {
		return pending, err
	}
	// A record whose key isn't of the type of the parent's key was written when the key was
	// of another type, or by hand. Mark such records as failed, and load others in their
	// place.
	if err := d.set(ctx, unfit, fmt.Sprintf("status = %d", pg.StatusFailed)); err != nil || len(pending) > 0 {
		return pending, err
	}
	return d.load(ctx, parent, which, limit, without)
}

// indexed runs a statement on the table of deleted records, in one round trip and without
// sequential scans. Otherwise PostgreSQL might use a plan that it cached when no record was
// pending; until the table is analyzed again, this plan would read a whole partition.
func indexed(ctx context.Context, pool *pgxpool.Pool, sql string, args []any, scan func(pgx.Rows) error) error {
	b := new(pgx.Batch)
	b.Queue(pg.ReadCommitted)
	b.Queue(pg.PinPath)
	b.Queue("SELECT set_config('enable_seqscan', 'off', true)")
	q := b.Queue(sql, args...)
	if scan != nil {
		q.Query(scan)
	}
	return pool.SendBatch(ctx, b).Close()
}

// keys returns the primary keys of records: their partition numbers and their ids.
func keys(records []record) (partitions, ids []int64) {
	for _, r := range records {
		partitions = append(partitions, r.partition)
		ids = append(ids, r.id)
	}
	return partitions, ids
}

// set updates those of the records that are still pending. The argument `set` is the SQL
// SET clause; `args` are its arguments, from $3 on. The WHERE clause compares status + 0 so
// that PostgreSQL doesn't use the partial index on pending records, by which it would
// search a whole partition for each record.
func (d *Database) set(ctx context.Context, records []record, set string, args ...any) error {
	if len(records) == 0 {
		return nil
	}
	partitions, ids := keys(records)
	var err error
	for range 3 { // tries again after a conflict with another transaction
		err = indexed(ctx, d.Pool, fmt.Sprintf(`
			UPDATE %s d SET %s
			FROM unnest($1::bigint[], $2::bigint[]) AS w (partition, id)
			WHERE d.partition = w.partition AND d.id = w.id AND d.status + 0 = 1`, d.records(), set),
			append([]any{partitions, ids}, args...), nil)
		if !pg.IsState(err, pg.StateSerialization) && !pg.IsState(err, pg.StateDeadlock) {
			break
		}
	}
	return err
}

// processed marks records as processed.
func (d *Database) processed(ctx context.Context, records []record) error {
	return d.set(ctx, records, fmt.Sprintf("status = %d", pg.StatusProcessed))
}

// lookAgain postpones finished records by the time `after`; then a run searches for children
// in another database a second time.
func (d *Database) lookAgain(ctx context.Context, records []record, after time.Duration) error {
	return d.set(ctx, records, "cleanup_attempts = -1, consume_after = now() + $3::interval", after)
}

// attempted counts this run as an attempt for each record that it left unfinished: the
// records in `stuck`, which a lock, a timeout or an error kept from being finished, and the
// records in `cut`, which were unfinished when the run reached a limit.
//
// When MaxAttempts runs have left a record unfinished, the record is postponed by
// RescheduleAfter, so that it doesn't delay others. A record in `cut` keeps its count of
// attempts when it is postponed, because its parent only has many children: runs with nothing
// else to do load it in lanePutOff and continue with it. For a record that was loaded in
// lanePutOff no further attempt is counted. If such a record is in `stuck`, its count becomes
// 0, so that it leaves lanePutOff and waits until the time to which it was postponed.
func (d *Database) attempted(ctx context.Context, stuck, cut []record, o Options) (incremented, rescheduled int, err error) {
	var more, stop, heavy, rest []record
	for _, r := range stuck {
		switch {
		case r.putOff:
			rest = append(rest, r)
		case r.runs()+1 < o.MaxAttempts:
			more = append(more, r)
		default:
			stop = append(stop, r)
		}
	}
	for _, r := range cut {
		switch {
		case r.putOff:
		case r.runs()+1 < o.MaxAttempts:
			more = append(more, r)
		default:
			heavy = append(heavy, r)
		}
	}
	err = d.set(ctx, more, "cleanup_attempts = CASE WHEN cleanup_attempts < 0 THEN cleanup_attempts - 1 ELSE cleanup_attempts + 1 END")
	if err != nil {
		return 0, 0, err
	}
	const wait = "cleanup_attempts = CASE WHEN cleanup_attempts < 0 THEN -1 ELSE $4::smallint END, consume_after = now() + $3::interval"
	for attempts, list := range map[int][]record{0: stop, o.MaxAttempts: heavy} {
		if err := d.set(ctx, list, wait, o.RescheduleAfter, attempts); err != nil {
			return len(more), rescheduled, err
		}
		rescheduled += len(list)
	}
	return len(more), rescheduled, d.set(ctx, rest, "cleanup_attempts = 0")
}

// Expedite makes pending deleted records of a parent table urgent: each run processes
// urgent records first, at most UrgentRecords of one parent table. `ids` are the keys of
// the deleted parents; without them all pending records of the table become urgent.
// Expedite returns the number of records that it has made urgent.
func (d *Database) Expedite(ctx context.Context, parent string, ids ...int64) (int64, error) {
	tag, err := d.catalog().Exec(ctx, fmt.Sprintf(`
		UPDATE %s SET consume_after = '-infinity'
		WHERE fully_qualified_table_name = $1 AND status = 1 AND ($2::bigint[] IS NULL OR primary_key_value = ANY ($2))`,
		d.records()), d.table(parent).String(), ids)
	if err != nil {
		return 0, fmt.Errorf("making deleted records of %s urgent: %w", parent, err)
	}
	return tag.RowsAffected(), nil
}

// ExpediteKeys is like Expedite, for keys of any type, given in PostgreSQL's text form. But
// without keys it makes no record urgent.
func (d *Database) ExpediteKeys(ctx context.Context, parent string, keys ...string) (int64, error) {
	key, err := d.in().Key(ctx, d.table(parent))
	if err != nil {
		return 0, err
	}
	tag, err := d.catalog().Exec(ctx, fmt.Sprintf(`
		UPDATE %s d SET consume_after = '-infinity'
		WHERE fully_qualified_table_name = $1 AND status = 1 AND %s = ANY ($2::text[])`, d.records(), key.Recorded("d")),
		d.table(parent).String(), keys)
	if err != nil {
		return 0, fmt.Errorf("making deleted records of %s urgent: %w", parent, err)
	}
	return tag.RowsAffected(), nil
}

// split divides records into those whose parent is in `ids` and the others.
func split(records []record, ids []parentKey) (in, out []record) {
	has := make(map[parentKey]bool, len(ids))
	for _, id := range ids {
		has[id] = true
	}
	for _, r := range records {
		if has[r.parent] {
			in = append(in, r)
		} else {
			out = append(out, r)
		}
	}
	return in, out
}

// parentIDs returns the distinct parent keys of records, in order.
func parentIDs(records []record) []parentKey {
	seen := make(map[parentKey]bool, len(records))
	var ids []parentKey
	for _, r := range records {
		if !seen[r.parent] {
			seen[r.parent] = true
			ids = append(ids, r.parent)
		}
	}
	return slices.Clip(ids)
}

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

// parentKey is the value of a parent's key as text, the way PostgreSQL writes it.
type parentKey = string

// record is a pending deleted record.
type record struct {
	partition, id int64
	parent        parentKey // primary_key_text, or if that is NULL primary_key_value
	// attempts is the column cleanup_attempts. From 0 up it is the number of runs that left
	// the record unfinished. A negative value means that the record awaits its second look,
	// and that -attempts-1 runs have left it unfinished since.
	attempts int16
	// putOff says that the record was loaded in lanePutOff, before the time until which it
	// was postponed.
	putOff bool
}

// secondLook returns whether the record was finished once and awaits its second look.
func (r record) secondLook() bool { return r.attempts < 0 }

// runs returns how many runs left the record unfinished.
func (r record) runs() int { return int(max(r.attempts, -r.attempts-1)) }

// lane selects the records to be loaded.
type lane int

const (
	laneDue    lane = iota // their time has come
	laneUrgent             // consume_after is -infinity
	laneAll                // whatever their time
	// lanePutOff has the records that were postponed because limits have often left them
	// unfinished: their parents have many children. They continue when nothing else is due.
	lanePutOff
)

// load returns pending records of a parent table, those that have waited longest first, but
// none of the records in without. In each partition it finds them by an index.
func (d *Database) load(ctx context.Context, parent pg.Table, which lane, limit int, without []record) (pending []record, err error) {
	var unfit []record // records whose key isn't of the type of the parent's key
	list, current, err := d.in().Partitions(ctx, d.catalog())
	if err != nil {
		return nil, err
	}
	values := []int64{current} // the default partition, if there is no other
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
	// Such a record was made when the key was of another type, or by hand.
	if err := d.set(ctx, unfit, fmt.Sprintf("status = %d", pg.StatusFailed)); err != nil || len(pending) > 0 {
		return pending, err
	}
	return d.load(ctx, parent, which, limit, without)
}

// indexed runs a statement on records in one round trip, without sequential scans.
// PostgreSQL may have kept a plan from when no record was pending, which would read all of
// a partition until the table is analyzed.
func indexed(ctx context.Context, pool *pgxpool.Pool, sql string, args []any, scan func(pgx.Rows) error) error {
	b := new(pgx.Batch)
	b.Queue(pg.PinPath)
	b.Queue("SELECT set_config('enable_seqscan', 'off', true)")
	q := b.Queue(sql, args...)
	if scan != nil {
		q.Query(scan)
	}
	return pool.SendBatch(ctx, b).Close()
}

// keys returns the primary keys of records, as columns.
func keys(records []record) (partitions, ids []int64) {
	for _, r := range records {
		partitions = append(partitions, r.partition)
		ids = append(ids, r.id)
	}
	return partitions, ids
}

// set changes pending records; set is the SET clause, with arguments from $3 on. The status
// is compared in such a way that the partial index on pending records doesn't apply,
// because with it the planner would search a whole partition for each record.
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

// lookAgain schedules the second look for records.
func (d *Database) lookAgain(ctx context.Context, records []record, after time.Duration) error {
	return d.set(ctx, records, "cleanup_attempts = -1, consume_after = now() + $3::interval", after)
}

// attempted counts a run for the records that it left unfinished: stuck are records that a
// lock, a timeout or an error kept from being finished, cut are those that a limit cut off.
// A record that MaxAttempts runs have left is postponed, so that it doesn't delay others.
// If it was only cut off, because it has too many children, its count stays, and it
// continues in lanePutOff. A record in that lane that is cut off isn't counted; one that
// gets stuck leaves the lane and waits until its postponement ends.
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

// Expedite puts deleted records of a parent table first: workers process them before all
// others, in a lane with a quota of its own. Without ids it applies to all pending records
// of the table. It returns the number of records that it has put first.
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

// ExpediteKeys is like Expedite, for keys of any type, as text.
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

// split divides records by whether their parent is in ids.
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

// parentIDs returns the distinct parents of records, in order.
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

package loosefk

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/loosefk/internal/pg"
)

// Pending counts the pending deleted records of one parent table in one partition.
type Pending struct {
	Partition   int64         `json:"partition"`
	Table       string        `json:"table"` // with its schema
	Count       int64         `json:"count"`
	OldestAge   time.Duration `json:"-"`            // of the oldest record
	MaxAttempts int           `json:"max_attempts"` // of any record
	// SecondLook counts the records that are finished except for the second search for
	// children in another database.
	SecondLook int64 `json:"second_look"`
	// Waiting counts the records that are postponed.
	Waiting int64 `json:"waiting"`
	// Untracked says that the parent table doesn't exist or has no enabled trigger, so that
	// no worker processes these records.
	Untracked bool `json:"untracked,omitempty"`
}

// Pending counts the pending deleted records, by partition and parent table. If the result
// names more than one partition, some records have been pending since before the last
// rotation.
func (d *Database) Pending(ctx context.Context) ([]Pending, error) {
	var list []Pending
	args := []any{d.table(pg.TrackFunction).Quoted() + "()", d.table(pg.OverrideFunction).Quoted() + "()"}
	err := indexed(ctx, d.Pool, fmt.Sprintf(`
		SELECT r.*, NOT EXISTS (
			SELECT FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
			WHERE n.nspname || '.' || c.relname = r.name AND t.tgenabled <> 'D'
				AND t.tgfoid IN (to_regprocedure($1), to_regprocedure($2)))
		FROM (
			SELECT partition, fully_qualified_table_name AS name, count(*),
				EXTRACT(epoch FROM now() - min(created_at))::float8,
				max(CASE WHEN cleanup_attempts < 0 THEN -cleanup_attempts - 1 ELSE cleanup_attempts END)::int,
				count(*) FILTER (WHERE cleanup_attempts < 0),
				count(*) FILTER (WHERE consume_after > now())
			FROM %s
			WHERE status = 1
			GROUP BY 1, 2) r
		ORDER BY 1, 2`, d.records()), args, func(rows pgx.Rows) (err error) {
		list, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (p Pending, err error) {
			var seconds float64
			err = row.Scan(&p.Partition, &p.Table, &p.Count, &seconds, &p.MaxAttempts, &p.SecondLook, &p.Waiting, &p.Untracked)
			p.OldestAge = time.Duration(seconds * float64(time.Second))
			return p, err
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("counting pending records of database %s: %w", d.Name, err)
	}
	return list, nil
}

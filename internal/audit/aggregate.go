package audit

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// DayCount is the number of audit log entries of one kind on one day, UTC. For pulls it is
// the number of pulls, since one entry can stand for several.
type DayCount struct {
	Day   time.Time
	Kind  Kind
	Count int64
}

// MaxAggregated is the largest number of entries that one call of Aggregate reads.
const MaxAggregated = 1_000_000

// Aggregate counts the entries that the filter `f` selects, by day and kind, and returns
// the counts with the oldest day first. For entries of pulls it adds up the pulls. If more
// than MaxAggregated entries would have to be read, it returns no counts, and the result
// `all` is false.
func (l *Log) Aggregate(ctx context.Context, f Filter) (list []DayCount, all bool, err error) {
	return l.aggregate(ctx, f, MaxAggregated)
}

func (l *Log) aggregate(ctx context.Context, f Filter, bound int) (list []DayCount, all bool, err error) {
	var args []any
	sources, rest := f.conditions(nil, func(v any) string {
		args = append(args, v)
		return fmt.Sprintf("$%d", len(args))
	})
	for i, where := range sources {
		sources[i] = fmt.Sprintf("(SELECT * FROM auditlog WHERE %s LIMIT %d)", where, bound+1)
	}
	selected := "true"
	if len(rest) > 0 {
		selected = strings.Join(rest, " AND ")
	}
	rows, err := l.db.Pool.Query(ctx, fmt.Sprintf(`
		SELECT date_trunc('day', time, 'UTC'), kind, COALESCE(sum(pulls) FILTER (WHERE %s), 0)::bigint, (sum(count(*)) OVER ())::bigint
		FROM (%s) a GROUP BY 1, 2 ORDER BY 1, 2`, selected, strings.Join(sources, " UNION ALL ")), args...)
	if err != nil {
		return nil, false, fmt.Errorf("counting the entries of the audit log: %w", err)
	}
	var c DayCount
	var looked int64
	_, err = pgx.ForEachRow(rows, []any{&c.Day, &c.Kind, &c.Count, &looked}, func() error {
		if c.Count > 0 {
			c.Day = c.Day.UTC()
			list = append(list, c)
		}
		return nil
	})
	if err != nil {
		return nil, false, fmt.Errorf("counting the entries of the audit log: %w", err)
	}
	if looked > int64(bound) {
		return nil, false, nil
	}
	return list, true, nil
}

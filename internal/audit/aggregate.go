package audit

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// DayCount is the number of entries of a kind on one day, UTC; for pulls the number of
// pulls.
type DayCount struct {
	Day   time.Time
	Kind  Kind
	Count int64
}

// MaxAggregated is how many entries Aggregate looks at.
const MaxAggregated = 1_000_000

// Aggregate counts the entries that the filter selects by day and kind, the oldest day
// first. For pulls it counts the pulls, not their entries. all is false, and nothing was
// counted, when there are more than MaxAggregated entries to look at.
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

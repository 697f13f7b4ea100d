package audit

import (
	"context"
	"fmt"
	"reflect"
	"slices"
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

func (l *Log) aggregate(ctx context.Context, f Filter, bound int) (list []DayCount, complete bool, err error) {
	if f.onlyKinds() {
		return l.aggregateKinds(ctx, f, bound)
	}
	var args []any
	sources, all, rest := f.conditions(nil, func(v any) string {
		args = append(args, v)
		return fmt.Sprintf("$%d", len(args))
	})
	for i, source := range sources {
		where := strings.Join(append([]string{source}, all...), " AND ")
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

// maxCountedDays is the longest time, in days, of which aggregateKinds counts each day by itself.
const maxCountedDays = 400

// onlyKinds says that aggregateKinds can count the entries: the filter has nothing but a time and
// kinds, of which each entry stands for one event.
func (f Filter) onlyKinds() bool {
	end := f.To
	if end.IsZero() {
		end = time.Now()
	}
	rest := f
	rest.From, rest.To, rest.Kinds = time.Time{}, time.Time{}, nil
	return reflect.DeepEqual(rest, Filter{}) && len(f.Kinds) > 0 && len(f.Kinds) <= maxKinds && !slices.Contains(f.Kinds, PullRepo) &&
		!f.From.IsZero() && end.Sub(f.From) < maxCountedDays*24*time.Hour
}

// aggregateKinds is aggregate for a filter with nothing but a time and kinds. It counts each day by
// itself in the index of kinds, which has all that is needed. That takes a sixth of the time that it
// takes to read the entries and to group them. Each day and kind is allowed to read as many entries
// as those before it have left.
func (l *Log) aggregateKinds(ctx context.Context, f Filter, bound int) (list []DayCount, all bool, err error) {
	kinds := slices.Compact(slices.Sorted(slices.Values(f.Kinds)))
	var to *time.Time
	if !f.To.IsZero() {
		to = &f.To
	}
	rows, err := l.db.Pool.Query(ctx, `
		WITH RECURSIVE slots AS (
			SELECT d.day, k.kind, row_number() OVER (ORDER BY d.day, k.kind) AS nth
			FROM unnest($1::text[]) AS k (kind)
			CROSS JOIN generate_series(date_trunc('day', $2::timestamptz, 'UTC'), COALESCE($3::timestamptz, now()), interval '24 hours') AS d (day)
		), counted AS (
			SELECT 0::bigint AS nth, $2::timestamptz AS day, ''::text COLLATE "C" AS kind, 0::bigint AS n, $4::bigint AS allowed
			UNION ALL
			SELECT s.nth, s.day, s.kind COLLATE "C", found.n, c.allowed - found.n
			FROM counted c JOIN slots s ON s.nth = c.nth + 1
			CROSS JOIN LATERAL (
				SELECT count(*) AS n FROM (
					SELECT FROM auditlog
					WHERE kind <> 'pull_repo' AND kind = s.kind AND time >= GREATEST(s.day, $2::timestamptz)
						AND time < LEAST(s.day + interval '24 hours', COALESCE($3::timestamptz, 'infinity'))
					LIMIT c.allowed) entries) found
			WHERE c.allowed > 0)
		SELECT day, kind, n FROM counted WHERE n > 0 ORDER BY nth`, kinds, f.From, to, bound+1)
	if err != nil {
		return nil, false, fmt.Errorf("counting the entries of the audit log: %w", err)
	}
	var c DayCount
	var looked int64
	_, err = pgx.ForEachRow(rows, []any{&c.Day, &c.Kind, &c.Count}, func() error {
		c.Day = c.Day.UTC()
		looked += c.Count
		list = append(list, c)
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

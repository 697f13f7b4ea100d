package hold

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
)

// Absent is a reporter that isn't live in a namespace.
type Absent struct {
	Reporter string
	Reported *time.Time // when its last report came; nil: there is no such reporter
}

// String says what is wrong with the reporter.
func (a Absent) String() string {
	if a.Reported == nil {
		return "there is no reporter " + a.Reporter
	}
	return "reporter " + a.Reporter + " has been silent since " + a.Reported.UTC().Format("2006-01-02 15:04:05 UTC")
}

// NotLive returns those of the named reporters that aren't live in a namespace, in the order of the
// names: neither one of the namespace nor one of the whole registry has reported within half of its
// lease. NotLive compares with the time of its statement, not with the start of the transaction, so
// it also returns a reporter whose time ran out while the transaction lasted. A report of the future,
// which came while the clock was ahead, says nothing about now.
func NotLive(ctx context.Context, q db.Querier, namespace int64, names []string) (absent []Absent, err error) {
	if len(names) == 0 {
		return nil, nil
	}
	rows, err := q.Query(ctx, `
		SELECT want.name, r.reported_at FROM unnest($2::text[]) WITH ORDINALITY AS want (name, place)
		LEFT JOIN LATERAL (
			SELECT max(reported_at) AS reported_at, bool_or(expires_at > clock_timestamp() AND reported_at + lease / 2 > clock_timestamp()
				AND reported_at < clock_timestamp() + interval '1 minute') AS live
			FROM (
				SELECT reported_at, expires_at, lease FROM holdreporters WHERE namespace_id = $1 AND name = want.name
				UNION ALL SELECT reported_at, expires_at, lease FROM holdreporters WHERE namespace_id IS NULL AND name = want.name) named) r ON true
		WHERE r.live IS NOT TRUE ORDER BY want.place`, namespace, names)
	if err == nil {
		defer rows.Close()
		for rows.Next() {
			var a Absent
			if err := rows.Scan(&a.Reporter, &a.Reported); err != nil {
				return nil, fmt.Errorf("looking for reporters: %w", err)
			}
			absent = append(absent, a)
		}
		err = rows.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("looking for reporters: %w", err)
	}
	return absent, nil
}

// CheckReporter checks the name of a reporter.
func CheckReporter(name string) error { return Place{Reporter: name}.check() }

// AnyLive returns whether any reporter is live in a namespace: one of its own, or one of the whole
// registry.
func AnyLive(ctx context.Context, q db.Querier, namespace int64) (live bool, err error) {
	without, err := WithoutLive(ctx, q, []int64{namespace})
	return len(without) == 0, err
}

// WithoutLive returns those of the namespaces, in their order, in which no reporter is live.
func WithoutLive(ctx context.Context, q db.Querier, namespaces []int64) (without []int64, err error) {
	rows, err := q.Query(ctx, `
		SELECT id FROM unnest($1::bigint[]) WITH ORDINALITY AS asked (id, place)
		WHERE NOT EXISTS (SELECT FROM holdreporters WHERE namespace_id = asked.id AND expires_at > now() AND reported_at + lease / 2 > now()
				AND reported_at < now() + interval '1 minute')
			AND NOT EXISTS (SELECT FROM holdreporters WHERE namespace_id IS NULL AND expires_at > now() AND reported_at + lease / 2 > now()
				AND reported_at < now() + interval '1 minute')
		ORDER BY place`, namespaces)
	if err == nil {
		without, err = pgx.CollectRows(rows, pgx.RowTo[int64])
	}
	if err != nil {
		return nil, fmt.Errorf("looking for reporters: %w", err)
	}
	return without, nil
}

// Unreported makes no reporter live until it reports again, since the registry was set back to an
// earlier state. What a reporter has told after that state is unknown, so policies that require it rest.
// Leases stay as they are.
func Unreported(ctx context.Context, d *db.DB) error {
	if _, err := d.Pool.Exec(ctx, "UPDATE holdreporters SET reported_at = LEAST(reported_at, now() - lease)"); err != nil {
		return fmt.Errorf("forgetting when reporters reported: %w", err)
	}
	return nil
}

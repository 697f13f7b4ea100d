package usage

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
)

// NamespaceSums is what a namespace stores.
type NamespaceSums struct {
	Measured
	Blobs int64 `json:"blobs"`
	Bytes int64 `json:"bytes" doc:"Of its blobs, each once"`
	// Own says whether other namespaces have the same content: only operators may see it.
	Own *int64 `json:"own_bytes,omitempty" doc:"Of blobs that no other namespace has. Only for operators"`
}

// Day is what a namespace stored at the end of a day, UTC.
type Day struct {
	Day   time.Time `json:"day"` // its beginning
	Bytes int64     `json:"bytes"`
}

// Namespace returns what the namespace with this id stores. Error: ErrNotMeasured, if it is younger than the
// last pass too.
func Namespace(ctx context.Context, q db.Querier, id int64) (s NamespaceSums, err error) {
	var measured bool
	s.Own = new(int64)
	err = q.QueryRow(ctx, `
		SELECT s.measured_from, s.measured_at, COALESCE(u.blobs, 0), COALESCE(u.bytes, 0), COALESCE(u.own_bytes, 0),
			u.pass IS NOT NULL OR n.created_at < s.measured_from
		FROM usage_state s JOIN live_namespaces n ON n.id = $1
		LEFT JOIN usage_namespaces u ON u.pass = s.published AND u.namespace_id = n.id
		WHERE s.published > 0`, id).Scan(&s.From, &s.At, &s.Blobs, &s.Bytes, s.Own, &measured)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && !measured {
		return s, ErrNotMeasured
	}
	if err != nil {
		return s, fmt.Errorf("reading what a namespace stores: %w", err)
	}
	s.From, s.At = s.From.UTC(), s.At.UTC()
	return s, nil
}

// Place is the place of a repository in the list of RepositoriesOf.
type Place struct{ Bytes, ID int64 }

// RepositoriesOf lists up to n repositories of a namespace that store something, those that store most first,
// after the place `after` (nil: from the first), and the place of the last one; nil: there are no more. Those that
// were deleted since they were measured are left out.
func RepositoriesOf(ctx context.Context, q db.Querier, namespace int64, after *Place, n int) (list []Sums, next *Place, err error) {
	if after == nil {
		after = &Place{Bytes: 1<<63 - 1, ID: 1<<63 - 1}
	}
	rows, err := q.Query(ctx, `
		SELECT r.path, u.blobs, u.bytes, u.own_bytes, u.repository_id
		FROM (SELECT repository_id, blobs, bytes, own_bytes FROM usage_repositories
			WHERE pass = (SELECT published FROM usage_state) AND namespace_id = $1 AND (bytes, repository_id) < ($2, $3)
			ORDER BY bytes DESC, repository_id DESC) u
		CROSS JOIN LATERAL (SELECT path FROM live_repositories WHERE id = u.repository_id OFFSET 0) r
		ORDER BY u.bytes DESC, u.repository_id DESC LIMIT $4`, namespace, after.Bytes, after.ID, n+1)
	if err != nil {
		return nil, nil, fmt.Errorf("listing the repositories of a namespace that store most: %w", err)
	}
	list = []Sums{}
	var s Sums
	var id int64
	_, err = pgx.ForEachRow(rows, []any{&s.Name, &s.Blobs, &s.Bytes, &s.Own, &id}, func() error {
		if len(list) == n {
			next = after
			return nil
		}
		list = append(list, s)
		after = &Place{s.Bytes, id}
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("listing the repositories of a namespace that store most: %w", err)
	}
	return list, next, nil
}

// DaysOf returns what a namespace stored on each of the last days, the oldest first: a day without a row is like
// the one before. Days before it was first measured are left out.
func DaysOf(ctx context.Context, q db.Querier, namespace int64, days int) ([]Day, error) {
	rows, err := q.Query(ctx, `
		SELECT d.day::timestamp AT TIME ZONE 'UTC', u.bytes
		FROM generate_series(purser_today() - $2::int + 1, purser_today(), interval '1 day') AS d (day)
		CROSS JOIN LATERAL (
			SELECT bytes FROM usage_days WHERE namespace_id = $1 AND day <= d.day::date ORDER BY day DESC LIMIT 1) u
		ORDER BY d.day`, namespace, days)
	if err != nil {
		return nil, fmt.Errorf("reading what a namespace stored: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Day])
	if err != nil {
		return nil, fmt.Errorf("reading what a namespace stored: %w", err)
	}
	for i := range list {
		list[i].Day = list[i].Day.UTC()
	}
	return append([]Day{}, list...), nil
}

package usage

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
)

// Measured is when the published pass was made. Sums are as of moments between the two.
type Measured struct {
	From time.Time `json:"measured_from"`
	At   time.Time `json:"measured_at"`
}

// RegistrySums is what the registry stores.
type RegistrySums struct {
	Measured
	Blobs        int64 `json:"blobs"`
	Bytes        int64 `json:"bytes" doc:"Of all blobs, each once"`
	Trash        int64 `json:"trash_bytes" doc:"Of blobs that only deleted repositories have. A blob whose repositories are deleted while it is measured may count here and in unreferenced_bytes"`
	Unreferenced int64 `json:"unreferenced_bytes" doc:"Of blobs that no repository has"`
}

// InRepositories returns the bytes of what repositories have.
func (s RegistrySums) InRepositories() int64 { return max(s.Bytes-s.Trash-s.Unreferenced, 0) }

// Sums is what a namespace or a repository stores.
type Sums struct {
	Name  string `json:"name"`
	Blobs int64  `json:"blobs"`
	Bytes int64  `json:"bytes" doc:"Of its blobs, each once"`
	Own   int64  `json:"own_bytes" doc:"Of a namespace: of blobs that no other namespace has. Of a repository: of blobs that no other repository of its namespace has"`
}

// Shared returns the bytes of what others have too.
func (s Sums) Shared() int64 { return s.Bytes - s.Own }

// RegistryDay is what the registry stored at the end of a day, UTC.
type RegistryDay struct {
	Day          time.Time `json:"day"` // its beginning
	Bytes        int64     `json:"bytes"`
	Trash        int64     `json:"trash_bytes"`
	Unreferenced int64     `json:"unreferenced_bytes"`
}

// ErrNotMeasured says that no pass has ended yet.
var ErrNotMeasured = errors.New("sizes haven't been measured yet: try again in a minute")

// Read calls fn with a transaction that sees one pass throughout. Without sorting, PostgreSQL reads the largest
// rows of a pass by their index: it has no statistics of a new pass, takes it for small, and would sort it.
func Read(ctx context.Context, d *db.DB, fn func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, d.Pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SET LOCAL enable_sort = off"); err != nil {
			return fmt.Errorf("reading what is stored: %w", err)
		}
		return fn(tx)
	})
}

// Registry returns what the registry stores. Error: ErrNotMeasured.
func Registry(ctx context.Context, q db.Querier) (s RegistrySums, err error) {
	err = q.QueryRow(ctx, `
		SELECT s.measured_from, s.measured_at, u.blobs, u.bytes, u.trash_bytes, u.unreferenced_bytes
		FROM usage_state s JOIN usage_registry u ON u.pass = s.published`).
		Scan(&s.From, &s.At, &s.Blobs, &s.Bytes, &s.Trash, &s.Unreferenced)
	if errors.Is(err, pgx.ErrNoRows) {
		return s, ErrNotMeasured
	}
	if err != nil {
		return s, fmt.Errorf("reading what the registry stores: %w", err)
	}
	s.From, s.At = s.From.UTC(), s.At.UTC()
	return s, nil
}

// Namespaces lists the namespaces that store most, with those bytes that no other namespace has. Those
// that were deleted since they were measured are left out. Only operators may see the list.
func Namespaces(ctx context.Context, q db.Querier, limit int) ([]Sums, error) {
	rows, err := q.Query(ctx, `
		SELECT n.name, u.blobs, u.bytes, u.own_bytes
		FROM (SELECT namespace_id, blobs, bytes, own_bytes FROM usage_namespaces
			WHERE pass = (SELECT published FROM usage_state) ORDER BY bytes DESC, namespace_id DESC) u
		CROSS JOIN LATERAL (SELECT name FROM live_namespaces WHERE id = u.namespace_id OFFSET 0) n
		ORDER BY u.bytes DESC, u.namespace_id DESC LIMIT $1`, limit)
	if err != nil {
		return nil, fmt.Errorf("listing the namespaces that store most: %w", err)
	}
	return collect(rows)
}

// Repositories lists the repositories that store most. Only operators may see the list.
func Repositories(ctx context.Context, q db.Querier, limit int) ([]Sums, error) {
	rows, err := q.Query(ctx, `
		SELECT r.path, u.blobs, u.bytes, u.own_bytes
		FROM (SELECT repository_id, blobs, bytes, own_bytes FROM usage_repositories
			WHERE pass = (SELECT published FROM usage_state) ORDER BY bytes DESC, repository_id DESC) u
		CROSS JOIN LATERAL (SELECT path FROM live_repositories WHERE id = u.repository_id OFFSET 0) r
		ORDER BY u.bytes DESC, u.repository_id DESC LIMIT $1`, limit)
	if err != nil {
		return nil, fmt.Errorf("listing the repositories that store most: %w", err)
	}
	return collect(rows)
}

func collect(rows pgx.Rows) ([]Sums, error) {
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Sums])
	if err != nil {
		return nil, fmt.Errorf("reading what is stored: %w", err)
	}
	return append([]Sums{}, list...), nil
}

// Days returns what the registry stored on each of the last days, the oldest first. Days without a pass
// are left out.
func Days(ctx context.Context, q db.Querier, days int) ([]RegistryDay, error) {
	rows, err := q.Query(ctx, `
		SELECT day::timestamp AT TIME ZONE 'UTC', bytes, trash_bytes, unreferenced_bytes FROM usage_registry_days
		WHERE day > purser_today() - $1::int AND day <= purser_today() ORDER BY day`, days)
	if err != nil {
		return nil, fmt.Errorf("reading what the registry stored: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[RegistryDay])
	if err != nil {
		return nil, fmt.Errorf("reading what the registry stored: %w", err)
	}
	for i := range list {
		list[i].Day = list[i].Day.UTC()
	}
	return append([]RegistryDay{}, list...), nil
}

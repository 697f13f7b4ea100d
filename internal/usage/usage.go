// Package usage measures what namespaces, repositories and the registry store, and remembers it by day.
//
// A pass reads all links from repositories to blobs, by blob, namespace and repository, and adds up. It
// reads slices, each in one short transaction that also stores the sums and the position. The transaction
// has locked the row of usage_state, so one process measures at a time. A process that hangs holds this
// lock until PostgreSQL ends its session; its slice is then undone as a whole, and the next process goes on
// from the position that is stored. So no link counts twice, and none between two slices is left out.
//
// Clients push and delete meanwhile: sums are as of some moment between the beginning and the end of the
// pass, for each blob another. Readers see only a pass that has ended.
//
// Only repositories and namespaces that aren't deleted have sums. A repository's own bytes are those of
// blobs that no other such repository of its namespace has, a namespace's those of blobs that no other such
// namespace has. The latter say whether somebody else has the same content: only operators may see them.
package usage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/worker"
)

const (
	// share is the part of the time in which a connection measures: a pass that took a second is followed
	// by the next after 200 s. The pause is between the other two.
	share         = 200
	shortestPause = time.Minute
	longestPause  = 24 * time.Hour
	// keptDays is for how many days sums are remembered.
	keptDays = 400
)

// Options configure a Meter.
type Options struct {
	DB *db.DB // required
	// Slice is how many links, blobs or rows a transaction reads or deletes. Default 10,000.
	Slice int
	// CheckTime is clock.Guard.CheckTime: what is old is deleted only while it returns no error. Nil: it
	// always may be.
	CheckTime func(ctx context.Context, now time.Time) error
	Logger    *slog.Logger    // default slog.Default()
	Worker    *worker.Metrics // nil: none
}

// Meter measures. Any number of processes may run one.
type Meter struct {
	opt  Options
	loop *worker.Loop
}

// New makes a meter. It measures nothing before Run.
func New(o Options) (*Meter, error) {
	if o.DB == nil {
		return nil, errors.New("usage: the database is required")
	}
	o.Slice = cmp.Or(o.Slice, 10_000)
	m := &Meter{opt: o}
	m.loop = worker.New(worker.Options{Name: "measuring of sizes", Batch: m.Step, Next: m.next, Log: o.Logger, Metrics: o.Worker})
	return m, nil
}

// Run measures until ctx ends. Then it returns nil.
func (m *Meter) Run(ctx context.Context) error { return m.loop.Run(ctx) }

// next returns the time until the next pass is due. The loop looks again after a minute at the latest.
func (m *Meter) next(ctx context.Context) (time.Duration, error) {
	var seconds float64
	err := m.opt.DB.Pool.QueryRow(ctx, `
		SELECT LEAST(GREATEST(extract(epoch FROM GREATEST(next_at, now()) - now()), 0), 60)::float8 FROM usage_state`).Scan(&seconds)
	if err != nil {
		return 0, fmt.Errorf("asking when sizes are to be measured: %w", err)
	}
	return min(time.Duration(seconds*float64(time.Second)), worker.MaxIdle), nil
}

// state is the row of usage_state.
type state struct {
	pass, published int64
	phase           string
	due             bool
	at              position
}

// position is how far the phase of a pass has come.
type position struct {
	Digest     []byte `json:"digest,omitempty"`
	Namespace  int64  `json:"namespace,omitempty"`
	Repository int64  `json:"repository,omitempty"`
	Open       open   `json:"open"`
}

// Step does a slice, and returns whether more is to do now. It does nothing while another process is
// at a slice.
func (m *Meter) Step(ctx context.Context) (more bool, err error) {
	err = m.opt.DB.Tx(ctx, func(tx pgx.Tx) error {
		var s state
		err := tx.QueryRow(ctx, `
			SELECT pass, published, phase, now() >= next_at, position FROM usage_state FOR UPDATE SKIP LOCKED`).
			Scan(&s.pass, &s.published, &s.phase, &s.due, &s.at)
		if errors.Is(err, pgx.ErrNoRows) {
			more = false
			return nil
		}
		if err != nil {
			return err
		}
		switch s.phase {
		case "links":
			more, err = true, m.links(ctx, tx, s)
		case "blobs":
			more, err = true, m.blobs(ctx, tx, s)
		case "days":
			more, err = true, m.days(ctx, tx, s)
		default:
			more, err = m.begin(ctx, tx, s)
		}
		return err
	})
	if err != nil {
		return false, fmt.Errorf("measuring what is stored: %w", err)
	}
	return more, nil
}

// begin deletes what readers don't need any more, and begins a pass if one is due and nothing is left to
// delete.
func (m *Meter) begin(ctx context.Context, tx pgx.Tx, s state) (more bool, err error) {
	for _, sql := range []string{
		"DELETE FROM usage_repositories WHERE (pass, repository_id) IN (SELECT pass, repository_id FROM usage_repositories WHERE pass < $1 ORDER BY pass, repository_id LIMIT $2)",
		"DELETE FROM usage_namespaces WHERE (pass, namespace_id) IN (SELECT pass, namespace_id FROM usage_namespaces WHERE pass < $1 ORDER BY pass, namespace_id LIMIT $2)",
		"DELETE FROM usage_registry WHERE pass IN (SELECT pass FROM usage_registry WHERE pass < $1 LIMIT $2)",
	} {
		done, err := tx.Exec(ctx, sql, s.published, m.opt.Slice)
		if err != nil {
			return false, err
		}
		more = more || done.RowsAffected() == int64(m.opt.Slice)
	}
	if more || !s.due {
		return more, nil
	}
	_, err = tx.Exec(ctx, `
		UPDATE usage_state SET pass = published + 1, phase = 'links', position = '{}', begun_at = clock_timestamp(), worked = '0'`)
	if err != nil {
		return false, err
	}
	_, err = tx.Exec(ctx, "INSERT INTO usage_registry (pass, blobs, bytes, trash_bytes, unreferenced_bytes) VALUES ($1, 0, 0, 0, 0) ON CONFLICT DO NOTHING", s.published+1)
	return true, err
}

// move stores the position after a slice. With the phase it ends the one before.
func move(ctx context.Context, tx pgx.Tx, phase string, at position) error {
	_, err := tx.Exec(ctx, `
		UPDATE usage_state SET phase = $1, position = $2, worked = worked + (clock_timestamp() - now())`, phase, at)
	return err
}

// Package usage measures what namespaces, repositories and the registry store, and remembers it by day.
//
// A pass reads all links from repositories to blobs, by blob, namespace and repository, and adds up. It
// reads slices, each in one short transaction, and keeps the sums of some slices in memory: to store them
// after each would write a row for nearly each link. The transaction of the last of these slices stores
// the sums together with the position. Each transaction has locked the row of usage_state and names the
// process as the owner of the pass for a minute, so others don't read the same. If the owner hangs, another
// takes its place; a lock that it holds lasts until PostgreSQL ends its session.
//
// Sums in memory count only from the position at which they begin. If another process has stored a later
// one meanwhile, or a transaction has failed, the process drops them and goes on from the position that is
// stored. So no link counts twice, and none between two slices is left out.
//
// Then it reads all blobs, and adds up what the registry stores and what no repository has.
//
// Clients push and delete meanwhile: sums are as of some moment between the beginning and the end of the
// pass, for each blob another, and for a blob whose links come or go meanwhile one for its links and another
// for itself. So the sums of all needn't add up, and each of them is right for its moment. Readers see only a
// pass that has ended.
//
// A time that lies further ahead than any is set, of the next pass or of a lease, was made by a clock that was
// ahead: it counts as over.
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

	"github.com/google/uuid"
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
	// keptSums is how many sums are kept in memory before they are stored. One takes some 100 bytes.
	keptSums = 200_000
	// owned is how long the owner of a pass may need for a slice until another process takes its place, and
	// looksAgain after what time the others look.
	owned      = time.Minute
	looksAgain = 10 * time.Second
)

// Options configure a Meter.
type Options struct {
	DB *db.DB // required
	// Slice is how many links, blobs or rows a transaction reads or deletes. Default 10,000.
	Slice int
	// Kept is how many slices are read before their sums are stored. Default 100.
	Kept int
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
	id   uuid.UUID // of the process
	kept kept
}

// New makes a meter. It measures nothing before Run.
func New(o Options) (*Meter, error) {
	if o.DB == nil {
		return nil, errors.New("usage: the database is required")
	}
	o.Slice, o.Kept = cmp.Or(o.Slice, 10_000), cmp.Or(o.Kept, 100)
	m := &Meter{opt: o, id: uuid.New()}
	m.loop = worker.New(worker.Options{Name: "measuring of sizes", Batch: m.Step, Next: m.next, Log: o.Logger, Metrics: o.Worker})
	return m, nil
}

// Run measures until ctx ends. Then it returns nil.
func (m *Meter) Run(ctx context.Context) error { return m.loop.Run(ctx) }

// next returns the time until the next pass is due. The loop looks again after a minute at the latest.
func (m *Meter) next(ctx context.Context) (time.Duration, error) {
	var seconds float64
	err := m.opt.DB.Pool.QueryRow(ctx, `
		SELECT CASE WHEN phase <> 'idle' THEN $1 WHEN next_at > now() + $2::interval THEN 0
			ELSE LEAST(GREATEST(extract(epoch FROM GREATEST(next_at, now()) - now()), 0), 60) END::float8
		FROM usage_state`, looksAgain.Seconds(), longestPause).Scan(&seconds)
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
	others          bool // another process owns the pass
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
			SELECT pass, published, phase, now() >= next_at OR next_at > now() + $2::interval,
				owner IS DISTINCT FROM $1 AND now() < owner_until AND owner_until <= now() + $3::interval, position
			FROM usage_state FOR UPDATE SKIP LOCKED`, m.id, longestPause, owned).Scan(&s.pass, &s.published, &s.phase, &s.due, &s.others, &s.at)
		if errors.Is(err, pgx.ErrNoRows) {
			more = false
			return nil
		}
		if err != nil {
			return err
		}
		switch s.phase {
		case "links":
			if s.others {
				more = false
				return nil
			}
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
		m.kept = kept{}
		return false, fmt.Errorf("measuring what is stored: %w", err)
	}
	return more, nil
}

// begin deletes what readers don't need any more, and begins a pass if one is due and nothing is left to
// delete.
func (m *Meter) begin(ctx context.Context, tx pgx.Tx, s state) (more bool, err error) {
	for _, sql := range []string{
		"DELETE FROM usage_repositories WHERE ctid = ANY (ARRAY(SELECT ctid FROM usage_repositories WHERE pass < $1 LIMIT $2))",
		"DELETE FROM usage_namespaces WHERE ctid = ANY (ARRAY(SELECT ctid FROM usage_namespaces WHERE pass < $1 LIMIT $2))",
		"DELETE FROM usage_registry WHERE ctid = ANY (ARRAY(SELECT ctid FROM usage_registry WHERE pass < $1 LIMIT $2))",
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
	if more, err = m.forget(ctx, tx); more || err != nil {
		return more, err
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

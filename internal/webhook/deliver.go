package webhook

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/worker"
)

// recordTimeout is the time limit for recording the outcome of an attempt to send a notice.
// The outcome is recorded even while the process is being stopped.
const recordTimeout = 5 * time.Second

// delivery is a claimed notice.
type delivery struct {
	ID       uuid.UUID
	Event    string
	Body     string
	Attempts int // including this one

	// until is the time after which no attempt is made; zero: only MaxAttempts counts.
	until time.Time
}

// batch claims notices for the configured URL that are due, and sends them in parallel.
func (s *Sender) batch(ctx context.Context) (more bool, err error) {
	lease := uuid.New()
	list, err := s.claim(ctx, lease)
	if err != nil {
		return false, fmt.Errorf("claiming notices: %w", err)
	}
	errs := make([]error, len(list))
	var wg sync.WaitGroup
	for i, d := range list {
		wg.Go(func() { _, errs[i] = s.deliver(ctx, lease, &s.target, d) })
	}
	wg.Wait()
	return len(list) == s.opt.Parallel, errors.Join(errs...)
}

// claim leases up to Options.Parallel due notices for the configured URL, and returns them.
// It returns none if no notice is due, or if other processes have locked the rows of all
// due notices.
func (s *Sender) claim(ctx context.Context, lease uuid.UUID) ([]delivery, error) {
	rows, err := s.opt.DB.Pool.Query(ctx, `
		UPDATE webhooknotices
		SET lease = $1, attempts = attempts + 1, next_attempt = clock_timestamp() + $2::interval
		WHERE id = ANY (ARRAY(
			SELECT id FROM webhooknotices
			WHERE delivered_at IS NULL AND given_up_at IS NULL AND webhook IS NULL AND next_attempt <= now()
			ORDER BY next_attempt LIMIT $3 FOR UPDATE SKIP LOCKED))
		RETURNING id, event, body, attempts`, lease, s.opt.Lease, s.opt.Parallel)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[delivery])
}

// next returns how long it is until a notice for the configured URL is due, at most
// worker.MaxIdle.
func (s *Sender) next(ctx context.Context) (time.Duration, error) {
	var seconds *float64
	err := s.opt.DB.Pool.QueryRow(ctx, `
		SELECT extract(epoch FROM min(next_attempt) - clock_timestamp())::float8
		FROM webhooknotices WHERE webhook IS NULL AND delivered_at IS NULL AND given_up_at IS NULL`).Scan(&seconds)
	if err != nil {
		return 0, fmt.Errorf("looking when the next notice is due: %w", err)
	}
	if seconds == nil || *seconds > worker.MaxIdle.Seconds() {
		return worker.MaxIdle, nil
	}
	return time.Duration(max(*seconds, 0) * float64(time.Second)), nil
}

// deliver sends a claimed notice to a receiver and records the outcome. It returns how long the
// receiver took, and an error only if the outcome couldn't be recorded; the notice is then sent
// again when the lease has ended.
func (s *Sender) deliver(ctx context.Context, lease uuid.UUID, to *target, d delivery) (took time.Duration, err error) {
	began := time.Now()
	failure := to.attempt(ctx, d, s.opt.Timeout)
	took = time.Since(began)
	stopping := ctx.Err() != nil
	record, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	var pause time.Duration
	if failure != nil {
		pause = max(s.backoff(d.Attempts), min(failure.after, s.opt.RetryMax))
	}
	switch {
	case failure == nil:
		err = s.delivered(record, to, d)
	case stopping:
		err = s.giveBack(record, lease, d)
	case failure.gone || d.Attempts >= s.opt.MaxAttempts || !d.until.IsZero() && time.Now().Add(pause).After(d.until):
		err = s.giveUp(record, lease, to, d, failure)
	default:
		err = s.postpone(record, lease, to, d, failure, pause)
	}
	if err != nil {
		return took, fmt.Errorf("recording the delivery of the notice %s: %w", d.ID, err)
	}
	return took, nil
}

// delivered records that a notice was delivered. It does so even if this process has lost
// the notice's lease to another process, because the receiver has the notice in any case.
func (s *Sender) delivered(ctx context.Context, to *target, d delivery) error {
	_, err := s.opt.DB.Pool.Exec(ctx, `
		UPDATE webhooknotices
		SET delivered_at = clock_timestamp(), given_up_at = NULL, lease = NULL, last_error = NULL
		WHERE id = $1 AND delivered_at IS NULL`, d.ID)
	s.opt.Metrics.count(resultDelivered)
	s.opt.Log.DebugContext(ctx, "a notice was delivered", "id", d.ID, "event", d.Event, "host", to.url.Host, "attempts", d.Attempts)
	return err
}

// giveBack makes a notice due again when the stop of this process has interrupted an
// attempt to send it. It doesn't count this attempt.
func (s *Sender) giveBack(ctx context.Context, lease uuid.UUID, d delivery) error {
	_, err := s.opt.DB.Pool.Exec(ctx, `
		UPDATE webhooknotices SET attempts = attempts - 1, next_attempt = clock_timestamp(), lease = NULL
		WHERE id = $1 AND lease = $2`, d.ID, lease)
	return err
}

func (s *Sender) giveUp(ctx context.Context, lease uuid.UUID, to *target, d delivery, f *failure) error {
	tag, err := s.opt.DB.Pool.Exec(ctx, `
		UPDATE webhooknotices SET given_up_at = clock_timestamp(), lease = NULL, last_error = $3
		WHERE id = $1 AND lease = $2`, d.ID, lease, f.detail())
	s.opt.Metrics.count(resultFailed)
	if err == nil && tag.RowsAffected() == 1 {
		s.opt.Metrics.count(resultGivenUp)
		s.opt.Log.ErrorContext(ctx, "a notice was given up: its receiver won't learn of it",
			"id", d.ID, "event", d.Event, "host", to.url.Host, "attempts", d.Attempts, "error", f)
	}
	return err
}

func (s *Sender) postpone(ctx context.Context, lease uuid.UUID, to *target, d delivery, f *failure, pause time.Duration) error {
	_, err := s.opt.DB.Pool.Exec(ctx, `
		UPDATE webhooknotices SET next_attempt = clock_timestamp() + $3::interval, lease = NULL, last_error = $4
		WHERE id = $1 AND lease = $2`, d.ID, lease, pause, f.detail())
	s.opt.Metrics.count(resultFailed)
	s.opt.Log.WarnContext(ctx, "a notice couldn't be delivered; it is tried again",
		"id", d.ID, "event", d.Event, "host", to.url.Host, "attempts", d.Attempts, "again_in", pause, "error", f)
	return err
}

// backoff returns the pause before the next attempt, after a notice has failed the given
// number of times, which is at least 1.
func (s *Sender) backoff(attempts int) time.Duration {
	d := s.opt.RetryMin
	for i := 1; i < attempts && d < s.opt.RetryMax; i++ {
		d *= 3
	}
	d = min(d, s.opt.RetryMax)
	return d - rand.N(d/5+1)
}

package webhook

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/worker"
)

// calls sends the callbacks that Call has queued. At most Options.Parallel are sent at once. So
// that callbacks whose receivers don't answer don't delay those of others, an owner, which is the
// account that asked, or the namespace if nobody was logged in, has at most ownerCalls of these
// places. Callbacks that have failed before have at most half of them.
type calls struct {
	s     *Sender
	loop  *worker.Loop
	going sync.WaitGroup

	mu      sync.Mutex
	owners  map[string]int // callbacks that are being sent, by owner
	all     int
	retried int             // those of them that have failed before
	held    bool            // the last batch found nothing that it may send
	ctx     context.Context // of run
}

// ownerCalls is how many callbacks of an owner are sent at once.
const ownerCalls = 2

func newCalls(s *Sender) *calls {
	c := &calls{s: s, owners: map[string]int{}}
	c.loop = worker.New(worker.Options{Name: "callbacks", Batch: c.batch, Next: c.next, Log: s.opt.Log, Metrics: s.opt.Worker})
	return c
}

// run sends callbacks until ctx ends. It returns when the outcomes of all attempts that had begun
// are recorded.
func (c *calls) run(ctx context.Context) error {
	defer c.going.Wait()
	c.mu.Lock()
	c.ctx = ctx
	c.mu.Unlock()
	return c.loop.Run(ctx)
}

// claimedCall is a callback to be sent.
type claimedCall struct {
	delivery
	url, owner string
}

// batch claims callbacks that are due, as far as there are places, and begins to send them.
func (c *calls) batch(ctx context.Context) (more bool, err error) {
	c.mu.Lock()
	busy := make([]string, 0, len(c.owners)) // nil would be NULL
	for name := range c.owners {
		busy = append(busy, name)
	}
	free := c.s.opt.Parallel - c.all
	retries := min(free, max(1, c.s.opt.Parallel/2)-c.retried)
	c.mu.Unlock()
	lease := uuid.New()
	list, err := c.claim(ctx, lease, busy, free, retries)
	if err != nil {
		return false, fmt.Errorf("claiming callbacks: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held = len(list) == 0
	for _, one := range list {
		c.count(one, 1)
		c.going.Go(func() { c.call(c.ctx, lease, one) })
	}
	return false, nil
}

func (c *calls) count(one claimedCall, n int) {
	c.all += n
	if one.Attempts > 1 {
		c.retried += n
	}
	if c.owners[one.owner] += n; c.owners[one.owner] == 0 {
		delete(c.owners, one.owner)
	}
}

// call sends a callback that this process has claimed, and records the outcome. Unless
// Options.AllowPrivateHooks is set, the dialler of the HTTP client of `lanes`, which call uses,
// refuses addresses that aren't public.
func (c *calls) call(ctx context.Context, lease uuid.UUID, one claimedCall) {
	defer func() {
		c.mu.Lock()
		c.count(one, -1)
		c.mu.Unlock()
		c.loop.Wake()
	}()
	ctx, cancel := context.WithTimeout(ctx, c.s.opt.Lease) // an attempt ends before its lease does
	defer cancel()
	to, err := newTarget(one.url, "", true) // not possible for URLs that CheckCallback accepts
	if err == nil {
		to.client, to.discreet = c.s.lanes.client, true
		_, err = c.s.deliver(ctx, lease, &to, one.delivery)
	}
	if err != nil && !errors.Is(ctx.Err(), context.Canceled) {
		c.s.opt.Log.ErrorContext(ctx, "sending a callback failed", "callback", one.ID, "error", err)
	}
}

// claim leases up to `free` callbacks that are due, as Sender.claim does for notices: of each owner
// that isn't busy at most ownerCalls, of which those that were never tried come first, and at most
// `retries` that were.
func (c *calls) claim(ctx context.Context, lease uuid.UUID, busy []string, free, retries int) ([]claimedCall, error) {
	rows, err := c.s.opt.DB.Pool.Query(ctx, `
		WITH due AS (
			SELECT id, attempts > 0 AS retried, next_attempt, CASE WHEN coalesce(account, '') <> '' THEN 'account ' || account ELSE 'namespace ' || coalesce(namespace, '') END AS owner
			FROM webhooknotices
			WHERE delivered_at IS NULL AND given_up_at IS NULL AND url IS NOT NULL AND next_attempt <= now()
		), ranked AS (
			SELECT *, row_number() OVER (PARTITION BY owner ORDER BY retried, next_attempt) AS rank,
				row_number() OVER (PARTITION BY retried ORDER BY next_attempt) AS place
			FROM due WHERE owner <> ALL ($4::text[])
		), chosen AS (
			SELECT id FROM ranked WHERE rank <= $5 AND (NOT retried OR place <= $6)
			ORDER BY rank, retried, next_attempt LIMIT $3
		)
		UPDATE webhooknotices
		SET lease = $1, attempts = attempts + 1, next_attempt = clock_timestamp() + $2::interval
		WHERE id = ANY (ARRAY(
			SELECT id FROM webhooknotices
			WHERE id IN (SELECT id FROM chosen) AND delivered_at IS NULL AND given_up_at IS NULL AND next_attempt <= now()
			FOR UPDATE SKIP LOCKED))
		RETURNING id, event, body, attempts, url, CASE WHEN coalesce(account, '') <> '' THEN 'account ' || account ELSE 'namespace ' || coalesce(namespace, '') END, extract(epoch FROM created_at + $7::interval - clock_timestamp())::float8`,
		lease, c.s.opt.Lease, max(free, 0), busy, ownerCalls, max(retries, 0), callbackAge)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (one claimedCall, err error) {
		var left float64 // seconds by the database's clock
		err = row.Scan(&one.ID, &one.Event, &one.Body, &one.Attempts, &one.url, &one.owner, &left)
		one.until = time.Now().Add(time.Duration(left * float64(time.Second)))
		return one, err
	})
}

// next returns how long it is until a callback is due. Of those that are due already and wait for
// a place, the loop learns when an attempt ends.
func (c *calls) next(ctx context.Context) (time.Duration, error) {
	c.mu.Lock()
	full, held := c.all >= c.s.opt.Parallel, c.held && c.all > 0
	c.mu.Unlock()
	if full {
		return worker.MaxIdle, nil
	}
	var seconds *float64
	err := c.s.opt.DB.Pool.QueryRow(ctx, `
		SELECT extract(epoch FROM min(next_attempt) - clock_timestamp())::float8
		FROM webhooknotices
		WHERE url IS NOT NULL AND delivered_at IS NULL AND given_up_at IS NULL AND (NOT $1 OR next_attempt > now())`, held).Scan(&seconds)
	if err != nil {
		return 0, fmt.Errorf("asking when the next callback is due: %w", err)
	}
	if seconds == nil || *seconds > worker.MaxIdle.Seconds() {
		return worker.MaxIdle, nil
	}
	return time.Duration(max(*seconds, 0) * float64(time.Second)), nil
}

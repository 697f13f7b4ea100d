package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/worker"
)

// maxCallbacks is how many callbacks may wait at a time. Without this limit, clients could
// make the registry send any number of requests.
const maxCallbacks = 1000

// Callback is a request to a URL that a client has named. It is sent like a notice: at
// least once, with retries, and only to public addresses, unless Options.AllowPrivateHooks
// is set. It isn't signed, since its receiver has no key.
type Callback struct {
	ID    uuid.UUID   // its webhook-id
	URL   string      // http or https
	Event string      // for logs, in the form of Event.Type
	Body  any         // a JSON object
	Entry audit.Entry // is written into the audit log in the same transaction
}

// CheckCallback returns an error if no callback may be sent to the URL `address`. It
// doesn't look up the URL's host. The error is UNSUPPORTED with status 400, and says that
// the client's mistake is in the field `field` of its request.
func (s *Sender) CheckCallback(field, address string) error {
	if len(address) > maxURL {
		return invalid(field, "it has %d bytes, %d are possible", len(address), maxURL)
	}
	if _, err := parseURL(address, s.opt.AllowPrivateHooks); err != nil {
		return invalid(field, "%v", err)
	}
	return nil
}

// Call queues a callback, and writes its audit entry in the same transaction.
// CheckCallback must have accepted the URL before. Call returns the error
// TOOMANYREQUESTS if maxCallbacks callbacks are waiting.
func (s *Sender) Call(ctx context.Context, c Callback) error {
	body, err := json.Marshal(c.Body)
	if err != nil {
		return fmt.Errorf("writing a callback as JSON: %w", err)
	}
	err = s.opt.DB.Tx(ctx, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			INSERT INTO webhooknotices (id, webhook, event, body, url)
			SELECT $1, $1, $2, $3, $4
			WHERE (SELECT count(*) FROM (
				SELECT FROM webhooknotices WHERE delivered_at IS NULL AND given_up_at IS NULL AND url IS NOT NULL LIMIT $5) p) < $5`,
			c.ID, c.Event, strings.ToValidUTF8(string(body), "\uFFFD"), c.URL, maxCallbacks)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return oci.Errorf(oci.TooManyRequests, "%d callbacks wait to be sent already: try again later", maxCallbacks)
		}
		return audit.Append(ctx, tx, c.Entry)
	})
	if _, answer := errors.AsType[*oci.Error](err); err != nil && !answer {
		return fmt.Errorf("queueing a callback: %w", err)
	}
	if err == nil {
		s.callbacks.Wake()
	}
	return err
}

// claimedCallback is a callback to be sent, with its URL.
type claimedCallback struct {
	delivery
	url string
}

// callbackBatch claims callbacks that are due, and sends them in parallel.
func (s *Sender) callbackBatch(ctx context.Context) (more bool, err error) {
	lease := uuid.New()
	list, err := s.claimCallbacks(ctx, lease)
	if err != nil {
		return false, fmt.Errorf("claiming callbacks: %w", err)
	}
	errs := make([]error, len(list))
	var wg sync.WaitGroup
	for i, c := range list {
		wg.Go(func() { errs[i] = s.call(ctx, lease, c) })
	}
	wg.Wait()
	return len(list) == s.opt.Parallel, errors.Join(errs...)
}

// call sends a callback that this process has claimed, and records the outcome. Unless
// Options.AllowPrivateHooks is set, the dialler of the HTTP client of `lanes`, which call
// uses, refuses addresses that aren't public.
func (s *Sender) call(ctx context.Context, lease uuid.UUID, c claimedCallback) error {
	to, err := newTarget(c.url, "", true)
	if err != nil { // not possible for URLs that CheckCallback accepts
		return fmt.Errorf("sending the callback %s: %w", c.ID, err)
	}
	to.client, to.discreet = s.lanes.client, true
	_, err = s.deliver(ctx, lease, &to, c.delivery)
	return err
}

// claimCallbacks leases callbacks that are due, as claim does for notices.
func (s *Sender) claimCallbacks(ctx context.Context, lease uuid.UUID) ([]claimedCallback, error) {
	rows, err := s.opt.DB.Pool.Query(ctx, `
		UPDATE webhooknotices
		SET lease = $1, attempts = attempts + 1, next_attempt = clock_timestamp() + $2::interval
		WHERE id = ANY (ARRAY(
			SELECT id FROM webhooknotices
			WHERE delivered_at IS NULL AND given_up_at IS NULL AND url IS NOT NULL AND next_attempt <= now()
			ORDER BY next_attempt LIMIT $3 FOR UPDATE SKIP LOCKED))
		RETURNING id, event, body, attempts, url`, lease, s.opt.Lease, s.opt.Parallel)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (c claimedCallback, err error) {
		err = row.Scan(&c.ID, &c.Event, &c.Body, &c.Attempts, &c.url)
		return c, err
	})
}

// nextCallback returns how long it is until a callback is due.
func (s *Sender) nextCallback(ctx context.Context) (time.Duration, error) {
	var seconds *float64
	err := s.opt.DB.Pool.QueryRow(ctx, `
		SELECT extract(epoch FROM min(next_attempt) - clock_timestamp())::float8
		FROM webhooknotices WHERE url IS NOT NULL AND delivered_at IS NULL AND given_up_at IS NULL`).Scan(&seconds)
	if err != nil {
		return 0, fmt.Errorf("asking when the next callback is due: %w", err)
	}
	if seconds == nil || *seconds > worker.MaxIdle.Seconds() {
		return worker.MaxIdle, nil
	}
	return time.Duration(max(*seconds, 0) * float64(time.Second)), nil
}

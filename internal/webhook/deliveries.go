package webhook

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// States of a delivery.
const (
	Waiting   = "waiting" // for its first or its next attempt
	Delivered = "delivered"
	GivenUp   = "given_up"
)

// Delivery is a notice to a webhook.
type Delivery struct {
	ID                   uuid.UUID // its webhook-id
	Event                string
	State                string
	Attempts             int
	LastError            string // error of the last failed attempt, unless the notice was delivered
	Created              time.Time
	NextAttempt, Settled *time.Time // Settled is when it was delivered or given up
	Body                 string     // set by Sender.Delivery only
}

// ErrCursor says that the cursor that a client has sent isn't one that Deliveries returned.
var ErrCursor = errors.New("the cursor is not valid: begin again without one")

// MaxDeliveries is the largest page.
const MaxDeliveries = 1000

// Deliveries lists up to n notices of a webhook, newest first: those in the given state,
// or all if `state` is "". `cursor` is "" for the first page, and otherwise the result
// `next` of the call before; `next` is "" after the last page. Deliveries returns the
// errors of Hook, and ErrCursor if the cursor isn't valid.
func (s *Sender) Deliveries(ctx context.Context, namespace string, id uuid.UUID, state, cursor string, n int) (list []Delivery, next string, err error) {
	if _, err := s.Hook(ctx, namespace, id); err != nil {
		return nil, "", err
	}
	before, last, err := parseCursor(cursor)
	if err != nil {
		return nil, "", err
	}
	n = min(max(n, 1), MaxDeliveries)
	// The notices that wait have a branch of their own, since few do among many, and there is an index of
	// them. A plan is made before the state is known.
	rows, err := s.opt.DB.Pool.Query(ctx, `
		SELECT id, event, CASE WHEN delivered_at IS NOT NULL THEN 'delivered' WHEN given_up_at IS NOT NULL THEN 'given_up' ELSE 'waiting' END,
			attempts, COALESCE(last_error, ''), created_at, CASE WHEN delivered_at IS NULL AND given_up_at IS NULL THEN next_attempt END,
			COALESCE(delivered_at, given_up_at), ''
		FROM (
			(SELECT id, event, attempts, last_error, created_at, next_attempt, delivered_at, given_up_at FROM webhooknotices
			WHERE $4::text = 'waiting' AND webhook = $1 AND (created_at, id) < ($2, $3) AND delivered_at IS NULL AND given_up_at IS NULL
			ORDER BY created_at DESC, id DESC LIMIT $5)
			UNION ALL
			(SELECT id, event, attempts, last_error, created_at, next_attempt, delivered_at, given_up_at FROM webhooknotices
			WHERE $4 <> 'waiting' AND webhook = $1 AND created_at <= $2 AND (created_at, id) < ($2, $3)
				AND ($4 = '' OR $4 = 'delivered' AND delivered_at IS NOT NULL OR $4 = 'given_up' AND given_up_at IS NOT NULL)
			ORDER BY created_at DESC, id DESC LIMIT $5)) d
		ORDER BY created_at DESC, id DESC LIMIT $5`, id, before, last, state, n+1)
	list, more, err := db.Page(rows, err, n, pgx.RowToStructByPos[Delivery])
	if err != nil {
		return nil, "", fmt.Errorf("listing the notices of a webhook: %w", err)
	}
	if more {
		last := list[len(list)-1]
		b := binary.BigEndian.AppendUint64(nil, uint64(last.Created.UnixMicro()))
		next = base64.RawURLEncoding.EncodeToString(append(b, last.ID[:]...))
	}
	return list, next, nil
}

// parseCursor returns the creation time and id of the notice that a cursor contains: the
// last notice of the page before, after which the next page continues. For an empty cursor
// it returns a time and an id greater than those of every notice, so that the first page
// begins with the newest.
func parseCursor(text string) (at time.Time, id uuid.UUID, err error) {
	if text == "" {
		return time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), uuid.Max, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(b) != 8+len(id) {
		return at, id, ErrCursor
	}
	at = time.UnixMicro(int64(binary.BigEndian.Uint64(b)))
	if at.Year() < 2000 || at.Year() > 9999 {
		return at, id, ErrCursor
	}
	copy(id[:], b[8:])
	return at, id, nil
}

// Delivery returns a notice to a webhook, with its body. It returns the errors of Hook,
// and UNSUPPORTED with status 404 if the webhook has no such notice.
func (s *Sender) Delivery(ctx context.Context, namespace string, hook, id uuid.UUID) (d Delivery, err error) {
	if _, err := s.Hook(ctx, namespace, hook); err != nil {
		return d, err
	}
	rows, err := s.opt.DB.Pool.Query(ctx, `
		SELECT id, event, CASE WHEN delivered_at IS NOT NULL THEN 'delivered' WHEN given_up_at IS NOT NULL THEN 'given_up' ELSE 'waiting' END,
			attempts, COALESCE(last_error, ''), created_at, CASE WHEN delivered_at IS NULL AND given_up_at IS NULL THEN next_attempt END,
			COALESCE(delivered_at, given_up_at), body
		FROM webhooknotices WHERE webhook = $1 AND id = $2`, hook, id)
	if err == nil {
		d, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[Delivery])
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return d, noDelivery(hook, id)
	}
	if err != nil {
		return d, fmt.Errorf("looking for a notice of a webhook: %w", err)
	}
	return d, nil
}

func noDelivery(hook, id uuid.UUID) error {
	return oci.Errorf(oci.Unsupported, "webhook %s has no notice %s: those that were delivered or given up are kept for 7 days", hook, id).
		WithStatus(http.StatusNotFound).WithDetail(map[string]string{"delivery": id.String()})
}

// Redeliver makes a notice due now, even if it was delivered or given up. It is sent
// with the same webhook-id, and gets as many attempts as a new notice. If a process is
// sending the notice at this moment, Redeliver doesn't change the notice. Redeliver
// returns the errors of Delivery, and UNSUPPORTED with status 409 if the webhook is
// disabled.
func (s *Sender) Redeliver(ctx context.Context, namespace string, hook, id uuid.UUID) error {
	return s.change(ctx, namespace, "redelivering a notice", func(tx pgx.Tx, owner int64) error {
		h, err := enabledHook(ctx, tx, namespace, owner, hook)
		if err != nil {
			return err
		}
		var there bool
		err = tx.QueryRow(ctx, `
			WITH found AS (
				SELECT id FROM webhooknotices WHERE webhook = $1 AND id = $2 FOR UPDATE
			), again AS (
				UPDATE webhooknotices d SET delivered_at = NULL, given_up_at = NULL, attempts = 0, next_attempt = clock_timestamp(), lease = NULL
				FROM found WHERE d.id = found.id AND NOT (d.lease IS NOT NULL AND d.next_attempt > clock_timestamp()
					AND d.delivered_at IS NULL AND d.given_up_at IS NULL)
			)
			SELECT EXISTS (SELECT FROM found)`, hook, id).Scan(&there)
		if err != nil {
			return err
		}
		if !there {
			return noDelivery(hook, id)
		}
		return audit.Append(ctx, tx, hookEntry(audit.RedeliverWebhook, namespace, h, map[string]any{"delivery": id}))
	})
}

// redeliverRows is the largest number of notices that one statement of RedeliverGivenUp
// changes.
const redeliverRows = 1000

// RedeliverGivenUp makes all notices of a webhook that were given up due again, and
// returns their number. It returns the errors of Hook, and UNSUPPORTED with status 409
// if the webhook is disabled.
func (s *Sender) RedeliverGivenUp(ctx context.Context, namespace string, hook uuid.UUID) (total int64, err error) {
	for n := int64(redeliverRows); n == redeliverRows && err == nil; total += n {
		err = s.change(ctx, namespace, "redelivering notices", func(tx pgx.Tx, owner int64) error {
			h, err := enabledHook(ctx, tx, namespace, owner, hook)
			if err != nil {
				return err
			}
			tag, err := tx.Exec(ctx, `
				UPDATE webhooknotices SET given_up_at = NULL, attempts = 0, next_attempt = clock_timestamp(), lease = NULL
				WHERE id = ANY (ARRAY(
					SELECT id FROM webhooknotices WHERE webhook = $1 AND given_up_at IS NOT NULL LIMIT $2 FOR UPDATE SKIP LOCKED))`,
				hook, redeliverRows)
			if n = tag.RowsAffected(); err != nil || n == 0 {
				return err
			}
			return audit.Append(ctx, tx, hookEntry(audit.RedeliverWebhook, namespace, h, map[string]any{"deliveries": n}))
		})
		if err != nil {
			n = 0
		}
	}
	return total, err
}

// enabledHook returns a webhook, or the error UNSUPPORTED with status 409 if the webhook
// is disabled.
func enabledHook(ctx context.Context, tx pgx.Tx, namespace string, owner int64, id uuid.UUID) (Hook, error) {
	h, err := findHook(ctx, tx, namespace, owner, id, "FOR KEY SHARE")
	if err == nil && !h.Enabled {
		return h, oci.Errorf(oci.Unsupported, "webhook %s is disabled, so nothing is sent to it; enable it first", id).
			WithStatus(http.StatusConflict).WithDetail(map[string]string{"webhook": id.String()})
	}
	return h, err
}

// Ping queues a notice with the event ping, by which a client can test a webhook, and
// returns the notice's id. Ping returns the errors of Hook, and UNSUPPORTED with status
// 409 if the webhook is disabled.
func (s *Sender) Ping(ctx context.Context, namespace string, hook uuid.UUID) (id uuid.UUID, err error) {
	id = uuid.New()
	err = s.change(ctx, namespace, "testing a webhook", func(tx pgx.Tx, owner int64) error {
		h, err := enabledHook(ctx, tx, namespace, owner, hook)
		if err != nil {
			return err
		}
		body, err := Event{Type: EventPing, Data: map[string]any{"namespace": namespace, "webhook": h.ID, "events": h.Events}}.body()
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "INSERT INTO webhooknotices (id, webhook, event, body) VALUES ($1, $2, $3, $4)", id, hook, EventPing, body)
		return err
	})
	return id, err
}

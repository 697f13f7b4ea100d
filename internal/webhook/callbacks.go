package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/oci"
)

// Limits on how many callbacks may wait at a time. Without them, clients could make the registry
// send any number of requests, or keep others from getting callbacks.
const (
	maxCallbacks       = 1000
	accountCallbacks   = 50  // of one account
	namespaceCallbacks = 100 // for one namespace
	// ownCallbacks is how many callbacks of an account may wait even if maxCallbacks or
	// namespaceCallbacks are reached, so that other accounts can't keep it out. The total never
	// exceeds fullCallbacks times maxCallbacks.
	ownCallbacks  = 2
	fullCallbacks = 10
)

// callbackAge is how long after a client has asked for a callback the last attempt is made to
// send it. Callbacks that lead nowhere mustn't hold their places for days.
const callbackAge = time.Hour

// Callback is a request to a URL that a client has named. It is sent like a notice: at
// least once, with retries, and only to public addresses, unless Options.AllowPrivateHooks
// is set. It isn't signed, since its receiver has no key.
type Callback struct {
	ID    uuid.UUID   // its webhook-id
	URL   string      // http or https
	Event string      // for logs, in the form of Event.Type
	Body  any         // a JSON object
	Entry audit.Entry // is written into the audit log in the same transaction
	// Account, an id, has asked for the callback, "" if nobody was logged in. Namespace, an id, is
	// what it is about, "" for the whole registry. Each has a limit on callbacks that wait.
	Account, Namespace string
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
// CheckCallback must have accepted the URL before. Call returns the error TOOMANYREQUESTS if too
// many callbacks are waiting: of all clients, of the account or for the namespace.
func (s *Sender) Call(ctx context.Context, c Callback) error {
	body, err := json.Marshal(c.Body)
	if err != nil {
		return fmt.Errorf("writing a callback as JSON: %w", err)
	}
	err = s.opt.DB.Tx(ctx, func(tx pgx.Tx) error {
		if err := roomForCallback(ctx, tx, c); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `
			INSERT INTO webhooknotices (id, webhook, event, body, url, account, namespace) VALUES ($1, $1, $2, $3, $4, $5, $6)`,
			c.ID, c.Event, strings.ToValidUTF8(string(body), "\uFFFD"), c.URL, c.Account, c.Namespace)
		if err != nil {
			return err
		}
		return audit.Append(ctx, tx, c.Entry)
	})
	if _, answer := errors.AsType[*oci.Error](err); err != nil && !answer {
		return fmt.Errorf("queueing a callback: %w", err)
	}
	if err == nil {
		s.calls.loop.Wake()
	}
	return err
}

// roomForCallback returns TOOMANYREQUESTS if no further callback may wait. Transactions that queue
// callbacks come one after another, so that each counts those of the ones before it.
func roomForCallback(ctx context.Context, tx pgx.Tx, c Callback) error {
	if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(1886745450, 0)"); err != nil {
		return err
	}
	var all, account, namespace int
	err := tx.QueryRow(ctx, `
		SELECT count(*), count(*) FILTER (WHERE account = $1 AND $1 <> ''), count(*) FILTER (WHERE namespace = $2 AND $2 <> '')
		FROM webhooknotices WHERE delivered_at IS NULL AND given_up_at IS NULL AND url IS NOT NULL`,
		c.Account, c.Namespace).Scan(&all, &account, &namespace)
	const later = "callbacks wait to be sent already: try again later"
	switch {
	case err != nil:
		return err
	case account >= accountCallbacks:
		return oci.Errorf(oci.TooManyRequests, "%d of the account's "+later, accountCallbacks)
	case c.Account != "" && account < ownCallbacks && all < fullCallbacks*maxCallbacks:
		return nil
	case namespace >= namespaceCallbacks:
		return oci.Errorf(oci.TooManyRequests, "%d of the namespace's "+later, namespaceCallbacks)
	case all >= maxCallbacks:
		return oci.Errorf(oci.TooManyRequests, "%d "+later, maxCallbacks)
	}
	return nil
}

package webhook

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/worker"
)

const (
	maxLanes   = 32 // webhooks that a process sends to at once
	laneWidth  = 4  // notices that a process sends to one webhook at once
	laneRounds = 16 // claims after which a lane ends to make room for others
)

// lanes sends the notices of namespaces' webhooks. Each webhook with due notices gets a
// lane: a goroutine that claims and sends up to laneWidth of the webhook's notices at a
// time. A lane ends after laneRounds claims, or earlier if it finds fewer than laneWidth due
// notices, or if the receiver was slow: it then waits behind all others.
//
// At most maxLanes lanes run at once. Receivers that don't answer hold their lanes until the
// timeout, so each namespace and each host has a share of the lanes, and receivers that are
// known to answer have lanes that all others can't take (see shares).
type lanes struct {
	s      *Sender
	client *http.Client
	loop   *worker.Loop
	going  sync.WaitGroup

	standings standings

	mu      sync.Mutex
	running shares
	waiting []uuid.UUID     // webhooks that were due when `open` last looked, and got no lane
	ctx     context.Context // of run
}

func newLanes(s *Sender) *lanes {
	l := &lanes{s: s, client: newClient(s.opt, s.opt.AllowPrivateHooks), running: shares{}, standings: newStandings(s.opt.Timeout)}
	l.loop = worker.New(worker.Options{
		Name: "webhooks", Batch: l.open, Next: l.next, Log: s.opt.Log, Metrics: s.opt.Worker,
	})
	return l
}

// run sends notices until ctx ends. It returns when the outcomes of all attempts that had
// begun are recorded.
func (l *lanes) run(ctx context.Context) error {
	defer l.client.CloseIdleConnections()
	defer l.going.Wait()
	l.mu.Lock()
	l.ctx = ctx
	l.mu.Unlock()
	return l.loop.Run(ctx)
}

// hook is a webhook with due notices.
type hook struct {
	ID        uuid.UUID
	Namespace int64
	URL       string
	Secret    string
}

// open starts lanes for the webhooks that have due notices and no lane yet, as far as their
// shares go.
func (l *lanes) open(ctx context.Context) (more bool, err error) {
	rows, err := l.s.opt.DB.Pool.Query(ctx, `
		SELECT w.uuid, w.namespace_id, w.url, w.secret FROM webhooks w
		WHERE w.enabled AND w.uuid <> ALL ($1::uuid[]) AND EXISTS (
			SELECT FROM webhooknotices
			WHERE webhook = w.uuid AND delivered_at IS NULL AND given_up_at IS NULL AND next_attempt <= now())`, l.busy())
	if err != nil {
		return false, fmt.Errorf("looking for webhooks with notices that are due: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[hook])
	if err != nil {
		return false, fmt.Errorf("looking for webhooks with notices that are due: %w", err)
	}
	due, now := make([]share, len(list)), time.Now()
	for i, h := range list {
		due[i] = share{hook: h, standing: l.standings.of(h.ID, now), host: hostOf(h.URL)}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	chosen, waiting := l.running.choose(due)
	l.waiting = l.waiting[:0]
	for _, one := range waiting {
		l.waiting = append(l.waiting, one.ID)
	}
	for _, one := range chosen {
		if l.ctx.Err() != nil {
			break
		}
		l.running[one.ID] = one
		l.going.Go(func() { l.lane(l.ctx, one.hook) })
	}
	return false, nil
}

// hostOf returns the host of a URL, for the share of a host.
func hostOf(address string) string {
	u, err := url.Parse(address)
	if err != nil { // not possible for URLs of webhooks
		return ""
	}
	return strings.ToLower(strings.TrimSuffix(u.Hostname(), ".")) + ":" + u.Port()
}

// busy returns the webhooks that have lanes.
func (l *lanes) busy() []uuid.UUID {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := make([]uuid.UUID, 0, len(l.running)) // nil would be NULL
	return slices.AppendSeq(list, maps.Keys(l.running))
}

// next returns how long it is until a notice is due for a webhook that neither has a lane nor
// waits for one. A lane that ends wakes the loop for those that wait.
func (l *lanes) next(ctx context.Context) (time.Duration, error) {
	busy := l.busy()
	if len(busy) == maxLanes {
		return worker.MaxIdle, nil
	}
	l.mu.Lock()
	busy = append(busy, l.waiting...)
	l.mu.Unlock()
	var seconds *float64
	err := l.s.opt.DB.Pool.QueryRow(ctx, `
		SELECT extract(epoch FROM min(d.next_attempt) - clock_timestamp())::float8
		FROM webhooks w CROSS JOIN LATERAL (
			SELECT next_attempt FROM webhooknotices
			WHERE webhook = w.uuid AND delivered_at IS NULL AND given_up_at IS NULL ORDER BY next_attempt LIMIT 1) d
		WHERE w.enabled AND w.uuid <> ALL ($1::uuid[])`, busy).Scan(&seconds)
	if err != nil {
		return 0, fmt.Errorf("asking when the next notice of a webhook is due: %w", err)
	}
	if seconds == nil || *seconds > worker.MaxIdle.Seconds() {
		return worker.MaxIdle, nil
	}
	return time.Duration(max(*seconds, 0) * float64(time.Second)), nil
}

// lane sends the due notices of one webhook.
func (l *lanes) lane(ctx context.Context, h hook) {
	defer func() {
		l.mu.Lock()
		delete(l.running, h.ID)
		l.mu.Unlock()
		l.loop.Wake()
	}()
	to, err := newTarget(h.URL, h.Secret, true) // private addresses are refused when they are dialled
	to.client, to.discreet = l.client, true
	for range laneRounds {
		if err != nil || ctx.Err() != nil {
			break
		}
		var n int
		if n, err = l.round(ctx, h, &to); n < laneWidth || l.standings.of(h.ID, time.Now()) == isSlow {
			break
		}
	}
	if err != nil && ctx.Err() == nil {
		l.s.opt.Log.ErrorContext(ctx, "sending the notices of a webhook failed", "webhook", h.ID, "error", err)
		_ = worker.Sleep(ctx, time.Second) // before the next attempt
	}
}

// round claims up to laneWidth due notices of a webhook, sends them, and returns how many
// it claimed: none if the webhook has got another URL or secret, so that another lane sends them there.
func (l *lanes) round(ctx context.Context, h hook, to *target) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, l.s.opt.Lease)
	defer cancel()
	lease := uuid.New()
	rows, err := l.s.opt.DB.Pool.Query(ctx, `
		UPDATE webhooknotices
		SET lease = $1, attempts = attempts + 1, next_attempt = clock_timestamp() + $2::interval
		WHERE id = ANY (ARRAY(
			SELECT d.id FROM webhooknotices d
			WHERE d.webhook = $3 AND d.delivered_at IS NULL AND d.given_up_at IS NULL AND d.next_attempt <= now()
				AND EXISTS (SELECT FROM webhooks WHERE uuid = $3 AND enabled AND url = $5 AND secret = $6)
			ORDER BY d.next_attempt LIMIT $4 FOR UPDATE OF d SKIP LOCKED))
		RETURNING id, event, body, attempts`, lease, l.s.opt.Lease, h.ID, laneWidth, h.URL, h.Secret)
	if err != nil {
		return 0, fmt.Errorf("claiming notices: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[delivery])
	if err != nil {
		return 0, fmt.Errorf("claiming notices: %w", err)
	}
	errs, took := make([]error, len(list)), make([]time.Duration, len(list))
	var wg sync.WaitGroup
	for i, d := range list {
		wg.Go(func() { took[i], errs[i] = l.s.deliver(ctx, lease, to, d) })
	}
	wg.Wait()
	if len(list) > 0 {
		l.standings.note(h.ID, slices.Max(took), time.Now())
	}
	return len(list), errors.Join(errs...)
}

package webhook

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// Bounds of webhooks.
const (
	maxHooks = 32   // of a namespace, by default
	maxURL   = 2048 // bytes
	maxTitle = 256  // bytes
)

// Hook is a webhook of a namespace, without its secret: only CreateHook returns the secret.
type Hook struct {
	ID      uuid.UUID
	Title   string
	URL     string
	Events  []string // in the order of Events
	Enabled bool
	// DisabledReason says why the registry has disabled the webhook. It is "" if the
	// webhook is enabled or a client has disabled it.
	DisabledReason   string
	Created, Updated time.Time
}

// HookChange has the fields of a new webhook, or the changes to an existing one. A nil
// field of an existing webhook isn't changed. A new webhook is enabled and gets a random
// secret, unless the fields say otherwise.
type HookChange struct {
	Title, URL, Secret *string
	Events             []string // nil: unchanged
	Enabled            *bool
}

func invalid(field, format string, args ...any) error {
	return oci.Errorf(oci.Unsupported, field+": "+format, args...).WithStatus(http.StatusBadRequest).
		WithDetail(map[string]string{"field": field})
}

// check validates the fields of c that are set, and puts the events in the order of Events.
// Its errors repeat neither the URL nor the secret.
func (s *Sender) check(c *HookChange) error {
	if c.Title != nil && (len(*c.Title) > maxTitle || clean(*c.Title) != *c.Title) {
		return invalid("title", "it should be one line of up to %d bytes", maxTitle)
	}
	if c.URL != nil {
		if len(*c.URL) > maxURL {
			return invalid("url", "it has %d bytes, %d are possible", len(*c.URL), maxURL)
		}
		if _, err := parseURL(*c.URL, s.opt.AllowPrivateHooks); err != nil {
			return invalid("url", "%v", err)
		}
	}
	if c.Secret != nil {
		if *c.Secret == "" {
			return invalid("secret", "it is empty; leave it out, and one is made up")
		}
		if _, err := parseSecret(*c.Secret); err != nil || !utf8.ValidString(*c.Secret) || strings.ContainsRune(*c.Secret, 0) {
			return invalid("secret", "%v", cmpErr(err))
		}
	}
	if c.Events == nil {
		return nil
	}
	var err error
	c.Events, err = s.checkEvents(c.Events)
	return err
}

func cmpErr(err error) error {
	if err == nil {
		return errors.New("it isn't text in UTF-8")
	}
	return err
}

// checkEvents returns the given events in the order of Events, each once. It accepts
// Quay's name repo_push for a push. It returns the error UNSUPPORTED with status 400 if
// `given` is empty, has an unknown event, or has pull although pulls aren't in the audit
// log.
func (s *Sender) checkEvents(given []string) (list []string, err error) {
	for _, name := range given {
		if name != "repo_push" && !slices.Contains(Events(), name) {
			return nil, invalid("events", "there is no event %q: the events are %s", name, strings.Join(Events(), ", "))
		}
	}
	for _, name := range Events() {
		if slices.Contains(given, name) || name == EventPush && slices.Contains(given, "repo_push") {
			list = append(list, name)
		}
	}
	if len(list) == 0 {
		return nil, invalid("events", "name one at least: %s", strings.Join(Events(), ", "))
	}
	if slices.Contains(list, EventPull) && !s.opt.Pulls {
		return nil, invalid("events", "pulls aren't in the audit log (audit.pulls is false), so nobody can be told of them; set audit.pulls, or leave pull out")
	}
	return list, nil
}

// newSecret returns a random key.
func newSecret() string {
	var key [32]byte
	rand.Read(key[:]) //nolint:errcheck // it never fails
	return secretPrefix + base64.StdEncoding.EncodeToString(key[:])
}

// namespaceID returns the id of a namespace. `lock` may be an SQL lock clause, such as
// FOR KEY SHARE, which keeps the namespace from being deleted until the transaction
// ends. namespaceID returns the error NAME_UNKNOWN if the namespace doesn't exist.
func namespaceID(ctx context.Context, q db.Querier, name, lock string) (id int64, err error) {
	err = q.QueryRow(ctx, "SELECT id FROM live_namespaces WHERE name = $1 "+lock, name).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, oci.Errorf(oci.NameUnknown, "namespace %s is not known to this registry", name).
			WithDetail(map[string]string{"name": name})
	}
	if err != nil {
		return 0, fmt.Errorf("looking for the namespace %s: %w", name, err)
	}
	return id, nil
}

// HookPlace is the place of a webhook in the list.
type HookPlace struct {
	Created time.Time
	ID      uuid.UUID
}

// Hooks lists up to n webhooks of a namespace, oldest first, after the place `after`, whose zero
// value is before the first. It says whether there are more. It returns the error NAME_UNKNOWN if
// the namespace doesn't exist.
func (s *Sender) Hooks(ctx context.Context, namespace string, after HookPlace, n int) (list []Hook, more bool, err error) {
	id, err := namespaceID(ctx, s.opt.DB.Pool, namespace, "")
	if err != nil {
		return nil, false, err
	}
	rows, err := s.opt.DB.Pool.Query(ctx, `
		SELECT uuid, title, url, events, enabled, COALESCE(disabled_reason, ''), created_at, updated_at
		FROM webhooks WHERE namespace_id = $1 AND (created_at, uuid) > ($2, $3) ORDER BY created_at, uuid LIMIT $4`, id, after.Created, after.ID, n+1)
	if list, more, err = db.Page(rows, err, n, pgx.RowToStructByPos[Hook]); err != nil {
		return nil, false, fmt.Errorf("listing the webhooks of %s: %w", namespace, err)
	}
	return list, more, nil
}

// Hook returns a webhook of a namespace. It returns the error NAME_UNKNOWN if the
// namespace doesn't exist, and UNSUPPORTED with status 404 if the namespace has no such
// webhook.
func (s *Sender) Hook(ctx context.Context, namespace string, id uuid.UUID) (Hook, error) {
	owner, err := namespaceID(ctx, s.opt.DB.Pool, namespace, "")
	if err != nil {
		return Hook{}, err
	}
	return findHook(ctx, s.opt.DB.Pool, namespace, owner, id, "")
}

func findHook(ctx context.Context, q db.Querier, namespace string, owner int64, id uuid.UUID, lock string) (h Hook, err error) {
	rows, err := q.Query(ctx, `
		SELECT uuid, title, url, events, enabled, COALESCE(disabled_reason, ''), created_at, updated_at
		FROM webhooks WHERE namespace_id = $1 AND uuid = $2 `+lock, owner, id)
	if err == nil {
		h, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[Hook])
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return h, oci.Errorf(oci.Unsupported, "namespace %s has no webhook %s", namespace, id).WithStatus(http.StatusNotFound).
			WithDetail(map[string]string{"webhook": id.String()})
	}
	if err != nil {
		return h, fmt.Errorf("looking for a webhook of %s: %w", namespace, err)
	}
	return h, nil
}

// change runs fn in a transaction that locks the namespace against deletion. After the
// commit it wakes the dispatcher and the lanes.
func (s *Sender) change(ctx context.Context, namespace, doing string, fn func(tx pgx.Tx, owner int64) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	err := s.opt.DB.Tx(ctx, func(tx pgx.Tx) error {
		owner, err := namespaceID(ctx, tx, namespace, "FOR KEY SHARE")
		if err != nil {
			return err
		}
		return fn(tx, owner)
	})
	if _, answer := errors.AsType[*oci.Error](err); err != nil && !answer {
		return fmt.Errorf("%s of %s: %w", doing, namespace, err)
	}
	if err == nil {
		s.dispatch.Wake()
		s.lanes.loop.Wake()
	}
	return err
}

// CreateHook creates a webhook, and returns it with its secret, which is never returned
// again. The webhook gets notices of events from now on. CreateHook returns the error
// NAME_UNKNOWN if the namespace doesn't exist, and UNSUPPORTED with status 400 if a
// field is invalid or the namespace has too many webhooks.
func (s *Sender) CreateHook(ctx context.Context, namespace string, c HookChange) (h Hook, secret string, err error) {
	if c.URL == nil {
		return h, "", invalid("url", "it is missing; give the URL that is to be told, https://host/path")
	}
	if c.Events == nil {
		return h, "", invalid("events", "they are missing; name some of %s", strings.Join(Events(), ", "))
	}
	if err := s.check(&c); err != nil {
		return h, "", err
	}
	if c.Secret == nil {
		made := newSecret()
		c.Secret = &made
	}
	h = Hook{ID: uuid.New(), URL: *c.URL, Events: c.Events, Enabled: c.Enabled == nil || *c.Enabled}
	if c.Title != nil {
		h.Title = *c.Title
	}
	err = s.change(ctx, namespace, "creating a webhook", func(tx pgx.Tx, owner int64) error {
		if err := s.follow(ctx, tx); err != nil {
			return err
		}
		var n int
		if err := tx.QueryRow(ctx, "SELECT count(*) FROM webhooks WHERE namespace_id = $1", owner).Scan(&n); err != nil {
			return err
		}
		if most := s.opt.MostHooks; n >= most {
			return oci.Errorf(oci.Unsupported, "%s", oci.LimitText("namespace "+namespace, most, "webhooks", "limits.webhooks", "delete one that isn't needed")).
				WithStatus(http.StatusBadRequest)
		}
		err := tx.QueryRow(ctx, `
			INSERT INTO webhooks (uuid, namespace_id, title, url, secret, events, enabled)
			VALUES (@id, @owner, @title, @url, @secret, @events, @enabled) RETURNING created_at, updated_at`,
			db.Args{"id": h.ID, "owner": owner, "title": h.Title, "url": h.URL, "secret": *c.Secret, "events": h.Events, "enabled": h.Enabled},
		).Scan(&h.Created, &h.Updated)
		if err != nil {
			return err
		}
		return audit.Append(ctx, tx, hookEntry(audit.CreateWebhook, namespace, h, nil))
	})
	return h, *c.Secret, err
}

// follow prepares the position of the dispatcher for a webhook that the transaction creates
// or enables. It locks the row of webhookposition, so that no dispatcher works until the
// transaction ends. If no enabled webhook asks for changes yet, it moves the position for
// changes to the end of the audit log; likewise the position for pulls. Otherwise the
// dispatcher would read entries from before the webhook existed.
func (s *Sender) follow(ctx context.Context, tx pgx.Tx) error {
	if _, err := tx.Exec(ctx, "SELECT FROM webhookposition FOR UPDATE"); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `
		UPDATE webhookposition p SET
			xid = CASE WHEN told.changes THEN p.xid ELSE pg_snapshot_xmin(pg_current_snapshot()) END,
			id = CASE WHEN told.changes THEN p.id ELSE 0 END,
			pulls_xid = CASE WHEN told.pulls THEN p.pulls_xid ELSE pg_snapshot_xmin(pg_current_snapshot()) END,
			pulls_id = CASE WHEN told.pulls THEN p.pulls_id ELSE 0 END
		FROM (SELECT EXISTS (SELECT FROM webhooks WHERE enabled AND events && $1::text[]) AS changes,
			EXISTS (SELECT FROM webhooks WHERE enabled AND 'pull' = ANY (events)) AS pulls) told`, ofChanges)
	return err
}

// UpdateHook changes a webhook. If it enables the webhook, notices are made for events
// from now on. If it changes the URL, waiting notices are sent to the new URL.
// UpdateHook returns the errors of Hook and of CreateHook.
func (s *Sender) UpdateHook(ctx context.Context, namespace string, id uuid.UUID, c HookChange) error {
	if err := s.check(&c); err != nil {
		return err
	}
	return s.change(ctx, namespace, "changing a webhook", func(tx pgx.Tx, owner int64) error {
		if err := s.follow(ctx, tx); err != nil {
			return err
		}
		h, err := findHook(ctx, tx, namespace, owner, id, "FOR UPDATE")
		if err != nil {
			return err
		}
		changed := c.apply(&h)
		_, err = tx.Exec(ctx, `
			UPDATE webhooks SET title = @title, url = @url, events = @events, enabled = @enabled, secret = COALESCE(@secret, secret),
				active_since = CASE WHEN @enabled AND NOT enabled THEN clock_timestamp() ELSE active_since END,
				disabled_reason = CASE WHEN @enabled THEN NULL ELSE disabled_reason END, updated_at = clock_timestamp()
			WHERE uuid = @id`,
			db.Args{"id": id, "title": h.Title, "url": h.URL, "events": h.Events, "enabled": h.Enabled, "secret": c.Secret})
		if err != nil {
			return err
		}
		// Delete the counts of those events that the webhook no longer asks for.
		_, err = tx.Exec(ctx, "DELETE FROM webhookcounts WHERE webhook = $1 AND NOT ($2 AND event = ANY ($3::text[]))", id, h.Enabled, h.Events)
		if err != nil {
			return err
		}
		return audit.Append(ctx, tx, hookEntry(audit.UpdateWebhook, namespace, h, map[string]any{"changed": changed}))
	})
}

// apply makes the changes to h, and returns the names of the fields that differ. It reports
// a new secret always as different, since h doesn't have the old secret.
func (c HookChange) apply(h *Hook) (changed []string) {
	changed = []string{}
	if c.Title != nil && *c.Title != h.Title {
		h.Title, changed = *c.Title, append(changed, "title")
	}
	if c.URL != nil && *c.URL != h.URL {
		h.URL, changed = *c.URL, append(changed, "url")
	}
	if c.Events != nil && !slices.Equal(c.Events, h.Events) {
		h.Events, changed = c.Events, append(changed, "events")
	}
	if c.Enabled != nil && *c.Enabled != h.Enabled {
		h.Enabled, changed = *c.Enabled, append(changed, "enabled")
	}
	if c.Secret != nil {
		changed = append(changed, "secret")
	}
	return changed
}

// DeleteHook deletes a webhook. Notices that are still waiting to be sent to it are not
// sent. DeleteHook returns the errors of Hook.
func (s *Sender) DeleteHook(ctx context.Context, namespace string, id uuid.UUID) error {
	return s.change(ctx, namespace, "deleting a webhook", func(tx pgx.Tx, owner int64) error {
		h, err := findHook(ctx, tx, namespace, owner, id, "FOR UPDATE")
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "DELETE FROM webhooks WHERE uuid = $1", id); err != nil {
			return err
		}
		return audit.Append(ctx, tx, hookEntry(audit.DeleteWebhook, namespace, h, nil))
	})
}

// hookEntry returns the audit entry of a change of a webhook. Of the URL it contains only
// the host, since the rest may be a secret.
func hookEntry(kind audit.Kind, namespace string, h Hook, detail map[string]any) audit.Entry {
	if detail == nil {
		detail = map[string]any{}
	}
	detail["webhook"], detail["events"], detail["enabled"] = h.ID, h.Events, h.Enabled
	if u, err := url.Parse(h.URL); err == nil {
		detail["host"] = u.Host
	}
	if h.Title != "" {
		detail["title"] = h.Title
	}
	return audit.Entry{Kind: kind, Namespace: namespace, Detail: detail}
}

package webhook

import (
	"testing"

	"github.com/google/uuid"
)

// These are SQL statements of the first release, which knows only the webhook of the
// configuration. Processes of the first release may run beside newer processes during an
// upgrade.
const (
	claimOfFirstRelease = `
		UPDATE webhookdeliveries
		SET lease = $1, attempts = attempts + 1, next_attempt = clock_timestamp() + $2::interval
		WHERE id = ANY (ARRAY(
			SELECT id FROM webhookdeliveries
			WHERE delivered_at IS NULL AND given_up_at IS NULL AND next_attempt <= now()
			ORDER BY next_attempt LIMIT $3 FOR UPDATE SKIP LOCKED))
		RETURNING id, event, body, attempts`
	nextOfFirstRelease = `
		SELECT extract(epoch FROM min(next_attempt) - clock_timestamp())::float8
		FROM webhookdeliveries WHERE delivered_at IS NULL AND given_up_at IS NULL`
	abandonOfFirstRelease = `
		DELETE FROM webhookdeliveries WHERE id = ANY (ARRAY(
			SELECT id FROM webhookdeliveries
			WHERE delivered_at IS NULL AND given_up_at IS NULL AND next_attempt < now() - $1::interval
			LIMIT $2 FOR UPDATE SKIP LOCKED))`
	tidyOfFirstRelease = `
		DELETE FROM webhookdeliveries WHERE id = ANY (ARRAY(
			SELECT id FROM webhookdeliveries
			WHERE (delivered_at IS NOT NULL OR given_up_at IS NOT NULL)
				AND coalesce(delivered_at, given_up_at) < now() - $1::interval
			LIMIT $2 FOR UPDATE SKIP LOCKED))`
	queueOfFirstRelease = "INSERT INTO webhookdeliveries (id, event, body) VALUES ($1, $2, $3)"
)

// TestFirstReleaseSeesNoNoticeOfANamespace: during an upgrade, a process of the first
// release runs its statements. It must not see notices of namespaces' webhooks, because it
// would delete them or send them to autoprune.webhook.url. It must still see and send the
// notices for the configured URL.
func TestFirstReleaseSeesNoNoticeOfANamespace(t *testing.T) {
	t.Parallel()
	s, d := hooked(t, Options{URL: "http://127.0.0.1:1/registry"})
	h := subscribe(t, s, "http://127.0.0.1:1/namespace", EventPush)
	ping, err := s.Ping(t.Context(), "app", h.ID)
	must(t, err)
	exec(t, d, 0, tidyOfFirstRelease, "0 s", 10)
	exec(t, d, 0, abandonOfFirstRelease, "0 s", 10)
	exec(t, d, 0, claimOfFirstRelease, uuid.New(), "1 min", 10)
	var seconds *float64
	must(t, d.Pool.QueryRow(t.Context(), nextOfFirstRelease).Scan(&seconds))
	if seconds != nil {
		t.Errorf("the first release would look for a notice in %v s", *seconds)
	}
	if r := read(t, d, ping); r.Attempts != 0 || r.Delivered || r.GivenUp {
		t.Errorf("the notice of a namespace is %+v", r)
	}
	exec(t, d, 1, "UPDATE webhooknotices SET given_up_at = now() - interval '1 day'")
	exec(t, d, 0, tidyOfFirstRelease, "0 s", 10)

	mine := queue(t, s, d, Event{Type: "autoprune.started"})
	theirs := uuid.New()
	exec(t, d, 1, queueOfFirstRelease, theirs, "autoprune.finished", "{}")
	list, err := s.claim(t.Context(), uuid.New())
	must(t, err)
	if len(list) != 2 {
		t.Errorf("claimed %+v, want what both versions have queued", list)
	}
	exec(t, d, 2, "UPDATE webhookdeliveries SET next_attempt = now()")
	exec(t, d, 2, claimOfFirstRelease, uuid.New(), "1 min", 10)
	if a, b := read(t, d, mine), read(t, d, theirs); a.Attempts != 2 || b.Attempts != 2 {
		t.Errorf("the registry's notices are %+v and %+v", a, b)
	}
	exec(t, d, 2, "UPDATE webhookdeliveries SET next_attempt = now() - interval '1 day'")
	exec(t, d, 2, abandonOfFirstRelease, "0 s", 10)
}

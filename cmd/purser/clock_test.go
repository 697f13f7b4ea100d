package main

import (
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/cmd/purser/internal/servetest"
	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

// TestDoubtfulClock: a registry starts on a database whose clock is in doubt. It says so everywhere
// and deletes nothing, until somebody confirms the clock by the command or on the page.
func TestDoubtfulClock(t *testing.T) {
	t.Parallel()
	dsn := dbtest.DSN(t)
	d := dbtest.Open(t, dsn)
	doubt := func() {
		t.Helper()
		if _, err := d.Pool.Exec(t.Context(), `INSERT INTO clock (seen_at, boot, up) VALUES (now() - interval '60 days', '', 0)
			ON CONFLICT (one) DO UPDATE SET doubt = 'the database''s clock may be wrong'`); err != nil {
			t.Fatal(err)
		}
	}
	doubt()
	left := aged(t, d)
	environ := append(onStore(t, dsn, t.TempDir()), "PURSER_AUTOPRUNE_INTERVAL=1s")
	s := start(t, servetest.Config(t, environ...))
	start(t, servetest.Config(t, append(environ, "PURSER_AUTH_ENABLED=true")...)) // which deletes sessions and tokens
	pushImage(t, s, "v1", "content")
	if _, err := d.Pool.Exec(t.Context(), "UPDATE tags SET created_at = now() - interval '10 days'"); err != nil {
		t.Fatal(err)
	}
	client := append(environ, "PURSER_SERVER="+s.Registry)
	says := func(code int, want string, args ...string) {
		t.Helper()
		got, stdout, stderr := purser(t, client, args...)
		if text := stdout + stderr; got != code || !strings.Contains(text, want) {
			t.Errorf("purser %v: code %d, want %d and %q: %s", args, got, code, want, text)
		}
	}
	says(0, "Created policy", "policy", "create", "library", "--older-than", "1d", "--mode", "on", "--yes")
	const why = "by the database's clock no process of this registry ran from "
	says(0, why, "clock", "show")
	says(0, `"doubt": true`, "clock", "show", "-o", "json")
	says(0, why, "gc", "status")
	says(1, why, "gc", "run")
	says(4, why, "doctor")
	says(1, "the run waits, since nothing is pruned now: "+why, "prune", "run", "library")
	says(0, why, "prune", "status", "library")
	says(3, why, "clock", "confirm")
	if code, text := get(t, s.Registry+"/ui/system"); code != 200 || !strings.Contains(text, "The clock is right") {
		t.Errorf("the page System: %d %s", code, text)
	}
	if code, text := get(t, s.Registry+"/ui/"); code != 200 || !strings.Contains(text, "Nothing is deleted for its age: by the database") {
		t.Errorf("the overview: %d %s", code, text)
	}
	says(0, "v1", "tag", "list", "library/app")
	if n := left(); n != 5 {
		t.Errorf("%d of 5 rows are left that only their age makes superfluous", n)
	}
	kept := false
	if err := d.Pool.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM auditlog WHERE tag = 'old')").Scan(&kept); err != nil || !kept {
		t.Errorf("the old entry of the audit log is there: %v, %v", kept, err)
	}
	says(0, "so what is old is deleted", "clock", "confirm", "--yes")
	says(0, "so what is old is deleted", "clock", "confirm") // there is nothing to confirm
	says(0, "deleted 1 of 1 tag", "prune", "run", "library")
	servetest.WaitFor(t, "the old rows to be deleted", func() bool { return left() == 0 })

	doubt()
	servetest.WaitFor(t, "the process to see the doubt", func() bool {
		_, stdout, _ := purser(t, client, "clock", "show")
		return strings.Contains(stdout, "may be wrong")
	})
	req, err := http.NewRequestWithContext(t.Context(), "POST", s.Registry+"/ui/system", strings.NewReader(url.Values{"do": {"confirm-clock"}}.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Sec-Fetch-Site", "same-origin")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // it was read
	page, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 || !strings.Contains(string(page), "The database&#39;s clock counts as right.") || strings.Contains(string(page), "The clock is right") {
		t.Errorf("confirmed on the page: %d, %v %s", resp.StatusCode, err, page)
	}
	says(0, "so what is old is deleted", "clock", "show")
}

// aged writes a row of each kind that a worker deletes for its age alone: a session, a token, a
// notice, a run and a day of the history of pulls. `left` counts those that are there. There is an old
// entry of the audit log too, which nobody looks for more often than once a minute.
func aged(t *testing.T, d *db.DB) (left func() int) {
	t.Helper()
	const old = "now() - interval '400 days'"
	for _, sql := range []string{
		"INSERT INTO accounts (name, kind) VALUES ('carl', 'user')",
		"INSERT INTO sessions (secret_hash, id, account_id, expires_at) SELECT 'old', gen_random_uuid(), id, " + old + " FROM accounts WHERE name = 'carl'",
		"INSERT INTO credentials (id, account_id, kind, secret_hash, expires_at) SELECT gen_random_uuid(), id, 'personal', 'old', " + old + " FROM accounts WHERE name = 'carl'",
		"INSERT INTO webhooknotices (id, event, body, delivered_at) VALUES (gen_random_uuid(), 'old', '{}', " + old + ")",
		"INSERT INTO pullhistory (day, pulls) VALUES (current_date - 800, 1)",
		"INSERT INTO autopruneruns (id, namespace_id, namespace, state, started_at, ended_at) VALUES (gen_random_uuid(), 0, 'old', 'success', " + old + ", " + old + ")",
	} {
		if _, err := d.Pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if err := audit.Append(t.Context(), d.Pool, audit.Entry{Kind: audit.PushRepo, Time: time.Now().AddDate(0, 0, -400), Tag: "old"}); err != nil {
		t.Fatal(err)
	}
	return func() (n int) {
		t.Helper()
		err := d.Pool.QueryRow(t.Context(), `
			SELECT (SELECT count(*) FROM sessions WHERE secret_hash = 'old') + (SELECT count(*) FROM credentials WHERE secret_hash = 'old')
				+ (SELECT count(*) FROM webhooknotices WHERE event = 'old') + (SELECT count(*) FROM autopruneruns WHERE namespace = 'old')
				+ (SELECT count(*) FROM pullhistory WHERE day < current_date - 700)`).Scan(&n)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
}

package main

import (
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/purser-registry/purser/cmd/purser/internal/servetest"
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
	environ := append(onStore(t, dsn, t.TempDir()), "PURSER_AUTOPRUNE_INTERVAL=1s")
	s := start(t, servetest.Config(t, environ...))
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
	says(0, "Created policy", "policy", "create", "library", "--older-than", "1d")
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
	says(0, "so what is old is deleted", "clock", "confirm", "--yes")
	says(0, "so what is old is deleted", "clock", "confirm") // there is nothing to confirm
	says(0, "deleted 1 of 1 tag", "prune", "run", "library")

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

package main

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/purser-registry/purser/cmd/purser/internal/servetest"
)

// TestLostRights: the database's role loses rights while the server runs. Requests that need them get 503,
// /readyz and the doctor name the role, the table and what helps, and the server goes on when the rights
// are back.
func TestLostRights(t *testing.T) {
	t.Parallel()
	dsn, admin := hostileDatabase(t, "lost_rights")
	exec := func(sql string) {
		t.Helper()
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	blobs := t.TempDir()
	s, log := startRecorded(t, servetest.Config(t, "PURSER_DATABASE_MAIN="+dsn, "PURSER_STORAGE_FILESYSTEM_PATH="+blobs, "PURSER_CACHE_ENABLED=false"))
	images := &shop{t, s.Registry}
	images.push("acme/app", "v1", "1")
	ready := func(status int, words ...string) {
		t.Helper()
		var code int
		var text string
		servetest.WaitFor(t, "the next look", func() bool {
			code, text = get(t, s.Debug+"/readyz")
			return code == status
		})
		for _, w := range words {
			if !strings.Contains(text, w) {
				t.Errorf("/readyz says nothing of %q: %s", w, text)
			}
		}
	}
	doctor := func(words ...string) {
		t.Helper()
		code, out, _ := purser(t, []string{"PURSER_DATABASE_MAIN=" + dsn, "PURSER_STORAGE_FILESYSTEM_PATH=" + blobs}, "doctor", "--data-dir", t.TempDir())
		if code != 4 {
			t.Errorf("the doctor ends with %d", code)
		}
		for _, w := range words {
			if !strings.Contains(out, w) {
				t.Errorf("the doctor says nothing of %q:\n%s", w, out)
			}
		}
	}
	for _, table := range []string{"tags", "manifests"} {
		exec("REVOKE ALL ON " + table + " FROM lost_rights")
		images.send("GET", "/v2/acme/app/manifests/v1", "", "", http.StatusServiceUnavailable)
		lacks := []string{"role lost_rights", "on the table public." + table, "GRANT SELECT, INSERT, UPDATE, DELETE ON TABLE public." + table + " TO lost_rights"}
		ready(http.StatusServiceUnavailable, append([]string{"database: "}, lacks...)...)
		doctor(lacks...)
		exec("GRANT ALL ON " + table + " TO lost_rights")
		ready(http.StatusOK)
		images.send("GET", "/v2/acme/app/manifests/v1", "", "", http.StatusOK)
	}
	exec("REVOKE INSERT ON manifests FROM lost_rights") // pulls don't need it
	servetest.WaitFor(t, "the next look", func() bool {
		code, text := get(t, s.Debug+"/readyz")
		return code == http.StatusOK && strings.Contains(text, "pushes: the role lost_rights lacks the right to INSERT on the table public.manifests")
	})
	exec("GRANT INSERT ON manifests TO lost_rights")

	exec("CREATE ROLE lost_other")
	t.Cleanup(func() { admin.Exec(context.Background(), "DROP ROLE lost_other") }) //nolint:errcheck // the server goes
	exec("GRANT lost_other TO lost_rights")
	exec("ALTER ROLE lost_rights SET role = lost_other")
	exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'lost_rights'")
	ready(http.StatusServiceUnavailable, "the role lost_other", "ALTER ROLE lost_rights RESET role")
	doctor("role lost_other", "ALTER ROLE lost_rights RESET role")
	servetest.WaitFor(t, "a line of the log", func() bool { // the log doesn't repeat itself for ten seconds
		images.send("GET", "/v2/acme/app/manifests/v1", "", "", http.StatusServiceUnavailable)
		return strings.Contains(log.String(), `"role":"lost_other"`)
	})
	exec("ALTER ROLE lost_rights RESET role")
	exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'lost_rights'")
	ready(http.StatusOK)
	for _, w := range []string{`"role":"lost_rights"`, "permission denied for table tags", "ALTER ROLE lost_rights RESET role"} {
		if !strings.Contains(log.String(), w) {
			t.Errorf("the log says nothing of %q", w)
		}
	}
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
}

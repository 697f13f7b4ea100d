package main

import (
	"net/http"
	"strings"
	"testing"

	"github.com/purser-registry/purser/cmd/purser/internal/servetest"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

// The test pulls three times and stops the server. The audit log must then have the three
// pulls, and its partitions. With audit.pulls: false it must have no pulls.
func TestPullsBeforeTheStop(t *testing.T) {
	t.Parallel()
	for environ, want := range map[string]int{"": 3, "PURSER_AUDIT_PULLS=false": 0} {
		cfg := servetest.Config(t, "PURSER_DATABASE_MAIN="+dbtest.DSN(t), environ)
		s := start(t, cfg)
		index := `{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": []}`
		req, err := http.NewRequestWithContext(t.Context(), "PUT", s.Registry+"/v2/acme/app/manifests/v1", strings.NewReader(index))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil || resp.StatusCode != 201 {
			t.Fatalf("push: %v, %v", resp, err)
		}
		resp.Body.Close() //nolint:errcheck // nothing is in it
		d := dbtest.Open(t, string(cfg.Database.Main))
		count := func(sql string) (n int) {
			t.Helper()
			if err := d.Pool.QueryRow(t.Context(), sql).Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		servetest.WaitFor(t, "the partitions", func() bool {
			return count("SELECT count(*) FROM pg_inherits WHERE inhparent = 'auditlog'::regclass") == 3
		})
		for range 3 {
			if code, body := get(t, s.Registry+"/v2/acme/app/manifests/v1"); code != 200 {
				t.Fatalf("pull: %d %s", code, body)
			}
		}
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
		if n := count("SELECT COALESCE(sum(pulls), 0) FROM auditlog WHERE kind = 'pull_repo' AND address = '127.0.0.1'"); n != want {
			t.Errorf("%d pulls with %q, want %d", n, environ, want)
		}
		if n := count("SELECT count(*) FROM auditlog WHERE kind <> 'pull_repo'"); n != 3 {
			t.Errorf("%d changes, want 3", n)
		}
	}
}

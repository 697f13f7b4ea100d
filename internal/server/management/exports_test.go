package management_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/audit"
)

// exportTold is the body of an export's callback.
type exportTold struct {
	ExportID        string  `json:"export_id"`
	StartTime       string  `json:"start_time"`
	EndTime         string  `json:"end_time"`
	Namespace       *string `json:"namespace"`
	Repository      *string `json:"repository"`
	ExportedDataURL string  `json:"exported_data_url"`
	Status          string  `json:"status"`
}

// exportReceiver is a server that receives the callbacks of exports.
func exportReceiver(t *testing.T) (*httptest.Server, chan exportTold) {
	t.Helper()
	told := make(chan exportTold, 10)
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		var e exportTold
		if err := json.NewDecoder(req.Body).Decode(&e); err != nil {
			t.Error(err)
		}
		if req.Header.Get("Webhook-Id") != e.ExportID {
			t.Errorf("webhook-id %q of export %q", req.Header.Get("Webhook-Id"), e.ExportID)
		}
		told <- e
	}))
	t.Cleanup(s.Close)
	return s, told
}

// TestQuayExportLogs: a client requests exports of several scopes, kinds of entries and times.
// Each answer must have the export's id, and the callback must contain a URL from which exactly
// the entries that were asked for can be fetched.
func TestQuayExportLogs(t *testing.T) {
	t.Parallel()
	r, s := hooked(t)
	background(t, s.Run)
	receiver, told := exportReceiver(t)
	for _, path := range []string{"library/app", "acme/app", "acme/other"} {
		r.Put(t, path, "v1", r.Simple(t, path, 1, nil))
	}
	r.Exec(t, "UPDATE auditlog SET time = '2024-02-03 23:30:00+00' WHERE repository = 'acme/app' AND kind = 'create_repo'")
	callback := `{"callback_url": "` + receiver.URL + `/done?token=secret-token"}`
	f := r.Since(t)
	f.Kinds = []audit.Kind{audit.ExportLog}
	for _, tt := range []struct {
		path, body, namespace, repository, start string
		entries                                  int
	}{
		{"/repository/acme/app/exportlogs", callback, "acme", "app", "", 2},
		{"/repository/acme/app/exportlogs?kind=push_repo", callback, "acme", "app", "", 1},
		{"/repository/acme/app/exportlogs?starttime=02/03/2024&endtime=02/03/2024", callback, "acme", "app", "02/03/2024", 1},
		{"/repository/acme/app/exportlogs", strings.Replace(callback, "{", `{"starttime": "02/03/2024", "endtime": "2024-02-03", "other": 1, `, 1), "acme", "app", "02/03/2024", 1},
		{"/organization/acme/exportlogs?kind=push_repo", callback, "acme", "", "", 2},
		{"/user/exportlogs?kind=push_repo", callback, "library", "", "", 1},
		{"/superuser/exportlogs?kind=push_repo", callback, "", "", "", 3},
	} {
		var made struct {
			ExportID string `json:"export_id"`
		}
		r.Manage(t, "POST", tt.path, tt.body).Into(t, 200, &made)
		var e exportTold
		select {
		case e = <-told:
		case <-time.After(time.Minute):
			t.Fatalf("%s: the callback wasn't told", tt.path)
		}
		named := func(p *string) string {
			if p == nil {
				return ""
			}
			return *p
		}
		if _, err := uuid.Parse(made.ExportID); err != nil || e.ExportID != made.ExportID || e.Status != "success" ||
			named(e.Namespace) != tt.namespace || named(e.Repository) != tt.repository || tt.start != "" && e.StartTime != tt.start || e.EndTime == "" {
			t.Errorf("%s %s: made %q, told %+v", tt.path, tt.body, made.ExportID, e)
		}
		if !strings.HasPrefix(e.ExportedDataURL, r.URL+"/api/v1/") {
			t.Fatalf("%s: the entries are at %s", tt.path, e.ExportedDataURL)
		}
		resp, err := http.Get(e.ExportedDataURL)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if n := strings.Count(string(lines), "\n"); err != nil || resp.StatusCode != 200 || n < tt.entries || n > tt.entries+4 {
			t.Errorf("%s: %d, %d entries, want %d: %s (%v)", tt.path, resp.StatusCode, n, tt.entries, lines, err)
		}
	}
	var shown []byte
	if err := r.DB.Pool.QueryRow(t.Context(), "SELECT jsonb_agg(detail)::text FROM auditlog WHERE kind = 'export_logs'").Scan(&shown); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(shown), "secret-token") || !strings.Contains(string(shown), "export_id") {
		t.Errorf("the log has %s", shown)
	}
}

// TestQuayExportLogsRefused: a client requests exports with a missing, invalid or private
// callback URL, or with invalid days. The API must refuse each request at once. It must also
// refuse an export while 1000 callbacks wait to be sent.
func TestQuayExportLogsRefused(t *testing.T) {
	t.Parallel()
	r, _ := hooked(t)
	const path = "/organization/acme/exportlogs"
	for _, tt := range []struct{ path, body, text string }{
		{path, `{}`, "callback_url"},
		{path, `{"callback_email": "ops@example.com"}`, "callback_email"},
		{path, `{"callback_email": "ops@example.com", "callback_url": "https://example.com/"}`, "callback_email"},
		{path, `{"callback_url": "ftp://example.com/"}`, "callback_url"},
		{path, `{"callback_url": "https://name:word@example.com/"}`, "callback_url"},
		{path, `{"callback_url": "https://example.com/` + strings.Repeat("a", 3000) + `"}`, "callback_url"},
		{path + "?starttime=2024", `{"callback_url": "https://example.com/"}`, "starttime"},
		{path + "?starttime=02/03/2024&endtime=02/01/2024", `{"callback_url": "https://example.com/"}`, "to"},
		{path + "?starttime=02/03/2024", `{"callback_url": "https://example.com/", "starttime": "02/04/2024"}`, "starttime"},
		{path, `{"callback_url": "https://example.com/", "endtime": "soon"}`, "endtime"},
		{path + "?limit=1", `{"callback_url": "https://example.com/"}`, "limit"},
	} {
		r.Manage(t, "POST", tt.path, tt.body).Refused(t, 400, "invalid_request", tt.text)
	}
	strict := whole(t)
	strict.Manage(t, "POST", path, `{"callback_url": "http://127.0.0.1:9/x"}`).Refused(t, 400, "invalid_request", "not public")
	strict.Exec(t, `INSERT INTO webhooknotices (id, webhook, event, body, url, next_attempt)
		SELECT id, id, 'export_logs', '{}', 'https://example.com/', now() + interval '1 hour' FROM (SELECT gen_random_uuid() AS id FROM generate_series(1, 1000)) n`)
	strict.Manage(t, "POST", path, `{"callback_url": "https://example.com/"}`).WantStatus(t, 429)
}

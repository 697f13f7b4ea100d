package client

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/policy"
)

// TestPruneAsks: "purser prune asks" must list the policies that ask, and "purser prune approve"
// must approve the version and the number that the user has seen.
func TestPruneAsks(t *testing.T) {
	t.Parallel()
	const id = "5f0c9c1e-6b0a-4c8e-9d3b-2a1f0e9d8c7b"
	var body string
	until := time.Date(2026, 8, 8, 16, 0, 0, 0, time.UTC)
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		ask := autoprune.Ask{RunAsk: autoprune.RunAsk{Policy: id, Scope: policy.RepositoryScope, Version: 3, Would: 1204, Most: 1000}, Repository: "app/web"}
		asks := []autoprune.Ask{ask}
		switch r.Method + " " + r.URL.Path {
		case "GET /api/v1/organization/quiet/autoprune/asks":
			asks = []autoprune.Ask{}
			fallthrough
		case "GET /api/v1/organization/app/autoprune/asks":
			json.NewEncoder(w).Encode(map[string]any{"asks": asks}) //nolint:errcheck // the test sees it
		case "POST /api/v1/organization/app/autoprune/asks/" + id + "/approve":
			text, _ := io.ReadAll(r.Body) // the test fails if it isn't complete
			body = strings.TrimSpace(string(text))
			ask.Until = &until
			json.NewEncoder(w).Encode(ask) //nolint:errcheck // the test sees it
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(registry.Close)
	for args, want := range map[string]struct {
		code       int
		text, body string
	}{
		"asks app":                           {0, "app/web 1,204 1,000", ""},
		"asks app -o json":                   {0, `"tags_would_delete": 1204`, ""},
		"asks quiet":                         {0, "No policy asks for an approval.", ""},
		"approve app " + id:                  {3, "Let policy " + id + " delete up to 1,204 tags of app, in one run?", ""},
		"approve app " + id + " --yes":       {0, "may delete up to 1,204 tags of app in one run, until 2026-08-08", `{"version":3,"tags":1204}`},
		"approve app " + id + " --tags 2000": {3, "up to 2,000 tags", ""},
		"approve app " + id + " --tags 2000 --yes -o json": {0, `"may_delete": 1000`, `{"version":3,"tags":2000}`},
		"approve quiet " + id + " --yes":                   {3, "doesn't ask for an approval in quiet", ""},
		"approve app x --yes":                              {2, "POLICY", ""},
		"approve app " + id + " --tags 0":                  {2, "tags", ""},
	} {
		body = ""
		code, stdout, stderr := purser(t, append([]string{"prune", "--server", registry.URL}, strings.Fields(args)...)...)
		told := strings.Join(strings.Fields(stdout+stderr), " ")
		if code != want.code || !strings.Contains(told, want.text) || body != want.body {
			t.Errorf("%s ends with %d and sends %q, want %d, %q and %q: %s", args, code, body, want.code, want.body, want.text, told)
		}
	}
}

package client

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestPolicyConfirm: a command must show the warnings of the registry and change nothing unless they are
// confirmed, let a new policy observe, and leave the mode of another as it is.
func TestPolicyConfirm(t *testing.T) {
	t.Parallel()
	const id = "5f0c9c1e-6b0a-4c8e-9d3b-2a1f0e9d8c7b"
	var sent []string
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body) // the test fails if it isn't complete
		w.Header().Set("Content-Type", "application/json")
		answer := `{"uuid": "` + id + `", "mode": "off"}`
		switch {
		case r.Method == "GET" && strings.HasSuffix(r.URL.Path, "/autoprune"):
			answer = `{"task": {"status": "success", "rests": [{"policy": "` + id + `", "version": 7, "text": "it rests", "warnings": [{"code": "selects_latest", "text": "it deletes latest"}]}]}}`
		case r.Method == "GET":
		case r.Method == "POST" && strings.HasSuffix(r.URL.Path, "/confirm"):
			sent = append(sent, r.URL.Path+" "+string(body))
			w.WriteHeader(http.StatusNoContent)
			return
		case r.URL.Query().Get("confirm") != "all" && strings.Contains(string(body), "numTags"):
			w.WriteHeader(http.StatusConflict)
			answer = `{"detail": "confirm", "error_type": "invalid_request", "details": {"warnings": [{"code": "drops_reporter", "text": "it doesn't require 1 reporter any more, which isn't live", "number": 1, "examples": ["prod-eu"]}]}}`
		case r.URL.Query().Get("confirm") != "all":
			w.WriteHeader(http.StatusConflict)
			answer = `{"detail": "confirm", "error_type": "invalid_request", "details": {"warnings": [{"code": "short_age", "text": "6m is 6 minutes", "number": 7, "examples": ["app/web:prod"]}]}}`
		default:
			sent = append(sent, r.Method+" "+string(body))
		}
		w.Write([]byte(answer)) //nolint:errcheck // the test sees it
	}))
	t.Cleanup(registry.Close)
	for args, want := range map[string]struct {
		code int
		says string
		sent string
	}{
		"policy create app --older-than 6m":                                      {3, "Warning: 6m is 6 minutes: app/web:prod, ….", ""},
		"policy create app --older-than 6m --yes":                                {0, "It observes", `POST {"method":"creation_date","mode":"observe","olderThan":"6m"}`},
		"policy create app --older-than 6m --mode on --yes":                      {0, "Created policy", `POST {"method":"creation_date","mode":"on","olderThan":"6m"}`},
		`policy create app --policy {"method":"number_of_tags","value":1} --yes`: {0, "It observes", `POST {"method":"number_of_tags","mode":"observe","value":1}`},
		"policy update app " + id + " --older-than 6m":                           {3, "6 minutes", ""},
		"policy update app " + id + " --older-than 6m --yes":                     {0, "Saved policy", `PUT {"method":"creation_date","mode":"off","olderThan":"6m"}`},
		"policy update app " + id + " --num-tags 30":                             {3, "Warning: it doesn't require 1 reporter any more, which isn't live: prod-eu.", ""},
		"prune defaults app on":                                                  {3, "Let the default policies apply?", ""},
		"prune defaults app off":                                                 {3, "Refuse the default policies?", ""},
		"prune defaults app on --yes":                                            {0, "", `PUT {"uses_defaults":true}`},
		"policy delete app " + id:                                                {3, "Delete the policy?", ""},
		"policy delete app " + id + " --yes":                                     {0, "Deleted policy", "DELETE "},
		"prune confirm app " + id:                                                {3, "Warning: it deletes latest", ""},
		"prune confirm app " + id + " --yes":                                     {0, "may delete tags of app", "/api/v1/organization/app/autoprune/rests/" + id + `/confirm {"version":7,"codes":["selects_latest"]}`},
		"prune status app":                                                       {0, "policy " + id + ": it rests", ""},
	} {
		sent = nil
		code, stdout, stderr := purser(t, append(strings.Fields(args), "--server", registry.URL)...)
		if code != want.code || !strings.Contains(stdout+stderr, want.says) || strings.TrimSpace(strings.Join(sent, "\n")) != strings.TrimSpace(want.sent) {
			t.Errorf("%s: %d %s%s, sent %q", args, code, stdout, stderr, sent)
		}
	}
}

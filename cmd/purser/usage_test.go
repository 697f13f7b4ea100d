package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestExitCodes: usage, refusal and failure are told apart, and a mistyped command is
// answered with the one that may have been meant.
func TestExitCodes(t *testing.T) {
	t.Parallel()
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		status := http.StatusNotFound
		if strings.Contains(r.URL.Path, "broken") {
			status = http.StatusServiceUnavailable
		}
		w.WriteHeader(status)
		w.Write([]byte(`{"detail": "the registry said this"}`)) //nolint:errcheck // the test sees it
	}))
	t.Cleanup(registry.Close)
	for line, want := range map[string]struct {
		code int
		text string
	}{
		"version":                 {0, "purser"},
		"--version":               {0, "purser"},
		"serv":                    {2, `did you mean "purser serve"?`},
		"gc statu":                {2, `did you mean "purser gc status"?`},
		"loosefk statu":           {2, `did you mean "purser loosefk status"?`},
		"nothing-like-it":         {2, `unknown command "nothing-like-it" for "purser"`},
		"gc --verison":            {2, "See 'purser gc --help'"},
		"serve extra":             {2, "unknown command"},
		"tag list":                {2, `write "purser tag list `},
		"namespace show acme":     {3, "the registry said this"},
		"namespace show broken":   {1, "the registry said this"},
		"repo list --server :bad": {1, ""},
	} {
		args := strings.Fields(line)
		code, stdout, stderr := purser(t, []string{"PURSER_SERVER=" + registry.URL}, args...)
		if code != want.code || !strings.Contains(stdout+stderr, want.text) {
			t.Errorf("purser %s ends with %d, want %d with %q: %s%s", line, code, want.code, want.text, stdout, stderr)
		}
	}
}

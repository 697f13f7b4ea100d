package client

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"

	"github.com/purser-registry/purser/internal/autoprune"
)

// pruneRegistry starts a server that answers each request about a namespace's pruning with
// the next of `states`, and repeats the last state; "" means that the namespace has no
// task. It calls `ask` at each GET request for the state, and returns the server's URL.
func pruneRegistry(t *testing.T, ask func(), states ...string) string {
	t.Helper()
	const run = "5f0c9c1e-6b0a-4c8e-9d3b-2a1f0e9d8c7b"
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if strings.HasPrefix(r.URL.Path, "/api/v1/autoprune/runs/") {
			json.NewEncoder(w).Encode(autoprune.RunDetails{RunSummary: autoprune.RunSummary{Deleted: 7, Tags: 1200, Repositories: 3, Failed: 1}}) //nolint:errcheck // the test sees it
			return
		}
		if r.URL.Path == "/api/v1/organization" {
			json.NewEncoder(w).Encode(api.NamespaceList{}) //nolint:errcheck // the test sees it
			return
		}
		if ask != nil && r.Method == "GET" {
			ask()
		}
		s := pruneState{UsesDefaults: true}
		if states[0] != "" {
			s.Task = &autoprune.TaskStatus{Namespace: "acme", Status: states[0]}
			if states[0] == "running" {
				s.Task.Run = run
			}
		}
		if len(states) > 1 {
			states = states[1:]
		}
		json.NewEncoder(w).Encode(s) //nolint:errcheck // the test sees it
	}))
	t.Cleanup(registry.Close)
	return registry.URL
}

// TestPruneRunTellsTheOutcome: "purser prune run" fails if the pruning run failed or was
// stopped early.
func TestPruneRunTellsTheOutcome(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		states []string
		args   []string
		code   int
		want   string
	}{
		{[]string{"queued", "running", "success: deleted 7 of 1200 tags"}, nil, 0, "success: deleted 7"},
		{[]string{"queued", "failure: 1 repositories failed, first acme/app"}, nil, 1, "the run failed: \"purser prune runs acme\""},
		{[]string{"queued", "failure: 1 repositories failed, first acme/app"}, []string{"-o", "json"}, 1, `"status": "failure: 1 repositories`},
		{[]string{"running", ""}, nil, 1, "the run was stopped: no policy applies to acme any more"},
		{[]string{"queued"}, []string{"--wait=false"}, 0, "queued"},
	} {
		registry := pruneRegistry(t, nil, slices.Clone(c.states)...)
		code, stdout, stderr := purser(t, append([]string{"prune", "run", "acme", "--server", registry}, c.args...)...)
		if code != c.code || !strings.Contains(stdout+stderr, c.want) {
			t.Errorf("%q ends with %d, want %d and %q: %s%s", c.states, code, c.code, c.want, stdout, stderr)
		}
	}
}

// TestPruneRunInterrupted: when the user interrupts "purser prune run", the command ends
// and says that the run goes on in the registry.
func TestPruneRunInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	registry := pruneRegistry(t, cancel, "running")
	var stdout, stderr bytes.Buffer
	code := execute(ctx, []string{"prune", "run", "acme", "--server", registry}, nil, &stdout, &stderr)
	if code != 1 || !strings.Contains(stderr.String(), "interrupted") {
		t.Errorf("it ends with %d: %s%s", code, &stdout, &stderr)
	}
}

// TestPruneRunProgress: "purser prune run" shows what the pruning run has done so far.
func TestPruneRunProgress(t *testing.T) {
	t.Parallel()
	server, err := api.ParseServer(pruneRegistry(t, nil, "running", "running", "success"))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	line := command.NewProgressLine(&out)
	line.Every = 0
	s := pruneState{Task: &autoprune.TaskStatus{Status: "queued"}}
	if err := waitForRun(t.Context(), api.NewClient(server), api.PruneNamespace{Namespace: "acme"}, &s, line); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); got != "queued\n"+strings.Repeat("running: deleted 7 of 1,200 tags in 3 repositories so far, 1 repository failed\n", 2) {
		t.Errorf("%s", got)
	}
}

// TestPruneFreeReadsSizeAndAge: a size with a comma or a point is refused instead of taken for another
// one, and the question says that the m of an age is minutes.
func TestPruneFreeReadsSizeAndAge(t *testing.T) {
	t.Parallel()
	asked := make(chan api.FreeBody, 10)
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body api.FreeBody
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		asked <- body
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(api.FreeAnswer{Plan: &autoprune.FreePlan{Bytes: body.Bytes, Tags: 7, Plan: "p"}}) //nolint:errcheck // the test sees it
	}))
	t.Cleanup(registry.Close)
	for _, size := range []string{"1,5TB", "1.5TB", "1,000GB", "much", "0", ""} {
		if code, _, stderr := purser(t, "prune", "free", size, "--server", registry.URL); code != 2 || !strings.Contains(stderr, "SIZE: ") {
			t.Errorf("%q ends with %d: %s", size, code, stderr)
		}
	}
	if len(asked) > 0 {
		t.Fatalf("it asked for %+v", <-asked)
	}
	for _, c := range []struct {
		size, age, question string
		bytes               int64
	}{
		{"1500GB", "6m", "weren't used or pushed for 6m, which is 6m0s (m is minutes)?", 1500e9},
		{"2 GiB", "90d", "weren't used or pushed for 90d?", 2 << 30},
	} {
		code, stdout, stderr := purser(t, "prune", "free", c.size, "--unused-for", c.age, "--server", registry.URL)
		if body := <-asked; body.Bytes != c.bytes || body.UnusedFor != c.age {
			t.Errorf("%s asked for %+v", c.size, body)
		}
		if code != 3 || !strings.Contains(stderr, "Delete 7 tags that "+c.question) {
			t.Errorf("%s ends with %d: %s%s", c.size, code, stdout, stderr)
		}
	}
}

package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/purser-registry/purser/cmd/purser/internal/servetest"
	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

// TestWebhookCommands: a command creates a webhook, and the running registry sends it
// notices of a push, a pull, a deletion and garbage collection. Notices whose delivery
// failed can be redelivered by a command.
func TestWebhookCommands(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var got []string
	status := http.StatusGone // makes the sender give up at once
	hooks := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Header.Get("Webhook-Signature") == "" {
			t.Errorf("%v, headers %v", err, r.Header)
		}
		var e struct{ Type string }
		if err := json.Unmarshal(body, &e); err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		got = append(got, e.Type)
		w.WriteHeader(status)
	}))
	defer hooks.Close()
	answer := func(code int) { mu.Lock(); status = code; mu.Unlock() }
	told := func() []string { mu.Lock(); defer mu.Unlock(); return slices.Clone(got) }

	s := &shop{t, start(t, servetest.Config(t, "PURSER_DATABASE_MAIN="+dbtest.DSN(t), "PURSER_WEBHOOKS_ALLOW_PRIVATE=true")).Registry}
	s.push("acme/app", "v0", "0")
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("a secret of some length, twenty-four at least\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var made struct{ UUID, Secret string }
	text := s.run("webhook", "create", "acme", "--url", hooks.URL+"/x", "--events", "push,delete", "--title", "the shop", "--secret-file", secret, "-o", "json")
	if err := json.Unmarshal([]byte(text), &made); err != nil || made.UUID == "" || !strings.HasPrefix(made.Secret, "a secret") {
		t.Fatalf("%v %s", err, text)
	}
	for _, args := range [][]string{{"list", "acme"}, {"show", "acme", made.UUID}, {"list", "acme", "-o", "json"}, {"show", "acme", made.UUID, "-o", "json"}} {
		if text := s.run(append([]string{"webhook"}, args...)...); strings.Contains(text, "a secret") || !strings.Contains(text, hooks.URL+"/x") {
			t.Errorf("webhook %q:\n%s", args, text)
		}
	}
	deliveries := func(state string) []string {
		var list []api.WebhookDelivery
		if err := json.Unmarshal([]byte(s.run("webhook", "deliveries", "acme", made.UUID, "--state", state, "-o", "json")), &list); err != nil {
			t.Fatal(err)
		}
		ids := make([]string, len(list))
		for i, d := range list {
			ids[i] = d.UUID.String()
		}
		return ids
	}
	s.push("acme/app", "v1", "1")
	servetest.WaitFor(t, "the push is given up", func() bool { return len(deliveries("given_up")) == 1 })
	answer(http.StatusNoContent)
	push := deliveries("given_up")[0]
	if text := s.run("webhook", "show", "acme", made.UUID, push); !strings.Contains(text, `"updated_tags":["v1"]`) || !strings.Contains(text, "410 Gone") {
		t.Errorf("the notice:\n%s", text)
	}
	s.run("webhook", "redeliver", "acme", made.UUID, push)
	servetest.WaitFor(t, "the push is delivered", func() bool { return slices.Contains(deliveries("delivered"), push) })
	answer(http.StatusGone)
	s.run("tag", "delete", "-y", "acme/app:v1")
	servetest.WaitFor(t, "the deletion is given up", func() bool { return len(deliveries("given_up")) == 1 })
	answer(http.StatusNoContent)
	if text := s.run("webhook", "redeliver", "acme", made.UUID, "--given-up"); !strings.Contains(text, "Queued 1 notices") {
		t.Errorf("%s", text)
	}
	servetest.WaitFor(t, "the deletion is delivered", func() bool { return len(deliveries("delivered")) == 2 })
	s.run("webhook", "test", "acme", made.UUID)
	servetest.WaitFor(t, "the ping is delivered", func() bool { return slices.Contains(told(), "ping") })
	if list := told(); !slices.Equal(list, []string{"push", "push", "delete", "delete", "ping"}) {
		t.Errorf("told %q", list)
	}

	s.run("webhook", "update", "acme", made.UUID, "--disable")
	if text := s.run("webhook", "list", "acme"); !strings.Contains(text, "disabled") {
		t.Errorf("%s", text)
	}
	s.refused("is disabled", "webhook", "test", "acme", made.UUID)
	s.refused("use one of push", "webhook", "create", "acme", "--url", hooks.URL, "--events", "build")
	s.refused("--url is missing: give the URL", "webhook", "create", "acme", "--events", "push")
	s.refused("--events is missing", "webhook", "create", "acme", "--url", hooks.URL)
	s.refused("NAMESPACE", "webhook", "list", "acme/app")
	s.refused(`WEBHOOK: "x" isn't possible`, "webhook", "show", "acme", "x")
	s.refused("name one DELIVERY", "webhook", "redeliver", "acme", made.UUID)
	s.refused("nothing is given to change", "webhook", "update", "acme", made.UUID)
	s.refused("no such file", "webhook", "update", "acme", made.UUID, "--secret-file", secret+"x")
	s.run("webhook", "delete", "acme", made.UUID)
	s.refused("has no webhook", "webhook", "show", "acme", made.UUID)
	if text := s.run("webhook", "list", "acme"); text != "acme has no webhooks.\n" {
		t.Errorf("%s", text)
	}
}

package management_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/builtinpg/pgtest"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/gc"
	"github.com/purser-registry/purser/internal/server/servertest"
	"github.com/purser-registry/purser/internal/webhook"
)

// hooked returns a registry that sends notices to webhooks.
func hooked(t testing.TB) (*registry, *webhook.Sender) {
	t.Helper()
	dsn := dbtest.DSN(t)
	pool := dbtest.Open(t, dsn)
	var s *webhook.Sender
	r := replica(t, dsn, pgtest.TempDir(t), func(o *servertest.Options) {
		var err error
		s, err = webhook.New(webhook.Options{DB: pool, AllowPrivateHooks: true, Pulls: true, Window: 10 * time.Millisecond, Look: 5 * time.Millisecond, Log: o.Log})
		if err != nil {
			t.Fatal(err)
		}
		o.Management.Webhooks = s
	})
	return r, s
}

// TestWebhooksAPI: a client creates a webhook. Then clients push and delete content, and
// garbage collection deletes a manifest. The webhook's URL must get one notice for each of
// these events. Clients must be able to list the notices and to have one sent again.
func TestWebhooksAPI(t *testing.T) {
	t.Parallel()
	r, s := hooked(t)
	background(t, s.Run)
	var mu sync.Mutex
	told := map[string][]map[string]any{}
	hooks := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var e struct {
			Type string
			Data map[string]any
		}
		if err := json.NewDecoder(req.Body).Decode(&e); err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		told[e.Type] = append(told[e.Type], e.Data)
	}))
	t.Cleanup(hooks.Close)
	number := func(event string) int { mu.Lock(); defer mu.Unlock(); return len(told[event]) }

	const path = "acme/app"
	r.Put(t, path, "v0", r.Simple(t, path, 0, nil))
	var made struct{ UUID, Secret string }
	r.Manage(t, "POST", "/organization/acme/webhook", `{"url": "`+hooks.URL+`/x", "events": ["repo_push", "tag", "delete", "gc", "push"]}`).Into(t, 201, &made)
	at := "/organization/acme/webhook/" + made.UUID
	shown := r.Manage(t, "GET", at, "")
	if shown.StatusCode != 200 || !strings.HasPrefix(made.Secret, "whsec_") || strings.Contains(string(shown.Content), made.Secret) || strings.Contains(string(shown.Content), `"secret"`) {
		t.Errorf("shown %d %s", shown.StatusCode, shown.Content)
	}
	r.Manage(t, "PUT", at, string(shown.Content)).WantStatus(t, 204)
	r.sameBut(t, at, shown, "updated_at")

	d := r.Put(t, path, "v1", r.Simple(t, path, 1, nil))
	r.Put(t, "other/app", "v1", r.Simple(t, "other/app", 1, nil))
	r.Manage(t, "POST", "/repository/"+path+"/tag/v9/restore", encode(t, object{"manifest_digest": d})).WantStatus(t, 200)
	r.Do(t, "DELETE", "/v2/"+path+"/manifests/v9", "").WantStatus(t, 202)
	r.Do(t, "DELETE", "/v2/"+path+"/manifests/"+d.String(), "").WantStatus(t, 202)
	r.Do(t, "DELETE", "/v2/"+path+"/manifests/v0", "").WantStatus(t, 202)
	if _, err := r.DB.Pool.Exec(t.Context(), "UPDATE gc_manifest_review_queue SET review_after = now() - interval '1 s'"); err != nil {
		t.Fatal(err)
	}
	collector := gc.New(gc.Options{Catalog: r.Catalog, DB: r.DB})
	for _, dry := range []bool{true, false} {
		if _, err := collector.Review(t.Context(), gc.ReviewOptions{Kind: gc.ReviewOfManifests, Limit: 100, DryRun: dry}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all is told", func() bool {
		return number("push") == 1 && number("tag") == 1 && number("delete") == 3 && number("gc") == 1
	})
	r.Manage(t, "POST", at+"/test", "").WantStatus(t, 202)
	eventually(t, "a ping", func() bool { return number("ping") == 1 })
	mu.Lock()
	if push := encode(t, told["push"][0]); !strings.Contains(push, `"updated_tags":["v1"]`) || !strings.Contains(push, d.String()) || !strings.Contains(push, `"addr":"127.0.0.1"`) {
		t.Errorf("the push: %s", push)
	}
	if told["gc"][0]["manifests"] != 1.0 || len(told["push"]) != 1 || len(told["delete"]) != 3 {
		t.Errorf("told %v", told)
	}
	mu.Unlock()

	var list struct {
		Deliveries []struct{ UUID, Event, State string }
		NextPage   string `json:"next_page"`
	}
	eventually(t, "all is recorded", func() bool {
		r.Manage(t, "GET", at+"/deliveries?state=delivered", "").Into(t, 200, &list)
		return len(list.Deliveries) == 7
	})
	var page = list
	r.Manage(t, "GET", at+"/deliveries?limit=5", "").Into(t, 200, &page)
	first := page.Deliveries[0]
	r.Manage(t, "GET", at+"/deliveries?limit=5&next_page="+page.NextPage, "").Into(t, 200, &page)
	if first.Event != "ping" || len(page.Deliveries) != 2 || page.Deliveries[1].UUID != list.Deliveries[6].UUID {
		t.Errorf("pages: %+v", page)
	}
	r.Manage(t, "GET", at+"/deliveries?next_page=x", "").Refused(t, 400, "invalid_request", "next_page")
	r.Manage(t, "GET", at+"/deliveries?state=lost", "").Refused(t, 400, "invalid_request", "state")
	r.Manage(t, "POST", at+"/deliveries/"+first.UUID+"/redeliver", "").WantStatus(t, 202)
	eventually(t, "a second ping", func() bool { return number("ping") == 2 })
	r.Manage(t, "POST", at+"/redeliver", "").WantStatus(t, 202)
	r.Manage(t, "POST", at+"/deliveries/"+made.UUID+"/redeliver", "").Refused(t, 404, "not_found", "has no notice")
	r.Manage(t, "GET", "/organization/other/webhook/"+made.UUID, "").Refused(t, 404, "not_found", "namespace other has no webhook")
	r.Manage(t, "GET", "/organization/other/webhook/"+made.UUID+"/deliveries/"+first.UUID, "").Refused(t, 404, "not_found", "has no webhook")
	r.Manage(t, "DELETE", at, "").WantStatus(t, 204)
	r.Manage(t, "GET", at, "").Refused(t, 404, "not_found", "has no webhook")
	r.Manage(t, "GET", "/organization/nowhere/webhook", "").Refused(t, 404, "not_found", "nowhere")
	r.Manage(t, "GET", "/organization/acme/webhook/7", "").Refused(t, 400, "invalid_request", "UUID")
	for body, text := range map[string]string{
		`{}`:                                    "url: it is missing",
		`{"url": "https://h.example/"}`:         "events: they are missing",
		`{"url": "h.example", "events": ["x"]}`: "url: its scheme|events: there is no event",
		`{"url": "https://h.example/", "events": ["push"], "name": "x"}`:        "name",
		`{"url": "https://h.example/", "events": "push"}`:                       "events",
		`{"url": "https://h.example/", "events": ["push"], "secret": "whsec_"}`: "secret: ",
	} {
		r.Manage(t, "POST", "/organization/acme/webhook", body).Refused(t, 400, "invalid_request", text)
	}
	entries, _, err := audit.New(r.DB).List(t.Context(), audit.Filter{Kinds: []audit.Kind{
		audit.CreateWebhook, audit.UpdateWebhook, audit.RedeliverWebhook, audit.DeleteWebhook}}, "", 10)
	if err != nil || len(entries) != 4 {
		t.Errorf("%d entries, %v", len(entries), err)
	}
	if text := encode(t, entries); strings.Contains(text, made.Secret) || strings.Contains(text, hooks.URL+"/x") {
		t.Errorf("the log says too much: %s", text)
	}
}

// TestWebhookMadeIsDescribed: in the OpenAPI document, the answer to the creation of a webhook
// (WebhookMade) must have all members of a webhook (WebhookView), and its secret. huma would
// leave out the members of the embedded type WebhookView if this type weren't exported.
func TestWebhookMadeIsDescribed(t *testing.T) {
	t.Parallel()
	r, _ := hooked(t)
	var d struct {
		Components struct {
			Schemas map[string]struct{ Properties map[string]any }
		}
	}
	r.Manage(t, "GET", "/openapi.json", "").Into(t, 200, &d)
	made := d.Components.Schemas["WebhookMade"].Properties
	for member := range d.Components.Schemas["WebhookView"].Properties {
		if made[member] == nil {
			t.Errorf("WebhookMade has no %s", member)
		}
	}
	if made["secret"] == nil || made["url"] == nil {
		t.Errorf("WebhookMade has %v", made)
	}
}

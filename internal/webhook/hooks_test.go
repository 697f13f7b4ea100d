package webhook

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
)

// inApp are the ids of the repositories of the namespace app.
var inApp = map[string]int64{"app/web": 1001, "app/api": 1002}

// hooked returns a sender on a database that has the namespace app with the repositories inApp.
func hooked(t testing.TB, o Options) (*Sender, *db.DB) {
	t.Helper()
	d := dbtest.New(t)
	exec(t, d, 1, "INSERT INTO top_level_namespaces (name) VALUES ('app')")
	for path, id := range inApp {
		exec(t, d, 1, `INSERT INTO repositories (top_level_namespace_id, id, path) OVERRIDING SYSTEM VALUE
			SELECT id, $1, $2 FROM top_level_namespaces WHERE name = 'app'`, id, path)
	}
	o.DB, o.AllowPrivateHooks, o.Pulls = d, true, true
	o.Look, o.Window = 5*time.Millisecond, max(o.Window, time.Millisecond)
	return newSender(t, o), d
}

func text(s string) *string { return &s }

// subscribe makes a webhook of the namespace app.
func subscribe(t testing.TB, s *Sender, url string, events ...string) Hook {
	t.Helper()
	h, secret, err := s.CreateHook(t.Context(), "app", HookChange{URL: &url, Events: events})
	must(t, err)
	if !strings.HasPrefix(secret, secretPrefix) {
		t.Fatalf("the secret that was made up is %q", secret)
	}
	return h
}

// logged writes entries in a transaction of their own.
func logged(t testing.TB, d *db.DB, entries ...audit.Entry) {
	t.Helper()
	must(t, d.Tx(t.Context(), func(tx pgx.Tx) error { return audit.Append(t.Context(), tx, entries...) }))
}

var someDigest = func() oci.Digest {
	d, err := oci.ParseDigest("sha256:" + strings.Repeat("ab", 32))
	if err != nil {
		panic(err)
	}
	return d
}()

func entryOf(kind audit.Kind, repository, tag string) audit.Entry {
	e := audit.Entry{Kind: kind, Repository: repository, Tag: tag, Digest: someDigest, Actor: "ada", Address: "192.0.2.7", RequestID: "r-1", UserAgent: "docker"}
	if kind == audit.PullRepo { // pulls belong to the namespace of their repository
		e.RepositoryID = inApp[repository]
	}
	return e
}

// dispatchAll lets the dispatcher work until it has made notices of all entries that were
// committed before the call.
func dispatchAll(t testing.TB, s *Sender) {
	t.Helper()
	var last string
	must(t, s.opt.DB.Pool.QueryRow(t.Context(), "SELECT pg_snapshot_xmax(pg_current_snapshot())::text").Scan(&last))
	eventually(t, "what other tests have open is over", func() (over bool) {
		must(t, s.opt.DB.Pool.QueryRow(t.Context(), "SELECT pg_snapshot_xmin(pg_current_snapshot()) >= $1::text::xid8", last).Scan(&over))
		return over
	})
	dispatchReadable(t, s)
}

// dispatchReadable lets the dispatcher work until it has read all entries that it can read
// now. Entries that are newer than an open transaction can't be read yet.
func dispatchReadable(t testing.TB, s *Sender) {
	t.Helper()
	for {
		more, err := s.dispatchBatch(t.Context())
		must(t, err)
		if more {
			continue
		}
		if work, err := s.lookAround(t.Context()); err != nil || !work {
			must(t, err)
			return
		}
	}
}

// bodies returns the bodies of all notices of a webhook, waiting or sent, in the order of
// their timestamps.
func bodies(t testing.TB, d *db.DB, hook uuid.UUID) (list []map[string]any) {
	t.Helper()
	rows, err := d.Pool.Query(t.Context(), "SELECT body FROM webhooknotices WHERE webhook = $1 ORDER BY body::json->>'timestamp', body", hook)
	must(t, err)
	texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
	must(t, err)
	for _, text := range texts {
		var m map[string]any
		must(t, json.Unmarshal([]byte(text), &m))
		list = append(list, m)
	}
	return list
}

// TestReceiversDontWaitForEachOther: of three receivers, one fails, one doesn't answer, and
// one answers normally. None may delay the notices of another. If a client asks for it,
// notices that were given up must be sent again.
func TestReceiversDontWaitForEachOther(t *testing.T) {
	t.Parallel()
	s, d := hooked(t, Options{RetryMin: time.Millisecond, RetryMax: 2 * time.Millisecond, MaxAttempts: 3})
	release := make(chan struct{})
	stuck := receive(t, func(_ http.ResponseWriter, r *http.Request, _ int) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	var mu sync.Mutex
	status := 500
	failing := receive(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
		mu.Lock()
		defer mu.Unlock()
		w.WriteHeader(status)
	})
	good := receive(t, nil)
	hooks := map[string]Hook{}
	for name, rec := range map[string]*receiver{"stuck": stuck, "failing": failing, "good": good} {
		hooks[name] = subscribe(t, s, rec.URL, EventPush)
	}
	stop := start(t, s.Run)
	const pushes = 40
	for i := range pushes {
		logged(t, d, entryOf(audit.PushRepo, "app/web", fmt.Sprintf("t%d", i)))
	}
	where := func(name, state string) string {
		return fmt.Sprintf("webhook = '%s' AND %s", hooks[name].ID, state)
	}
	eventually(t, "the good one has all", func() bool { return count(t, d, where("good", "delivered_at IS NOT NULL")) == pushes })
	eventually(t, "the failing one was given up", func() bool { return count(t, d, where("failing", "given_up_at IS NOT NULL")) == pushes })
	if n := count(t, d, where("stuck", "delivered_at IS NULL")); n != pushes {
		t.Errorf("%d wait for the one that is stuck, want %d", n, pushes)
	}
	close(release)

	mu.Lock()
	status = 200
	mu.Unlock()
	list, _, err := s.Deliveries(t.Context(), "app", hooks["failing"].ID, GivenUp, "", 1)
	must(t, err)
	if len(list) != 1 || list[0].Attempts != 3 || !strings.Contains(list[0].LastError, "500") {
		t.Fatalf("given up: %+v", list)
	}
	must(t, s.Redeliver(t.Context(), "app", hooks["failing"].ID, list[0].ID))
	eventually(t, "redelivered", func() bool { return read(t, d, list[0].ID).Delivered })
	if r := failing.requests(); r[len(r)-1].header.Get("Webhook-Id") != list[0].ID.String() {
		t.Errorf("it came as %s", r[len(r)-1].header.Get("Webhook-Id"))
	}
	n, err := s.RedeliverGivenUp(t.Context(), "app", hooks["failing"].ID)
	if err != nil || n != pushes-1 {
		t.Errorf("%d are redelivered, %v", n, err)
	}
	eventually(t, "all redelivered", func() bool { return count(t, d, where("failing", "delivered_at IS NOT NULL")) == pushes })
	before := len(good.requests())
	must(t, s.Redeliver(t.Context(), "app", hooks["good"].ID, listed(t, s, hooks["good"].ID)[0].ID))
	eventually(t, "one that was delivered comes again", func() bool { return len(good.requests()) == before+1 })
	eventually(t, "the stuck one has all", func() bool { return count(t, d, where("stuck", "delivered_at IS NOT NULL")) == pushes })
	stop()
}

func listed(t testing.TB, s *Sender, hook uuid.UUID) []Delivery {
	t.Helper()
	list, _, err := s.Deliveries(t.Context(), "app", hook, "", "", 100)
	must(t, err)
	return list
}

// TestSecretsOfWebhooks: the sender must sign a webhook's notices with the webhook's own
// secret. No list of webhooks, notice or audit entry may contain this secret.
func TestSecretsOfWebhooks(t *testing.T) {
	t.Parallel()
	s, d := hooked(t, Options{})
	rec := receive(t, nil)
	secret := "a secret of some length, twenty-four at least"
	h, told, err := s.CreateHook(t.Context(), "app", HookChange{URL: &rec.URL, Secret: &secret, Events: []string{EventPush}})
	must(t, err)
	if told != secret {
		t.Errorf("told %q", told)
	}
	id, err := s.Ping(t.Context(), "app", h.ID)
	must(t, err)
	start(t, s.Run)
	eventually(t, "the ping is delivered", func() bool { return read(t, d, id).Delivered })
	r := rec.requests()[0]
	sign, err := signer(secret)
	must(t, err)
	var stamp int64
	if _, err := fmt.Sscan(r.header.Get("Webhook-Timestamp"), &stamp); err != nil {
		t.Fatal(err)
	}
	if want := sign(id.String(), time.Unix(stamp, 0), r.body); r.header.Get("Webhook-Signature") != want {
		t.Errorf("signed %q, want %q", r.header.Get("Webhook-Signature"), want)
	}
	list, _, err := s.Hooks(t.Context(), "app", HookPlace{}, 100)
	must(t, err)
	other := "another secret, also of twenty-four bytes or more"
	must(t, s.UpdateHook(t.Context(), "app", h.ID, HookChange{Secret: &other, URL: text("https://hooks.example.com/token-in-a-path")}))
	must(t, s.DeleteHook(t.Context(), "app", h.ID))
	var log string
	must(t, d.Pool.QueryRow(t.Context(), "SELECT string_agg(a::text, ' ') FROM auditlog a").Scan(&log))
	delivery, err := json.Marshal(r.body)
	must(t, err)
	for _, shown := range []string{fmt.Sprintf("%+v", list), log, string(delivery), fmt.Sprintf("%+v", s)} {
		if strings.Contains(shown, secret) || strings.Contains(shown, other) || strings.Contains(shown, "token-in-a-path") {
			t.Errorf("a secret is shown in %s", shown)
		}
	}
	for _, kind := range []string{"create_webhook", "update_webhook", "delete_webhook"} {
		if !strings.Contains(log, kind) {
			t.Errorf("the log has no %s", kind)
		}
	}
}

// TestURLChangesWhileSending: a lane sends notices to a receiver that doesn't answer, and meanwhile the
// webhook gets another URL. The notices that wait go there and to no other place.
func TestURLChangesWhileSending(t *testing.T) {
	t.Parallel()
	s, d := hooked(t, Options{})
	release := make(chan struct{})
	old := receive(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
		<-release
		w.WriteHeader(http.StatusNoContent)
	})
	h := subscribe(t, s, old.URL, EventPush)
	for i := range 3 * laneWidth {
		logged(t, d, entryOf(audit.PushRepo, "app/web", fmt.Sprint("v", i)))
	}
	dispatchAll(t, s)
	start(t, s.Run)
	eventually(t, "the old receiver is full", func() bool { return len(old.requests()) == laneWidth })
	other := receive(t, nil)
	must(t, s.UpdateHook(t.Context(), "app", h.ID, HookChange{URL: &other.URL}))
	close(release)
	eventually(t, "all are delivered", func() bool { return count(t, d, "delivered_at IS NULL") == 0 })
	if n, m := len(old.requests()), len(other.requests()); n != laneWidth || m != 2*laneWidth {
		t.Errorf("%d went to the old receiver and %d to the new one, want %d and %d", n, m, laneWidth, 2*laneWidth)
	}
}

func TestWebhooksRefused(t *testing.T) {
	t.Parallel()
	s, d := hooked(t, Options{})
	closed, err := New(Options{DB: d, Log: quiet})
	must(t, err)
	good := text("https://hooks.example.com/x")
	push := []string{EventPush}
	for want, c := range map[string]HookChange{
		"url: it is missing":                 {Events: push},
		"url: its scheme is neither":         {URL: text("ftp://h/x"), Events: push},
		"url: it can't be read as a URL":     {URL: text("https:///x"), Events: push},
		"url: it may not hold a user":        {URL: text("https://u:hunter2@h/x"), Events: push},
		"url: it has a fragment":             {URL: text("https://h/x#y"), Events: push},
		"url: the address 127.0.0.1 is":      {URL: text("http://127.0.0.1/x"), Events: push},
		"url: the address 169.254.169.254":   {URL: text("http://169.254.169.254/latest"), Events: push},
		"url: it has 3013 bytes":             {URL: text("https://h.example/" + strings.Repeat("x", 2995)), Events: push},
		"events: they are missing":           {URL: good},
		"events: name one":                   {URL: good, Events: []string{}},
		`events: there is no event "build"`:  {URL: good, Events: []string{"push", "build"}},
		"events: pulls aren't in the audit":  {URL: good, Events: []string{EventPull}},
		"secret: it has 5 bytes":             {URL: good, Events: push, Secret: text("short")},
		"secret: it is empty":                {URL: good, Events: push, Secret: text("")},
		"title: it should be one line of up": {URL: good, Events: push, Title: text("a\nb")},
	} {
		_, _, err := closed.CreateHook(t.Context(), "app", c)
		e, ok := errors.AsType[*oci.Error](err)
		if !ok || e.HTTPStatus() != 400 || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, _, err := s.CreateHook(t.Context(), "nowhere", HookChange{URL: good, Events: push}); !strings.Contains(fmt.Sprint(err), "namespace nowhere is not known") {
		t.Errorf("%v", err)
	}
	h := subscribe(t, s, *good, EventPush)
	for range maxHooks - 1 {
		subscribe(t, s, *good, EventPush)
	}
	if _, _, err := s.CreateHook(t.Context(), "app", HookChange{URL: good, Events: push}); !strings.Contains(fmt.Sprint(err), "may have 32 webhooks, and has them already") || !strings.Contains(fmt.Sprint(err), "limits.webhooks") {
		t.Errorf("%v", err)
	}
	must(t, s.UpdateHook(t.Context(), "app", h.ID, HookChange{Enabled: new(bool)}))
	for what, err := range map[string]error{
		"disabled":          func() error { _, err := s.Ping(t.Context(), "app", h.ID); return err }(),
		"has no notice":     func() error { _, err := s.Delivery(t.Context(), "app", h.ID, uuid.New()); return err }(),
		"has no webhook":    s.DeleteHook(t.Context(), "app", uuid.New()),
		"cursor is not val": func() error { _, _, err := s.Deliveries(t.Context(), "app", h.ID, "", "x", 1); return err }(),
	} {
		if !strings.Contains(fmt.Sprint(err), what) {
			t.Errorf("%v, want %q", err, what)
		}
	}
}

// TestWebhooksEnd: a disabled webhook must get no notices and, after a client has enabled
// it again, only notices of later events. If too many notices wait for a webhook, the
// registry must disable it. When a webhook or its namespace is deleted, the notices that
// wait for it must be deleted.
func TestWebhooksEnd(t *testing.T) {
	t.Parallel()
	s, d := hooked(t, Options{MaxWaiting: 3})
	h := subscribe(t, s, "http://127.0.0.1:1/", EventPush, EventPull)
	on, off := true, false
	push := func(tag string) { logged(t, d, entryOf(audit.PushRepo, "app/web", tag)); dispatchAll(t, s) }
	push("one")
	must(t, s.UpdateHook(t.Context(), "app", h.ID, HookChange{Enabled: &off}))
	push("two")
	must(t, s.UpdateHook(t.Context(), "app", h.ID, HookChange{Enabled: &on}))
	push("three")
	if n := len(bodies(t, d, h.ID)); n != 2 {
		t.Errorf("%d are told, want 2", n)
	}
	_, err := s.tidyBatch(t.Context())
	must(t, err)
	push("four")
	_, err = s.tidyBatch(t.Context())
	must(t, err)
	h, err = s.Hook(t.Context(), "app", h.ID)
	if err != nil || h.Enabled || h.DisabledReason != "3 notices waited for it" {
		t.Errorf("%+v %v", h, err)
	}
	push("five")
	must(t, s.UpdateHook(t.Context(), "app", h.ID, HookChange{Enabled: &on, URL: text("http://127.0.0.1:2/")}))
	if h, err = s.Hook(t.Context(), "app", h.ID); err != nil || !h.Enabled || h.DisabledReason != "" {
		t.Errorf("%+v %v", h, err)
	}
	must(t, s.DeleteHook(t.Context(), "app", h.ID))
	_, err = s.tidyBatch(t.Context())
	must(t, err)
	h = subscribe(t, s, "http://127.0.0.1:1/", EventPush)
	if n := count(t, d, "true"); n != 0 {
		t.Errorf("%d wait for a webhook that is gone", n)
	}
	push("six")
	exec(t, d, 1, "DELETE FROM top_level_namespaces WHERE name = 'app'")
	_, err = s.tidyBatch(t.Context())
	must(t, err)
	if n := count(t, d, "true"); n != 0 {
		t.Errorf("%d wait for a namespace that is gone", n)
	}
}

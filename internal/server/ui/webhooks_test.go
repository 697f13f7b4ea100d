package ui_test

import (
	"html"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/builtinpg/pgtest"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/server/servertest"
	"github.com/purser-registry/purser/internal/webhook"
)

// hooked is a registry with webhooks in which ann administers acme and bob has no role. Its sender
// sends nothing until the test runs it.
func hooked(t *testing.T, change ...func(*servertest.Options)) (site, *webhook.Sender) {
	t.Helper()
	dsn := dbtest.DSN(t)
	pool := dbtest.Open(t, dsn)
	var sender *webhook.Sender
	s := site{servertest.NewReplica(t, dsn, pgtest.TempDir(t), func(o *servertest.Options) {
		var err error
		sender, err = webhook.New(webhook.Options{DB: pool, AllowPrivateHooks: true, RetryMin: time.Millisecond, RetryMax: time.Millisecond, MaxAttempts: 2, Look: 5 * time.Millisecond, Log: o.Log})
		if err != nil {
			t.Fatal(err)
		}
		o.Management.Webhooks, o.Access = sender, &auth.Options{}
		for _, f := range change {
			f(o)
		}
	})}
	s.Listen(t)
	s.AddAccount(t, "root", true)
	s.as("root").Put(t, "acme/app", "v1", s.as("root").Simple(t, "acme/app", 1, nil))
	s.as("root").Put(t, "other/app", "v1", s.as("root").Simple(t, "other/app", 1, nil))
	s.AddAccount(t, "ann", false)
	s.Grant(t, "acme", "ann", auth.Administrator)
	s.AddAccount(t, "bob", false)
	s.Grant(t, "acme", "bob", auth.Maintainer)
	return s, sender
}

// post sends a form, doesn't follow a redirection, and checks the status and the texts of the answer.
func (s site) post(t *testing.T, status int, path string, form url.Values, texts ...string) servertest.Answer {
	t.Helper()
	a := s.Do(t, "POST", path, form.Encode(), "Content-Type", "application/x-www-form-urlencoded", "Sec-Fetch-Site", "same-origin").WantStatus(t, status)
	has(t, "POST "+path, string(a.Content), texts...)
	return a
}

const acmeHooks = "/ui/namespaces/acme/-/webhooks"

var webhookLink = regexp.MustCompile(`action="(` + acmeHooks + `/[0-9a-f-]{36})"`)

// makeWebhook makes a webhook of acme for a URL, and returns the path of its page and its secret.
func (s site) makeWebhook(t *testing.T, address string, events ...string) (path, secret string) {
	t.Helper()
	page := string(s.post(t, 200, acmeHooks, url.Values{"do": {"create"}, "url": {address}, "title": {"the <b>build"}, "event": events}, "The webhook was made", "the &lt;b&gt;build").Content)
	at := webhookLink.FindStringSubmatch(page)
	if at == nil {
		t.Fatalf("the page has no form of the webhook:\n%s", page)
	}
	return at[1], html.UnescapeString(secretOf(t, page))
}

// TestWebhookPages: an administrator of a namespace makes a webhook, whose secret is shown once, changes
// it, disables and enables it, and deletes it.
func TestWebhookPages(t *testing.T) {
	t.Parallel()
	s, _ := hooked(t)
	ann := s.as("ann")
	ann.open(t, "/ui/namespaces/acme", `href="`+acmeHooks+`"`)
	ann.open(t, acmeHooks, "has no webhooks", "Make the webhook")
	for _, event := range webhook.Events() {
		ann.open(t, acmeHooks, `name="event" value="`+event+`"`)
	}
	path, secret := ann.makeWebhook(t, "https://hooks.example.com/a?b=c&d", "push", "gc")
	if !strings.HasPrefix(secret, "whsec_") {
		t.Errorf("the secret is %q", secret)
	}
	lacks(t, ann.open(t, acmeHooks, "the &lt;b&gt;build", "push, gc", "https://hooks.example.com/a?b=c&amp;d", `href="`+path+`"`), secret)
	page := ann.open(t, path, "enabled", "No notice waits", "Send a test notice")
	lacks(t, page, secret)

	// A page that was opened earlier changes only what was changed in it.
	stale := formAfter(t, page, "<summary>Change</summary>")
	form := formAfter(t, page, "<summary>Change</summary>")
	form.Set("url", "https://other.example.com/")
	form.Set("do", "save")
	ann.send(t, path, form, "was saved", "https://other.example.com/", "push, gc")
	stale["event"] = []string{"delete"}
	stale.Set("do", "save")
	ann.send(t, path, stale, "was saved", "https://other.example.com/", "<dd>delete</dd>")
	fresh := func() url.Values { return formAfter(t, ann.open(t, path), "<summary>Change</summary>") }
	ann.send(t, path, merge(fresh(), "do", "save"), "Nothing was changed")

	// A form that is refused comes back as it was typed, with the reason at the field.
	ann.post(t, 400, path, merge(fresh(), "do", "save", "url", "ftp://x/", "title", "other", "secret", strings.Repeat("s3", 20)), `role="alert"`, "look at the URL", `value="ftp://x/"`, `value="other"`, "neither http nor https", "Type the secret again", `name="url" value="ftp://x/" required maxlength="2048" placeholder="https://hooks.example.com/purser" autocomplete="off" spellcheck="false" aria-invalid="true"`)
	form = fresh()
	delete(form, "event")
	ann.post(t, 400, path, merge(form, "do", "save"), "look at the events", "Name one at least")
	refused := ann.post(t, 400, path, merge(fresh(), "do", "save", "secret", "short-secret"), `role="alert"`)
	lacks(t, string(refused.Content), "short-secret")
	ann.post(t, 400, acmeHooks, url.Values{"do": {"create"}, "url": {"nothing"}, "event": {"tag"}}, "look at the URL", `value="nothing"`, `value="tag" checked`)
	ann.post(t, 400, acmeHooks, url.Values{"do": {"create"}, "url": {"https://hooks.example.com/"}}, "look at the events")
	ann.open(t, path, "https://other.example.com/", "<dd>delete</dd>", "the &lt;b&gt;build")

	ann.send(t, path, url.Values{"do": {"disable"}}, "The webhook is disabled", "disabled", `value="enable"`)
	lacks(t, ann.open(t, path), `value="test"`, `value="redeliver"`)
	ann.post(t, 409, path, url.Values{"do": {"test"}}, `role="alert"`, "enable it first")
	s.Exec(t, "UPDATE webhooks SET disabled_reason = '100,000 notices <wait'")
	ann.open(t, path, "The registry has disabled this webhook: 100,000 notices &lt;wait")
	ann.open(t, acmeHooks, "100,000 notices &lt;wait")
	lacks(t, ann.send(t, path, url.Values{"do": {"enable"}}, "The webhook is enabled"), "100,000 notices")
	ann.post(t, 400, path, url.Values{"do": {"dance"}}, `role="alert"`)
	own := string(ann.post(t, 200, acmeHooks, url.Values{"do": {"create"}, "url": {"https://a.example.com/"}, "event": {"push"}, "secret": {strings.Repeat("k", 30)}}, "the secret that you gave it", "a.example.com").Content)
	lacks(t, own, strings.Repeat("k", 30))
	ann.send(t, path, url.Values{"do": {"delete"}}, "The webhook was deleted", "a.example.com")
	s.Do(t, "GET", path, "", servertest.As("ann")...).WantStatus(t, 404)

	// Nobody else gets there, and the tab is only for administrators.
	lacks(t, s.as("bob").open(t, "/ui/namespaces/acme"), acmeHooks)
	s.Do(t, "GET", acmeHooks, "", servertest.As("bob")...).WantStatus(t, 403)
	s.as("bob").post(t, 403, acmeHooks, url.Values{"do": {"create"}, "url": {"https://hooks.example.com/"}, "event": {"push"}})
	ann.Do(t, "GET", strings.Replace(acmeHooks, "acme", "other", 1), "").WantStatus(t, 403)
}

// merge sets values of a form, in turn a name and a value.
func merge(form url.Values, pairs ...string) url.Values {
	for i := 0; i+1 < len(pairs); i += 2 {
		form.Set(pairs[i], pairs[i+1])
	}
	return form
}

// TestWebhookDeliveries: a test notice reaches the receiver with the headers and the body that its page
// shows. What the receiver refuses is given up, listed by its state, and sent again, alone and all
// together.
func TestWebhookDeliveries(t *testing.T) {
	t.Parallel()
	s, sender := hooked(t)
	ann := s.as("ann")
	type received struct {
		header http.Header
		body   string
		length int64
	}
	status, got := make(chan int, 20), make(chan received, 20)
	hooks := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- received{r.Header, string(body), r.ContentLength}
		w.WriteHeader(<-status)
		io.WriteString(w, "no <i>room")
	}))
	t.Cleanup(hooks.Close)
	path, _ := ann.makeWebhook(t, hooks.URL+"/x", "push")
	a := ann.post(t, 303, path, url.Values{"do": {"test"}})
	delivery, _, _ := strings.Cut(a.Header.Get("Location"), "?")
	page := ann.open(t, a.Header.Get("Location"), "A test notice is on its way", "It waits for its first attempt", `data-refresh="2"`, ">waiting<", hooks.URL+"/x")
	servertest.Background(t, sender.Run)
	status <- 204
	sent := <-got
	shown := regexp.MustCompile(`<dt><code>([A-Za-z-]+)</code></dt><dd><code>([^<]*)</code></dd>`).FindAllStringSubmatch(page, -1)
	if len(shown) != 4 {
		t.Errorf("the page shows %v", shown)
	}
	sent.header.Set("Content-Length", strconv.FormatInt(sent.length, 10))
	for _, h := range shown {
		if got := sent.header.Get(h[1]); got != html.UnescapeString(h[2]) {
			t.Errorf("the page shows %s: %s, sent was %q", h[1], h[2], got)
		}
	}
	_, text, _ := strings.Cut(page, "<pre>")
	text, _, _ = strings.Cut(text, "</pre>")
	if squeezed := strings.Join(strings.Fields(html.UnescapeString(text)), ""); squeezed != strings.Join(strings.Fields(sent.body), "") {
		t.Errorf("the page shows %s, sent was %s", squeezed, sent.body)
	}
	servertest.Eventually(t, "it is delivered", func() bool {
		return strings.Contains(ann.open(t, delivery), "accepted it with a status from 200 to 299, at attempt 1")
	})
	lacks(t, ann.open(t, path+"?state=delivered", "ping"), "No notice")
	ann.open(t, path+"?state=waiting", "No notice waits")

	// Far from the next attempt, the page looks again less often.
	s.Exec(t, "UPDATE webhooknotices SET delivered_at = NULL, attempts = 3, last_error = 'away', next_attempt = now() + interval '2 hours'")
	ann.open(t, delivery, `data-refresh="30"`, "3 attempts were made", ">away<", "in 2 h", "Send it now")
	for range 2 { // both attempts
		status <- 500
	}
	ann.send(t, delivery, url.Values{}, "The notice is sent again")
	<-got
	if again := <-got; again.header.Get("Webhook-Id") != sent.header.Get("Webhook-Id") || again.body != sent.body {
		t.Errorf("sent again was %v %s", again.header, again.body)
	}
	servertest.Eventually(t, "it is given up", func() bool {
		return strings.Contains(ann.open(t, delivery), "given up after 2 attempts")
	})
	ann.open(t, delivery, "500 Internal Server Error: no &lt;i&gt;room", "Send it again")
	ann.open(t, path+"?state=given_up", "500 Internal Server Error", ">given up<")
	ann.open(t, path+"?state=delivered", "No notice was delivered")
	status <- 200
	ann.send(t, path, url.Values{"do": {"redeliver"}}, "1 notice that was given up is sent again")
	<-got
	servertest.Eventually(t, "all are delivered", func() bool {
		return strings.Contains(ann.open(t, path+"?state=given_up"), "No notice was given up")
	})

	s.as("bob").post(t, 403, delivery, url.Values{})
	s.Do(t, "GET", delivery, "", servertest.As("bob")...).WantStatus(t, 403)
	ann.Do(t, "GET", path+"/deliveries/00000000-0000-4000-8000-000000000000", "").WantStatus(t, 404)
	ann.post(t, 404, path+"/deliveries/00000000-0000-4000-8000-000000000000", url.Values{})
	// The webhook of one namespace isn't that of another.
	s.as("root").Do(t, "GET", strings.Replace(delivery, "acme", "other", 1), "").WantStatus(t, 404)
}

// TestWebhookListsInPages: many deliveries come in pages, of one state alone too, and a page with a long
// body stays small.
func TestWebhookListsInPages(t *testing.T) {
	t.Parallel()
	s, _ := hooked(t)
	ann := s.as("ann")
	path, _ := ann.makeWebhook(t, "https://hooks.example.com/", "push")
	id := path[strings.LastIndex(path, "/")+1:]
	s.Exec(t, `INSERT INTO webhooknotices (id, webhook, event, body, given_up_at, last_error)
		SELECT gen_random_uuid(), $1, 'push', '{"a":"' || repeat('<"&', 40000) || '"}', CASE WHEN i <= 50 THEN now() END, repeat('<', 1000) FROM generate_series(1, 130) i`, id)
	form := regexp.MustCompile(`/deliveries/([0-9a-f-]{36})`)
	if n := len(ann.walk(t, path, form)); n != 130 {
		t.Errorf("%d are listed", n)
	}
	for state, want := range map[string]int{"given_up": 50, "waiting": 80, "delivered": 0} {
		if n := len(ann.walk(t, path+"?state="+state, form)); n != want {
			t.Errorf("%d are listed as %s, want %d", n, state, want)
		}
	}
	one := form.FindString(ann.open(t, path))
	ann.open(t, path+one, "The end is left out here")
	ann.Do(t, "GET", path+"?page=nonsense", "").WantStatus(t, 400)
	s.Exec(t, `INSERT INTO webhooks (uuid, namespace_id, title, url, secret, events, enabled)
		SELECT gen_random_uuid(), id, 'hook ' || i, 'https://h.example.com/' || repeat('<', 2000), 'k', ARRAY['push'], true FROM top_level_namespaces, generate_series(1, 100) i WHERE name = 'acme'`)
	if n := len(ann.walk(t, acmeHooks, regexp.MustCompile(`>(hook \d+)<`))); n != 100 {
		t.Errorf("%d webhooks are listed", n)
	}
}

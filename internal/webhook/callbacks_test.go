package webhook

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
)

// call queues a callback to a URL.
func call(t testing.TB, s *Sender, address string) uuid.UUID {
	t.Helper()
	id, err := callOf(t, s, address, "", "")
	must(t, err)
	return id
}

// callOf queues a callback of an account for a namespace.
func callOf(t testing.TB, s *Sender, address, account, namespace string) (uuid.UUID, error) {
	t.Helper()
	must(t, s.CheckCallback("callback_url", address))
	id := uuid.New()
	return id, s.Call(t.Context(), Callback{
		ID: id, URL: address, Event: "export_logs", Body: map[string]any{"export_id": id}, Entry: audit.Entry{Kind: audit.ExportLog},
		Account: account, Namespace: namespace,
	})
}

// TestCallback: the receiver of a callback fails at first. The sender must try again until
// the callback is delivered. Any process that runs a Sender must be able to send a callback
// that another process has queued.
func TestCallback(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	rec := receive(t, func(w http.ResponseWriter, _ *http.Request, n int) {
		if n == 1 {
			w.WriteHeader(500)
		}
	})
	o := Options{DB: d, AllowPrivateHooks: true, RetryMin: time.Millisecond, RetryMax: 2 * time.Millisecond}
	s := newSender(t, o)
	stop := start(t, s.Run)
	first := call(t, s, rec.URL+"/done")
	eventually(t, "delivered", func() bool { return read(t, d, first).Delivered })
	stop()
	list := rec.requests()
	if len(list) != 2 || list[1].path != "/done" || list[1].header.Get("Webhook-Id") != first.String() ||
		list[1].body != `{"export_id":"`+first.String()+`"}` || list[1].header.Get("Webhook-Signature") != "" {
		t.Errorf("got %+v", list)
	}
	second := call(t, s, rec.URL+"/done") // no process that runs sends callbacks
	exec(t, d, 1, "UPDATE webhooknotices SET next_attempt = now() - interval '8 days' WHERE id = $1", second)
	other := newSender(t, Options{DB: d, URL: rec.URL + "/configured", AllowPrivateHooks: true})
	once(t, other) // this batch sends only notices for the configured URL
	if _, err := other.tidyBatch(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := read(t, d, second); r.Delivered || r.Attempts != 0 {
		t.Errorf("%+v", r)
	}
	start(t, other.Run)
	eventually(t, "delivered", func() bool { return read(t, d, second).Delivered })
}

// TestCallbackToPrivateAddress: the URL of a callback has a name that resolves to a private
// address. The dialler must refuse the address. After the last attempt the sender must give
// the callback up, and log that once.
func TestCallbackToPrivateAddress(t *testing.T) {
	t.Parallel()
	d, rec := dbtest.New(t), receive(t, nil)
	logged := new(lockedBuffer)
	s := newSender(t, Options{DB: d, MaxAttempts: 2, RetryMin: time.Millisecond, RetryMax: time.Millisecond, Log: slog.New(slog.NewTextHandler(logged, nil))})
	if err := s.CheckCallback("callback_url", rec.URL); err == nil || !strings.Contains(err.Error(), "loopback") {
		t.Errorf("%s: %v", rec.URL, err)
	}
	id := call(t, s, strings.Replace(rec.URL, "127.0.0.1", "localhost", 1)+"/secret-path")
	start(t, s.Run)
	eventually(t, "given up", func() bool { return read(t, d, id).GivenUp && strings.Contains(logged.String(), "given up") })
	text := logged.String()
	if r := read(t, d, id); len(rec.requests()) != 0 || r.Attempts != 2 || !strings.Contains(r.LastError, "not public") ||
		strings.Count(text, "given up") != 1 || !strings.Contains(text, id.String()) || strings.Contains(text, "secret-path") {
		t.Errorf("%+v, %d requests, log: %s", r, len(rec.requests()), text)
	}
}

// TestCallbackTellsNoAddress: the URL of one callback has a name that resolves to a private
// address, and the URL of another has a name that doesn't exist. The stored errors must be
// equal, since whoever made the callbacks may not learn which names exist inside.
func TestCallbackTellsNoAddress(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	logged := new(lockedBuffer)
	s := newSender(t, Options{DB: d, MaxAttempts: 1, Log: slog.New(slog.NewTextHandler(logged, nil))})
	inside, nowhere := call(t, s, "http://localhost:9/"), call(t, s, "http://nowhere.invalid:9/")
	start(t, s.Run)
	eventually(t, "given up", func() bool { return read(t, d, inside).GivenUp && read(t, d, nowhere).GivenUp })
	eventually(t, "logged", func() bool { return strings.Count(logged.String(), "given up") == 2 })
	a, b := read(t, d, inside).LastError, read(t, d, nowhere).LastError
	if a != b || !strings.Contains(a, "allow_private") {
		t.Errorf("the errors are %q and %q", a, b)
	}
	if text := logged.String(); !strings.Contains(text, "loopback, not public") || !strings.Contains(text, "nowhere.invalid") {
		t.Errorf("the log lacks the reasons: %s", text)
	}
}

// TestCallbackWhileStopping: a process is told to stop while it sends a callback. It must
// make the callback due again, so that another process sends it.
func TestCallbackWhileStopping(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	asked, release := make(chan struct{}, 1), make(chan struct{})
	rec := receive(t, func(_ http.ResponseWriter, r *http.Request, _ int) {
		asked <- struct{}{}
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	defer close(release)
	s := newSender(t, Options{DB: d, AllowPrivateHooks: true})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	id := call(t, s, rec.URL)
	<-asked
	cancel()
	must(t, <-done)
	if r := read(t, d, id); r.Attempts != 0 || r.Leased || r.Delivered || r.Wait > 0 {
		t.Errorf("%+v", r)
	}
}

// TestManyCallbacks: an account asks for as many callbacks as it can, and so do those who aren't
// logged in, for one namespace. Others still get places.
func TestManyCallbacks(t *testing.T) {
	t.Parallel()
	s := newSender(t, Options{DB: dbtest.New(t), AllowPrivateHooks: true})
	fill := func(account, namespace string) (n int) {
		t.Helper()
		for ; n < maxCallbacks; n++ {
			_, err := callOf(t, s, "http://127.0.0.1:1/", account, namespace)
			if e, ok := errors.AsType[*oci.Error](err); ok && e.HTTPStatus() == http.StatusTooManyRequests {
				break
			}
			must(t, err)
		}
		return n
	}
	if n := fill("storm", "app"); n != accountCallbacks {
		t.Errorf("an account has %d callbacks, want %d", n, accountCallbacks)
	}
	if n := fill("storm", "other"); n != 0 {
		t.Errorf("for another namespace, the account has %d further callbacks", n)
	}
	if n := fill("", "app"); n != namespaceCallbacks-accountCallbacks {
		t.Errorf("for the namespace there are %d further callbacks, want %d", n, namespaceCallbacks-accountCallbacks)
	}
	for account, namespace := range map[string]string{"calm": "other", "": "other", "root": ""} {
		_, err := callOf(t, s, "http://127.0.0.1:1/", account, namespace)
		must(t, err)
	}
}

// TestCallbacksOfManyAccounts: many accounts have taken all callbacks of a namespace, and then all of the
// registry. Another account still gets a few.
func TestCallbacksOfManyAccounts(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	s := newSender(t, Options{DB: d, AllowPrivateHooks: true})
	storm := func(namespace string, n int) {
		t.Helper()
		exec(t, d, int64(n), `INSERT INTO webhooknotices (id, webhook, event, body, url, account, namespace)
			SELECT id, id, 'export_logs', '{}', 'http://127.0.0.1:1/', 'storm' || i, $1
			FROM (SELECT gen_random_uuid() AS id, i FROM generate_series(1, $2::integer) i) made`, namespace, n)
	}
	taken := func(account, namespace string) (n int) {
		t.Helper()
		for ; n < maxCallbacks; n++ {
			if _, err := callOf(t, s, "http://127.0.0.1:1/", account, namespace); oci.CodeOf(err) == oci.TooManyRequests {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
		return n
	}
	storm("app", namespaceCallbacks)
	if n := taken("boss", "app"); n != ownCallbacks {
		t.Errorf("in a full namespace an account gets %d, want %d", n, ownCallbacks)
	}
	storm("other", maxCallbacks)
	for account, want := range map[string]int{"calm": ownCallbacks, "boss": 0, "": 0} {
		if n := taken(account, "quiet"); n != want {
			t.Errorf("in a full registry %q gets %d, want %d", account, n, want)
		}
	}
	storm("other", fullCallbacks*maxCallbacks)
	if n := taken("late", "quiet"); n != 0 {
		t.Errorf("without any bound an account gets %d", n)
	}
}

// TestSilentCallbacks: the receivers of an account's callbacks don't answer. Those of another
// account are sent meanwhile.
func TestSilentCallbacks(t *testing.T) {
	t.Parallel()
	d, stuck, good := dbtest.New(t), silent(t), receive(t, nil)
	s := newSender(t, Options{DB: d, AllowPrivateHooks: true, Timeout: 10 * time.Minute}) // longer than the test
	for range accountCallbacks {
		_, err := callOf(t, s, stuck.URL, "storm", "storm")
		must(t, err)
	}
	stop := start(t, s.Run)
	eventually(t, "receivers are silent", func() bool { return len(stuck.requests()) > 0 })
	for range 3 {
		id, err := callOf(t, s, good.URL, "calm", "calm")
		must(t, err)
		eventually(t, "the other account's callback is delivered", func() bool { return read(t, d, id).Delivered })
	}
	if n := len(stuck.requests()); n > ownerCalls {
		t.Errorf("%d callbacks of the first account are being sent, want %d", n, ownerCalls)
	}
	stop()
}

// TestCallbacksThatFailed: many callbacks have failed before and are due again. They leave places
// for new ones.
func TestCallbacksThatFailed(t *testing.T) {
	t.Parallel()
	d, stuck, good := dbtest.New(t), silent(t), receive(t, nil)
	s := newSender(t, Options{DB: d, AllowPrivateHooks: true, Timeout: 10 * time.Minute})
	for i := range 40 {
		_, err := callOf(t, s, stuck.URL, fmt.Sprint("storm", i), "storm")
		must(t, err)
	}
	exec(t, d, 40, "UPDATE webhooknotices SET attempts = 1")
	stop := start(t, s.Run)
	half := s.opt.Parallel / 2
	eventually(t, "receivers are silent", func() bool { return len(stuck.requests()) == half })
	id, err := callOf(t, s, good.URL, "calm", "calm")
	must(t, err)
	eventually(t, "the new callback is delivered", func() bool { return read(t, d, id).Delivered })
	if n := len(stuck.requests()); n != half {
		t.Errorf("%d callbacks that had failed are being sent, want %d", n, half)
	}
	stop()
}

// TestCallbackExpires: a callback that leads nowhere is given up when the next attempt would come
// too late, and makes room.
func TestCallbackExpires(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	rec := receive(t, func(w http.ResponseWriter, _ *http.Request, _ int) { w.WriteHeader(500) })
	s := newSender(t, Options{DB: d, AllowPrivateHooks: true, RetryMin: time.Minute})
	young, old := call(t, s, rec.URL), call(t, s, rec.URL)
	exec(t, d, 1, "UPDATE webhooknotices SET created_at = created_at - $2::interval WHERE id = $1", old, callbackAge-30*time.Second)
	stop := start(t, s.Run)
	eventually(t, "the old callback is given up", func() bool { return read(t, d, old).GivenUp })
	eventually(t, "the young one failed", func() bool { return read(t, d, young).LastError != "" })
	if r := read(t, d, young); r.GivenUp || r.Wait < 30 {
		t.Errorf("the young callback: %+v", r)
	}
	stop()
}

// TestCallbacksRaceForTheLastPlaces: an account has three places for callbacks left, and eight of its
// requests ask for one at the same moment. Three get one.
func TestCallbacksRaceForTheLastPlaces(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	s := newSender(t, Options{DB: d})
	for range accountCallbacks - 3 {
		_, err := callOf(t, s, "https://93.184.216.34/", "ann", "acme")
		must(t, err)
	}
	const makers = 8
	answers := make(chan error, makers)
	for range makers {
		go func() {
			_, err := callOf(t, s, "https://93.184.216.34/", "ann", "acme")
			answers <- err
		}()
	}
	made := 0
	for range makers {
		switch err := <-answers; {
		case err == nil:
			made++
		case oci.CodeOf(err) != oci.TooManyRequests:
			t.Error(err)
		}
	}
	if made != 3 {
		t.Errorf("%d callbacks were queued, want 3", made)
	}
}

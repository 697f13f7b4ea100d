package webhook

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db/dbtest"
)

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	secret := strings.Repeat("k", 32)
	for _, test := range []struct{ name, url, secret, want string }{ // want "": the options are accepted
		{"none", "", "", ""},
		{"secret without a URL", "", secret, ""},
		{"https", "https://hooks.example.com/a?b=c", secret, ""},
		{"http", "http://hooks.example.com:8080", "", ""},
		{"public address", "https://[2606:4700::1111]:8443/", "", ""},
		{"scheme", "ftp://h/SECRET", "", "the URL: its scheme is neither http nor https"},
		{"no scheme", "hooks.example.com/SECRET", "", "neither http nor https"},
		{"no host", "https:///SECRET", "", "can't be read as a URL with a host"},
		{"odd", "https://h/%zzSECRET", "", "can't be read as a URL with a host"},
		{"space", "https://h SECRET/", "", "can't be read as a URL with a host"},
		{"user", "https://u:SECRET@h/", "", "may not hold a user or a password"},
		{"user alone", "https://SECRET@h/", "", "may not hold a user or a password"},
		{"fragment", "https://h/#SECRET", "", "a fragment"},
		{"empty fragment", "https://h/#", "", "a fragment"},
		{"port", "https://h:65536/", "", "its port, 65536"},
		{"no port", "https://h:0/", "", "its port, 0"},
		{"private", "https://10.1.2.3/SECRET", "", "the address 10.1.2.3 is private, not public"},
		{"loopback", "http://[::1]/", "", "the address ::1 is loopback, not public"},
		{"zone", "http://[fe80::1%25eth0]/", "", "link-local, not public"},
		{"short secret", "https://h/", "SECRET", "the secret: it has 6 bytes"},
		{"both", "ftp://h", "SECRET", "the URL: its scheme is neither http nor https; write it as https://host/path\nwebhook: the secret: it has"},
	} {
		s, err := New(Options{DB: d, URL: test.url, Secret: test.secret, Log: quiet})
		switch {
		case (err == nil) != (test.want == ""):
			t.Errorf("%s: got %v, want %q", test.name, err, test.want)
		case err != nil && (!strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "SECRET")):
			t.Errorf("%s: got %v, want %q", test.name, err, test.want)
		case err == nil && s.Configured() != (test.url != ""):
			t.Errorf("%s: configured: %v", test.name, s.Configured())
		}
	}
	if _, err := New(Options{URL: "http://10.1.2.3", AllowPrivate: true}); err == nil || strings.Contains(err.Error(), "URL") {
		t.Errorf("without a database: %v", err)
	}
}

// TestSenderHoldsNoSecretToPrint prints a sender in several formats. The text must not
// contain the secret.
func TestSenderHoldsNoSecretToPrint(t *testing.T) {
	t.Parallel()
	secret := "hunter2" + strings.Repeat("k", 32)
	s, err := New(Options{DB: dbtest.New(t), URL: "https://h/", Secret: secret, Log: quiet})
	must(t, err)
	for _, verb := range []string{"%v", "%+v", "%#v"} {
		text := fmt.Sprintf(verb, *s)
		if strings.Contains(text, "hunter2") || strings.Contains(text, fmt.Sprint([]byte("hunter2"))[1:20]) {
			t.Errorf("%s prints it", verb)
		}
	}
}

func TestQueueIsPartOfTheTransaction(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	s := newSender(t, Options{DB: d, URL: "https://hooks.example.com"})
	undone := errors.New("undone")
	err := d.Tx(t.Context(), func(tx pgx.Tx) error {
		must(t, s.Queue(t.Context(), tx, Event{Type: "a"}))
		return undone
	})
	if !errors.Is(err, undone) || count(t, d, "true") != 0 {
		t.Fatalf("%v; %d rows, want none", err, count(t, d, "true"))
	}
	at := time.Date(2026, 2, 3, 4, 5, 6, 7000, time.FixedZone("", 3600))
	id := queue(t, s, d, Event{Type: "autoprune.finished", Time: at, Data: map[string]any{"deleted": 3}})
	r := read(t, d, id)
	want := `{"type":"autoprune.finished","timestamp":"2026-02-03T03:05:06.000007Z","data":{"deleted":3}}`
	if r.Body != want || r.Event != "autoprune.finished" || r.Attempts != 0 || r.Wait > 0 {
		t.Errorf("got %+v, want the body %s, due", r, want)
	}
	// Queue must queue no second notice with the same ID.
	queue(t, s, d, Event{ID: id, Type: "b"})
	if n := count(t, d, "true"); n != 1 {
		t.Errorf("%d rows, want 1", n)
	}
	if r := read(t, d, id); r.Body != want {
		t.Errorf("the body became %s", r.Body)
	}
	before := time.Now()
	must(t, s.Queue(t.Context(), d.Pool, Event{Type: "c"}))
	var body struct {
		Timestamp time.Time
		Data      map[string]any
	}
	var text string
	must(t, d.Pool.QueryRow(t.Context(), "SELECT body FROM webhooknotices WHERE event = 'c'").Scan(&text))
	must(t, json.Unmarshal([]byte(text), &body))
	if body.Data == nil || body.Timestamp.Before(before.Add(-time.Second)) || body.Timestamp.After(time.Now()) {
		t.Errorf("got %s, want the present time and an empty object", text)
	}
}

func TestQueueWithoutAURL(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	for _, s := range []*Sender{nil, newSender(t, Options{DB: d})} {
		queue(t, s, d, Event{})
		s.Wake()
	}
	if n := count(t, d, "true"); n != 0 {
		t.Errorf("%d rows, want none", n)
	}
}

func TestQueueRefuses(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	s := newSender(t, Options{DB: d, URL: "https://hooks.example.com"})
	for _, test := range []struct {
		name string
		e    Event
		want string
	}{
		{"no type", Event{}, "its type"},
		{"type", Event{Type: "a b"}, "its type"},
		{"dots", Event{Type: "a..b"}, "its type"},
		{"long type", Event{Type: strings.Repeat("a", 129)}, "its type"},
		{"not JSON", Event{Type: "a", Data: func() {}}, "as JSON"},
		{"size", Event{Type: "a", Data: map[string]string{"a": strings.Repeat("x", MaxBody)}}, "262144 are possible"},
	} {
		if err := s.Queue(t.Context(), d.Pool, test.e); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
	}
	// Data with unusual but storable bytes is stored.
	for _, data := range []any{json.RawMessage("{\"a\": \"\xff\"}"), map[string]string{"a": "\x00\xfe"}} {
		id := queue(t, s, d, Event{Data: data})
		if r := read(t, d, id); !json.Valid([]byte(r.Body)) {
			t.Errorf("the body is %q", r.Body)
		}
	}
	if n := count(t, d, "true"); n != 2 {
		t.Errorf("%d rows, want 2", n)
	}
}

func TestTidy(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	s := newSender(t, Options{DB: d, URL: "https://hooks.example.com"})
	off := newSender(t, Options{DB: d})
	insert := `INSERT INTO webhooknotices (id, event, body, next_attempt, delivered_at, given_up_at)
		SELECT gen_random_uuid(), $1, '{}', now() - interval '100 days', now() - $2::interval, now() - $3::interval
		FROM generate_series(1, $4)`
	old, fresh := 7*24*time.Hour+time.Minute, 7*24*time.Hour-time.Minute
	exec(t, d, 1500, insert, "old", old, nil, 1500)
	exec(t, d, 3, insert, "old", nil, old, 3)
	exec(t, d, 2, insert, "fresh", fresh, nil, 2)
	exec(t, d, 2, insert, "fresh", nil, fresh, 2)
	exec(t, d, 4, insert, "pending", nil, nil, 4)
	batches := 0
	for more := true; more; batches++ {
		var err error
		more, err = s.tidyBatch(t.Context())
		must(t, err)
	}
	if batches != 2 {
		t.Errorf("%d batches, want 2", batches)
	}
	for where, want := range map[string]int{"event = 'old'": 0, "event = 'fresh'": 4, "event = 'pending'": 4} {
		if n := count(t, d, where); n != want {
			t.Errorf("%s: %d rows, want %d", where, n, want)
		}
	}
	// The sender `off` has no URL, so notices for the configured URL can't be sent any
	// more. It must delete those that have been due for too long, and keep those that are
	// due now.
	must(t, s.Queue(t.Context(), d.Pool, Event{Type: "due"}))
	_, err := off.tidyBatch(t.Context())
	must(t, err)
	for where, want := range map[string]int{"event = 'fresh'": 4, "event = 'pending'": 0, "event = 'due'": 1} {
		if n := count(t, d, where); n != want {
			t.Errorf("without a URL: %s: %d rows, want %d", where, n, want)
		}
	}
	start(t, off.Run)()
}

func TestNext(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	s := newSender(t, Options{DB: d, URL: "https://hooks.example.com"})
	next := func(least, most time.Duration) {
		t.Helper()
		if got, err := s.next(t.Context()); err != nil || got < least || got > most {
			t.Errorf("got %v, %v; want from %v to %v", got, err, least, most)
		}
	}
	next(time.Minute, time.Minute)
	id := queue(t, s, d, Event{})
	next(0, 0)
	exec(t, d, 1, "UPDATE webhooknotices SET next_attempt = clock_timestamp() + interval '30 s' WHERE id = $1", id)
	next(25*time.Second, 30*time.Second)
	exec(t, d, 1, "UPDATE webhooknotices SET next_attempt = clock_timestamp() + interval '1 day' WHERE id = $1", id)
	next(time.Minute, time.Minute)
	exec(t, d, 1, "UPDATE webhooknotices SET next_attempt = clock_timestamp(), given_up_at = now() WHERE id = $1", id)
	next(time.Minute, time.Minute)
}

func TestBackoff(t *testing.T) {
	t.Parallel()
	s := newSender(t, Options{DB: dbtest.New(t)})
	var total time.Duration
	for attempts, want := range map[int]time.Duration{
		1: 5 * time.Second, 2: 15 * time.Second, 3: 45 * time.Second, 4: 135 * time.Second, 5: 405 * time.Second, 6: 1215 * time.Second,
		7: 3645 * time.Second, 8: 10935 * time.Second, 9: 32805 * time.Second, 10: 24 * time.Hour, 11: 24 * time.Hour, 1 << 30: 24 * time.Hour,
	} {
		different := map[time.Duration]bool{}
		for range 50 {
			got := s.backoff(attempts)
			if got > want || got < want*4/5 {
				t.Errorf("after %d attempts: %v, want %v less a fifth", attempts, got, want)
			}
			different[got] = true
		}
		if len(different) < 2 {
			t.Errorf("after %d attempts: always the same", attempts)
		}
		if attempts < s.opt.MaxAttempts {
			total += want
		}
	}
	if s.opt.MaxAttempts != 12 || total < 48*time.Hour || total > 72*time.Hour {
		t.Errorf("%d attempts in %v, want 12 in two to three days", s.opt.MaxAttempts, total)
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"": 0, "0": 0, "7": 7 * time.Second, "-7": 0, "1.5": 0, "soon": 0, "4294967295": maxRetry, "99999999999": 0,
		"Tue, 03 Feb 2026 04:06:06 GMT": time.Minute, "Tue, 03 Feb 2026 04:04:06 GMT": 0, "Tue, 03 Feb 2099 04:04:06 GMT": maxRetry,
	} {
		if got := retryAfter(value, now); got != want {
			t.Errorf("%q: %v, want %v", value, got, want)
		}
	}
}

func TestCutAndClean(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		text string
		n    int
		want string
	}{{"abc", 3, "abc"}, {"abcdef", 5, "ab…"}, {"ééé", 5, "é…"}, {"éé", 3, "…"}} {
		if got := cut(test.text, test.n); got != test.want || len(got) > test.n {
			t.Errorf("%q to %d: %q, want %q", test.text, test.n, got, test.want)
		}
	}
	if got := clean("<p>\n a\x00b\xff\x1b[31m\t</p>\r\n"); got != "<p> a b [31m </p>" {
		t.Errorf("%q", got)
	}
}

func TestIDsDiffer(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	s := newSender(t, Options{DB: d, URL: "https://hooks.example.com"})
	for range 3 {
		must(t, s.Queue(t.Context(), d.Pool, Event{Type: "a", ID: uuid.Nil}))
	}
	if n := count(t, d, "id <> '00000000-0000-0000-0000-000000000000'"); n != 3 {
		t.Errorf("%d rows, want 3", n)
	}
}

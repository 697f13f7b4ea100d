package webhook

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/purser-registry/purser/internal/db/dbtest"
)

// TestRun: a process queues a notice and wakes the sender. The sender must send this
// notice, and no other, to the receiver.
func TestRun(t *testing.T) {
	t.Parallel()
	d, rec := dbtest.New(t), receive(t, nil)
	metrics := NewMetrics(prometheus.NewRegistry())
	s := newSender(t, Options{DB: d, URL: rec.URL + "/hook", Metrics: metrics})
	stop := start(t, s.Run)
	for n := 1; n <= 3; n++ {
		id := queue(t, s, d, Event{Data: map[string]int{"n": n}})
		s.Wake()
		eventually(t, "delivered", func() bool { return read(t, d, id).Delivered })
		list := rec.requests()
		if len(list) != n {
			t.Fatalf("%d requests, want %d", len(list), n)
		}
		r := list[n-1]
		if r.path != "/hook" || r.header.Get("Webhook-Id") != id.String() || r.header.Get("Content-Type") != "application/json" || r.body != read(t, d, id).Body {
			t.Errorf("got %+v", r)
		}
	}
	stop()
	if n := testutil.ToFloat64(metrics.results.WithLabelValues(resultDelivered)); n != 3 {
		t.Errorf("%v were counted as delivered, want 3", n)
	}
}

func TestRetries(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	rec := receive(t, func(w http.ResponseWriter, _ *http.Request, n int) {
		if n <= 3 {
			w.WriteHeader([]int{500, 404, 503}[n-1])
		}
	})
	metrics := NewMetrics(prometheus.NewRegistry())
	s := newSender(t, Options{DB: d, URL: rec.URL, RetryMin: time.Millisecond, RetryMax: 2 * time.Millisecond, Metrics: metrics})
	id := queue(t, s, d, Event{})
	start(t, s.Run)
	eventually(t, "delivered", func() bool { return read(t, d, id).Delivered })
	if r := read(t, d, id); r.Attempts != 4 || r.LastError != "" || r.GivenUp || r.Leased {
		t.Errorf("got %+v", r)
	}
	list := rec.requests()
	for _, r := range list {
		if r.header.Get("Webhook-Id") != id.String() || r.body != list[0].body {
			t.Errorf("an attempt differs: %+v", r)
		}
	}
	failed, delivered := testutil.ToFloat64(metrics.results.WithLabelValues(resultFailed)), testutil.ToFloat64(metrics.results.WithLabelValues(resultDelivered))
	if failed != 3 || delivered != 1 {
		t.Errorf("counted %v failed and %v delivered, want 3 and 1", failed, delivered)
	}
}

// TestFailureWaits: a notice has failed. It must wait for its next attempt, at least as
// long as the receiver's Retry-After asks; other notices must be sent meanwhile.
func TestFailureWaits(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	rec := receive(t, func(w http.ResponseWriter, _ *http.Request, n int) {
		switch n {
		case 1:
			w.WriteHeader(502)
		case 2:
			w.Header().Set("Retry-After", "600")
			w.WriteHeader(429)
		}
	})
	s := newSender(t, Options{DB: d, URL: rec.URL, Parallel: 1})
	var ids []uuid.UUID
	for range 3 {
		ids = append(ids, queue(t, s, d, Event{}))
		once(t, s)
	}
	once(t, s)
	if n := len(rec.requests()); n != 3 {
		t.Errorf("%d requests, want 3: what isn't due was sent", n)
	}
	for i, want := range []struct {
		least, most float64
		text        string
	}{{3, 5, "502 Bad Gateway"}, {590, 600, "429 Too Many Requests"}} {
		r := read(t, d, ids[i])
		if r.Delivered || r.Leased || r.Attempts != 1 || r.Wait < want.least || r.Wait > want.most || !strings.Contains(r.LastError, want.text) {
			t.Errorf("notice %d: %+v, want %+v", i, r, want)
		}
	}
	if !read(t, d, ids[2]).Delivered {
		t.Error("the third wasn't delivered")
	}
}

func TestGivingUp(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		status, attempts int
	}{{500, 3}, {410, 1}} {
		t.Run(fmt.Sprint(test.status), func(t *testing.T) {
			t.Parallel()
			d := dbtest.New(t)
			rec := receive(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
				w.WriteHeader(test.status)
				fmt.Fprint(w, "no\x00pe")
			})
			metrics := NewMetrics(prometheus.NewRegistry())
			var log lockedBuffer
			s := newSender(t, Options{DB: d, URL: rec.URL, MaxAttempts: 3, RetryMin: 1, RetryMax: 1, Metrics: metrics,
				Log: slog.New(slog.NewTextHandler(&log, nil))})
			id := queue(t, s, d, Event{})
			for range 5 {
				once(t, s)
			}
			r := read(t, d, id)
			if !r.GivenUp || r.Delivered || r.Attempts != test.attempts || !strings.HasPrefix(r.LastError, fmt.Sprintf("the receiver answered %d ", test.status)) ||
				!strings.HasSuffix(r.LastError, ": no pe") {
				t.Errorf("got %+v", r)
			}
			if n := len(rec.requests()); n != test.attempts {
				t.Errorf("%d requests, want %d", n, test.attempts)
			}
			if n := testutil.ToFloat64(metrics.results.WithLabelValues(resultGivenUp)); n != 1 {
				t.Errorf("counted %v given up, want 1", n)
			}
			if !strings.Contains(log.String(), "level=ERROR msg=\"a notice was given up") || !strings.Contains(log.String(), id.String()) {
				t.Errorf("the log doesn't tell:\n%s", log.String())
			}
		})
	}
}

// TestCrashBeforeTheRecord: a process dies after the receiver has answered, and before the
// process has recorded the delivery. Once the lease has ended, another process must send
// the notice again, with the same webhook-id.
func TestCrashBeforeTheRecord(t *testing.T) {
	t.Parallel()
	dsn := dbtest.DSN(t)
	first, second := dbtest.Open(t, dsn), dbtest.Open(t, dsn)
	rec := receive(t, func(_ http.ResponseWriter, _ *http.Request, n int) {
		if n == 1 {
			first.Close() // the process can't send statements any more, as if it had died
		}
	})
	// A crash of the process must not give up a notice, even if it happens during the last
	// attempt to send the notice.
	a := newSender(t, Options{DB: first, URL: rec.URL, MaxAttempts: 1})
	b := newSender(t, Options{DB: second, URL: rec.URL, MaxAttempts: 1})
	id := queue(t, a, second, Event{})
	if _, err := a.batch(t.Context()); err == nil || !strings.Contains(err.Error(), id.String()) {
		t.Fatalf("the crash didn't happen: %v", err)
	}
	if r := read(t, second, id); !r.Leased || r.Delivered || r.Wait < 10 {
		t.Fatalf("got %+v, want it leased", r)
	}
	once(t, b)
	if n := len(rec.requests()); n != 1 {
		t.Fatalf("%d requests, want 1: the lease wasn't kept", n)
	}
	exec(t, second, 1, "UPDATE webhooknotices SET next_attempt = clock_timestamp()") // the lease is over
	once(t, b)
	list := rec.requests()
	if len(list) != 2 || list[0].header.Get("Webhook-Id") != list[1].header.Get("Webhook-Id") || list[0].body != list[1].body {
		t.Errorf("got %+v, want the same twice", list)
	}
	if r := read(t, second, id); !r.Delivered || r.GivenUp || r.Attempts != 2 {
		t.Errorf("got %+v", r)
	}
}

// TestLateRecords: a sender is delayed beyond its lease, and a second sender sends the
// notice meanwhile. The outcome that the delayed sender records must not undo the outcome
// that the second sender has recorded.
func TestLateRecords(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name        string
		late, early int // the receiver's answers to the delayed sender, and to the other one
		want        row
	}{
		{"failure after success", 500, 204, row{Delivered: true, Attempts: 2}},
		{"success after giving up", 204, 500, row{Delivered: true, Attempts: 2}},
		{"failure after giving up", 500, 410, row{GivenUp: true, Attempts: 2, LastError: "the receiver answered 410 Gone"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			d := dbtest.New(t)
			arrived, goOn := make(chan struct{}), make(chan struct{})
			rec := receive(t, func(w http.ResponseWriter, _ *http.Request, n int) {
				if n == 1 {
					close(arrived)
					<-goOn
					w.WriteHeader(test.late)
					return
				}
				w.WriteHeader(test.early)
			})
			a := newSender(t, Options{DB: d, URL: rec.URL, MaxAttempts: 2})
			b := newSender(t, Options{DB: d, URL: rec.URL, MaxAttempts: 2})
			id := queue(t, a, d, Event{})
			done := make(chan error, 1)
			go func() {
				_, err := a.batch(t.Context())
				done <- err
			}()
			<-arrived
			exec(t, d, 1, "UPDATE webhooknotices SET next_attempt = clock_timestamp()")
			once(t, b)
			close(goOn)
			must(t, <-done)
			r := read(t, d, id)
			r.Event, r.Body, r.Wait = "", "", 0
			if r != test.want {
				t.Errorf("got %+v, want %+v", r, test.want)
			}
		})
	}
}

// TestLateFailureLeavesTheLease: a sender is delayed beyond its lease, and another sender
// has claimed the notice. If the delayed sender then records a failure, the other sender
// must keep its lease on the notice.
func TestLateFailureLeavesTheLease(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	s := newSender(t, Options{DB: d, URL: "http://192.0.2.1/"})
	id := queue(t, s, d, Event{})
	old, lease := uuid.New(), uuid.New()
	list, err := s.claim(t.Context(), old)
	must(t, err)
	exec(t, d, 1, "UPDATE webhooknotices SET next_attempt = clock_timestamp()")
	_, err = s.claim(t.Context(), lease)
	must(t, err)
	late := &failure{text: "late"}
	must(t, s.postpone(t.Context(), old, &s.target, list[0], late, time.Hour))
	must(t, s.giveUp(t.Context(), old, &s.target, list[0], late))
	must(t, s.giveBack(t.Context(), old, list[0]))
	if r := read(t, d, id); !r.Leased || r.GivenUp || r.LastError != "" || r.Attempts != 2 || r.Wait < 10 {
		t.Errorf("got %+v, want it as the second claim left it", r)
	}
	must(t, s.giveBack(t.Context(), lease, list[0]))
	if r := read(t, d, id); r.Leased || r.Wait > 0 || r.Attempts != 1 {
		t.Errorf("got %+v, want it given back", r)
	}
}

// TestStopping: a process is told to stop while it sends a notice. It must interrupt the
// request and make the notice due again, so that another process sends it.
func TestStopping(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	arrived, goOn := make(chan struct{}), make(chan struct{})
	rec := receive(t, func(_ http.ResponseWriter, _ *http.Request, n int) {
		if n == 1 {
			close(arrived)
			<-goOn
		}
	})
	s := newSender(t, Options{DB: d, URL: rec.URL, MaxAttempts: 1, Timeout: time.Minute})
	id := queue(t, s, d, Event{})
	stop := start(t, s.Run)
	<-arrived
	stop()
	close(goOn)
	if r := read(t, d, id); r.Leased || r.Delivered || r.GivenUp || r.Attempts != 0 || r.Wait > 0 {
		t.Fatalf("got %+v, want it due, as if it hadn't been tried", r)
	}
	once(t, s)
	if r := read(t, d, id); !r.Delivered {
		t.Errorf("got %+v", r)
	}
}

// TestSharing: several processes send notices from the same database at the same time. Each
// notice must be sent once.
func TestSharing(t *testing.T) {
	t.Parallel()
	const senders, notices = 4, 300
	dsn := dbtest.DSN(t)
	d, rec := dbtest.Open(t, dsn), receive(t, nil)
	var list []*Sender
	for range senders {
		list = append(list, newSender(t, Options{DB: dbtest.Open(t, dsn), URL: rec.URL, Parallel: 4}))
	}
	for _, s := range list {
		start(t, s.Run)
	}
	var wg sync.WaitGroup
	for i := range senders {
		wg.Go(func() {
			for n := range notices / senders {
				err := d.Tx(t.Context(), func(tx pgx.Tx) error {
					return list[i].Queue(t.Context(), tx, Event{Type: "a", Data: map[string]int{"n": n}})
				})
				if err != nil {
					t.Error(err)
				}
				list[(i+n)%senders].Wake()
			}
		})
	}
	wg.Wait()
	for _, s := range list {
		s.Wake()
	}
	eventually(t, "all delivered", func() bool { return count(t, d, "delivered_at IS NOT NULL AND attempts = 1") == notices })
	seen := map[string]int{}
	for _, r := range rec.requests() {
		seen[r.header.Get("Webhook-Id")]++
	}
	if len(seen) != notices || len(rec.requests()) != notices {
		t.Errorf("%d requests of %d notices, want %d of each", len(rec.requests()), len(seen), notices)
	}
}

// TestClaimSkipsLockedRows: another transaction has locked the row of a notice. A claim
// must skip this row and not wait for the lock.
func TestClaimSkipsLockedRows(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	s := newSender(t, Options{DB: d, URL: "http://192.0.2.1/"})
	locked, free := queue(t, s, d, Event{}), queue(t, s, d, Event{})
	tx, err := d.Pool.Begin(t.Context())
	must(t, err)
	defer tx.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck
	_, err = tx.Exec(t.Context(), "SELECT FROM webhooknotices WHERE id = $1 FOR UPDATE", locked)
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	list, err := s.claim(ctx, uuid.New())
	must(t, err)
	if len(list) != 1 || list[0].ID != free {
		t.Errorf("claimed %v, want %s", list, free)
	}
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	reg := prometheus.NewRegistry()
	metrics := NewMetrics(reg)
	s := newSender(t, Options{DB: d, URL: "https://hooks.example.com", Metrics: metrics})
	for range 3 {
		queue(t, s, d, Event{})
	}
	_, err := s.tidyBatch(t.Context())
	must(t, err)
	if n := testutil.ToFloat64(metrics.pending); n != 3 {
		t.Errorf("%v pending, want 3", n)
	}
	for _, table := range []string{"webhooks", "webhooknotices"} { // both make the clean-up fail
		exec(t, d, 0, "ALTER TABLE "+table+" RENAME TO away")
		if _, err := s.tidyBatch(t.Context()); err == nil {
			t.Errorf("a clean-up without the table %s succeeds", table)
		}
		n := testutil.ToFloat64(metrics.pending)
		if known := table == "webhooks"; known != (n == 3) || !known && !math.IsNaN(n) {
			t.Errorf("without the table %s, %v pending", table, n)
		}
		exec(t, d, 0, "ALTER TABLE away RENAME TO "+table)
	}
	if _, err := s.tidyBatch(t.Context()); err != nil || testutil.ToFloat64(metrics.pending) != 3 {
		t.Errorf("with the tables back: %v pending, %v", testutil.ToFloat64(metrics.pending), err)
	}
}

package webhook

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

func TestMain(m *testing.M) { dbtest.MainWithoutLeaks(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// exec runs a statement and fails the test unless the statement changed the given number of
// rows.
func exec(t testing.TB, d *db.DB, rows int64, sql string, args ...any) {
	t.Helper()
	tag, err := d.Pool.Exec(t.Context(), sql, args...)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	if tag.RowsAffected() != rows {
		t.Fatalf("%s: %d rows, want %d", sql, tag.RowsAffected(), rows)
	}
}

// eventually waits until ok returns true, at most 2 min.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// start runs fn until stop is called, or the test ends.
func start(t testing.TB, fn func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- fn(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

var quiet = slog.New(slog.DiscardHandler)

// newSender makes a sender that may send to the tests' receivers, which have private
// addresses.
func newSender(t testing.TB, o Options) *Sender {
	t.Helper()
	o.AllowPrivate = true
	if o.Log == nil {
		o.Log = quiet
	}
	s, err := New(o)
	must(t, err)
	t.Cleanup(func() {
		if s.client != nil {
			s.client.CloseIdleConnections()
		}
	})
	return s
}

// queue queues an event in a transaction of its own, as callers of this package do.
func queue(t testing.TB, s *Sender, d *db.DB, e Event) uuid.UUID {
	t.Helper()
	if e.ID == uuid.Nil {
		e.ID = uuid.New()
	}
	if e.Type == "" {
		e.Type = "autoprune.started"
	}
	must(t, d.Tx(t.Context(), func(tx pgx.Tx) error { return s.Queue(t.Context(), tx, e) }))
	return e.ID
}

// row is a notice's row.
type row struct {
	Event     string
	Body      string
	Attempts  int
	Leased    bool
	LastError string
	Delivered bool
	GivenUp   bool
	Wait      float64 // seconds until the next attempt
}

func read(t testing.TB, d *db.DB, id uuid.UUID) row {
	t.Helper()
	rows, err := d.Pool.Query(t.Context(), `
		SELECT event, body, attempts, lease IS NOT NULL, coalesce(last_error, ''), delivered_at IS NOT NULL,
			given_up_at IS NOT NULL, extract(epoch FROM next_attempt - clock_timestamp())::float8
		FROM webhooknotices WHERE id = $1`, id)
	must(t, err)
	r, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[row])
	must(t, err)
	return r
}

func count(t testing.TB, d *db.DB, where string) (n int) {
	t.Helper()
	must(t, d.Pool.QueryRow(t.Context(), "SELECT count(*) FROM webhooknotices WHERE "+where).Scan(&n))
	return n
}

// request is a request that a receiver got.
type request struct {
	header http.Header
	body   string
	path   string
}

// receiver is a test server that stores the requests it receives.
type receiver struct {
	*httptest.Server
	mu   sync.Mutex
	list []request
}

// receive starts a receiver. The function `answer` writes the answer to the n-th request,
// where the first has the number 1. If `answer` is nil, the receiver answers every request
// with 204.
func receive(t testing.TB, answer func(w http.ResponseWriter, r *http.Request, n int)) *receiver {
	t.Helper()
	rec := &receiver{}
	rec.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("the receiver can't read the body: %v", err)
		}
		rec.mu.Lock()
		rec.list = append(rec.list, request{r.Header.Clone(), string(body), r.URL.Path})
		n := len(rec.list)
		rec.mu.Unlock()
		if answer == nil {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		answer(w, r, n)
	}))
	t.Cleanup(rec.Close)
	return rec
}

func (r *receiver) requests() []request {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]request(nil), r.list...)
}

// once runs one batch of the sender.
func once(t testing.TB, s *Sender) {
	t.Helper()
	if _, err := s.batch(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// lockedBuffer is a buffer to which a logger writes while a test reads it.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

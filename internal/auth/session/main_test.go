package session

import (
	"log/slog"
	"sync"
	"testing"
	"time"

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

func exec(t testing.TB, d *db.DB, sql string, args ...any) {
	t.Helper()
	if _, err := d.Pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func count(t testing.TB, d *db.DB, sql string, args ...any) (n int) {
	t.Helper()
	if err := d.Pool.QueryRow(t.Context(), sql, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// account adds an account and returns its id.
func account(t testing.TB, d *db.DB, name string) (id int64) {
	t.Helper()
	must(t, d.Pool.QueryRow(t.Context(), "INSERT INTO accounts (name, kind) VALUES ($1, 'user') RETURNING id", name).Scan(&id))
	return id
}

// clock is a clock that a test sets.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// open makes Sessions whose cache uses the test's clock.
func open(t testing.TB, d *db.DB, change ...func(*Options)) (*Sessions, *clock) {
	t.Helper()
	o := Options{DB: d, Log: slog.New(slog.DiscardHandler)}
	for _, fn := range change {
		fn(&o)
	}
	s, err := NewSessions(o)
	must(t, err)
	c := &clock{now: time.Unix(1_000_000, 0)}
	s.cache.now = c.Now
	return s, c
}

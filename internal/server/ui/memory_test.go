package ui_test

import (
	"context"
	"sync"
	"testing"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// TestPagesHaveABudget: a page takes memory for the answers of the API of which it is made, from the
// budget for bodies. While one page waits for PostgreSQL and has such an answer, more pages than the
// budget has room for are refused with 503.
func TestPagesHaveABudget(t *testing.T) {
	t.Parallel()
	const total = 16 << 20
	s := site{servertest.Setup(t, func(o *servertest.Options) {
		o.Access = &auth.Options{}
		o.Server.Limits.Memory = limit.BudgetOptions{Total: total}
		o.Server.Limits.Metrics = limit.NewMetrics(o.Server.Metrics)
	})}
	s.AddAccount(t, "root", true)
	root := s.as("root")
	s.Exec(t, `INSERT INTO credentials (id, account_id, kind, title, secret_hash, repository_patterns)
		SELECT gen_random_uuid(), a.id, 'personal', 't', sha256(i::text::bytea), array_fill(repeat('a', 250), ARRAY[16])
		FROM accounts a, generate_series(1, 80) i WHERE a.name = 'root'`)
	used := func() float64 { return s.Gauge(t, "purser_body_memory_bytes") }
	tokens := len(root.Do(t, "GET", "/api/v1/user/apptoken?limit=100", "").WantStatus(t, 200).Content)
	root.Do(t, "GET", "/ui/account", "").WantStatus(t, 200)
	servertest.Eventually(t, "nothing held", func() bool { return used() == 0 })

	// The page asks for the tokens, and then for the sessions.
	tx, err := s.DB.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background()) //nolint:errcheck // only if the test fails
	if _, err := tx.Exec(t.Context(), "LOCK TABLE sessions IN ACCESS EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	first := make(chan int, 1)
	go func() { first <- root.Do(t, "GET", "/ui/account", "").StatusCode }()
	servertest.Eventually(t, "a page that waits", func() (waits bool) {
		const sql = "SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'sessions'::regclass AND NOT granted)"
		if err := s.DB.Pool.QueryRow(t.Context(), sql).Scan(&waits); err != nil {
			t.Fatal(err)
		}
		return waits
	})
	const sessions = 50 * 64 << 10 // what the API takes for the page of sessions
	if n := used(); n < float64(4*tokens+sessions) || n > total/2 {
		t.Fatalf("a page with an answer of %d bytes holds %v", tokens, n)
	}
	var all sync.WaitGroup
	for range 12 {
		all.Go(func() {
			if a := root.Do(t, "GET", "/ui/account", ""); a.StatusCode != 503 || a.Header.Get("Retry-After") == "" {
				t.Errorf("a page beyond the budget: %d %.200s, %v", a.StatusCode, a.Content, a.Header)
			}
		})
	}
	all.Wait()
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if status := <-first; status != 200 {
		t.Errorf("the page that had memory: %d", status)
	}
	servertest.Eventually(t, "given back", func() bool { return used() == 0 })
}

package management_test

import (
	"context"
	"sync"
	"testing"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// TestListsHaveABudget: sixteen clients at once list the robots of a namespace that has as many as
// it may have, each with patterns as long as they may be. The answers that are being made take no
// more memory than the budget for bodies has; the registry refuses the others with 503 until those
// are sent.
func TestListsHaveABudget(t *testing.T) {
	t.Parallel()
	const total, page = 16 << 20, 4 << 20
	r := setup(t, func(o *servertest.Options) {
		o.Access = &auth.Options{}
		o.Server.Limits.Memory = limit.BudgetOptions{Total: total}
		o.Server.Limits.Metrics = limit.NewMetrics(o.Server.Metrics)
	})
	r.AddAccount(t, "root", true)
	root := r.as("root")
	root.Manage(t, "POST", "/organization", `{"name":"acme"}`).WantStatus(t, 201)
	r.Exec(t, `INSERT INTO accounts (name, kind, top_level_namespace_id, description, repository_patterns)
		SELECT 'acme+r' || i, 'robot', n.id, repeat('d', 10000), array_fill(repeat('a', 255), ARRAY[16])
		FROM top_level_namespaces n, generate_series(1, 10000) i WHERE n.name = 'acme'`)
	var list struct {
		Robots   []api.RobotView
		NextPage string `json:"next_page"`
	}
	a := root.Manage(t, "GET", "/organization/acme/robots", "").Into(t, 200, &list)
	if len(a.Content) > 1<<20 || len(list.Robots) < 10 || list.NextPage == "" {
		t.Errorf("a page has %d bytes and %d robots, the next begins at %q", len(a.Content), len(list.Robots), list.NextPage)
	}
	used := func() float64 { return r.Gauge(t, "purser_body_memory_bytes") }
	eventually(t, "nothing held", func() bool { return used() == 0 })

	// While the table is locked, the requests that have got memory wait for it.
	tx, err := r.DB.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background()) //nolint:errcheck // only if the test fails
	if _, err := tx.Exec(t.Context(), "LOCK TABLE accounts IN ACCESS EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	answers := make(chan answer, 16)
	var all sync.WaitGroup
	for range cap(answers) {
		all.Go(func() { answers <- root.Manage(t, "GET", "/organization/acme/robots", "") })
	}
	for range cap(answers) - 2 { // of the budget, one account gets half
		refused := <-answers
		if refused.StatusCode != 503 || refused.Header.Get("Retry-After") == "" {
			t.Errorf("beyond the budget: %d %.200s, %v", refused.StatusCode, refused.Content, refused.Header)
		}
	}
	if n := used(); n != 2*page || n > total {
		t.Errorf("%v bytes are held, want %d", n, 2*page)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	all.Wait()
	for range 2 {
		(<-answers).WantStatus(t, 200)
	}
	eventually(t, "given back", func() bool { return used() == 0 })

	// The UI's page calls the API within its own request, and takes no more.
	root.Do(t, "GET", "/ui/namespaces/acme/-/robots", "").WantStatus(t, 200)
	eventually(t, "given back by the UI", func() bool { return used() == 0 })
}

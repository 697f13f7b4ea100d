package management_test

import (
	"context"
	"sync"
	"testing"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/db"
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

// limited starts a registry whose budget for bodies has so many bytes, with the administrator root and
// the namespace acme.
func limited(t *testing.T, total int64) (r, root *registry) {
	t.Helper()
	r = onDatabase(t, func(o *servertest.Options, d *db.DB) {
		var err error
		o.Access = &auth.Options{}
		o.Server.Limits.Memory = limit.BudgetOptions{Total: total}
		o.Server.Limits.Metrics = limit.NewMetrics(o.Server.Metrics)
		if o.Management.Autoprune, err = autoprune.New(autoprune.Options{DB: d, Catalog: o.Catalog, Log: o.Log}); err != nil {
			t.Fatal(err)
		}
	})
	r.AddAccount(t, "root", true)
	root = r.as("root")
	root.Manage(t, "POST", "/organization", `{"name":"acme"}`).WantStatus(t, 201)
	return r, root
}

// TestAnswersWithListsTakeMemory: a request that changes something takes memory for an answer that has a
// list. An answer that turns out to be longer than was thought takes more: if there isn't as much, the
// client gets 503.
func TestAnswersWithListsTakeMemory(t *testing.T) {
	t.Parallel()
	r, root := limited(t, 1280<<10)
	root.Manage(t, "PUT", "/organization/acme/robots/a", "").WantStatus(t, 201)
	root.Manage(t, "PUT", "/organization/acme/robots/b", "").WantStatus(t, 201)
	r.Exec(t, `INSERT INTO robotfederations (id, account_id, issuer, audience, claims)
		SELECT gen_random_uuid(), a.id, 'https://' || repeat('i', 300), '', '{}' FROM accounts a, generate_series(1, 1000) WHERE a.name = 'acme+a'`)
	used := func() float64 { return r.Gauge(t, "purser_body_memory_bytes") }
	long, short := "/organization/acme/robots/a/federation", "/organization/acme/robots/b/federation"
	eventually(t, "nothing held", func() bool { return used() == 0 })
	if n := len(root.Manage(t, "GET", long, "").WantStatus(t, 200).Content); n < 256<<10 {
		t.Fatalf("the answer has %d bytes", n)
	}
	eventually(t, "nothing held", func() bool { return used() == 0 })
	tx, err := r.DB.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background()) //nolint:errcheck // only if the test fails
	if _, err := tx.Exec(t.Context(), "LOCK TABLE tagprotectionrules IN ACCESS EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	made := make(chan answer, 1)
	go func() { made <- root.Manage(t, "POST", "/organization/acme/tagprotection", `{"pattern":"^v"}`) }()
	eventually(t, "memory for the answer to a change", func() bool { return used() >= 256<<10 })
	refused := root.Manage(t, "GET", long, "")
	if refused.StatusCode != 503 || refused.Header.Get("Retry-After") == "" || len(refused.Content) > 1<<10 {
		t.Errorf("a long answer: %d %.200s", refused.StatusCode, refused.Content)
	}
	root.Manage(t, "GET", short, "").WantStatus(t, 200)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	(<-made).WantStatus(t, 201)
	eventually(t, "given back by both", func() bool { return used() == 0 })
	root.Manage(t, "GET", long, "").WantStatus(t, 200)
	eventually(t, "given back", func() bool { return used() == 0 })
}

// TestPreviewsTakeMemory: a preview lists no more tags than it gets memory for.
func TestPreviewsTakeMemory(t *testing.T) {
	t.Parallel()
	r, root := limited(t, 32<<20)
	root.Put(t, "acme/app", "v1", root.Simple(t, "acme/app", 1, nil))
	eventually(t, "nothing held", func() bool { return r.Gauge(t, "purser_body_memory_bytes") == 0 })
	r.Exec(t, `INSERT INTO tags (top_level_namespace_id, repository_id, name, manifest_id)
		SELECT top_level_namespace_id, repository_id, 'x' || lpad(i::text, 100, '0'), manifest_id FROM tags, generate_series(1, 3000) i`)
	for asked, want := range map[string]int{"10000": 1250, "1000": 1000, "100": 100} {
		var out struct{ Going []struct{ Tag string } }
		root.Manage(t, "POST", "/organization/acme/autoprunepolicy/preview?tags_only=true&limit="+asked, `{"method":"number_of_tags","numTags":1}`).Into(t, 200, &out)
		if len(out.Going) != want {
			t.Errorf("limit=%s: %d tags are listed, want %d", asked, len(out.Going), want)
		}
		eventually(t, "given back", func() bool { return r.Gauge(t, "purser_body_memory_bytes") == 0 })
	}
}

package distribution_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// An account pushes forty large manifests while the database stands still, and then another
// account pushes one. When the database goes on, the other account's manifest must not wait until
// all of the first account's are stored.
func TestLargeManifestsOfOneAccount(t *testing.T) {
	t.Parallel()
	const many = 40
	r := setup(t, func(o *servertest.Options) { o.Access = &auth.Options{} })
	for _, name := range []string{"ann", "bob"} {
		r.AddAccount(t, name, true)
	}
	ann, bob := r.With(servertest.As("ann")), r.With(servertest.As("bob"))
	config := ann.Push(t, "acme/app", "{}")
	payload := func(n int) string {
		return servertest.Image(t, config, nil, servertest.Object{"annotations": servertest.Object{"n": fmt.Sprint(n), "long": strings.Repeat("x", 300<<10)}})
	}
	// Both are known before the database stands still.
	ann.Put(t, "acme/app", "ann", payload(-1))
	bob.Put(t, "acme/app", "bob", payload(-2))
	tx, err := r.DB.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // it is committed, or the test has failed
	if _, err := tx.Exec(t.Context(), "LOCK TABLE manifests IN SHARE MODE"); err != nil {
		t.Fatal(err)
	}
	inFlight := func(n int) {
		t.Helper()
		eventually(t, fmt.Sprint(n, " requests"), func() bool { return r.Gauge(t, "purser_http_requests_in_flight") == float64(n) })
	}
	var wg sync.WaitGroup
	for n := range many {
		wg.Go(func() { ann.Put(t, "acme/app", fmt.Sprint("n", n), payload(n)) })
	}
	inFlight(many)
	wg.Go(func() {
		bob.Put(t, "acme/app", "bob", payload(many))
		var stored int
		if err := r.DB.Pool.QueryRow(t.Context(), "SELECT count(*) FROM tags WHERE name LIKE 'n%'").Scan(&stored); err != nil {
			t.Error(err)
		}
		if stored > many/2 {
			t.Errorf("%d of %d manifests of the other account were stored before it", stored, many)
		}
	})
	inFlight(many + 1)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
}

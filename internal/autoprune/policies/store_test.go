package policies_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/autoprune/autoprunetest"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/policy"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

// registry is a test database with policies.
type registry struct {
	*autoprunetest.Registry
	store *policies.Store
}

func setup(t *testing.T) *registry {
	t.Helper()
	r := autoprunetest.New(t)
	return &registry{r, policies.New(policies.Options{DB: r.DB, Catalog: r.Catalog, Log: autoprunetest.Quiet})}
}

// TestDuplicateAtTheSameTime: several clients create equal policies at the same time.
// Exactly one policy must be saved.
func TestDuplicateAtTheSameTime(t *testing.T) {
	t.Parallel()
	for _, target := range []policies.Target{{}, {Namespace: "app"}, {Repository: "app/a"}} {
		r := setup(t)
		r.Repository("app/a")
		var all sync.WaitGroup
		var mu sync.Mutex
		made := 0
		for range 6 {
			all.Go(func() {
				_, err := r.store.Create(t.Context(), target, autoprunetest.Parsed(t, `{"method": "number_of_tags", "numTags": 7}`))
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					made++
				}
			})
		}
		if all.Wait(); made != 1 {
			t.Errorf("%s: saved %d times", target, made)
		}
	}
}

// TestPolicyOfWhatGoes: a repository or a namespace goes into the trash while a client creates a policy
// there. There must be no such policy.
func TestPolicyOfWhatGoes(t *testing.T) {
	t.Parallel()
	for deletion, target := range map[string]policies.Target{
		"UPDATE repositories SET path = '#1/' || path, deleted_path = path, deleted_at = now(), purge_after = now()":         {Repository: "app/a"},
		"UPDATE top_level_namespaces SET name = '#1/' || name, deleted_name = name, deleted_at = now(), purge_after = now()": {Namespace: "app"},
	} {
		r := setup(t)
		r.Repository("app/a")
		tx, err := r.DB.Pool.Begin(t.Context())
		r.Must(err)
		defer tx.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // it is committed, or the test has failed
		_, err = tx.Exec(t.Context(), deletion)
		r.Must(err)
		made := make(chan error, 1)
		go func() {
			_, err := r.store.Create(t.Context(), target, autoprunetest.Parsed(t, `{"method": "number_of_tags", "numTags": 1}`))
			made <- err
		}()
		r.Await("SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE NOT granted AND datname = current_database())")
		r.Must(tx.Commit(t.Context()))
		if err := <-made; oci.CodeOf(err) != oci.NameUnknown {
			t.Errorf("a policy of %s: %v", target, err)
		}
	}
}

// TestPolicyWaitsForDeletions: a change of policies waits for deletions under way if a policy
// keeps untagged manifests, and not otherwise.
func TestPolicyWaitsForDeletions(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.Repository("app/web")
	app := policies.Target{Namespace: "app"}
	deletion, err := r.DB.Pool.Begin(t.Context())
	r.Must(err)
	defer func() { r.Must(deletion.Rollback(context.WithoutCancel(t.Context()))) }()
	_, err = deletion.Exec(t.Context(), "SELECT purser_holds_lock()")
	r.Must(err)
	other := r.Policy(r.store, app, `{"method": "creation_date", "olderThan": "1d"}`)
	waits := func(change func() error) {
		t.Helper()
		done := make(chan error, 1)
		go func() { done <- change() }()
		for autoprunetest.Value[int](r.Registry, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = 1886745447 AND objid = 0 AND NOT granted AND mode = 'ExclusiveLock' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())") == 0 {
			select {
			case err := <-done:
				t.Fatalf("a change of policies didn't wait: %v", err)
			default:
			}
		}
		r.Must(deletion.Rollback(t.Context()))
		r.Must(<-done)
		deletion, err = r.DB.Pool.Begin(t.Context())
		r.Must(err)
		_, err = deletion.Exec(t.Context(), "SELECT purser_holds_lock()")
		r.Must(err)
	}
	keeps := autoprunetest.Parsed(t, `{"method": "creation_date", "olderThan": "1d", "keepUntagged": "9d"}`)
	waits(func() error { _, err := r.store.Create(t.Context(), policies.Target{}, keeps); return err })
	waits(func() error { return r.store.Delete(t.Context(), app, other) }) // now the default applies
	waits(func() error { return r.store.UseDefaults(t.Context(), "app", false) })
	_, err = policy.Parse([]byte(`{"method": "creation_date", "olderThan": "1d", "keepUntagged": "0d"}`))
	var wrong *policy.FieldError
	if !errors.As(err, &wrong) || wrong.Field != "keepUntagged" {
		t.Errorf("0d: %v", err)
	}
	if text := fmt.Sprint(keeps); text != "creation_date olderThan 1d, untagged manifests stay 9d" {
		t.Errorf("as text: %s", text)
	}
}

// TestTroublesOfDefaults: a default policy by last use must be found in the namespaces to which it applies,
// and only where no reporter is live. A report of the future says nothing about now.
func TestTroublesOfDefaults(t *testing.T) {
	t.Parallel()
	r := setup(t)
	live := r.Repository("live/web")
	for _, path := range []string{"none/web", "own/web", "off/web"} {
		r.Repository(path)
	}
	r.Policy(r.store, policies.Target{Namespace: "own"}, `{"method": "number_of_tags", "numTags": 9, "mode": "off"}`)
	r.Must(r.store.UseDefaults(t.Context(), "off", false))
	wants := func(n int64, in string) {
		t.Helper()
		want := policies.Troubles{Unproved: n, UnprovedIn: in}
		if found, err := policies.FindTroubles(t.Context(), r.DB.Pool); err != nil || found != want {
			t.Errorf("the doctor finds %+v, %v, want %+v", found, err, want)
		}
	}
	r.Reporter(live.NamespaceID, "prod", time.Hour)
	r.Policy(r.store, policies.Target{}, `{"method": "creation_date", "olderThan": "9d"}`)
	r.Policy(r.store, policies.Target{}, `{"method": "last_pulled", "olderThan": "9d", "mode": "off"}`)
	wants(0, "")
	r.Policy(r.store, policies.Target{}, `{"method": "last_pulled", "olderThan": "90d"}`)
	wants(1, "none")
	r.Exec(`INSERT INTO defaultautoprunepolicy (uuid, policy, setting) VALUES ('s', '{"method":"max_bytes","maxBytes":"1GiB"}', true)`)
	wants(3, "none") // and once in own
	r.Exec("UPDATE holdreporters SET reported_at = now() + interval '2 hours', expires_at = now() + interval '3 hours'")
	wants(5, "live")
	r.Reporter(nil, "all", time.Hour)
	wants(0, "")
	r.Exec("UPDATE holdreporters SET reported_at = now() + interval '2 hours', expires_at = now() + interval '3 hours'")
	wants(5, "live")
}

package autoprune_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/policy"
)

// oracleUntagged returns for how long policies keep the manifest if nothing references it; 0 if
// none does. inDoubt says that a policy is in doubt about it.
func oracleUntagged(in oracleInput, digest string) (longest time.Duration, inDoubt bool) {
	for _, r := range oracleRules(in) {
		r.TagPattern = nil
		t := oracleTag{manifest: digest}
		if r.Method == "untagged" {
			r.KeepUntagged = r.OlderThan
			if r.OlderThan == nil {
				age := r.age()
				r.KeepUntagged = new(string)
				*r.KeepUntagged = fmt.Sprintf("%ds", int(age.Seconds()))
			}
		}
		if r.KeepUntagged == nil || !r.looksAtOthers(in, t) || r.attributes(in, t) == "no" {
			continue
		}
		longest = max(longest, oracleAge(*r.KeepUntagged))
		inDoubt = inDoubt || r.attributes(in, t) == "doubt"
	}
	return longest, inDoubt
}

// untagged asks for how long policies keep the manifests.
func (r *registry) untagged(t catalog.Repository, ids ...int64) (found map[int64]autoprune.Retention) {
	r.t.Helper()
	same := func(id int64) []int64 { return slices.Repeat([]int64{id}, len(ids)) }
	r.must(pgx.BeginFunc(r.t.Context(), r.db.Pool, func(tx pgx.Tx) (err error) {
		found, err = autoprune.Untagged(r.t.Context(), tx, same(t.NamespaceID), same(t.ID), ids)
		return err
	}))
	return found
}

// untagged compares for how long policies keep the scene's manifests with the oracle.
func (d *oracleDatabase) untagged(seed int, seen map[string]int) {
	d.t.Helper()
	ids := map[string]int64{}
	var all []int64
	for digest := range d.scene.manifests {
		ids[digest] = value[int64](d.registry, "SELECT id FROM manifests WHERE repository_id = $1 AND digest = $2", d.target.ID, oracleBytes(digest))
		all = append(all, ids[digest])
	}
	found := d.registry.untagged(d.target, all...)
	for digest, id := range ids {
		want, inDoubt := oracleUntagged(d.scene.oracleInput, digest)
		if got := found[id].For; got != want {
			d.t.Fatalf("seed %d: policies keep %s for %s, want %s: %v", seed, digest, got, want, d.scene.policies)
		}
		if want > 0 {
			seen["untagged stays"]++
		}
		if inDoubt {
			seen["untagged stays in doubt"]++
		}
	}
}

// TestUntaggedPolicies: the longest time counts, of the policies that apply.
func TestUntaggedPolicies(t *testing.T) {
	t.Parallel()
	r := setup(t)
	web := r.repository("app/web")
	id := r.manifest(web, "untagged", "")
	app := autoprune.Target{Namespace: "app"}
	check := func(want time.Duration) {
		t.Helper()
		if got := r.untagged(web, id)[id]; got.For != want {
			t.Errorf("kept for %s, want %s", got, want)
		}
	}
	never := func(members string) string {
		return `{"method": "last_pulled", "olderThan": "100y", "tagPattern": "^x$", ` + members + `}`
	}
	check(0)
	r.policy(autoprune.Target{}, never(`"keepUntagged": "5d"`))
	check(5 * day)
	r.must(r.pruner.UseDefaults(t.Context(), "app", false))
	check(0)
	r.must(r.pruner.UseDefaults(t.Context(), "app", true))
	one := r.policy(app, never(`"keepUntagged": "1d", "mode": "observe"`))
	check(day)
	r.policy(autoprune.Target{Repository: "app/web"}, never(`"keepUntagged": "36h"`))
	check(day + 12*time.Hour)
	r.policy(app, never(`"keepUntagged": "9d", "mode": "off"`))
	r.policy(app, never(`"keepUntagged": "10d", "mediaTypes": ["*index*"]`))
	r.policy(app, never(`"keepUntagged": "11d", "annotations": {"x": "*"}`))
	r.policy(app, never(`"keepUntagged": "12d", "repositories": ["app/other"]`))
	check(day + 12*time.Hour)
	r.policy(app, never(`"keepUntagged": "13d", "smallerThan": "1MB"`))
	check(13 * day)
	r.exec(`UPDATE namespaceautoprunepolicy SET policy = '{"keepUntagged": {}}' WHERE uuid = $1`, one)
	if got := r.untagged(web, id)[id]; got.Policy != one || got.For < 100*364*day || got.String() == "" {
		t.Errorf("with a policy that can't be read: %s", got)
	}
	r.exec("DELETE FROM repositories WHERE id = $1", web.ID)
	check(0)
}

// TestPolicyWaitsForDeletions: a change of policies waits for deletions under way if a policy
// keeps untagged manifests, and not otherwise.
func TestPolicyWaitsForDeletions(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.repository("app/web")
	app := autoprune.Target{Namespace: "app"}
	deletion, err := r.db.Pool.Begin(t.Context())
	r.must(err)
	defer func() { r.must(deletion.Rollback(context.WithoutCancel(t.Context()))) }()
	_, err = deletion.Exec(t.Context(), "SELECT purser_holds_lock()")
	r.must(err)
	other := r.policy(app, `{"method": "creation_date", "olderThan": "1d"}`)
	waits := func(change func() error) {
		t.Helper()
		done := make(chan error, 1)
		go func() { done <- change() }()
		for value[int](r, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = 1886745447 AND objid = 0 AND NOT granted AND mode = 'ExclusiveLock' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())") == 0 {
			select {
			case err := <-done:
				t.Fatalf("a change of policies didn't wait: %v", err)
			default:
			}
		}
		r.must(deletion.Rollback(t.Context()))
		r.must(<-done)
		deletion, err = r.db.Pool.Begin(t.Context())
		r.must(err)
		_, err = deletion.Exec(t.Context(), "SELECT purser_holds_lock()")
		r.must(err)
	}
	keeps := parsed(t, `{"method": "creation_date", "olderThan": "1d", "keepUntagged": "9d"}`)
	waits(func() error { _, err := r.pruner.Create(t.Context(), autoprune.Target{}, keeps); return err })
	waits(func() error { return r.pruner.Delete(t.Context(), app, other) }) // now the default applies
	waits(func() error { return r.pruner.UseDefaults(t.Context(), "app", false) })
	_, err = policy.Parse([]byte(`{"method": "creation_date", "olderThan": "1d", "keepUntagged": "0d"}`))
	var wrong *policy.FieldError
	if !errors.As(err, &wrong) || wrong.Field != "keepUntagged" {
		t.Errorf("0d: %v", err)
	}
	if text := fmt.Sprint(keeps); text != "creation_date olderThan 1d, untagged manifests stay 9d" {
		t.Errorf("as text: %s", text)
	}
}

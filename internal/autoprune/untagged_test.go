package autoprune_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/autoprunetest"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/catalog"
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
	r.T.Helper()
	same := func(id int64) []int64 { return slices.Repeat([]int64{id}, len(ids)) }
	r.Must(pgx.BeginFunc(r.T.Context(), r.DB.Pool, func(tx pgx.Tx) (err error) {
		found, err = autoprune.Untagged(r.T.Context(), tx, same(t.NamespaceID), same(t.ID), ids)
		return err
	}))
	return found
}

// untagged compares for how long policies keep the scene's manifests with the oracle.
func (d *oracleDatabase) untagged(seed int, seen map[string]int) {
	d.T.Helper()
	ids := map[string]int64{}
	var all []int64
	for digest := range d.scene.manifests {
		ids[digest] = autoprunetest.Value[int64](d.Registry, "SELECT id FROM manifests WHERE repository_id = $1 AND digest = $2", d.target.ID, oracleBytes(digest))
		all = append(all, ids[digest])
	}
	found := d.registry.untagged(d.target, all...)
	for digest, id := range ids {
		want, inDoubt := oracleUntagged(d.scene.oracleInput, digest)
		if got := found[id].For; got != want {
			d.T.Fatalf("seed %d: policies keep %s for %s, want %s: %v", seed, digest, got, want, d.scene.policies)
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
	web := r.Repository("app/web")
	id := r.Manifest(web, "untagged", "")
	app := policies.Target{Namespace: "app"}
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
	r.policy(policies.Target{}, never(`"keepUntagged": "5d"`))
	check(5 * day)
	r.Must(r.pruner.Policies.UseDefaults(t.Context(), "app", false))
	check(0)
	r.Must(r.pruner.Policies.UseDefaults(t.Context(), "app", true))
	one := r.policy(app, never(`"keepUntagged": "1d", "mode": "observe"`))
	check(day)
	r.policy(policies.Target{Repository: "app/web"}, never(`"keepUntagged": "36h"`))
	check(day + 12*time.Hour)
	r.policy(app, never(`"keepUntagged": "9d", "mode": "off"`))
	r.policy(app, never(`"keepUntagged": "10d", "mediaTypes": ["*index*"]`))
	r.policy(app, never(`"keepUntagged": "11d", "annotations": {"x": "*"}`))
	r.policy(app, never(`"keepUntagged": "12d", "repositories": ["app/other"]`))
	check(day + 12*time.Hour)
	r.policy(app, never(`"keepUntagged": "13d", "smallerThan": "1MB"`))
	check(13 * day)
	r.Exec(`UPDATE namespaceautoprunepolicy SET policy = '{"keepUntagged": {}}' WHERE uuid = $1`, one)
	if got := r.untagged(web, id)[id]; got.Policy != one || got.For < 100*364*day || got.String() == "" {
		t.Errorf("with a policy that can't be read: %s", got)
	}
	r.Exec("DELETE FROM repositories WHERE id = $1", web.ID)
	check(0)
}

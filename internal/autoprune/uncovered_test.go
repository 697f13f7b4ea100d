package autoprune_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/autoprunetest"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/autoprune/warnings"
	"github.com/purser-registry/purser/internal/policy"
)

// TestJudgeUncovers: what a policy, or a keep rule of it, keeps from others must be told before it is
// taken away, also if the registry's defaults apply then.
func TestJudgeUncovers(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *autoprune.Options) { o.Grace = time.Hour })
	web := r.Repository("app/web")
	for _, name := range []string{"a", "b", "keep-1", "keep-2"} {
		r.Tag(web, name, "m-"+name, 10*24*time.Hour)
	}
	app := policies.Target{Namespace: "app"}
	keeper := r.policy(app, `{"method": "creation_date", "olderThan": "90d", "keep": [{"tagPattern": "^keep"}]}`)
	r.policy(app, `{"method": "number_of_tags", "numTags": 1}`)
	r.Exec("UPDATE namespaceautoprunepolicy SET active_from = NULL")
	want := func(c warnings.Change, n int64) {
		t.Helper()
		if w := r.OfChange(r.pruner.Warnings, app, c)[policy.Uncovers]; w.Number != n || int(n) != len(w.Examples) {
			t.Errorf("the change uncovers %+v, want %d", w, n)
		}
	}
	same := autoprunetest.Parsed(t, `{"method": "creation_date", "olderThan": "90d", "keep": [{"tagPattern": "^keep"}]}`)
	older := autoprunetest.Parsed(t, `{"method": "creation_date", "olderThan": "5d", "keep": [{"tagPattern": "^keep"}]}`)
	without := autoprunetest.Parsed(t, `{"method": "creation_date", "olderThan": "90d"}`)
	off := autoprunetest.Parsed(t, `{"method": "creation_date", "olderThan": "90d", "mode": "off", "keep": [{"tagPattern": "^keep"}]}`)
	want(warnings.Change{ID: keeper, Policy: &same}, 0)
	want(warnings.Change{ID: keeper, Policy: &older}, 0)
	want(warnings.Change{ID: keeper, Policy: &without}, 1) // keep-2 is the newest
	want(warnings.Change{ID: keeper, Policy: &off}, 1)
	want(warnings.Change{ID: keeper}, 1)

	r.run()
	if got := r.Tags(web); !slices.Equal(got, []string{"keep-1", "keep-2"}) {
		t.Fatalf("%v stay", got)
	}
	r.Must(r.pruner.Policies.Delete(t.Context(), app, keeper))
	r.run()
	if got := r.Tags(web); !slices.Equal(got, []string{"keep-1", "keep-2"}) {
		t.Fatalf("in the grace period of what was taken away, %v stay", got)
	}
	r.Exec("UPDATE autopruneuncovered SET until = now() - interval '1s'")
	r.run()
	if got := r.Tags(web); !slices.Equal(got, []string{"keep-2"}) {
		t.Errorf("after the grace period, %v stay", got)
	}
}

// TestJudgeUncoversWithoutEffect: deleting a namespace's last policy lets the defaults apply, also one that
// deletes nothing. What they would delete must be told, and stay for the grace period. While the
// namespace has another policy, or refuses the defaults, nothing is told and nothing waits.
func TestJudgeUncoversWithoutEffect(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"off":      `{"method": "creation_date", "olderThan": "90d", "mode": "off"}`,
		"untagged": `{"method": "untagged", "olderThan": "90d"}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t, func(o *autoprune.Options) { o.Grace = time.Hour })
			web := r.Repository("app/web")
			r.Tag(web, "old", "m", 10*24*time.Hour)
			app := policies.Target{Namespace: "app"}
			r.policy(policies.Target{}, `{"method": "creation_date", "olderThan": "5d", "grace": "0s"}`)
			own, other := r.policy(app, text), r.policy(app, `{"method": "creation_date", "olderThan": "95d"}`)
			waiting := func() int { return autoprunetest.Value[int](r.Registry, "SELECT count(*) FROM autopruneuncovered") }
			uncovers := func(n int64) {
				t.Helper()
				if w := r.OfChange(r.pruner.Warnings, app, warnings.Change{ID: own})[policy.Uncovers]; w.Number != n {
					t.Errorf("deleting the policy uncovers %+v, want %d", w, n)
				}
			}
			uncovers(0)
			r.Must(r.pruner.Policies.Delete(t.Context(), app, own))
			if waiting() != 0 {
				t.Error("policies wait although the namespace has another policy")
			}
			own = r.policy(app, text)
			r.Must(r.pruner.Policies.Delete(t.Context(), app, other))
			r.Exec("DELETE FROM autopruneuncovered") // of the other one, which was on
			r.Must(r.pruner.Policies.UseDefaults(t.Context(), "app", false))
			r.Exec("DELETE FROM autopruneuncovered")
			uncovers(0)
			r.Must(r.pruner.Policies.UseDefaults(t.Context(), "app", true))
			if waiting() != 0 {
				t.Error("policies wait although the namespace has a policy of its own")
			}
			uncovers(1)
			r.Must(r.pruner.Policies.Delete(t.Context(), app, own))
			r.run()
			if got := r.Tags(web); len(got) != 1 {
				t.Error("the tag went at once")
			}
			r.Exec("UPDATE autopruneuncovered SET until = now() - interval '1s'")
			r.run()
			if got := r.Tags(web); len(got) != 0 {
				t.Errorf("after the grace period %v stay", got)
			}
		})
	}
}

// TestLastPolicyWaitsAsDefaults: when a namespace's only policy is deleted, the registry's defaults begin to
// apply there. They wait for their own grace period, whatever that of the deleted policy was.
func TestLastPolicyWaitsAsDefaults(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"off":                    `{"method": "creation_date", "olderThan": "90d", "mode": "off"}`,
		"without a grace period": `{"method": "creation_date", "olderThan": "90d", "grace": "0s"}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			web := r.Repository("app/web")
			r.Tag(web, "old", "m", 10*24*time.Hour)
			app := policies.Target{Namespace: "app"}
			r.policy(policies.Target{}, `{"method": "creation_date", "olderThan": "5d", "grace": "7d"}`)
			r.Exec("UPDATE defaultautoprunepolicy SET active_from = NULL") // it is a week old
			own, other := r.policy(app, text), r.policy(app, `{"method": "creation_date", "olderThan": "95d"}`)
			r.Exec("DELETE FROM autopruneuncovered") // the defaults have stopped to apply
			r.Must(r.pruner.Policies.Delete(t.Context(), app, other))
			const waiting = "SELECT count(*) FROM autopruneuncovered WHERE namespace_id <> 0 AND until > now() + interval '6 days'"
			if n := autoprunetest.Value[int](r.Registry, waiting); n != 0 {
				t.Error("policies wait as the defaults do, which don't apply")
			}
			r.Must(r.pruner.Policies.Delete(t.Context(), app, own))
			if n := autoprunetest.Value[int](r.Registry, waiting); n != 1 {
				t.Errorf("%d places wait for the grace period of the defaults", n)
			}
			for range 2 { // the first run may only announce
				r.run()
			}
			if got := r.Tags(web); len(got) != 1 {
				t.Error("the tag went at once")
			}
		})
	}
}

// TestJudgeUncoversUnreadable: a policy that this version can't read makes the others rest, since it may
// keep tags. What they would delete once it is deleted, or saved over, must be told, and stay for the
// grace period.
func TestJudgeUncoversUnreadable(t *testing.T) {
	t.Parallel()
	const id = "00000000-0000-4000-8000-000000000001"
	same := `{"method": "creation_date", "olderThan": "90d", "keep": [{"tagPattern": "^old$"}]}`
	over := `{"method": "creation_date", "olderThan": "90d"}`
	for name, change := range map[string]string{"deleted": "", "saved over": over} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t, func(o *autoprune.Options) { o.Grace = time.Hour })
			web := r.Repository("app/web")
			r.Tag(web, "old", "m", 10*24*time.Hour)
			app := policies.Target{Namespace: "app"}
			r.policy(app, `{"method": "creation_date", "olderThan": "5d", "grace": "0s"}`)
			r.Exec("INSERT INTO namespaceautoprunepolicy (uuid, namespace_id, policy) VALUES ($1, $2, $3)", id, web.NamespaceID,
				`{"method": "creation_date", "olderThan": "90d", "keep": [{"everything": true}]}`)
			c := warnings.Change{ID: id}
			if change != "" {
				p := autoprunetest.Parsed(t, change)
				c.Policy = &p
			}
			if w := r.OfChange(r.pruner.Warnings, app, c)[policy.Uncovers]; w.Number != 1 || !slices.Equal(w.Examples, []string{"app/web:old"}) {
				t.Errorf("the change uncovers %+v", w)
			}
			p := autoprunetest.Parsed(t, same)
			if found := r.OfChange(r.pruner.Warnings, app, warnings.Change{ID: id, Policy: &p}); found[policy.Uncovers].Number != 0 {
				t.Errorf("a policy that keeps the same uncovers %+v", found)
			}
			if c.Policy == nil {
				r.Must(r.pruner.Policies.Delete(t.Context(), app, id))
			} else {
				r.Must(r.pruner.Policies.Update(t.Context(), app, id, *c.Policy))
			}
			r.run()
			if got := r.Tags(web); len(got) != 1 {
				t.Error("the tag went at once")
			}
			r.Exec("UPDATE autopruneuncovered SET until = now() - interval '1s'")
			r.run()
			if got := r.Tags(web); len(got) != 0 {
				t.Errorf("after the grace period %v stay", got)
			}
		})
	}
}

// TestJudgeUseDefaults: what the registry's defaults would delete must be told before a namespace accepts
// them again, and stay for their grace period; and so must what they keep, before it refuses them. A
// namespace with policies of its own loses nothing.
func TestJudgeUseDefaults(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *autoprune.Options) { o.Grace = time.Hour })
	web, own := r.Repository("app/web"), r.Repository("own/web")
	for _, name := range []string{"old", "kept"} {
		r.Tag(web, name, name, 10*24*time.Hour)
		r.Tag(own, name, name, 10*24*time.Hour)
	}
	r.policy(policies.Target{Namespace: "own"}, `{"method": "number_of_tags", "numTags": 100}`)
	r.Must(r.pruner.Policies.UseDefaults(t.Context(), "app", false))
	r.Must(r.pruner.Policies.UseDefaults(t.Context(), "own", false))
	r.policy(policies.Target{}, `{"method": "creation_date", "olderThan": "5d", "keep": [{"tagPattern": "^kept$"}]}`)
	r.Exec("UPDATE defaultautoprunepolicy SET active_from = NULL")
	told := func(namespace string, on bool) policy.Warning {
		t.Helper()
		return r.OfChange(r.pruner.Warnings, policies.Target{Namespace: namespace}, warnings.Change{Defaults: &on})[policy.Uncovers]
	}
	if w := told("app", true); w.Number != 1 || !slices.Equal(w.Examples, []string{"app/web:old"}) || !strings.HasPrefix(w.Text, "with the registry's default policies, ") {
		t.Errorf("accepting the defaults uncovers %+v", w)
	}
	for namespace, on := range map[string]bool{"app": false, "own": true} {
		if w := told(namespace, on); w.Number != 0 {
			t.Errorf("%s: the defaults uncover %+v", namespace, w)
		}
	}
	r.Must(r.pruner.Policies.UseDefaults(t.Context(), "app", true))
	r.Must(r.pruner.Policies.UseDefaults(t.Context(), "own", true))
	if n := autoprunetest.Value[int](r.Registry, "SELECT count(*) FROM autopruneuncovered WHERE namespace_id = $1", own.NamespaceID); n != 0 {
		t.Error("policies wait although the namespace has a policy of its own")
	}
	r.ensure()
	r.run()
	if got := r.Tags(web); len(got) != 2 {
		t.Errorf("only %v stay at once", got)
	}
	r.policy(policies.Target{Repository: "app/web"}, `{"method": "creation_date", "olderThan": "5d"}`)
	r.Exec("UPDATE repositoryautoprunepolicy SET active_from = NULL")
	if w := told("app", false); w.Number != 1 || !slices.Equal(w.Examples, []string{"app/web:kept"}) || !strings.HasPrefix(w.Text, "without the registry's default policies, ") {
		t.Errorf("refusing the defaults uncovers %+v", w)
	}
	r.Exec("UPDATE autopruneuncovered SET until = now() - interval '1s'")
	r.run()
	if got := r.Tags(web); !slices.Equal(got, []string{"kept"}) {
		t.Errorf("after the grace period %v stay", got)
	}
}

// TestDefaultsThatStopUncover: what the registry's defaults kept stays for the grace period when they
// stop applying in a namespace: it refuses them, or gets a policy of its own.
func TestDefaultsThatStopUncover(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(r *registry, app policies.Target) error{
		"refused": func(r *registry, app policies.Target) error {
			return r.pruner.Policies.UseDefaults(t.Context(), app.Namespace, false)
		},
		"a policy of its own": func(r *registry, app policies.Target) error {
			_, err := r.pruner.Policies.Create(t.Context(), app, autoprunetest.Parsed(t, `{"method": "creation_date", "olderThan": "90y"}`))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t, func(o *autoprune.Options) { o.Grace = time.Hour })
			web := r.Repository("app/web")
			r.Tag(web, "old", "m", 10*24*time.Hour)
			r.policy(policies.Target{}, `{"method": "creation_date", "olderThan": "90d", "keep": [{"tagPattern": "^old$"}]}`)
			r.policy(policies.Target{Repository: "app/web"}, `{"method": "creation_date", "olderThan": "5d"}`)
			r.Exec("UPDATE repositoryautoprunepolicy SET active_from = NULL")
			r.Must(stop(r, policies.Target{Namespace: "app"}))
			r.run()
			if got := r.Tags(web); len(got) != 1 {
				t.Error("the tag went at once")
			}
			r.Exec("UPDATE autopruneuncovered SET until = now() - interval '1s'")
			r.run()
			if got := r.Tags(web); len(got) != 0 {
				t.Errorf("after the grace period %v stay", got)
			}
		})
	}
}

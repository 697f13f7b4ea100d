package autoprune_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/policy"
)

// judged returns the warnings of a new policy by code.
func (r *registry) judged(t autoprune.Target, text string) map[policy.WarningCode]policy.Warning {
	r.t.Helper()
	p := parsed(r.t, text)
	return r.judgedChange(t, autoprune.Change{Policy: &p})
}

func (r *registry) judgedChange(t autoprune.Target, c autoprune.Change) map[policy.WarningCode]policy.Warning {
	r.t.Helper()
	list, err := r.pruner.Judge(r.t.Context(), t, c)
	r.must(err)
	found := make(map[policy.WarningCode]policy.Warning)
	for _, w := range list {
		found[w.Code] = w
	}
	return found
}

// TestJudge: what a policy surely wasn't meant to do must be told by the tags that there are, and
// nothing else.
func TestJudge(t *testing.T) {
	t.Parallel()
	r := setup(t)
	web, api := r.repository("app/web"), r.repository("app/api")
	for _, name := range []string{"latest", "prod", "pr-1", "pr-2", "v1.2.0", "v1.3.0", "v1.3.0-rc.1", "main", "sprint-7"} {
		r.tag(web, name, "m-"+name, time.Hour)
	}
	for _, name := range []string{"edge", "nightly", "pr-9", "x"} {
		r.tag(api, name, "m-"+name, 100*24*time.Hour)
	}
	namespace, repository := autoprune.Target{Namespace: "app"}, autoprune.Target{Repository: "app/web"}
	for _, c := range []struct {
		of           autoprune.Target
		policy, want string // codes
		example      string
	}{
		{namespace, `{"method": "creation_date", "olderThan": "30d", "tagPattern": "^pr-[0-9]+$"}`, "", ""},
		{namespace, `{"method": "creation_date", "olderThan": "30d", "tagPattern": "^pr-*"}`, "shell_pattern", "app/web:prod"},
		{namespace, `{"method": "creation_date", "olderThan": "30d", "tagPattern": "pr-"}`, "unanchored", "app/api:pr-9"},
		{namespace, `{"method": "creation_date", "olderThan": "30d", "tagPattern": "rc"}`, "unanchored", "app/web:v1.3.0-rc.1"},
		{namespace, `{"method": "creation_date", "olderThan": "6m", "tagPattern": "^pr-"}`, "short_age", ""},
		{namespace, `{"method": "creation_date", "olderThan": "30d"}`, "selects_latest selects_releases", "app/web:latest"},
		{repository, `{"method": "last_pulled", "olderThan": "30d"}`, "last_use_unproved selects_latest selects_releases", "app/web:latest"},
		{namespace, `{"method": "max_bytes", "maxBytes": "100GiB"}`, "last_use_unproved", "app"},
		{namespace, `{"method": "creation_date", "olderThan": "1m"}`, "selects_latest selects_most selects_releases short_age", ""},
		{namespace, `{"method": "creation_date", "olderThan": "30d", "keep": [{"versions": "releases"}, {"tagPattern": "^(latest|main)$"}]}`, "", ""},
		{namespace, `{"method": "creation_date", "olderThan": "30d", "tagPattern": "^pr-", "keep": [{"tagPattern": "^relaese"}, {"newest": 2}]}`, "keeps_nothing", ""},
		{namespace, `{"method": "creation_date", "olderThan": "30d", "tagPattern": "^[^v]"}`, "selects_latest", "app/web:latest"},
		{namespace, `{"method": "creation_date", "olderThan": "30d", "tagPattern": "^v*"}`, "every_tag selects_latest selects_releases shell_pattern", ""},
		{namespace, `{"method": "creation_date", "olderThan": "30d", "tagPattern": "^v", "tagPatternMatches": false}`, "selects_latest", "app/web:latest"},
		{namespace, `{"method": "creation_date", "olderThan": "30d", "tagPattern": "^v*", "tagPatternMatches": false}`, "no_tag", ""},
		{namespace, `{"method": "number_of_tags", "numTags": 100}`, "", ""},
		{namespace, `{"method": "number_of_tags", "numTags": 100, "groupBy": "(pr|int)-[0-9]+"}`, "unanchored", "app/web:sprint-7"},
		{namespace, `{"method": "number_of_tags", "numTags": 100, "groupBy": "^(pr|int)-[0-9]+$"}`, "", ""},
		{namespace, `{"method": "number_of_tags", "numTags": 100, "groupBy": "([a-z]+)-[0-9]+"}`, "", ""}, // no name has more
		{namespace, `{"method": "number_of_tags", "numTags": 100, "tagPattern": "^s", "groupBy": "(pr|int)-[0-9]+"}`, "unanchored", "app/web:sprint-7"},
		{namespace, `{"method": "number_of_tags", "numTags": 100, "tagPattern": "^p", "groupBy": "(pr|int)-[0-9]+"}`, "", ""},
		{namespace, `{"method": "creation_date", "olderThan": "30d", "tagPattern": "^sprint-", "keep": [{"newest": 2, "groupBy": "(pr|int)-[0-9]+"}]}`, "unanchored", "app/web:sprint-7"},
		{namespace, `{"method": "number_of_tags", "numTags": 3}`, "selects_most selects_releases selects_latest", ""},
		{namespace, `{"method": "number_of_tags", "numTags": 100, "repositories": ["app/wbe"]}`, "no_repository", ""},
		{namespace, `{"method": "number_of_tags", "numTags": 100, "repositories": ["app/web", "app/apis/**"]}`, "no_repository", ""},
		{namespace, `{"method": "creation_date", "olderThan": "6m", "mode": "off"}`, "", ""},
		{autoprune.Target{}, `{"method": "number_of_tags", "numTags": 100}`, "reaches", "app"},
	} {
		found := r.judged(c.of, c.policy)
		var codes, examples []string
		for code, w := range found {
			codes, examples = append(codes, string(code)), append(examples, w.Examples...)
		}
		slices.Sort(codes)
		want := strings.Fields(c.want)
		slices.Sort(want)
		if !slices.Equal(codes, want) {
			t.Errorf("%s: the warnings are %v, want %v (%v)", c.policy, codes, want, found)
		}
		if c.example != "" && !slices.Contains(examples, c.example) {
			t.Errorf("%s: %v don't name %s", c.policy, examples, c.example)
		}
	}
	if w := r.judged(namespace, `{"method": "number_of_tags", "numTags": 100, "repositories": ["app/wbe"]}`)[policy.NoRepository]; !strings.Contains(w.Text, "default policies don't apply") {
		t.Errorf("a policy that never matches says %q", w.Text)
	}
	r.reporter(web.NamespaceID, "prod", time.Hour)
	for _, text := range []string{`{"method": "max_bytes", "maxBytes": "100GiB"}`, `{"method": "last_pulled", "olderThan": "30d", "tagPattern": "^pr-"}`} {
		if found := r.judged(namespace, text); len(found) > 0 {
			t.Errorf("%s, where a reporter is live: the warnings are %v", text, found)
		}
	}
}

// TestJudgeSetting: the default policy of the configuration is judged by the tags of all namespaces that
// haven't refused the defaults, also of those with policies of their own.
func TestJudgeSetting(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for _, path := range []string{"none/web", "own/web", "off/web"} {
		r.tag(r.repository(path), "latest", path, 10*day)
	}
	r.policy(autoprune.Target{Namespace: "own"}, `{"method": "number_of_tags", "numTags": 100}`)
	r.must(r.pruner.UseDefaults(t.Context(), "off", false))
	p := parsed(t, `{"method": "creation_date", "olderThan": "30d"}`)
	found := r.judgedChange(autoprune.Target{}, autoprune.Change{Policy: &p, Setting: true})
	if w := found[policy.SelectsLatest]; len(found) != 1 || !slices.Equal(w.Examples, []string{"none/web:latest", "own/web:latest"}) {
		t.Errorf("the warnings are %+v", found)
	}
}

// TestJudgeUncovers: what a policy, or a keep rule of it, keeps from others must be told before it is
// taken away, also if the registry's defaults apply then.
func TestJudgeUncovers(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *autoprune.Options) { o.Grace = time.Hour })
	web := r.repository("app/web")
	for _, name := range []string{"a", "b", "keep-1", "keep-2"} {
		r.tag(web, name, "m-"+name, 10*24*time.Hour)
	}
	app := autoprune.Target{Namespace: "app"}
	keeper := r.policy(app, `{"method": "creation_date", "olderThan": "90d", "keep": [{"tagPattern": "^keep"}]}`)
	r.policy(app, `{"method": "number_of_tags", "numTags": 1}`)
	r.exec("UPDATE namespaceautoprunepolicy SET active_from = NULL")
	want := func(c autoprune.Change, n int64) {
		t.Helper()
		if w := r.judgedChange(app, c)[policy.Uncovers]; w.Number != n || int(n) != len(w.Examples) {
			t.Errorf("the change uncovers %+v, want %d", w, n)
		}
	}
	same := parsed(t, `{"method": "creation_date", "olderThan": "90d", "keep": [{"tagPattern": "^keep"}]}`)
	older := parsed(t, `{"method": "creation_date", "olderThan": "5d", "keep": [{"tagPattern": "^keep"}]}`)
	without := parsed(t, `{"method": "creation_date", "olderThan": "90d"}`)
	off := parsed(t, `{"method": "creation_date", "olderThan": "90d", "mode": "off", "keep": [{"tagPattern": "^keep"}]}`)
	want(autoprune.Change{ID: keeper, Policy: &same}, 0)
	want(autoprune.Change{ID: keeper, Policy: &older}, 0)
	want(autoprune.Change{ID: keeper, Policy: &without}, 1) // keep-2 is the newest
	want(autoprune.Change{ID: keeper, Policy: &off}, 1)
	want(autoprune.Change{ID: keeper}, 1)

	r.run()
	if got := r.tags(web); !slices.Equal(got, []string{"keep-1", "keep-2"}) {
		t.Fatalf("%v stay", got)
	}
	r.must(r.pruner.Delete(t.Context(), app, keeper))
	r.run()
	if got := r.tags(web); !slices.Equal(got, []string{"keep-1", "keep-2"}) {
		t.Fatalf("in the grace period of what was taken away, %v stay", got)
	}
	r.exec("UPDATE autopruneuncovered SET until = now() - interval '1s'")
	r.run()
	if got := r.tags(web); !slices.Equal(got, []string{"keep-2"}) {
		t.Errorf("after the grace period, %v stay", got)
	}
}

// TestJudgeUncoversDefaults: deleting a namespace's last policy lets the defaults apply.
func TestJudgeUncoversDefaults(t *testing.T) {
	t.Parallel()
	r := setup(t)
	web := r.repository("app/web")
	r.tag(web, "old", "m", 10*24*time.Hour)
	app := autoprune.Target{Namespace: "app"}
	r.policy(autoprune.Target{}, `{"method": "creation_date", "olderThan": "5d"}`)
	own := r.policy(app, `{"method": "creation_date", "olderThan": "90d"}`)
	if w := r.judgedChange(app, autoprune.Change{ID: own})[policy.Uncovers]; w.Number != 1 {
		t.Errorf("deleting the last policy uncovers %+v", w)
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
			web := r.repository("app/web")
			r.tag(web, "old", "m", 10*24*time.Hour)
			app := autoprune.Target{Namespace: "app"}
			r.policy(autoprune.Target{}, `{"method": "creation_date", "olderThan": "5d", "grace": "0s"}`)
			own, other := r.policy(app, text), r.policy(app, `{"method": "creation_date", "olderThan": "95d"}`)
			waiting := func() int { return value[int](r, "SELECT count(*) FROM autopruneuncovered") }
			uncovers := func(n int64) {
				t.Helper()
				if w := r.judgedChange(app, autoprune.Change{ID: own})[policy.Uncovers]; w.Number != n {
					t.Errorf("deleting the policy uncovers %+v, want %d", w, n)
				}
			}
			uncovers(0)
			r.must(r.pruner.Delete(t.Context(), app, own))
			if waiting() != 0 {
				t.Error("policies wait although the namespace has another policy")
			}
			own = r.policy(app, text)
			r.must(r.pruner.Delete(t.Context(), app, other))
			r.exec("DELETE FROM autopruneuncovered") // of the other one, which was on
			r.must(r.pruner.UseDefaults(t.Context(), "app", false))
			r.exec("DELETE FROM autopruneuncovered")
			uncovers(0)
			r.must(r.pruner.UseDefaults(t.Context(), "app", true))
			if waiting() != 0 {
				t.Error("policies wait although the namespace has a policy of its own")
			}
			uncovers(1)
			r.must(r.pruner.Delete(t.Context(), app, own))
			r.run()
			if got := r.tags(web); len(got) != 1 {
				t.Error("the tag went at once")
			}
			r.exec("UPDATE autopruneuncovered SET until = now() - interval '1s'")
			r.run()
			if got := r.tags(web); len(got) != 0 {
				t.Errorf("after the grace period %v stay", got)
			}
		})
	}
}

// TestRefusingDefaultsIsQuick: a namespace without policies of its own refuses the registry's defaults. No policy
// is left there then, so nobody is asked, though there is no time to look at its tags.
func TestRefusingDefaultsIsQuick(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *autoprune.Options) { o.JudgeWithin = time.Nanosecond })
	r.tag(r.repository("app/web"), "old", "m", 10*24*time.Hour)
	r.policy(autoprune.Target{}, `{"method": "creation_date", "olderThan": "5d"}`)
	app := autoprune.Target{Namespace: "app"}
	for _, own := range []bool{false, true} {
		if own {
			r.policy(app, `{"method": "creation_date", "olderThan": "90d"}`)
		}
		off := false
		found, err := r.pruner.Judge(t.Context(), app, autoprune.Change{Defaults: &off})
		if err != nil || (len(found) > 0) != own {
			t.Errorf("with policies of its own: %v, and the namespace is asked %+v (%v)", own, found, err)
		}
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
			web := r.repository("app/web")
			r.tag(web, "old", "m", 10*24*time.Hour)
			app := autoprune.Target{Namespace: "app"}
			r.policy(autoprune.Target{}, `{"method": "creation_date", "olderThan": "5d", "grace": "7d"}`)
			r.exec("UPDATE defaultautoprunepolicy SET active_from = NULL") // it is a week old
			own, other := r.policy(app, text), r.policy(app, `{"method": "creation_date", "olderThan": "95d"}`)
			r.exec("DELETE FROM autopruneuncovered") // the defaults have stopped to apply
			r.must(r.pruner.Delete(t.Context(), app, other))
			const waiting = "SELECT count(*) FROM autopruneuncovered WHERE namespace_id <> 0 AND until > now() + interval '6 days'"
			if n := value[int](r, waiting); n != 0 {
				t.Error("policies wait as the defaults do, which don't apply")
			}
			r.must(r.pruner.Delete(t.Context(), app, own))
			if n := value[int](r, waiting); n != 1 {
				t.Errorf("%d places wait for the grace period of the defaults", n)
			}
			for range 2 { // the first run may only announce
				r.run()
			}
			if got := r.tags(web); len(got) != 1 {
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
			web := r.repository("app/web")
			r.tag(web, "old", "m", 10*24*time.Hour)
			app := autoprune.Target{Namespace: "app"}
			r.policy(app, `{"method": "creation_date", "olderThan": "5d", "grace": "0s"}`)
			r.exec("INSERT INTO namespaceautoprunepolicy (uuid, namespace_id, policy) VALUES ($1, $2, $3)", id, web.NamespaceID,
				`{"method": "creation_date", "olderThan": "90d", "keep": [{"everything": true}]}`)
			c := autoprune.Change{ID: id}
			if change != "" {
				p := parsed(t, change)
				c.Policy = &p
			}
			if w := r.judgedChange(app, c)[policy.Uncovers]; w.Number != 1 || !slices.Equal(w.Examples, []string{"app/web:old"}) {
				t.Errorf("the change uncovers %+v", w)
			}
			p := parsed(t, same)
			if found := r.judgedChange(app, autoprune.Change{ID: id, Policy: &p}); found[policy.Uncovers].Number != 0 {
				t.Errorf("a policy that keeps the same uncovers %+v", found)
			}
			if c.Policy == nil {
				r.must(r.pruner.Delete(t.Context(), app, id))
			} else {
				r.must(r.pruner.Update(t.Context(), app, id, *c.Policy))
			}
			r.run()
			if got := r.tags(web); len(got) != 1 {
				t.Error("the tag went at once")
			}
			r.exec("UPDATE autopruneuncovered SET until = now() - interval '1s'")
			r.run()
			if got := r.tags(web); len(got) != 0 {
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
	web, own := r.repository("app/web"), r.repository("own/web")
	for _, name := range []string{"old", "kept"} {
		r.tag(web, name, name, 10*24*time.Hour)
		r.tag(own, name, name, 10*24*time.Hour)
	}
	r.policy(autoprune.Target{Namespace: "own"}, `{"method": "number_of_tags", "numTags": 100}`)
	r.must(r.pruner.UseDefaults(t.Context(), "app", false))
	r.must(r.pruner.UseDefaults(t.Context(), "own", false))
	r.policy(autoprune.Target{}, `{"method": "creation_date", "olderThan": "5d", "keep": [{"tagPattern": "^kept$"}]}`)
	r.exec("UPDATE defaultautoprunepolicy SET active_from = NULL")
	told := func(namespace string, on bool) policy.Warning {
		t.Helper()
		return r.judgedChange(autoprune.Target{Namespace: namespace}, autoprune.Change{Defaults: &on})[policy.Uncovers]
	}
	if w := told("app", true); w.Number != 1 || !slices.Equal(w.Examples, []string{"app/web:old"}) || !strings.HasPrefix(w.Text, "with the registry's default policies, ") {
		t.Errorf("accepting the defaults uncovers %+v", w)
	}
	for namespace, on := range map[string]bool{"app": false, "own": true} {
		if w := told(namespace, on); w.Number != 0 {
			t.Errorf("%s: the defaults uncover %+v", namespace, w)
		}
	}
	r.must(r.pruner.UseDefaults(t.Context(), "app", true))
	r.must(r.pruner.UseDefaults(t.Context(), "own", true))
	if n := value[int](r, "SELECT count(*) FROM autopruneuncovered WHERE namespace_id = $1", own.NamespaceID); n != 0 {
		t.Error("policies wait although the namespace has a policy of its own")
	}
	r.ensure()
	r.run()
	if got := r.tags(web); len(got) != 2 {
		t.Errorf("only %v stay at once", got)
	}
	r.policy(autoprune.Target{Repository: "app/web"}, `{"method": "creation_date", "olderThan": "5d"}`)
	r.exec("UPDATE repositoryautoprunepolicy SET active_from = NULL")
	if w := told("app", false); w.Number != 1 || !slices.Equal(w.Examples, []string{"app/web:kept"}) || !strings.HasPrefix(w.Text, "without the registry's default policies, ") {
		t.Errorf("refusing the defaults uncovers %+v", w)
	}
	r.exec("UPDATE autopruneuncovered SET until = now() - interval '1s'")
	r.run()
	if got := r.tags(web); !slices.Equal(got, []string{"kept"}) {
		t.Errorf("after the grace period %v stay", got)
	}
}

// TestJudgeDropsReporter: a policy that doesn't require a reporter any more must be warned of, with the
// reporters first that aren't live: it may rest for them now. So must one without a cap or windows.
func TestJudgeDropsReporter(t *testing.T) {
	t.Parallel()
	r := setup(t)
	web := r.repository("app/web")
	app := autoprune.Target{Namespace: "app"}
	id := r.policy(app, `{"method": "number_of_tags", "numTags": 50, "requireReporter": ["prod-eu", "prod-us"], "maxDeleted": 9, "windows": [{"days": ["sun"]}]}`)
	r.reporter(web.NamespaceID, "prod-eu", time.Hour)
	r.reporter(web.NamespaceID, "prod-us", time.Hour)
	r.exec("UPDATE holdreporters SET reported_at = reported_at - lease / 2 WHERE name = 'prod-us'")
	for text, want := range map[string]struct {
		codes, said string
		names       []string
	}{
		`{"method": "number_of_tags", "numTags": 30}`: {"drops_reporter drops_safeguard", "2 reporters any more, the first of which isn't live", []string{"prod-us", "prod-eu"}},
		`{"method": "number_of_tags", "numTags": 30, "mode": "observe", "requireReporter": ["prod-us"], "maxDeletedPercent": 5, "windows": [{"days": ["mon"]}]}`: {
			"drops_reporter", "1 reporter any more", []string{"prod-eu"},
		},
		`{"method": "number_of_tags", "numTags": 30, "requireReporter": ["prod-us", "prod-eu"], "maxDeleted": 99, "windows": [{"days": ["mon"]}]}`: {},
		`{"method": "number_of_tags", "numTags": 30, "mode": "off"}`:                                                                               {},
	} {
		p := parsed(t, text)
		found := r.judgedChange(app, autoprune.Change{ID: id, Policy: &p})
		var codes []string
		for code := range found {
			codes = append(codes, string(code))
		}
		slices.Sort(codes)
		if w := found[policy.DropsReporter]; strings.Join(codes, " ") != want.codes || !slices.Equal(w.Examples, want.names) || !strings.Contains(w.Text, want.said) {
			t.Errorf("%s: the warnings are %+v, want %+v", text, found, want)
		}
	}
}

// TestJudgeUntagged: a policy that deletes no tag selects neither latest nor most tags.
func TestJudgeUntagged(t *testing.T) {
	t.Parallel()
	r := setup(t)
	web := r.repository("app/web")
	for _, tag := range []string{"latest", "v1.0.0"} {
		r.tag(web, tag, tag, 1000*day)
	}
	p := parsed(t, `{"method": "untagged", "olderThan": "14d"}`)
	found, err := r.pruner.Judge(t.Context(), autoprune.Target{Namespace: "app"}, autoprune.Change{Policy: &p})
	if r.must(err); len(found) != 0 {
		t.Errorf("the policy is warned of: %+v", found)
	}
}

// TestDefaultsThatStopUncover: what the registry's defaults kept stays for the grace period when they
// stop applying in a namespace: it refuses them, or gets a policy of its own.
func TestDefaultsThatStopUncover(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(r *registry, app autoprune.Target) error{
		"refused": func(r *registry, app autoprune.Target) error {
			return r.pruner.UseDefaults(t.Context(), app.Namespace, false)
		},
		"a policy of its own": func(r *registry, app autoprune.Target) error {
			_, err := r.pruner.Create(t.Context(), app, parsed(t, `{"method": "creation_date", "olderThan": "90y"}`))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t, func(o *autoprune.Options) { o.Grace = time.Hour })
			web := r.repository("app/web")
			r.tag(web, "old", "m", 10*24*time.Hour)
			r.policy(autoprune.Target{}, `{"method": "creation_date", "olderThan": "90d", "keep": [{"tagPattern": "^old$"}]}`)
			r.policy(autoprune.Target{Repository: "app/web"}, `{"method": "creation_date", "olderThan": "5d"}`)
			r.exec("UPDATE repositoryautoprunepolicy SET active_from = NULL")
			r.must(stop(r, autoprune.Target{Namespace: "app"}))
			r.run()
			if got := r.tags(web); len(got) != 1 {
				t.Error("the tag went at once")
			}
			r.exec("UPDATE autopruneuncovered SET until = now() - interval '1s'")
			r.run()
			if got := r.tags(web); len(got) != 0 {
				t.Errorf("after the grace period %v stay", got)
			}
		})
	}
}

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

package warnings_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/autoprune/autoprunetest"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/autoprune/snapshot"
	"github.com/purser-registry/purser/internal/autoprune/warnings"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/policy"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

// registry is a test database with policies, and what finds their warnings.
type registry struct {
	*autoprunetest.Registry
	store  *policies.Store
	finder *warnings.Finder
}

// setup makes a registry. A judgement may take the time `within`; 0 is the default.
func setup(t *testing.T, within time.Duration) *registry {
	t.Helper()
	r := autoprunetest.New(t)
	store := policies.New(policies.Options{DB: r.DB, Catalog: r.Catalog, Log: autoprunetest.Quiet})
	reader := snapshot.New(snapshot.Options{DB: r.DB, Log: autoprunetest.Quiet})
	return &registry{r, store, warnings.New(warnings.Options{Repositories: reader, Policies: store, Within: within})}
}

// TestJudge: what a policy surely wasn't meant to do must be told by the tags that there are, and
// nothing else.
func TestJudge(t *testing.T) {
	t.Parallel()
	r := setup(t, 0)
	web, api := r.Repository("app/web"), r.Repository("app/api")
	for _, name := range []string{"latest", "prod", "pr-1", "pr-2", "v1.2.0", "v1.3.0", "v1.3.0-rc.1", "main", "sprint-7"} {
		r.Tag(web, name, "m-"+name, time.Hour)
	}
	for _, name := range []string{"edge", "nightly", "pr-9", "x"} {
		r.Tag(api, name, "m-"+name, 100*24*time.Hour)
	}
	namespace, repository := policies.Target{Namespace: "app"}, policies.Target{Repository: "app/web"}
	for _, c := range []struct {
		of           policies.Target
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
		{policies.Target{}, `{"method": "number_of_tags", "numTags": 100}`, "reaches", "app"},
	} {
		found := r.OfPolicy(r.finder, c.of, c.policy)
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
	if w := r.OfPolicy(r.finder, namespace, `{"method": "number_of_tags", "numTags": 100, "repositories": ["app/wbe"]}`)[policy.NoRepository]; !strings.Contains(w.Text, "default policies don't apply") {
		t.Errorf("a policy that never matches says %q", w.Text)
	}
	r.Reporter(web.NamespaceID, "prod", time.Hour)
	for _, text := range []string{`{"method": "max_bytes", "maxBytes": "100GiB"}`, `{"method": "last_pulled", "olderThan": "30d", "tagPattern": "^pr-"}`} {
		if found := r.OfPolicy(r.finder, namespace, text); len(found) > 0 {
			t.Errorf("%s, where a reporter is live: the warnings are %v", text, found)
		}
	}
}

// TestJudgeSetting: the default policy of the configuration is judged by the tags of all namespaces that
// haven't refused the defaults, also of those with policies of their own.
func TestJudgeSetting(t *testing.T) {
	t.Parallel()
	r := setup(t, 0)
	for _, path := range []string{"none/web", "own/web", "off/web"} {
		r.Tag(r.Repository(path), "latest", path, 10*autoprunetest.Day)
	}
	r.Policy(r.store, policies.Target{Namespace: "own"}, `{"method": "number_of_tags", "numTags": 100}`)
	r.Must(r.store.UseDefaults(t.Context(), "off", false))
	p := autoprunetest.Parsed(t, `{"method": "creation_date", "olderThan": "30d"}`)
	found := r.OfChange(r.finder, policies.Target{}, warnings.Change{Policy: &p, Setting: true})
	if w := found[policy.SelectsLatest]; len(found) != 1 || !slices.Equal(w.Examples, []string{"none/web:latest", "own/web:latest"}) {
		t.Errorf("the warnings are %+v", found)
	}
}

// TestJudgeUncoversDefaults: deleting a namespace's last policy lets the defaults apply.
func TestJudgeUncoversDefaults(t *testing.T) {
	t.Parallel()
	r := setup(t, 0)
	web := r.Repository("app/web")
	r.Tag(web, "old", "m", 10*24*time.Hour)
	app := policies.Target{Namespace: "app"}
	r.Policy(r.store, policies.Target{}, `{"method": "creation_date", "olderThan": "5d"}`)
	own := r.Policy(r.store, app, `{"method": "creation_date", "olderThan": "90d"}`)
	if w := r.OfChange(r.finder, app, warnings.Change{ID: own})[policy.Uncovers]; w.Number != 1 {
		t.Errorf("deleting the last policy uncovers %+v", w)
	}
}

// TestRefusingDefaultsIsQuick: a namespace without policies of its own refuses the registry's defaults. No policy
// is left there then, so nobody is asked, though there is no time to look at its tags.
func TestRefusingDefaultsIsQuick(t *testing.T) {
	t.Parallel()
	r := setup(t, time.Nanosecond)
	r.Tag(r.Repository("app/web"), "old", "m", 10*24*time.Hour)
	r.Policy(r.store, policies.Target{}, `{"method": "creation_date", "olderThan": "5d"}`)
	app := policies.Target{Namespace: "app"}
	for _, own := range []bool{false, true} {
		if own {
			r.Policy(r.store, app, `{"method": "creation_date", "olderThan": "90d"}`)
		}
		off := false
		found, err := r.finder.OfChange(t.Context(), app, warnings.Change{Defaults: &off})
		if err != nil || (len(found) > 0) != own {
			t.Errorf("with policies of its own: %v, and the namespace is asked %+v (%v)", own, found, err)
		}
	}
}

// TestJudgeDropsReporter: a policy that doesn't require a reporter any more must be warned of, with the
// reporters first that aren't live: it may rest for them now. So must one without a cap or windows.
func TestJudgeDropsReporter(t *testing.T) {
	t.Parallel()
	r := setup(t, 0)
	web := r.Repository("app/web")
	app := policies.Target{Namespace: "app"}
	id := r.Policy(r.store, app, `{"method": "number_of_tags", "numTags": 50, "requireReporter": ["prod-eu", "prod-us"], "maxDeleted": 9, "windows": [{"days": ["sun"]}]}`)
	r.Reporter(web.NamespaceID, "prod-eu", time.Hour)
	r.Reporter(web.NamespaceID, "prod-us", time.Hour)
	r.Exec("UPDATE holdreporters SET reported_at = reported_at - lease / 2 WHERE name = 'prod-us'")
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
		p := autoprunetest.Parsed(t, text)
		found := r.OfChange(r.finder, app, warnings.Change{ID: id, Policy: &p})
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
	r := setup(t, 0)
	web := r.Repository("app/web")
	for _, tag := range []string{"latest", "v1.0.0"} {
		r.Tag(web, tag, tag, 1000*autoprunetest.Day)
	}
	p := autoprunetest.Parsed(t, `{"method": "untagged", "olderThan": "14d"}`)
	found, err := r.finder.OfChange(t.Context(), policies.Target{Namespace: "app"}, warnings.Change{Policy: &p})
	if r.Must(err); len(found) != 0 {
		t.Errorf("the policy is warned of: %+v", found)
	}
}

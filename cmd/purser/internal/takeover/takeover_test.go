package takeover

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/purser-registry/purser/internal/policy"
	"github.com/purser-registry/purser/internal/upstream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// product starts an API with answers by path and query, as the product documents them. A request that has
// none gets 404.
func product(t *testing.T, answers map[string]string) *upstream.Registry {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, ok := answers[r.URL.RequestURI()]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, answer) //nolint:errcheck // in a test
	}))
	t.Cleanup(s.Close)
	r, err := upstream.Open(upstream.Options{Host: strings.TrimPrefix(s.URL, "http://")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// policies returns the policies of a plan as text, by what they are for.
func policies(p *Plan) map[string]string {
	list := make(map[string]string)
	for _, one := range p.Policies {
		list[strings.TrimSpace(one.Repository+" "+one.From)] = string(one.Policy)
	}
	return list
}

// same compares JSON.
func same(a, b string) bool {
	var x, y any
	return json.Unmarshal([]byte(a), &x) == nil && json.Unmarshal([]byte(b), &y) == nil && reflect.DeepEqual(x, y)
}

// mentions expects that each of the texts is in one of what was left out, and that nothing else was.
func mentions(t *testing.T, p *Plan, texts ...string) {
	t.Helper()
	if len(p.LeftOut) != len(texts) {
		t.Errorf("left out: %q", p.LeftOut)
	}
	for _, text := range texts {
		if !slices.ContainsFunc(p.LeftOut, func(l string) bool { return strings.Contains(l, text) }) {
			t.Errorf("%q doesn't mention %q", p.LeftOut, text)
		}
	}
}

func TestFromHarbor(t *testing.T) {
	t.Parallel()
	r := product(t, map[string]string{
		"/api/v2.0/projects/acme": `{"project_id":2,"name":"acme","owner_name":"admin","metadata":{"public":"false","retention_id":"4"}}`,
		"/api/v2.0/projects/acme/members?page=1&page_size=100": `[
			{"id":1,"project_id":2,"entity_name":"alice","entity_type":"u","entity_id":3,"role_id":1,"role_name":"projectAdmin"},
			{"entity_name":"bob","entity_type":"u","role_id":4,"role_name":"maintainer"},
			{"entity_name":"carol","entity_type":"u","role_id":2,"role_name":"developer"},
			{"entity_name":"dave","entity_type":"u","role_id":5,"role_name":"limitedGuest"},
			{"entity_name":"eve","entity_type":"u","role_id":77,"role_name":"auditor"},
			{"entity_name":"cn=dev,dc=example","entity_type":"g","role_id":2,"role_name":"developer"}]`,
		"/api/v2.0/robots?page=1&page_size=100&q=Level%3Dproject%2CProjectID%3D2": `[
			{"id":1,"name":"robot$acme+ci","description":"the pipeline","level":"project","disable":false,"expires_at":-1,
			 "permissions":[{"kind":"project","namespace":"acme","access":[{"resource":"repository","action":"pull"},{"resource":"repository","action":"push"},{"resource":"scan","action":"create"}]}]},
			{"name":"robot$acme+cluster","expires_at":-1,"permissions":[{"access":[{"resource":"repository","action":"pull"},{"resource":"repository","action":"list"}]}]},
			{"name":"robot$acme+nightly","expires_at":4102444800,"permissions":[{"access":[{"resource":"repository","action":"pull"}]}]},
			{"name":"robot$acme+forever","expires_at":9000000000000000000,"permissions":[{"access":[{"resource":"repository","action":"pull"}]}]},
			{"name":"robot$acme+cleaner","expires_at":-1,"permissions":[{"access":[{"resource":"repository","action":"pull"},{"resource":"artifact","action":"delete"}]}]},
			{"name":"robot$acme+old","expires_at":1500000000,"permissions":[{"access":[{"resource":"repository","action":"pull"}]}]},
			{"name":"robot$acme+off","disable":true,"expires_at":-1},
			{"name":"robot$acme+labels","expires_at":-1,"permissions":[{"access":[{"resource":"label","action":"create"}]}]}]`,
		"/api/v2.0/retentions/4": `{"id":4,"algorithm":"or","scope":{"level":"project","ref":2},"trigger":{"kind":"Schedule","settings":{"cron":"0 0 0 * * *"}},
			"rules":[{"id":1,"priority":0,"disabled":false,"action":"retain","template":"latestPushedK","params":{"latestPushedK":10},
			 "tag_selectors":[{"kind":"doublestar","decoration":"matches","pattern":"**","extras":"{\"untagged\":true}"}],
			 "scope_selectors":{"repository":[{"kind":"doublestar","decoration":"repoMatches","pattern":"**"}]}}]}`,
	})
	p, err := FromHarbor(context.Background(), r, "acme", "shop")
	if err != nil {
		t.Fatal(err)
	}
	end := time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)
	wantRobots := []Robot{{Name: "ci", Description: "the pipeline", Role: "writer"}, {Name: "cluster", Role: "reader"}, {Name: "nightly", Role: "reader", Expires: &end},
		{Name: "cleaner", Role: "maintainer", Actions: []string{"pull", "delete"}}}
	if !reflect.DeepEqual(p.Robots, wantRobots) {
		t.Errorf("robots: %+v", p.Robots)
	}
	wantRoles := []Role{{"alice", "administrator"}, {"bob", "maintainer"}, {"carol", "writer"}, {"dave", "reader"}}
	if !reflect.DeepEqual(p.Roles, wantRoles) {
		t.Errorf("roles: %+v", p.Roles)
	}
	if len(p.Policies) != 1 || !same(string(p.Policies[0].Policy), `{"method":"creation_date","olderThan":"1d","mode":"observe","keep":[{"newest":10,"countImages":true}]}`) {
		t.Errorf("policies: %+v", policies(p))
	}
	mentions(t, p, "eve", "cn=dev", "old: it has expired", "forever: it expires after", "off: it is disabled", "labels: it neither")
	if _, err := FromHarbor(context.Background(), r, "other", "other"); !upstream.Missing(err) {
		t.Errorf("a project that isn't there: %v", err)
	}
}

// TestPlanKeepsEmptyLimits expects that a robot that may do nothing is one in the plan's JSON too: a limit
// that is left out is none.
func TestPlanKeepsEmptyLimits(t *testing.T) {
	t.Parallel()
	for _, actions := range [][]string{nil, {}, {"pull"}} {
		text, err := json.Marshal(Robot{Name: "ci", Actions: actions})
		if err != nil {
			t.Fatal(err)
		}
		var read Robot
		if err := json.Unmarshal(text, &read); err != nil || (read.Actions == nil) != (actions == nil) || !slices.Equal(read.Actions, actions) {
			t.Errorf("%#v was written, %#v is read (%v): %s", actions, read.Actions, err, text)
		}
	}
}

func TestFromQuay(t *testing.T) {
	t.Parallel()
	const org = "/api/v1/organization/acme"
	r := product(t, map[string]string{
		org: `{"name":"acme","is_admin":true,"is_member":true,"teams":{"owners":{"name":"owners","description":"","role":"admin","can_view":true},
			"developers":{"name":"developers","description":"who builds","role":"member"},"synced":{"name":"synced","role":"creator"}},"ordered_teams":["owners","developers","synced"]}`,
		org + "/team/owners/members":                        `{"name":"owners","members":[{"name":"alice","kind":"user","is_robot":false,"invited":false}],"can_edit":true}`,
		org + "/team/owners/permissions":                    `{"permissions":[]}`,
		org + "/team/developers/members":                    `{"members":[{"name":"bob","kind":"user"},{"name":"acme+ci","kind":"user","is_robot":true},{"name":"carol","invited":true}]}`,
		org + "/team/developers/permissions":                `{"permissions":[{"repository":{"name":"app","is_public":false},"role":"write"}]}`,
		org + "/team/synced/members":                        `{"members":[{"name":"dave"}],"synced":{"service":"ldap"}}`,
		org + "/team/synced/permissions":                    `{"permissions":[]}`,
		org + "/robots?token=false":                         `{"robots":[{"name":"acme+ci","description":"the pipeline","created":null,"last_accessed":null,"teams":[],"repositories":["app"]}]}`,
		org + "/robots/ci/permissions":                      `{"permissions":[{"repository":{"name":"app","is_public":false},"role":"read"},{"repository":{"name":"team/web"},"role":"admin"}]}`,
		org + "/autoprunepolicy/":                           `{"policies":[{"uuid":"1","method":"number_of_tags","value":10,"tagPattern":"^pr-","tagPatternMatches":false},{"uuid":"2","method":"creation_date","value":"7d","tagPattern":null,"tagPatternMatches":null},{"uuid":"3","method":"creation_date","value":"7d","tagPattern":"(?<!x)y"}]}`,
		"/api/v1/repository?namespace=acme&public=true":     `{"repositories":[{"namespace":"acme","name":"app"},{"namespace":"acme","name":"team/web"}]}`,
		"/api/v1/repository/acme/team/web/autoprunepolicy/": `{"policies":[{"uuid":"4","method":"creation_date","value":"30d"}]}`,
	})
	p, err := FromQuay(context.Background(), r, "acme", "shop")
	if err != nil {
		t.Fatal(err)
	}
	wantTeams := []Team{
		{Name: "developers", Description: "who builds", Members: []string{"bob", "shop+ci"}, Roles: []RepositoryRole{{"shop/app", "writer"}}},
		{Name: "owners", Role: "administrator", Members: []string{"alice"}},
		{Name: "synced", Role: "writer"},
	}
	if !reflect.DeepEqual(p.Teams, wantTeams) {
		t.Errorf("teams: %+v", p.Teams)
	}
	wantRobots := []Robot{{Name: "ci", Description: "the pipeline", Roles: []RepositoryRole{{"shop/app", "reader"}, {"shop/team/web", "administrator"}}}}
	if !reflect.DeepEqual(p.Robots, wantRobots) {
		t.Errorf("robots: %+v", p.Robots)
	}
	want := map[string]string{
		"the policy number_of_tags, tags ^pr-":                    `{"method":"number_of_tags","value":10,"tagPattern":"^pr-","tagPatternMatches":false,"mode":"observe"}`,
		"the policy creation_date":                                `{"method":"creation_date","value":"7d","mode":"observe"}`,
		"shop/team/web the policy creation_date of shop/team/web": `{"method":"creation_date","value":"30d","mode":"observe"}`,
	}
	got := policies(p)
	for from, policy := range want {
		if !same(got[from], policy) {
			t.Errorf("%s: %s, want %s", from, got[from], policy)
		}
	}
	if len(got) != len(want) {
		t.Errorf("policies: %v", got)
	}
	mentions(t, p, "carol", "the team synced", "(?<!x)y")
}

// rule returns a retention rule as Harbor's API has it.
func rule(t *testing.T, template, number, decoration, tags, repositories string) retentionRule {
	t.Helper()
	params := "{}"
	if number != "" {
		params = fmt.Sprintf(`{%q:%s}`, template, number)
	}
	var r retentionRule
	text := fmt.Sprintf(`{"action":"retain","template":%q,"params":%s,"tag_selectors":[{"kind":"doublestar","decoration":%q,"pattern":%q}],
		"scope_selectors":{"repository":[{"kind":"doublestar","decoration":"repoMatches","pattern":%q}]}}`, template, params, decoration, tags, repositories)
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRetention(t *testing.T) {
	t.Parallel()
	type rules = []retentionRule
	for name, test := range map[string]struct {
		rules rules
		want  []string
		left  []string
	}{
		"the newest, and releases": {
			rules{rule(t, "latestPushedK", "10", "matches", "**", "**"), rule(t, "always", "", "matches", "release-*", "**")},
			[]string{`{"method":"creation_date","olderThan":"1d","keep":[{"newest":10,"countImages":true}]}`,
				`{"method":"creation_date","olderThan":"100y","tagPattern":"^(?:release-.*)$","tagPatternMatches":true,"keep":[{"tagPattern":".*"}]}`}, nil,
		},
		"the longest time": {
			rules{rule(t, "nDaysSinceLastPush", "30", "matches", "**", "**"), rule(t, "lastXDays", "7", "matches", "**", "**"), rule(t, "nDaysSinceLastPull", "90", "matches", "**", "**")},
			[]string{`{"method":"creation_date","olderThan":"30d","keep":[{"usedWithin":"90d"}]}`}, nil,
		},
		"all but some tags, in some repositories": {
			rules{rule(t, "latestPushedK", "3", "excludes", "{pr,mr}-?*", "{app,team/*}")},
			[]string{`{"method":"creation_date","olderThan":"1d","repositories":["shop/app","shop/team/*"]}`,
				`{"method":"creation_date","olderThan":"100y","repositories":["shop/app","shop/team/*"],"tagPattern":"^(?:(?:pr|mr)-..*)$","tagPatternMatches":false,"keep":[{"newest":3,"countImages":true}]}`}, nil,
		},
		// In app all tags of 30 days stay, though the rule for app keeps one only: a keep rule says so there.
		"repositories in common": {
			rules{rule(t, "nDaysSinceLastPush", "30", "matches", "**", "**"), rule(t, "latestPushedK", "1", "matches", "**", "app")},
			[]string{`{"method":"creation_date","olderThan":"1d","keep":[{"usedWithin":"30d"}]}`,
				`{"method":"creation_date","olderThan":"1d","repositories":["shop/app"],"keep":[{"newest":1,"countImages":true}]}`}, nil,
		},
		"everything": {
			rules{rule(t, "always", "", "matches", "**", "**"), rule(t, "latestPushedK", "1", "matches", "**", "**")},
			[]string{`{"method":"creation_date","olderThan":"100y","keep":[{"tagPattern":".*"},{"newest":1,"countImages":true}]}`}, nil,
		},
		"what no keep rule says": {
			rules{rule(t, "latestPushedK", "10", "matches", "**", "**"), rule(t, "latestPulledN", "10", "matches", "**", "app")},
			nil, []string{"latestPulledN 10, tags matches **, repositories repoMatches app: it counts by last use", "all retention rules"},
		},
		"strange patterns": {
			rules{rule(t, "latestPushedK", "10", "matches", "[ab]*", "**")}, nil, []string{"has more than", "all retention rules"},
		},
		"open braces": {rules{rule(t, "latestPushedK", "10", "matches", "{a", "**")}, nil, []string{"isn't closed", "all retention rules"}},
		"no number":   {rules{rule(t, "latestPushedK", "", "matches", "**", "**")}, nil, []string{"number", "all retention rules"}},
		"disabled":    {rules{{Disabled: true}}, nil, nil},
	} {
		p := newPlan("harbor.example.com/acme", "shop")
		p.retention(test.rules)
		if len(p.Policies) != len(test.want) {
			t.Errorf("%s: %v", name, policies(p))
			continue
		}
		for i, want := range test.want {
			want = strings.TrimSuffix(want, "}") + `,"mode":"observe"}`
			if !same(string(p.Policies[i].Policy), want) {
				t.Errorf("%s: %s, want %s", name, p.Policies[i].Policy, want)
			}
			if _, err := policy.Parse(p.Policies[i].Policy); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		mentions(t, p, test.left...)
	}
}

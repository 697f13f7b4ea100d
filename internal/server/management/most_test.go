package management_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/hold"
	"github.com/purser-registry/purser/internal/protection"
	"github.com/purser-registry/purser/internal/server/servertest"
	"github.com/purser-registry/purser/internal/webhook"
)

// fewAllowed starts a registry in which there may be three of everything.
func fewAllowed(t *testing.T, most int) *registry {
	t.Helper()
	r := onDatabase(t, func(o *servertest.Options, d *db.DB) {
		var err error
		o.Access = &auth.Options{AnonymousPull: true, Most: auth.Most{Robots: most, Teams: most, TeamMembers: most, Tokens: most, FederationRules: most, Permissions: most}}
		o.Management.Protection = protection.New(protection.Options{DB: o.Catalog.DB(), Most: most})
		if o.Management.Webhooks, err = webhook.New(webhook.Options{DB: d, MostHooks: most, Log: o.Log}); err != nil {
			t.Fatal(err)
		}
		if o.Management.Autoprune, err = autoprune.New(autoprune.Options{DB: d, Catalog: o.Catalog, MostPolicies: most, Log: o.Log}); err != nil {
			t.Fatal(err)
		}
		if o.Management.Holds, err = hold.New(hold.Options{DB: d, MostReporters: most, Log: o.Log}); err != nil {
			t.Fatal(err)
		}
	})
	r.AddAccount(t, "root", true)
	return r.as("root")
}

// limitedThing is something of which there may be a number: the request that makes the n-th one,
// the status of the refusal, its setting, and what counts them.
type limitedThing struct {
	setting, method, path, body string // with the number at %d
	refused                     int
	count                       string
}

var limitedThings = []limitedThing{
	{"limits.robots", "PUT", "/organization/acme/robots/r%d", "", 409, "accounts WHERE kind = 'robot'"},
	{"limits.teams", "PUT", "/organization/acme/team/t%d", `{"role":"member"}`, 400, "teams"},
	{"limits.team_members", "PUT", "/organization/acme/team/t0/members/p%d", "", 400, "teammembers"},
	{"limits.tokens", "POST", "/user/apptoken", `{"title":"%d"}`, 400, "credentials WHERE kind = 'personal'"},
	{"limits.permissions", "PUT", "/organization/acme/permissions/user/p%d", `{"role":"read"}`, 400, "grants WHERE repository_id IS NULL"},
	{"limits.permissions", "PUT", "/repository/acme/app/permissions/user/p%d", `{"role":"read"}`, 400, "grants WHERE repository_id IS NOT NULL"},
	{"limits.policies", "POST", "/organization/acme/autoprunepolicy", `{"method":"number_of_tags","numTags":1%d}`, 400, "namespaceautoprunepolicy"},
	{"limits.protection_rules", "POST", "/organization/acme/tagprotection", `{"pattern":"^v%d"}`, 400, "tagprotectionrules"},
	{"limits.webhooks", "POST", "/organization/acme/webhook", `{"url":"https://hooks.example.com/%d","events":["push"]}`, 400, "webhooks"},
	{"limits.reporters", "PUT", "/holds/r%d?namespace=acme", `{"digests":[]}`, 409, "holdreporters"},
}

// make makes the n-th one.
func (l limitedThing) make(t *testing.T, r *registry, n int) answer {
	t.Helper()
	fill := func(text string) string { return strings.ReplaceAll(text, "%d", fmt.Sprint(n)) }
	return r.Manage(t, l.method, fill(l.path), fill(l.body))
}

// TestMostOfAll: of each thing there may be three. Clients make many at the same time. Three are
// made; the refusals of the others name the setting and what one can do.
func TestMostOfAll(t *testing.T) {
	t.Parallel()
	const most, makers = 3, 8
	r := fewAllowed(t, most)
	r.Put(t, "acme/app", "v1", r.Simple(t, "acme/app", 1, nil))
	for i := range makers {
		r.AddAccount(t, fmt.Sprintf("p%d", i), false)
	}
	// The team whose members are counted is there in any case.
	r.Manage(t, "PUT", "/organization/acme/team/t0", `{"role":"member"}`).WantStatus(t, 200)
	for _, l := range limitedThings {
		answers := make(chan answer, makers)
		var all sync.WaitGroup
		for i := range makers {
			all.Go(func() { answers <- l.make(t, r, i) })
		}
		all.Wait()
		close(answers)
		made := 0
		for a := range answers {
			if a.StatusCode < 300 {
				made++
				continue
			}
			a.Refused(t, l.refused, "invalid_request", "may have 3 .* has them already: .*raise the setting "+l.setting)
		}
		if n := r.rows(t, l.count); made != most || n != most {
			t.Errorf("%s: %d were made, and there are %d", l.setting, made, n)
		}
	}
}

// TestMoreThanAllowed: an operator lowers the limits below what there is. Everything stays as it
// is and can be changed, and only more of it is refused.
func TestMoreThanAllowed(t *testing.T) {
	t.Parallel()
	r := fewAllowed(t, 1)
	r.Put(t, "acme/app", "v1", r.Simple(t, "acme/app", 1, nil))
	r.AddAccount(t, "p0", false)
	for _, l := range limitedThings {
		l.make(t, r, 0)
	}
	// As before the limit was lowered: a second one of each.
	r.Exec(t, "INSERT INTO accounts (name, kind, top_level_namespace_id) SELECT 'acme+old', 'robot', id FROM top_level_namespaces WHERE name = 'acme'")
	r.Exec(t, "INSERT INTO teams (top_level_namespace_id, name) SELECT id, 'old' FROM top_level_namespaces WHERE name = 'acme'")
	r.Exec(t, `INSERT INTO robotfederations (id, account_id, issuer, audience, claims)
		SELECT gen_random_uuid(), id, 'https://gitlab.com', 'purser' || i, '{"sub": "project_path:acme/app:ref_type:branch:ref:main"}' FROM accounts, generate_series(1, 2) i WHERE name = 'acme+old'`)
	r.Exec(t, "INSERT INTO credentials (id, account_id, kind, secret_hash) SELECT gen_random_uuid(), id, 'personal', 'x' FROM accounts WHERE name = 'root'")
	for _, l := range limitedThings[:4] {
		before := r.rows(t, l.count)
		l.make(t, r, 1).WantStatus(t, map[bool]int{true: l.refused, false: 404}[l.setting != "limits.team_members"])
		if n := r.rows(t, l.count); n != before {
			t.Errorf("%s: there were %d, and there are %d", l.setting, before, n)
		}
	}
	r.Manage(t, "PATCH", "/organization/acme/robots/old", `{"description":"still here"}`).WantStatus(t, 200)
	r.Manage(t, "PUT", "/organization/acme/team/old", `{"role":"reader"}`).WantStatus(t, 200)
	const rules = "/organization/acme/robots/old/federation"
	var list []map[string]any
	r.Manage(t, "GET", rules, "").Into(t, 200, &list)
	r.Manage(t, "POST", rules, encode(t, list)).WantStatus(t, 200)
	r.Manage(t, "POST", rules, encode(t, append(list, list[0]))).Refused(t, 400, "invalid_request", "limits.federation_rules")
	r.Manage(t, "POST", rules, encode(t, list[:1])).WantStatus(t, 200)
	r.Manage(t, "POST", rules, encode(t, list)).Refused(t, 400, "invalid_request", "limits.federation_rules")
}

// TestEndingSecretsAtOnce: a robot has as many secrets as it may have. It gets a new one that ends them
// at once, and none while they stay valid.
func TestEndingSecretsAtOnce(t *testing.T) {
	t.Parallel()
	for _, most := range []int{1, 2} {
		r := fewAllowed(t, most)
		r.Manage(t, "POST", "/organization", `{"name":"acme"}`).WantStatus(t, 201)
		const path = "/organization/acme/robots/ci"
		secrets := make([]struct{ Token string }, most+2)
		r.Manage(t, "PUT", path, "").Into(t, 201, &secrets[0])
		for i := 1; i < most; i++ {
			r.Manage(t, "POST", path+"/regenerate", `{"overlap":600}`).Into(t, 200, &secrets[i])
		}
		r.Manage(t, "POST", path+"/regenerate", `{"overlap":600}`).Refused(t, 400, "invalid_request", "limits.tokens")
		for i := most; i < len(secrets); i++ {
			r.Manage(t, "POST", path+"/regenerate", "").Into(t, 200, &secrets[i])
			for j, secret := range secrets[:i+1] {
				want := 401
				if j == i {
					want = 200
				}
				r.Do(t, "GET", "/v2/", "", servertest.Basic("acme+ci", secret.Token)...).WantStatus(t, want)
			}
		}
	}
}

// rows counts rows of a table.
func (r *registry) rows(t *testing.T, of string) (n int) {
	t.Helper()
	if err := r.DB.Pool.QueryRow(t.Context(), "SELECT count(*) FROM "+of).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}
